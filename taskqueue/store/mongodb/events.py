"""Keeps the event log as numbered pages without holes; readers stop before a missing number.

A page holds the events of one write. A cursor is the number of the last page that was read, and how many events of
the next one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import datetime

from bson import ObjectId
from pymongo import ASCENDING, ReturnDocument
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError
from pymongo.read_concern import ReadConcern

from taskqueue.errors import CursorTooOld, StoreContended
from taskqueue.model.events import FLUSHED
from taskqueue.model.ids import JobId, new_id
from taskqueue.model.reading import readable, text
from taskqueue.model.record import Status
from taskqueue.model.timestamps import EPOCH
from taskqueue.store import OLDEST, Event
from taskqueue.store.arguments import CURSOR_DIGITS
from taskqueue.store.mongodb.connection import ACKNOWLEDGED, Connection, find_and_modify
from taskqueue.store.mongodb.documents import Document, id_in, needed_time_in
from taskqueue.store.tries import MOST_TRIES

log = logging.getLogger(__name__)

GAP_TIMEOUT = 0.25
"""Seconds that a reader waits for numbers that were taken but not used yet; then it writes empty pages."""

GAP_PAUSE = 0.01
"""Seconds between two reads of them; most are there at the second read."""

DUPLICATE = 11000
"""The server's error code for a duplicate key."""

PAGE = 500
"""Maximum number of events on one page; a document has room for many more."""

_ANY = ReadConcern("local")
_COUNTER = {"_id": "events"}
_BLANK = Event(id="", name="", at=EPOCH)


class EventLog:
    """The events of a store.

    Numbers are taken from a counter before the events are inserted, so a writer may be slow, or dead. A writer whose
    number a reader has filled takes another: readers miss no event, and none comes late.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def record(self, events: Sequence[Event]) -> None:
        """Record the events in this order; raise ``StoreContended`` if readers fill the numbers every time."""
        collection = self._connection.collections.events
        pending = [events[first : first + PAGE] for first in range(0, len(events), PAGE)]
        for _ in range(MOST_TRIES):
            if not pending:
                return
            first = self._take(len(pending))
            numbered = [_page(first + index, page) for index, page in enumerate(pending)]
            refused = _insert(collection, numbered)
            pending = [pending[index] for index in refused]
            if pending:
                self._catch_up()
        if pending:
            raise StoreContended(self._connection.address.shown, "the event log", MOST_TRIES)

    def since(self, cursor: str | None, limit: int = 1000) -> tuple[list[Event], str]:
        """Return up to ``limit`` events after the cursor and the cursor after them; raise ``CursorTooOld``.

        It returns every event that exists at the call, since no bell rings for them again; so it waits for holes.
        """
        reached, pruned = self._reached() if cursor in (None, OLDEST) else (0, 0)
        if cursor is None:
            return [], str(reached)
        start, read = (pruned, 0) if cursor == OLDEST else _position(cursor)
        pages = self._behind(start, read + limit)
        if not pages or pages[0]["_id"] > start + 1:
            self._refuse_unknown(start)
        whole = self._without_holes(start, pages)
        events = [event for page in whole for event in _events(page)][read : read + limit]
        if len(events) == limit:
            return events, events[-1].cursor
        return events, _cursor(whole[-1]["_id"], 0) if whole else _cursor(start, read)

    def cursor_at(self, at: datetime) -> str:
        """Return the cursor before the first page from a time on."""
        _, pruned = self._reached()
        return _cursor(max(pruned, self._first_at(at) - 1), 0)

    def _first_at(self, since: datetime) -> int:
        """Return the number of the first page from a time on, or of the last page, by a binary search."""
        pages = self._connection.collections.events
        end, first = self._reached()
        while first < end:
            middle = (first + end) // 2
            page = pages.find_one({"_id": {"$gte": middle}}, {"at": True}, sort=[("_id", ASCENDING)])
            is_before = page is not None and isinstance(page.get("at"), datetime) and page["at"] < since
            first, end = (middle + 1, end) if is_before else (first, middle)
        return first

    def of_job(self, id: JobId, since: datetime, limit: int) -> list[Event]:
        """Return the events of a job on ``limit`` pages from a time on."""
        pages, first = self._connection.collections.events, self._first_at(since)
        documents = pages.find({"_id": {"$gte": first, "$lt": first + limit}, "events.job": id}).sort("_id", ASCENDING)
        return [event for page in documents for event in _events(page) if event.job_id == id]

    def prune(self, before: datetime, limit: int) -> int:
        """Remove up to ``limit`` pages of events that were recorded before the time, and return how many."""
        events = self._connection.collections.events
        oldest = events.find({}, {"at": True}).sort("_id", ASCENDING).limit(limit)
        old_pages = []
        for page in oldest:
            at = page.get("at")
            if isinstance(at, datetime) and at >= before:
                break
            old_pages.append(page["_id"])
        if not old_pages:
            return 0
        self._connection.collections.facts.update_one(_COUNTER, {"$max": {"pruned": old_pages[-1]}}, upsert=True)
        return events.delete_many({"_id": {"$lte": old_pages[-1]}}).deleted_count

    def forget(self, now: datetime) -> None:
        """Remove all events, and record the flush right after the last one, so that its reader misses nothing.

        This rings for all readers and waiters, whose jobs are gone.
        """
        last: Document = {"$ifNull": ["$reached", 0]}
        counter: Document = self._connection.collections.facts.find_one_and_update(  # type: ignore[assignment]
            _COUNTER,
            [{"$set": {"pruned": last, "reached": {"$add": [last, 1]}}}],
            upsert=True,
            return_document=ReturnDocument.AFTER,
        )
        events, number = self._connection.collections.events, int(counter["reached"])
        event = Event(id=f"{FLUSHED}:{new_id()}", name=FLUSHED, at=now)
        while _insert(events, [{**_page(number, [event]), FLUSHED: True}]):  # a reader has filled this number
            number = self._take(1)
        events.delete_many({"_id": {"$lte": counter["pruned"]}})

    def _take(self, count: int) -> int:
        """Return the first of ``count`` numbers that nobody else gets, unless a failover resets the counter."""
        facts = self._connection.collections.facts.with_options(write_concern=ACKNOWLEDGED)
        counter = find_and_modify(facts, _COUNTER, {"$inc": {"reached": count}}, upsert=True, new=True)
        assert counter is not None, "with upsert there is one"
        return int(counter["reached"]) - count + 1

    def _catch_up(self) -> None:
        """Bring the counter to the last number in use."""
        last = self._connection.collections.events.find_one({}, {"_id": True}, sort=[("_id", -1)])
        if last is not None:
            self._connection.collections.facts.update_one(_COUNTER, {"$max": {"reached": last["_id"]}})

    def _behind(self, start: int, limit: int) -> list[Document]:
        """Return as many pages after a number as it takes for this many events."""
        pages = []
        with self._connection.collections.events.find({"_id": {"$gt": start}}) as cursor:
            for page in cursor.sort("_id", ASCENDING).limit(limit):
                if not isinstance(page.get("events"), list):
                    log.error("skipped an unreadable page of the event log: %s", page["_id"])
                    page["events"] = []
                pages.append(page)
                limit -= len(page["events"])
                if limit <= 0:
                    break
        return pages

    def _reached(self, concern: ReadConcern | None = None) -> tuple[int, int]:
        """Return the last number that was taken and the last one that was pruned."""
        counter = self._connection.collections.facts.with_options(read_concern=concern).find_one(_COUNTER) or {}
        return int(counter.get("reached", 0)), int(counter.get("pruned", 0))

    def _refuse_unknown(self, start: int) -> None:
        """Raise ``CursorTooOld`` if the pages after the number are pruned, or if this store has not reached it.

        A new primary has all that a majority has, but does not know at once that a majority has it: it is asked for
        what it has, as it would deny the last pages that its predecessor has shown.
        """
        reached, pruned = self._reached(_ANY)
        if pruned <= start <= reached:
            return
        pages = self._connection.collections.events.with_options(read_concern=_ANY)
        if start < pruned or pages.find_one({"_id": start}, {"_id": True}) is None:
            raise CursorTooOld(str(start))

    def _without_holes(self, start: int, known_pages: Sequence[Document]) -> list[Document]:
        """Return these pages, and the missing ones between them, which are empty if their writers are too late."""
        pages = {int(page["_id"]): page for page in known_pages}
        last = max(pages, default=start)
        deadline = time.monotonic() + GAP_TIMEOUT
        while missing := [number for number in range(start + 1, last) if number not in pages]:
            time.sleep(GAP_PAUSE)
            if time.monotonic() > deadline:
                self._fill(missing, pages[last]["at"])
            missing_pages = self._connection.collections.events.find({"_id": {"$in": missing}})
            pages.update((int(page["_id"]), page) for page in missing_pages)
        return [pages[number] for number in sorted(pages)]

    def _fill(self, numbers: Sequence[int], at: datetime) -> None:
        """Fill the numbers with empty pages, unless their writers have just used them."""
        nothing: list[Document] = [{"_id": number, "at": at, "events": []} for number in numbers]
        _insert(self._connection.collections.events, nothing)


def _insert(events: Collection[Document], numbered: Sequence[Document]) -> list[int]:
    """Insert the pages, and return the indexes of those whose numbers are already used."""
    try:
        events.insert_many(numbered, ordered=False)
    except BulkWriteError as error:
        refused = error.details["writeErrors"]
        if error.details["writeConcernErrors"] or any(failure["code"] != DUPLICATE for failure in refused):
            raise
        return sorted(int(failure["index"]) for failure in refused)
    return []


def status_event(job_id: ObjectId, claims: int, name: str, at: datetime, status: Status) -> Event:
    """Return the event of a transition. There are three for every job, so this avoids setting all fields one by one."""
    made = Event.__new__(Event)
    own = {"id": f"{job_id}:{claims}:{name}", "job_id": job_id, "name": name, "at": at, "status": status}
    object.__setattr__(made, "__dict__", {**_BLANK.__dict__, **own})
    return made


def _page(number: int, events: Sequence[Event]) -> Document:
    return {"_id": number, "at": max(event.at for event in events), "events": [_document(event) for event in events]}


def _document(event: Event) -> Document:
    document: Document = {"key": event.id, "name": event.name, "at": event.at}
    if event.status is None:
        return {**document, "node": event.node, "about": dict(event.about)}
    return {**document, "job": event.job_id, "status": int(event.status)}


def _events(page: Document) -> list[Event]:
    """Return the events of a page, each with the cursor after it."""
    number, last = page["_id"], len(page["events"])
    counts = range(1, last + 1)
    cursors = [_cursor(number, 0) if read == last else _cursor(number - 1, read) for read in counts]
    return list(readable(zip(page["events"], cursors, strict=True), _event, "an event"))


def _event(placed: tuple[Document, str]) -> Event:
    document, cursor = placed
    status = document.get("status")
    return Event(
        id=document["key"],
        name=text(document["name"]),
        at=needed_time_in(document["at"]),
        job_id=id_in(document.get("job")),
        status=None if status is None else Status(status),
        node=document.get("node", ""),
        about=document.get("about", {}),
        cursor=cursor,
    )


def _cursor(number: int, read: int) -> str:
    return f"{number}.{read}" if read else str(number)


def _position(cursor: str) -> tuple[int, int]:
    """Return the number of the last page that was read in full, and how many events of the next page were read."""
    number, _, read = cursor.partition(".")
    if not all(part.isascii() and part.isdigit() and len(part) <= CURSOR_DIGITS for part in (number, read or "0")):
        raise CursorTooOld(cursor)
    return int(number), int(read or 0)
