"""Inserts records: a job that is inserted twice is one job, and an index allows one pending job per unique key."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from bson import ObjectId
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError, PyMongoError

from taskqueue.errors import StoreContended, StoreUnavailable
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.pending import behind, canceled, in_place_of
from taskqueue.model.lifecycle.recovered_copy import COPY, ORIGIN, origin_of
from taskqueue.model.record import Cause, Record, Status
from taskqueue.store.arguments import check_same_job
from taskqueue.store.mongodb.alike import Alike
from taskqueue.store.mongodb.background_writer import EventWriter
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import (
    Document,
    cancel_request,
    document,
    documents,
    record,
    records,
    unmoved,
    update,
)
from taskqueue.store.mongodb.driver_errors import misses_index, reason_of
from taskqueue.store.mongodb.events import DUPLICATE
from taskqueue.store.mongodb.history import Turn
from taskqueue.store.mongodb.outbox import Effect, clashing_field, effects_of, transition
from taskqueue.store.mongodb.settlements import Settlements
from taskqueue.store.mongodb.unique_keys import (
    UniqueKeys,
    holds,
    in_doubt,
    is_in_doubt,
    needs_look,
    of_period,
    undoubted,
)
from taskqueue.store.tries import MOST_TRIES

log = logging.getLogger(__name__)


class Inserts:
    """Inserts and replaces records."""

    def __init__(
        self, connection: Connection, settlements: Settlements, event_writer: EventWriter, index: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._index = index
        self._settlements = settlements
        self._event_writer = event_writer
        self._keys = UniqueKeys(connection)
        self._alike = Alike(connection, self._holder)

    def add(self, new: Sequence[Record]) -> list[Record]:
        """Insert all records, and return the stored record for each; raise ``DuplicateId`` before any insert."""
        if not new:
            return []
        by_id = {record.id: record for record in new}
        known = self._known(new) if len(new) > 1 else {}
        waiting = [record for id, record in by_id.items() if id not in known] if known else list(by_id.values())
        rechecks = [_recheck(record) for record in waiting if needs_look(record) or _has_to_do_with_others(record)]
        inserted: list[Record] = []
        pending = waiting
        tries = 0
        while pending:
            if tries == MOST_TRIES:
                unique = f"the holder of unique={pending[0].unique!r}"
                raise StoreContended(self._connection.address.shown, unique, tries)
            tries += 1
            refused = self._insert(pending, rechecks)
            inserted += [record for index, record in enumerate(pending) if index not in refused] if refused else pending
            clashes = [(pending[index], self._present(pending[index], field)) for index, field in refused.items()]
            known.update((record.id, present) for record, present in clashes if present is not None)
            pending = [record for record, present in clashes if present is None]
        cleared = self._follow(inserted, rechecks)
        self._name_copies(inserted)
        if not rechecks and len(inserted) == len(new):
            return list(new)
        known.update((record.id, record) for record in inserted)
        rechecked = {recheck.job_id for recheck in rechecks if known[recheck.job_id].id == recheck.job_id}
        return self._as_released(new, known, rechecked - cleared)

    def alike(self, new: Record, ignore_data: bool) -> list[Record]:
        """Return the pending records for which ``new`` is the same job."""
        return self._alike.find(new, ignore_data)

    def replace(self, new: Record, old: Record, cancel_running: str | None, now: datetime) -> Record | None:
        """Replace ``old`` by ``new``, or queue ``new`` after it while it runs; None if ``old`` has moved."""
        jobs = self._connection.collections.jobs
        stored = jobs.find_one({"_id": old.id})
        present = None if stored is None else record(stored)
        if present is not None and is_in_doubt(present):
            self._settlements.follow([_recheck(present)])
            return None
        if present is None or (present.status, present.claims, present.unique) != (old.status, old.claims, old.unique):
            return None
        if present.status.is_final:
            return None
        same_id = jobs.find_one({"_id": new.id})
        if same_id is not None:
            check_same_job(new, record(same_id))
        token = ObjectId()
        if present.status is Status.PROCESSING:
            effect, change = _behind(new, present, cancel_running, token, now)
        else:
            after = canceled(present, "", now, Cause.REPLACED)
            effect, change = effects_of(after, token, now, successor=in_place_of(new, present)), update(after)
        change["$push"] = {"after": effect.entry()}
        if not jobs.update_one({**unmoved(present), "unique": old.unique}, change).matched_count:
            return None
        self._settlements.follow([effect])
        successor = jobs.find_one({"_id": new.id})
        return None if successor is None else record(successor)

    def _known(self, new: Sequence[Record]) -> dict[JobId, Record]:
        """Return the stored records with these ids, or raise ``DuplicateId``."""
        first: dict[JobId, Record] = {}
        for job in new:
            check_same_job(job, first.setdefault(job.id, job))
        jobs = self._connection.collections.jobs
        known = {record.id: record for record in records(jobs.find({"_id": {"$in": list(first)}}))}
        for id, present in known.items():
            check_same_job(first[id], present)
        return known

    def _insert(self, new: Sequence[Record], rechecks: Sequence[Effect]) -> dict[int, str]:
        """Insert the records, and return the index of each refused one with the clashing field."""
        after = {recheck.job_id: [recheck.entry()] for recheck in rechecks}
        incoming = documents([in_doubt(record) for record in new] if after else new)
        if after:
            incoming = [
                document | ({"after": after[document["_id"]]} if document["_id"] in after else {})
                for document in incoming
            ]
        try:
            self._connection.collections.jobs.insert_many(incoming, ordered=False)
        except BulkWriteError as error:
            refused = error.details["writeErrors"]
            if error.details["writeConcernErrors"] or any(failure["code"] != DUPLICATE for failure in refused):
                raise
            return {int(failure["index"]): clashing_field(failure) for failure in refused}
        return {}

    def _present(self, new: Record, field: str) -> Record | None:
        """Return the record that clashed with this one; None if it is gone."""
        jobs = self._connection.collections.jobs
        same_id = jobs.find_one({"_id": new.id})
        if same_id is not None:
            present = record(same_id)
            check_same_job(new, present)
            return undoubted(present, new.created_at)
        if field == "_id":
            return None
        return self._holder(new) or of_period(self._connection.collections.jobs, new)

    def _holder(self, new: Record) -> Record | None:
        """Return the pending job that has the key of this one."""
        assert new.unique is not None
        holder = self._connection.collections.jobs.find_one(holds(new.unique))
        return None if holder is None else undoubted(record(holder), new.created_at)

    def _follow(self, inserted: Sequence[Record], rechecks: Sequence[Effect]) -> set[JobId]:
        """Record the events of inserts, recheck dependencies, and return the ids of the records that are unchanged."""
        if not inserted:
            return set()
        cleared: set[JobId] = set()
        if rechecks:
            cleared = self._clear(inserted, {recheck.job_id: recheck.token for recheck in rechecks})
        ended = [record for record in inserted if record.status.is_final and record.ended_at is not None]
        turns = [Turn(token=ObjectId(), at=record.ended_at or record.created_at, ended=[record]) for record in ended]
        self._event_writer.submit([transition(record, record.created_at) for record in inserted], turns=turns)
        if rechecks:
            ids = {record.id for record in inserted} - cleared
            self._settlements.follow([recheck for recheck in rechecks if recheck.job_id in ids])
        return cleared

    def _name_copies(self, inserted: Sequence[Record]) -> None:
        """Note in each recovered job which job is its copy."""
        named: list[UpdateOne] = [
            UpdateOne({"_id": origin_of(copy)}, {"$set": {f"given.{COPY}": str(copy.id)}})
            for copy in inserted
            if ORIGIN in copy.given
        ]
        if named:
            self._connection.collections.jobs.bulk_write(named, ordered=False)

    def _clear(self, inserted: Sequence[Record], tokens: Mapping[JobId, ObjectId]) -> set[JobId]:
        """Admit the records in doubt; they are inserted, so ``repair`` completes this after an error."""
        keyed = [record for record in inserted if needs_look(record)]
        related = [record.unique for record in keyed if record.unique is not None and _has_to_do_with_others(record)]
        try:
            if related:
                self._keys.check(related)
            return self._keys.clear([record for record in keyed if not _has_to_do_with_others(record)], tokens)
        except PyMongoError as error:
            log.warning("%d jobs are inserted, their recheck is postponed: %s", len(keyed), reason_of(error))
            if misses_index(error):
                self._index_again()
            return set()

    def _index_again(self) -> None:
        """Create the indexes again, which ends new records that have the key of another one."""
        try:
            self._index()
        except StoreUnavailable as error:
            log.warning("%s", error)

    def _as_released(self, new: Sequence[Record], known: dict[JobId, Record], rechecked: set[JobId]) -> list[Record]:
        """Return the records after the recheck of the jobs they wait for."""
        if rechecked:
            try:
                known |= self._rechecked(rechecked)
            except PyMongoError as error:  # the jobs are inserted, so the call succeeds
                log.warning("%d jobs are inserted, but could not be read again: %s", len(rechecked), reason_of(error))
        return [known[record.id] for record in new]

    def _rechecked(self, ids: set[JobId]) -> dict[JobId, Record]:
        """Return the records as they are now; instead of one that ended as a duplicate, the holder of its key."""
        present = records(self._connection.collections.jobs.find({"_id": {"$in": list(ids)}}))
        holders = {record.id: self._holder(record) for record in present if record.cause is Cause.DUPLICATE}
        return {record.id: undoubted(holders.get(record.id) or record, record.created_at) for record in present}


def _has_to_do_with_others(new: Record) -> bool:
    return bool(new.waiting_for) or new.parent is not None


def _recheck(new: Record) -> Effect:
    return Effect(token=ObjectId(), at=new.created_at, job_id=new.id, needs_recheck=True)


def _behind(
    new: Record, present: Record, cancel_running: str | None, token: ObjectId, now: datetime
) -> tuple[Effect, Document]:
    """Return the effects and the update by which a running record gives its key to one that waits for its end."""
    successor = document(behind(new, present.id))
    change: Document = {"$unset": {"unique": ""}}
    if cancel_running is not None and present.cancel is None:
        change["$set"] = {"cancel": cancel_request(cancel_running, now)}
    return Effect(token=token, at=now, job_id=present.id, successor=successor), change
