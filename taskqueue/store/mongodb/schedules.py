"""Keeps schedules as documents; each change applies only to the version that it was made from.

The jobs that a change starts stay in the document until they are added, so that any process can complete it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from pymongo.errors import DuplicateKeyError

from taskqueue.model.reading import readable, text
from taskqueue.model.record import Record
from taskqueue.model.schedules import schedule as schedule_codec
from taskqueue.model.schedules.fire import reconciled
from taskqueue.model.schedules.schedule import NamedSchedule
from taskqueue.model.timestamps import EPOCH
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document, document, id_in, present, record, records, setting, time_in
from taskqueue.store.mongodb.effects import LEFT_AFTER
from taskqueue.store.mongodb.indexes import NEXT
from taskqueue.store.mongodb.inserts import Inserts


class Schedules:
    """The schedules of a store."""

    def __init__(self, connection: Connection, inserts: Inserts) -> None:
        self._connection = connection
        self._inserts = inserts

    def find(self, names: Collection[str] | None = None) -> list[NamedSchedule]:
        where: Document = {} if names is None else {"_id": {"$in": list(names)}}
        return list(readable(self._connection.collections.plans.find(where).sort("_id"), _schedule, "a schedule"))

    def due(self, now: datetime, limit: int) -> tuple[list[NamedSchedule], datetime | None]:
        plans = self._connection.collections.plans
        timed = plans.find({"next_run_at": {"$exists": True, "$gte": EPOCH}}).hint(NEXT).sort("next_run_at").limit(1)
        soonest: datetime | None = next((schedule["next_run_at"] for schedule in timed), None)
        if soonest is None or soonest > now:
            return [], soonest
        due = plans.find({"next_run_at": {"$exists": True, "$lte": now}}).hint(NEXT).sort("next_run_at").limit(limit)
        return list(readable(due, _schedule, "a schedule")), soonest

    def replace(
        self, before: NamedSchedule | None, after: NamedSchedule | None, jobs: Sequence[Record], now: datetime
    ) -> bool:
        plans = self._connection.collections.plans
        where: Document = {}
        if before is not None:  # jobs that it has started must be added, even if it is removed now
            self._complete({"_id": before.name, "version": before.version, "starts_at": {"$exists": True}})
            where = {"_id": before.name, "version": before.version, "starts_at": {"$exists": False}}
        if after is None:
            assert before is not None
            return bool(plans.delete_one(where).deleted_count)
        document_after = {} if after.damage else _document(after)
        if jobs:
            document_after |= {"starts": [document(job) for job in jobs], "starts_at": now}
        if before is None:
            try:
                plans.insert_one(document_after)
            except DuplicateKeyError:
                return False
        elif after.damage:
            if not plans.update_one(where, _update_of_damaged(after)).matched_count:
                return False
        elif not plans.replace_one(where, document_after).matched_count:
            return False
        if jobs:
            self._complete({"_id": after.name, "version": after.version, "starts_at": now})
        return True

    def resume_waiting(self, now: datetime) -> None:
        """Give schedules that wait for a flushed job their next time, or another job to find it.

        The leader repairs schedules that change at the same time.
        """
        for stored in list(self._connection.collections.plans.find({"awaits": {"$exists": True}})):
            before = _schedule(stored)
            after = reconciled(before, None, now)
            if after is not None:
                self.replace(before, *after, now)

    def repair(self, now: datetime) -> int:
        """Start the jobs that a dead writer left in its schedule, and return how many there were."""
        return self._complete({"starts_at": {"$lte": now - LEFT_AFTER}})

    def _complete(self, where: Document) -> int:
        """Start the jobs that these schedules still have to add."""
        plans = self._connection.collections.plans
        completed = 0
        for stored in plans.find(where, {"starts": True, "starts_at": True}):
            starts = stored.get("starts")  # another program may have damaged it
            jobs = records(starts) if isinstance(starts, list) else []
            self._start([job for job in jobs if not job.damage])
            unchanged = {"_id": stored["_id"], "starts_at": stored["starts_at"]}
            if jobs:
                unchanged["starts._id"] = jobs[0].id
            plans.update_one(unchanged, {"$unset": {"starts": "", "starts_at": ""}})
            completed += 1
        return completed

    def _start(self, jobs: Sequence[Record]) -> None:
        """Add the jobs that are not in the store yet."""
        present_jobs = self._connection.collections.jobs.find({"_id": {"$in": [job.id for job in jobs]}}, {"_id": True})
        present_ids = {job["_id"] for job in present_jobs}
        new = [job for job in jobs if job.id not in present_ids]
        if new:
            self._inserts.add(new)


def _document(schedule: NamedSchedule) -> Document:
    return present(
        {
            "_id": schedule.name,
            "version": schedule.version,
            "next_run_at": schedule.next_run_at,
            "awaits": schedule.awaits,
            "about": schedule_codec.document(schedule),
            "template": document(schedule.template),
        }
    )


def _update_of_damaged(schedule: NamedSchedule) -> Document:
    """Return the update for a damaged schedule; unreadable fields stay as they are."""
    fields = {"version": schedule.version, "next_run_at": schedule.next_run_at, "awaits": schedule.awaits}
    return setting(fields | ({"about": schedule_codec.document(schedule)} if schedule.kept else {}))


def _schedule(stored: Document) -> NamedSchedule:
    return schedule_codec.schedule_of(
        text(stored["_id"]),
        stored.get("version"),
        about=lambda: stored["about"],
        template=lambda: record(stored["template"]),
        next_run_at=lambda: time_in(stored.get("next_run_at")),
        awaits=lambda: id_in(stored.get("awaits")),
    )
