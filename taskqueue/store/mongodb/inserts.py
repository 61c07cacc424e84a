"""Inserts records: the same job twice is one job, and an index allows one pending job per unique key."""

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
        """Insert all records and return for each the one that is kept; raise ``DuplicateId`` before anything is in."""
        if not new:
            return []
        given = {one.id: one for one in new}
        kept = self._known(new) if len(new) > 1 else {}
        waiting = [one for id, one in given.items() if id not in kept] if kept else list(given.values())
        rechecks = [_recheck(one) for one in waiting if needs_look(one) or _has_to_do_with_others(one)]
        inserted: list[Record] = []
        pending = waiting
        tries = 0
        while pending:
            if tries == MOST_TRIES:
                unique = f"the holder of unique={pending[0].unique!r}"
                raise StoreContended(self._connection.address.shown, unique, tries)
            tries += 1
            refused = self._insert(pending, rechecks)
            inserted += [one for index, one in enumerate(pending) if index not in refused] if refused else pending
            found = [(pending[index], self._present(pending[index], field)) for index, field in refused.items()]
            kept.update((one.id, present) for one, present in found if present is not None)
            pending = [one for one, present in found if present is None]
        cleared = self._follow(inserted, rechecks)
        self._name_copies(inserted)
        if not rechecks and len(inserted) == len(new):
            return list(new)
        kept.update((one.id, one) for one in inserted)
        cache = {one.job_id for one in rechecks if kept[one.job_id].id == one.job_id}
        return self._as_released(new, kept, cache - cleared)

    def alike(self, new: Record, ignore_data: bool) -> list[Record]:
        """Return the pending records for which ``new`` is the same job."""
        return self._alike.find(new, ignore_data)

    def replace(self, new: Record, old: Record, cancel_running: str | None, now: datetime) -> Record | None:
        """Replace ``old`` by ``new``, or queue ``new`` after it while it runs; None if ``old`` has moved."""
        jobs = self._connection.collections.jobs
        kept = jobs.find_one({"_id": old.id})
        present = None if kept is None else record(kept)
        if present is not None and is_in_doubt(present):
            self._settlements.follow([_recheck(present)])
            return None
        if present is None or (present.status, present.claims, present.unique) != (old.status, old.claims, old.unique):
            return None
        if present.status.is_final:
            return None
        taken = jobs.find_one({"_id": new.id})
        if taken is not None:
            check_same_job(new, record(taken))
        token = ObjectId()
        if present.status is Status.PROCESSING:
            follows, change = _behind(new, present, cancel_running, token, now)
        else:
            after = canceled(present, "", now, Cause.REPLACED)
            follows, change = effects_of(after, token, now, successor=in_place_of(new, present)), update(after)
        change["$push"] = {"after": follows.kept()}
        if not jobs.update_one({**unmoved(present), "unique": old.unique}, change).matched_count:
            return None
        self._settlements.follow([follows])
        successor = jobs.find_one({"_id": new.id})
        return None if successor is None else record(successor)

    def _known(self, new: Sequence[Record]) -> dict[JobId, Record]:
        """Return the known ones of these, or raise ``DuplicateId``."""
        first: dict[JobId, Record] = {}
        for one in new:
            check_same_job(one, first.setdefault(one.id, one))
        jobs = self._connection.collections.jobs
        kept = {one.id: one for one in records(jobs.find({"_id": {"$in": list(first)}}))}
        for id, present in kept.items():
            check_same_job(first[id], present)
        return kept

    def _insert(self, new: Sequence[Record], rechecks: Sequence[Effect]) -> dict[int, str]:
        """Insert and return the indexes of refused records, each with the clashing field."""
        after = {one.job_id: [one.kept()] for one in rechecks}
        incoming = documents([in_doubt(one) for one in new] if after else new)
        if after:
            incoming = [one | ({"after": after[one["_id"]]} if one["_id"] in after else {}) for one in incoming]
        try:
            self._connection.collections.jobs.insert_many(incoming, ordered=False)
        except BulkWriteError as error:
            refused = error.details["writeErrors"]
            if error.details["writeConcernErrors"] or any(one["code"] != DUPLICATE for one in refused):
                raise
            return {int(one["index"]): clashing_field(one) for one in refused}
        return {}

    def _present(self, new: Record, field: str) -> Record | None:
        """Return the record that clashed with this one, None if it is gone."""
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
        """Record the inserts' events, recheck dependencies, and return the records that are unchanged."""
        if not inserted:
            return set()
        cleared: set[JobId] = set()
        if rechecks:
            cleared = self._clear(inserted, {one.job_id: one.token for one in rechecks})
        over = [one for one in inserted if one.status.is_final and one.ended_at is not None]
        turns = [Turn(token=ObjectId(), at=one.ended_at or one.created_at, ended=[one]) for one in over]
        self._event_writer.submit([transition(one, one.created_at) for one in inserted], turns=turns)
        if rechecks:
            ids = {one.id for one in inserted} - cleared
            self._settlements.follow([one for one in rechecks if one.job_id in ids])
        return cleared

    def _name_copies(self, inserted: Sequence[Record]) -> None:
        """Note with the jobs that were recovered which job is their copy."""
        named: list[UpdateOne] = [
            UpdateOne({"_id": origin_of(one)}, {"$set": {f"given.{COPY}": str(one.id)}})
            for one in inserted
            if ORIGIN in one.given
        ]
        if named:
            self._connection.collections.jobs.bulk_write(named, ordered=False)

    def _clear(self, inserted: Sequence[Record], tokens: Mapping[JobId, ObjectId]) -> set[JobId]:
        """Admit the records in doubt; they are inserted, so ``repair`` handles an error here."""
        keyed = [one for one in inserted if needs_look(one)]
        related = [one.unique for one in keyed if one.unique is not None and _has_to_do_with_others(one)]
        try:
            if related:
                self._keys.check(related)
            return self._keys.clear([one for one in keyed if not _has_to_do_with_others(one)], tokens)
        except PyMongoError as error:
            log.warning("%d jobs are inserted, their recheck is postponed: %s", len(keyed), reason_of(error))
            if misses_index(error):
                self._index_again()
            return set()

    def _index_again(self) -> None:
        """Create the indexes again, which ends new records with the key of another."""
        try:
            self._index()
        except StoreUnavailable as error:
            log.warning("%s", error)

    def _as_released(self, new: Sequence[Record], kept: dict[JobId, Record], rechecks: set[JobId]) -> list[Record]:
        """Return the records after the recheck of the jobs they wait for."""
        if rechecks:
            try:
                kept |= self._rechecked(rechecks)
            except PyMongoError as error:  # they are inserted, which is what counts
                log.warning("%d jobs are inserted, but could not be read again: %s", len(rechecks), reason_of(error))
        return [kept[one.id] for one in new]

    def _rechecked(self, ids: set[JobId]) -> dict[JobId, Record]:
        """Return the records as they are now; the holder of its key in the place of one that was ended for it."""
        found = records(self._connection.collections.jobs.find({"_id": {"$in": list(ids)}}))
        holders = {one.id: self._holder(one) for one in found if one.cause is Cause.DUPLICATE}
        return {one.id: undoubted(holders.get(one.id) or one, one.created_at) for one in found}


def _has_to_do_with_others(new: Record) -> bool:
    return bool(new.waiting_for) or new.parent is not None


def _recheck(new: Record) -> Effect:
    return Effect(token=ObjectId(), at=new.created_at, job_id=new.id, needs_recheck=True)


def _behind(
    new: Record, present: Record, cancel_running: str | None, token: ObjectId, now: datetime
) -> tuple[Effect, Document]:
    """Return effects and update when a running record gives its key to one that waits for its end."""
    successor = document(behind(new, present.id))
    change: Document = {"$unset": {"unique": ""}}
    if cancel_running is not None and present.cancel is None:
        change["$set"] = {"cancel": cancel_request(cancel_running, now)}
    return Effect(token=token, at=now, job_id=present.id, successor=successor), change
