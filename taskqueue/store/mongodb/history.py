"""Keeps the history: a document with the figures of each turn, which the leader adds up to minutes and hours.

The figures of a turn have the token of its change, so that a repair cannot count it twice. A minute or hour lists the
turns it has counted until these are marked; a marked turn stays until all outbox entries are newer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError, DuplicateKeyError

from taskqueue.model.history import (
    Part,
    Parts,
    Step,
    add_parts,
    ended_part,
    gather,
    part_of_text,
    part_text,
    parts_of_text,
    parts_text,
)
from taskqueue.model.reading import number, text
from taskqueue.model.record import Record, Status, changed
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.store.mongodb.connection import ACKNOWLEDGED, Connection
from taskqueue.store.mongodb.documents import Document, record, records
from taskqueue.store.mongodb.events import DUPLICATE
from taskqueue.store.mongodb.indexes import CREATED, LEFTOVERS
from taskqueue.store.reading import readable
from taskqueue.store.tries import MOST_TRIES

TURNS_AT_ONCE = 1000
"""The most turns that are added up in one step."""

MARKED_FOR = timedelta(seconds=60)
"""How long a turn stays marked at least: all writes of its change have ended by then."""

ADDED_MARKED_FOR = timedelta(days=1)
"""The same for a number of added jobs, which a leader that was suspended for some time might count again."""

COUNTED_AFTER = timedelta(seconds=10)
"""The age at which added jobs are counted: a call that adds jobs has given up by then."""

SPAN = timedelta(hours=1)
"""The longest time whose added jobs one step counts."""

ADDED_AT_ONCE = 50_000
"""About the most added jobs that one step counts; the jobs of one millisecond are never divided."""

_ADDED = {"_id": "added"}


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The figures of the changes that have one token."""

    token: ObjectId
    at: datetime
    settled: list[Record] = field(default_factory=list)
    """The records after the end of a claim."""
    ended: list[Record] = field(default_factory=list)
    """The records that ended without a claim."""

    def document(self) -> Document | None:
        """Return the document to store; None if there is nothing to count."""
        minute = Step.MINUTE.begin(milliseconds(self.at))
        part = ended_part(self.settled, self.ended)
        if not part:
            return None
        return {"_id": self.token, "at": self.at, "figures": parts_text({minute: part})}


class History:
    """The minutes and hours of a store, and the turns that are not among them yet."""

    def __init__(self, connection: Connection, portion: int = ADDED_AT_ONCE) -> None:
        self._connection = connection
        self._portion = portion

    def record(self, turns: Sequence[Turn]) -> None:
        """Keep the figures of turns; turns that are already stored stay as they are."""
        new = [document for turn in turns if (document := turn.document()) is not None]
        if new:
            _insert_new(self._connection.collections.history_turns.with_options(write_concern=ACKNOWLEDGED), new)

    def read(self, step: Step, since: datetime, until: datetime) -> Parts:
        turns = list(readable(self._unmarked().values(), _turn, "figures of a turn"))
        buckets: dict[int, tuple[Part, set[Any]]] = {}
        first, last = _id(step, milliseconds(since)), _id(step, milliseconds(until))
        documents = self._connection.collections.history.find({"_id": {"$gte": first, "$lte": last}})
        for at, part, counted in readable(documents, _bucket, f"figures of a {step.value}"):
            buckets[at] = (part, counted)
        parts = {at: part for at, (part, _) in buckets.items()}
        turns.append((None, self._added_between(self.counted_until(), None)))
        for id, figures in turns:
            by_step: Parts = {}
            add_parts(by_step, figures, step)
            for at, part in by_step.items():
                if milliseconds(since) <= at <= milliseconds(until) and id not in buckets.get(at, ({}, set()))[1]:
                    add_parts(parts, {at: part}, step)
        return parts

    def tidy(self, now: datetime, limit: int) -> bool:
        """Count the jobs that were added in one span, and add up some turns; after the last turn, remove old documents.

        Return whether another call has more to do.
        """
        has_more_added = self._count_span(now - COUNTED_AFTER)
        if self._add_up() == TURNS_AT_ONCE or has_more_added:
            return True
        self._forget_marked(now)
        return max([self._prune(step, now, limit) for step in Step]) == limit

    def count_added(self, until: datetime) -> None:
        """Count the jobs that were added up to this time."""
        while self._count_span(until):
            pass

    def _count_span(self, until: datetime) -> bool:
        """Count the next jobs that were added up to this time, once for all clients; return False if there are none."""
        turns, facts = self._connection.collections.history_turns, self._connection.collections.facts
        counted = self.counted_until()
        begin = self._added_at(ASCENDING, counted, until)
        if begin is None:
            return False
        until = min(until, begin + SPAN)
        full = self._added_at(ASCENDING, counted, until, self._portion - 1)
        end = full or self._added_at(DESCENDING, counted, until) or begin
        id = f"added {counted:%Y-%m-%dT%H:%M:%S.%f}" if counted else "added"
        figures = parts_text(self._added_between(counted, end))
        _insert_new(turns, [{"_id": id, "at": end, "figures": figures}])
        document = turns.find_one({"_id": id}, {"at": True})
        if document is not None:
            facts.update_one(_ADDED, {"$max": {"until": document["at"]}}, upsert=True)
        return True

    def counted_until(self) -> datetime | None:
        """Return up to which time added jobs are counted."""
        document = self._connection.collections.facts.find_one(_ADDED)
        return None if document is None else document["until"]

    def _added_at(self, direction: int, since: datetime | None, until: datetime, skip: int = 0) -> datetime | None:
        """Return when the first, or the last, job of this time was added, after ``skip`` others."""
        jobs = self._connection.collections.jobs
        added = jobs.find(_created(since, until), {"created_at": True}).hint(CREATED).sort("created_at", direction)
        return next((job["created_at"] for job in added.skip(skip).limit(1)), None)

    def _added_between(self, since: datetime | None, until: datetime | None) -> Parts:
        minute = {"$subtract": [{"$toLong": "$created_at"}, {"$mod": [{"$toLong": "$created_at"}, 60_000]}]}
        steps: list[Document] = [
            {"$match": _created(since, until)},
            {"$group": {"_id": {"at": minute, "queue": "$queue", "job": "$job"}, "added": {"$sum": 1}}},
        ]
        gathered: Parts = {}
        for at, key, added in readable(
            self._connection.collections.jobs.aggregate(steps, hint=CREATED), _added, "a number of added jobs"
        ):
            gather(gathered, at, {key: {"added": added}})
        parts: Parts = {}
        add_parts(parts, gathered)
        return parts

    def _unmarked(self, limit: int = 0) -> dict[Any, Document]:
        turns = self._connection.collections.history_turns.find({"figures": {"$exists": True}})
        return {turn["_id"]: turn for turn in turns.sort("at", ASCENDING).limit(limit)}

    def _add_up(self) -> int:
        """Add some turns to their minutes and hours, mark them, and return how many there were.

        If other processes change a minute or an hour each time, none is marked: a later call adds the rest.
        """
        unmarked = self._unmarked(TURNS_AT_ONCE)
        turns = dict(readable(unmarked.values(), _turn, "figures of a turn"))
        for step in Step:
            by_part: dict[int, dict[Any, Part]] = {}
            for id, figures in turns.items():
                by_time: Parts = {}
                add_parts(by_time, figures, step)
                for at, part in by_time.items():
                    by_part.setdefault(at, {})[id] = part
            for at, parts in by_part.items():
                if not any(self._add(step, at, parts) for _ in range(MOST_TRIES)):
                    return 0
        if unmarked:
            marked = {"_id": {"$in": list(unmarked)}}
            self._connection.collections.history_turns.update_many(marked, {"$unset": {"figures": ""}})
        return len(unmarked)

    def _add(self, step: Step, at: int, turns: Mapping[Any, Part]) -> bool:
        """Add the turns that this minute or hour has not counted; return False if another process was faster."""
        history = self._connection.collections.history
        id = _id(step, at)
        document = history.find_one({"_id": id})
        bucket = None if document is None else next(readable([document], _bucket, f"figures of a {step.value}"), None)
        part, counted = (bucket[1], bucket[2]) if bucket is not None else ({}, set())
        new = [id for id in turns if id not in counted]
        if not new:
            return True
        parts = {at: part}
        for turn in new:
            add_parts(parts, {at: turns[turn]}, step)
        turn_ids = [*self._unmarked_of(counted), *new]
        changed = {
            "_id": id,
            "at": moment(at),
            "figures": part_text(parts[at]),
            "turns": turn_ids,
            "version": ObjectId(),
        }
        if document is not None:
            where = {"_id": id, "version": document.get("version")}
            return bool(history.replace_one(where, changed).matched_count)
        try:
            history.insert_one(changed)
        except DuplicateKeyError:
            return False
        return True

    def _unmarked_of(self, ids: Iterable[Any]) -> list[Any]:
        known_ids = list(ids)
        where = {"_id": {"$in": known_ids}, "figures": {"$exists": True}}
        unmarked = self._connection.collections.history_turns.find(where, {"_id": True}) if known_ids else ()
        return [turn["_id"] for turn in unmarked]

    def _forget_marked(self, now: datetime) -> None:
        """Remove marked turns that are older than any outbox entry, so that no repair can write them again."""
        jobs = self._connection.collections.latest
        jobs_with_entries = jobs.find({"after.at": {"$exists": True}}, {"after.at": True}).hint(LEFTOVERS)
        oldest = min((entry["at"] for job in jobs_with_entries.limit(1) for entry in job["after"]), default=now)
        before = min(oldest, now - MARKED_FOR)
        of_changes: Document = {"_id": {"$type": "objectId"}, "at": {"$lt": before}}
        of_added: Document = {"_id": {"$type": "string"}, "at": {"$lt": min(oldest, now - ADDED_MARKED_FOR)}}
        where = {"figures": {"$exists": False}, "$or": [of_changes, of_added]}
        self._connection.collections.history_turns.delete_many(where)

    def _prune(self, step: Step, now: datetime, limit: int) -> int:
        history = self._connection.collections.history
        first, last = _id(step, 0), _id(step, milliseconds(now - step.kept_for))
        old = {"_id": {"$gte": first, "$lt": last}}
        documents = history.find(old, {"_id": True}).sort("_id", ASCENDING).limit(limit)
        ids = [document["_id"] for document in documents]
        return history.delete_many({"_id": {"$in": ids}}).deleted_count if ids else 0


def turns_of(changes: Iterable[tuple[ObjectId, datetime, bool, Record]]) -> list[Turn]:
    """Return the turns of changes, each with its token, time, whether it settled a claim, and the record after it."""
    turns: dict[ObjectId, Turn] = {}
    for token, at, claimed, after in changes:
        turn = turns.get(token)
        if turn is None:
            turn = turns[token] = Turn(token=token, at=at)
        (turn.settled if claimed else turn.ended).append(after)
    return list(turns.values())


def left_turns(connection: Connection, changes: Mapping[ObjectId, datetime]) -> list[Turn]:
    """Return the turns of changes whose writers have died, from all records that have the entry in their outbox."""
    jobs = connection.collections.latest
    return [
        _left_turn(token, at, jobs, jobs.find({"after.at": at, "after.token": token}).hint(LEFTOVERS))
        for token, at in changes.items()
    ]


def sharing(token: ObjectId, batch: Sequence[ObjectId]) -> Document:
    """Return the filter for the jobs of a batch whose ends were written; nothing changes them after that."""
    return {"_id": {"$in": list(batch)}, "swapped": token}


def _left_turn(token: ObjectId, at: datetime, jobs: Collection[Document], documents: Iterable[Document]) -> Turn:
    turn = Turn(token=token, at=at)
    for document in documents:
        entry = next(entry for entry in document["after"] if entry["token"] == token)
        after = record(document)
        if "claimed" not in entry:
            turn.ended.append(after)
            continue
        if not entry["ended"]:  # the job may have run again since
            claims = int(entry["event"]["id"].split(":")[1]) if "event" in entry else 0
            attempts = tuple(attempt for attempt in after.attempts if attempt.claims == claims)
            after = changed(after, status=Status.WAITING, claims=claims, attempts=attempts)
        turn.settled.append(after)
        if "batch" in entry:
            turn.settled.extend(records(jobs.find(sharing(token, entry["batch"]))))
    return turn


def _insert_new(collection: Collection[Document], turns: Sequence[Document]) -> None:
    try:
        collection.insert_many(turns, ordered=False)
    except BulkWriteError as error:
        refused = error.details["writeErrors"]
        if error.details["writeConcernErrors"] or any(failure["code"] != DUPLICATE for failure in refused):
            raise


def _created(since: datetime | None, until: datetime | None) -> Document:
    bounds = {"$gt": since or moment(0), **({"$lte": until} if until is not None else {})}
    return {"created_at": bounds}


def _id(step: Step, at: int) -> str:
    """Return the id of a minute or hour; ids of one length sort by time."""
    return f"{step.value} {moment(at):%Y-%m-%dT%H:%M:%SZ}"


def _turn(document: Document) -> tuple[Any, Parts]:
    return document["_id"], parts_of_text(document["figures"])


def _bucket(document: Document) -> tuple[int, Part, set[Any]]:
    return milliseconds(document["at"]), part_of_text(document["figures"]), set(document["turns"])


def _added(group: Document) -> tuple[int, tuple[str, str], int]:
    key = group["_id"]
    return number(int(key["at"])), (text(key.get("queue")), text(key.get("job"))), number(group["added"])
