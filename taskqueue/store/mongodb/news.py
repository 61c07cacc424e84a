"""What happened, in an order without holes: each event takes a number, and readers stop before one that is missing."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import datetime

from bson import ObjectId
from pymongo import ASCENDING, ReturnDocument
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError, PyMongoError

from taskqueue.errors import CursorTooOld
from taskqueue.model.record import Status
from taskqueue.store import OLDEST, Event
from taskqueue.store.mongodb.connection import SEEN, Connection
from taskqueue.store.mongodb.documents import Document

log = logging.getLogger(__name__)

GAP_PATIENCE = 0.25
"""Seconds that a reader waits for a number whose writer took it and has not used it; then it is filled with nothing."""

GAPS_KEPT = 1000
DUPLICATE = 11000
_COUNTER = {"_id": "events"}


class News:
    """The events of a store.

    Numbers are taken from a counter before the events are inserted, so one writer may be behind another, or dead. A
    writer that comes to use a number after a reader has filled it takes another: nothing is missed, nothing comes late.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._gaps: dict[int, float] = {}

    def tell(self, events: Sequence[Event]) -> None:
        """Record the events in this order."""
        collection = self._connection.collections.events
        pending = list(events)
        while pending:
            first = self._take(len(pending))
            numbered = [_document(first + place, event) for place, event in enumerate(pending)]
            refused = _insert(collection, numbered)
            pending = [pending[place] for place in refused]
            if pending:
                self._catch_up()

    def mention(self, events: Sequence[Event]) -> None:
        """Record events if the server lets us: what they tell of is in, and more news of these jobs will follow."""
        try:
            self.tell(events)
        except PyMongoError as error:
            log.warning("%d events could not be told: %s", len(events), error)

    def since(self, cursor: str | None, limit: int) -> tuple[list[Event], str]:
        """Return up to ``limit`` events behind the cursor and the cursor behind them; raise ``CursorTooOld``."""
        reached, pruned = self._reached() if cursor in (None, OLDEST) else (0, 0)
        if cursor is None:
            return [], str(reached)
        start = pruned if cursor == OLDEST else _number(cursor)
        kept = self._behind(start, limit)
        if not kept or kept[0]["_id"] > start + 1:
            self._refuse_unknown(start)
        whole, gap = _without_holes(start, kept)
        if gap is not None and not whole and self._given_up(start + 1):
            self._fill(start + 1, gap)
            whole, _ = _without_holes(start, self._behind(start, limit))
        end = whole[-1]["_id"] if whole else start
        return [_event(one) for one in whole if "key" in one], str(end)

    def prune(self, before: datetime, limit: int) -> int:
        """Remove up to ``limit`` events that were recorded before the time, and return how many."""
        events = self._connection.collections.events
        oldest = events.find({}, {"at": True}).sort("_id", ASCENDING).limit(limit)
        gone = []
        for one in oldest:
            if one["at"] >= before:
                break
            gone.append(one["_id"])
        if not gone:
            return 0
        self._connection.collections.facts.update_one(_COUNTER, {"$max": {"pruned": gone[-1]}}, upsert=True)
        return events.delete_many({"_id": {"$lte": gone[-1]}}).deleted_count

    def forget(self) -> None:
        """Make every cursor that was given out too old."""
        after_all: Document = {"$add": [{"$ifNull": ["$reached", 0]}, 1]}
        self._connection.collections.facts.update_one(
            _COUNTER, [{"$set": {"reached": after_all}}, {"$set": {"pruned": "$reached"}}], upsert=True
        )

    def _take(self, count: int) -> int:
        """Return the first of ``count`` numbers that nobody else gets, unless a failover turns the counter back."""
        facts = self._connection.collections.facts.with_options(write_concern=SEEN)
        counter: Document = facts.find_one_and_update(  # type: ignore[assignment]  # with upsert never None
            _COUNTER, {"$inc": {"reached": count}}, upsert=True, return_document=ReturnDocument.AFTER
        )
        return int(counter["reached"]) - count + 1

    def _catch_up(self) -> None:
        """Bring the counter to the last number in use."""
        last = self._connection.collections.events.find_one({}, {"_id": True}, sort=[("_id", -1)])
        if last is not None:
            self._connection.collections.facts.update_one(_COUNTER, {"$max": {"reached": last["_id"]}})

    def _behind(self, start: int, limit: int) -> list[Document]:
        events = self._connection.collections.events
        return list(events.find({"_id": {"$gt": start}}).sort("_id", ASCENDING).limit(limit))

    def _reached(self) -> tuple[int, int]:
        """Return the last number that was taken and the last one that was pruned."""
        counter = self._connection.collections.facts.find_one(_COUNTER) or {}
        return int(counter.get("reached", 0)), int(counter.get("pruned", 0))

    def _refuse_unknown(self, start: int) -> None:
        """Raise ``CursorTooOld`` for a number whose followers are gone, or that this store has not come to."""
        reached, pruned = self._reached()
        if pruned <= start <= reached:
            return
        if start < pruned or self._connection.collections.events.find_one({"_id": start}, {"_id": True}) is None:
            raise CursorTooOld(str(start))

    def _given_up(self, number: int) -> bool:
        """Tell whether the number has been missing for long enough."""
        now = time.monotonic()
        if len(self._gaps) > GAPS_KEPT:
            self._gaps.clear()
        since = self._gaps.setdefault(number, now)
        if now - since < GAP_PATIENCE:
            return False
        del self._gaps[number]
        return True

    def _fill(self, first: int, behind: int) -> None:
        """Fill the numbers up to ``behind`` with nothing, unless their writers have just used them."""
        after = self._connection.collections.events.find_one({"_id": behind}, {"at": True})
        if after is not None:
            nothing = [{"_id": number, "at": after["at"]} for number in range(first, behind)]
            _insert(self._connection.collections.events, nothing)


def _insert(events: Collection[Document], numbered: Sequence[Document]) -> list[int]:
    """Insert and return the places of those whose number is used already."""
    try:
        events.insert_many(numbered, ordered=False)
    except BulkWriteError as error:
        refused = error.details["writeErrors"]
        if error.details["writeConcernErrors"] or any(one["code"] != DUPLICATE for one in refused):
            raise
        return sorted(int(one["index"]) for one in refused)
    return []


def told(job_id: ObjectId, claims: int, name: str, at: datetime, status: Status) -> Event:
    """Return the event of a transition."""
    return Event(id=f"{job_id}:{claims}:{name}", job_id=job_id, name=name, at=at, status=status)


def _document(number: int, event: Event) -> Document:
    kept: Document = {"_id": number, "key": event.id, "name": event.name, "at": event.at}
    if event.status is None:
        return {**kept, "node": event.node, "about": dict(event.about)}
    return {**kept, "job": event.job_id, "status": int(event.status)}


def _event(kept: Document) -> Event:
    status = kept.get("status")
    return Event(
        id=kept["key"],
        name=kept["name"],
        at=kept["at"],
        job_id=kept.get("job"),
        status=None if status is None else Status(status),
        node=kept.get("node", ""),
        about=kept.get("about", {}),
        cursor=str(kept["_id"]),
    )


def _number(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdigit()):
        raise CursorTooOld(cursor)
    return int(cursor)


def _without_holes(start: int, kept: Sequence[Document]) -> tuple[list[Document], int | None]:
    """Return what follows ``start`` number by number, and the first number behind a hole."""
    for place, one in enumerate(kept):
        if one["_id"] != start + 1 + place:
            return list(kept[:place]), int(one["_id"])
    return list(kept), None
