"""Keeps the history: one document per minute and hour, to which every process adds its own figures.

Figures are added at most once: a process that dies, or whose write fails, loses the figures that were not written yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import unquote

from pymongo import ASCENDING, DESCENDING, UpdateOne
from pymongo.errors import DuplicateKeyError

from taskqueue.model.history import LONGEST, Part, Parts, Step, add_part, add_parts, gather, within_bounds
from taskqueue.model.reading import number, readable, text
from taskqueue.model.timestamps import MILLISECOND, milliseconds, moment
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document
from taskqueue.store.mongodb.indexes import CREATED
from taskqueue.store.tries import MOST_TRIES

COUNTED_AFTER = timedelta(seconds=10)
"""The age at which added jobs are counted: by then, any call that was adding jobs has given up."""

SPAN = timedelta(hours=1)
"""The longest span of time whose added jobs one step counts."""

ADDED_AT_ONCE = 50_000
"""Roughly the most added jobs that one step counts; the jobs of one millisecond are never split."""

RECENT = 4
"""For how many minutes, and how many hours, a process remembers what it has counted."""

_ADDED = {"_id": "added"}
_CODES = str.maketrans({sign: f"%{ord(sign):02X}" for sign in "%.$\0"})


class History:
    """The minutes and hours of a store, and the added jobs that they do not include yet."""

    def __init__(self, connection: Connection, portion: int = ADDED_AT_ONCE) -> None:
        self._connection = connection
        self._portion = portion
        self._recent: dict[Step, Parts] = {step: {} for step in Step}
        """The figures that this process has added to the latest minutes and hours."""

    def add(self, parts: Parts) -> None:
        """Add figures to their minutes and hours with one command, which is never repeated."""
        updates = []
        for step in Step:
            by_time: Parts = {}
            for at, part in parts.items():
                gather(by_time, step.begin(at), part)
            updates += [self._update(step, at, part) for at, part in by_time.items()]
        if updates:
            self._connection.collections.history.bulk_write(updates, ordered=False)

    def _update(self, step: Step, at: int, part: Part) -> UpdateOne:
        """Return the update that adds the part to its document, with a bounded number of names from this process."""
        recent = self._recent[step]
        part = within_bounds(part, recent.get(at, {}))
        gather(recent, at, part)
        if len(recent) > RECENT:
            del recent[min(recent)]
        sums: Document = {}
        maxima: Document = {}
        for (queue, job), figures in part.items():
            for name, value in figures.items():
                field = f"figures.{_key(queue)}.{_key(job)}.{_key(name)}"
                (maxima if name in LONGEST else sums)[field] = value
        change: Document = {"$setOnInsert": {"at": moment(at)}, "$inc": sums}
        if maxima:
            change["$max"] = maxima
        return UpdateOne({"_id": _id(step, at)}, change, upsert=True)

    def read(self, step: Step, since: datetime, until: datetime) -> Parts:
        before, end = step.end(since - MILLISECOND), step.end(until)
        for _ in range(MOST_TRIES):  # until no other process counts added jobs between the two reads
            counted = self.counted_until()
            parts = self._read_counted(step, since, until)
            if counted is not None and counted >= end:
                return parts
            uncounted = self._added_between(before if counted is None else max(counted, before), end)
            if counted == self.counted_until():
                break
        add_parts(parts, uncounted, step)
        return parts

    def _read_counted(self, step: Step, since: datetime, until: datetime) -> Parts:
        first, last = _id(step, milliseconds(since)), _id(step, milliseconds(until))
        documents = self._connection.collections.history.find({"_id": {"$gte": first, "$lte": last}})
        parts: Parts = {}
        for at, part in readable(documents, _bucket, f"figures of a {step.value}"):
            add_part(parts.setdefault(at, {}), part)
        return parts

    def tidy(self, now: datetime, limit: int) -> bool:
        """Count the jobs added in one span of time; after the last span, remove old documents.

        Return whether another call has more to do.
        """
        if self._count_span(now - COUNTED_AFTER):
            return True
        return max([self._prune(step, now, limit) for step in Step]) == limit

    def count_added(self, until: datetime) -> None:
        """Count the jobs that were added up to this time."""
        while self._count_span(until):
            pass

    def _count_span(self, until: datetime) -> bool:
        """Count the next jobs that were added up to this time; return False if there are none.

        If several clients count, only the one that records the end of the span adds its figures.
        """
        counted = self.counted_until()
        begin = self._added_at(ASCENDING, counted, until)
        if begin is None:
            return False
        until = min(until, begin + SPAN)
        full = self._added_at(ASCENDING, counted, until, self._portion - 1)
        end = full or self._added_at(DESCENDING, counted, until) or begin
        added = self._added_between(counted, end)
        try:
            where = {**_ADDED, "until": counted}
            self._connection.collections.facts.update_one(where, {"$set": {"until": end}}, upsert=True)
        except DuplicateKeyError:  # another client has counted further
            return True
        self.add(added)
        return True

    def counted_until(self) -> datetime | None:
        """Return the time up to which added jobs are counted."""
        document = self._connection.collections.facts.find_one(_ADDED)
        return None if document is None else document["until"]

    def _added_at(self, direction: int, since: datetime | None, until: datetime, skip: int = 0) -> datetime | None:
        """Return when the first, or the last, job in this span was added, after skipping ``skip`` others."""
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

    def _prune(self, step: Step, now: datetime, limit: int) -> int:
        history = self._connection.collections.history
        first, last = _id(step, 0), _id(step, milliseconds(now - step.kept_for))
        old = {"_id": {"$gte": first, "$lt": last}}
        documents = history.find(old, {"_id": True}).sort("_id", ASCENDING).limit(limit)
        ids = [document["_id"] for document in documents]
        return history.delete_many({"_id": {"$in": ids}}).deleted_count if ids else 0


def _created(since: datetime | None, until: datetime | None) -> Document:
    bounds = {"$gt": since or moment(0), **({"$lte": until} if until is not None else {})}
    return {"created_at": bounds}


def _id(step: Step, at: int) -> str:
    """Return the id of a minute or hour; ids of the same length sort by time."""
    return f"{step.value} {moment(at):%Y-%m-%dT%H:%M:%SZ}"


def _key(name: str) -> str:
    """Return the name as a field of a document; dots are replaced because they would split the path."""
    return name.translate(_CODES)


def _bucket(document: Document) -> tuple[int, Part]:
    return milliseconds(document["at"]), dict(_part(document["figures"]))


def _part(figures: Any) -> Iterator[tuple[tuple[str, str], dict[str, int]]]:
    for queue, jobs in figures.items():
        for job, numbers in jobs.items():
            yield (unquote(queue), unquote(job)), {unquote(name): number(value) for name, value in numbers.items()}


def _added(group: Document) -> tuple[int, tuple[str, str], int]:
    key = group["_id"]
    return number(int(key["at"])), (text(key.get("queue")), text(key.get("job"))), number(group["added"])
