"""Removes old final records and events in bounded steps, or every job at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from itertools import islice
from typing import Any

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.recovered_copy import BEFORE, ORIGIN, origins_in
from taskqueue.model.record import Status
from taskqueue.store.mongodb import log_lines
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.counts import Tally
from taskqueue.store.mongodb.documents import Document
from taskqueue.store.mongodb.events import EventLog
from taskqueue.store.mongodb.history import COUNTED_AFTER, History
from taskqueue.store.mongodb.indexes import DEPENDENTS, LEFTOVERS, OUTCOMES
from taskqueue.store.mongodb.limits import LimitUse
from taskqueue.store.mongodb.schedules import Schedules

PAGE = 500
"""How many records are checked at once for pending jobs that need them."""


_LOOKED_AT = {"parent": True, "queue": True, f"given.{ORIGIN}": True, f"given.{BEFORE}": True}

AT_ONCE = 2000
"""How many jobs a flush removes in one call to the server; the time of each call is bounded."""


class Retention:
    """Removes records in bounded steps, but never a pending job, a job it needs, or a job with unfinished effects."""

    def __init__(
        self, connection: Connection, event_log: EventLog, limit_use: LimitUse, history: History, tally: Tally
    ) -> None:
        self._history = history
        self._tally = tally
        self._connection = connection
        self._limit_use = limit_use
        self._event_log = event_log

    def prune(self, before: Mapping[Status, datetime], events_before: datetime, limit: int, now: datetime) -> int:
        """Remove up to ``limit`` final records that ended before the time for their status, and old events.

        Jobs that were added just now stay until the history has counted them.
        """
        self._event_log.prune(events_before, limit)
        self._limit_use.prune(events_before)
        self._history.count_added(now - COUNTED_AFTER)
        self._finish_removals(now)
        gone = 0
        for status, ended_before in before.items():
            if status.is_final and gone < limit:
                old = dict(islice(self._unneeded(status, ended_before), limit - gone))
                gone += self._remove(status, old, ended_before, now) if old else 0
        return gone

    def _remove(self, status: Status, old: Mapping[JobId, Any], ended_before: datetime, now: datetime) -> int:
        """Remove these jobs, given with their queues, and return how many were removed."""
        ids = list(old)
        removal = self._tally.begin_removal(now, ids)
        removed = self._connection.collections.jobs.delete_many({"_id": {"$in": ids}}).deleted_count
        if removed == len(ids):
            self._tally.note_removed(status, old.values(), ended_before, now)
        else:  # another node removed the others, and notes them as well
            self._tally.count_again()
        log_lines.remove(self._connection, ids)
        self._tally.end_removal(removal)
        return removed

    def _finish_removals(self, now: datetime) -> None:
        """Count jobs again whose removal was interrupted, and remove the log lines that it left."""
        for name, ids in self._tally.unfinished_removals(now):
            self._tally.count_again()
            present = self._connection.collections.jobs.find({"_id": {"$in": ids}}, {"_id": True})
            log_lines.remove(self._connection, sorted(set(ids).difference(document["_id"] for document in present)))
            self._tally.end_removal(name)

    def _unneeded(self, status: Status, ended_before: datetime) -> Iterator[tuple[JobId, Any]]:
        """Yield the records of this status that are old enough and that no pending job needs, with their queues."""
        old: Document = {"status": int(status), "ended_at": {"$lt": ended_before}, "after.at": {"$exists": False}}
        old["created_at"] = {"$not": {"$gt": self._history.counted_until()}}
        documents = self._connection.collections.latest.find(old, _LOOKED_AT).hint(OUTCOMES)
        while page := list(islice(documents, PAGE)):
            needed = self._needed(page) | self._unfinished()
            yield from ((document["_id"], document.get("queue")) for document in page if document["_id"] not in needed)

    def _unfinished(self) -> set[JobId]:
        """Return the jobs of batches whose shared entry of effects is not cleared."""
        latest = self._connection.collections.latest
        entries = latest.find({"after.at": {"$exists": True}}, {"after.batch": True}).hint(LEFTOVERS)
        return {id for document in entries for entry in document["after"] for id in entry.get("batch", ())}

    def _needed(self, documents: Sequence[Document]) -> set[JobId]:
        """Return jobs that a pending job needs: its children, its dependencies, and the recovered copies of both."""
        jobs = self._connection.collections.jobs
        jobs_of = {document["_id"]: {document["_id"], *origins_in(document.get("given"))} for document in documents}
        ids = list(set().union(*jobs_of.values()))
        pending = {"$lte": int(Status.PROCESSING)}
        dependents = jobs.find({"depends_on.id": {"$in": ids}, "status": pending}, {"depends_on.id": True})
        awaited = {edge["id"] for document in dependents.hint(DEPENDENTS) for edge in document["depends_on"]}
        needed = {id for id, same in jobs_of.items() if not awaited.isdisjoint(same)}
        parents = list({document["parent"] for document in documents if "parent" in document})
        if parents:
            waiting = jobs.find({"_id": {"$in": parents}, "status": pending}, {"_id": True})
            at_it = {document["_id"] for document in waiting}
            needed.update(document["_id"] for document in documents if document.get("parent") in at_it)
        return needed

    def flush(
        self, schedules: Schedules, now: Callable[[], datetime], reached: Callable[[], AbstractContextManager[None]]
    ) -> int:
        """Remove all jobs, and return the number; ``reached`` limits the time of each call to the server."""
        with reached():
            self._history.count_added(now())
            removal = self._tally.begin_removal(now())
            removed, last = self._flush_some(None)
        while last is not None:
            with reached():
                self._tally.begin_removal(now(), name=removal)
                gone, last = self._flush_some(last)
            removed += gone
        with reached():
            at = now()
            self.forget(at)
            self._tally.end_removal(removal)
            schedules.resume_waiting(at)
        return removed

    def _flush_some(self, previous: JobId | None) -> tuple[int, JobId | None]:
        """Remove the next ``AT_ONCE`` jobs by id, and return their number and the last id; None if that was all.

        The last call, with fewer jobs left, removes newer jobs with a smaller id as well.
        """
        jobs = self._connection.collections.jobs
        where: Document = {} if previous is None else {"_id": {"$gt": previous}}
        page = jobs.find(where, {"_id": True}).sort("_id").skip(AT_ONCE - 1).limit(1)
        last = next((document["_id"] for document in page), None)
        portion: Document = {} if last is None else {"_id": {**where.get("_id", {}), "$lte": last}}
        return jobs.delete_many(portion).deleted_count, last

    def forget(self, now: datetime) -> None:
        """Free the limits that removed jobs used, remove their log lines, invalidate every cursor, and ring."""
        self._tally.count_again()
        log_lines.flush(self._connection)
        self._connection.collections.slots.delete_many({})
        self._event_log.forget(now)
