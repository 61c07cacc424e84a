"""Inserts records, one pending job per unique key, and finds pending ones that are the same job as a new one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from bson import ObjectId
from pymongo import DESCENDING, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError, PyMongoError

from taskqueue.errors import StoreContended, StoreUnavailable
from taskqueue.model import unique_period
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.pending import behind, canceled, in_place_of
from taskqueue.model.lifecycle.recovered_copy import COPY, ORIGIN, origin_of
from taskqueue.model.record import Cause, Record, Status, replace
from taskqueue.model.serializer import decode
from taskqueue.store.arguments import existing, same_jobs
from taskqueue.store.mongodb import unique_keys
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
from taskqueue.store.mongodb.effects import Effect, clashing_field, effects_of, transition
from taskqueue.store.mongodb.events import DUPLICATE
from taskqueue.store.mongodb.indexes import BY_ID, OUTCOMES, UNIQUE
from taskqueue.store.mongodb.settlements import Settlements
from taskqueue.store.mongodb.unique_keys import holds, in_doubt, is_in_doubt, needs_look, of_period, undoubted
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
        self._alike = Alike(connection, self._holder)

    def add(self, new: Sequence[Record]) -> list[Record]:
        """Insert all records, and return the stored record for each; raise ``DuplicateId`` before any insert."""
        if not new:
            return []
        by_id = _first_of_each(new) if len(new) > 1 else {record.id: record for record in new}
        stored = self._known(by_id) if len(new) > 1 else {}
        waiting = [record for id, record in by_id.items() if id not in stored] if stored else list(by_id.values())
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
            stored.update((record.id, present) for record, present in clashes if present is not None)
            pending = [record for record, present in clashes if present is None]
        cleared = self._follow(inserted, rechecks)
        self._name_copies(inserted)
        if not rechecks and len(inserted) == len(new):
            return list(new)
        stored.update((record.id, record) for record in inserted)
        rechecked = {recheck.job_id for recheck in rechecks if stored[recheck.job_id].id == recheck.job_id}
        return self._as_released(new, stored, rechecked - cleared)

    def alike(self, new: Record, ignore_data: bool) -> list[Record]:
        """Return the pending records for which ``new`` is the same job."""
        return self._alike.find(new, ignore_data)

    def replace(self, new: Record, old: Record, cancel_running: str | None, now: datetime) -> Record | None:
        """Replace ``old`` with ``new``, or queue ``new`` after it while it runs; return None if ``old`` has changed."""
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
        existed = same_id is not None and existing(new, record(same_id)).existed
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
        return None if successor is None else replace(record(successor), existed=existed)

    def _known(self, new: Mapping[JobId, Record]) -> dict[JobId, Record]:
        """Return the stored records with these ids, or raise ``DuplicateId``."""
        jobs = self._connection.collections.jobs
        stored = records(jobs.find({"_id": {"$in": list(new)}}))
        return {present.id: existing(new[present.id], present) for present in stored}

    def _insert(self, new: Sequence[Record], rechecks: Sequence[Effect]) -> dict[int, str]:
        """Insert the records, and return the index of each refused record with the clashing field."""
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
            return undoubted(existing(new, record(same_id)), new.created_at)
        if field == "_id":
            return None
        return self._holder(new) or of_period(self._connection.collections.jobs, new)

    def _holder(self, new: Record) -> Record | None:
        """Return the pending job that has this record's key."""
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
        for new in inserted:
            if new.status.is_final and new.ended_at is not None:
                self._event_writer.count(new.ended_at, ended=[new])
        self._event_writer.submit([transition(record, record.created_at) for record in inserted])
        if rechecks:
            ids = {record.id for record in inserted} - cleared
            self._settlements.follow([recheck for recheck in rechecks if recheck.job_id in ids])
        return cleared

    def _name_copies(self, inserted: Sequence[Record]) -> None:
        """Note in each recovered job the job that is its copy."""
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
                unique_keys.check(self._connection, related)
            return unique_keys.clear(
                self._connection, [record for record in keyed if not _has_to_do_with_others(record)], tokens
            )
        except PyMongoError as error:
            log.warning("%d jobs are inserted; rechecking them is postponed: %s", len(keyed), reason_of(error))
            if misses_index(error):
                self._index_again()
            return set()

    def _index_again(self) -> None:
        """Create the indexes again, which ends new records whose key another record has."""
        try:
            self._index()
        except StoreUnavailable as error:
            log.warning("%s", error)

    def _as_released(self, new: Sequence[Record], known: dict[JobId, Record], rechecked: set[JobId]) -> list[Record]:
        """Return the records after rechecking the jobs that they wait for."""
        if rechecked:
            try:
                present = self._rechecked(rechecked)
                known |= {id: replace(record, existed=known[id].existed) for id, record in present.items()}
            except PyMongoError as error:  # the jobs are inserted, so the call succeeds
                log.warning("%d jobs are inserted, but could not be read again: %s", len(rechecked), reason_of(error))
        seen: set[JobId] = set()
        returned = []
        for job in new:
            stored = known[job.id]
            returned.append(replace(stored, existed=True) if job.id in seen else stored)
            seen.add(job.id)
        return returned

    def _rechecked(self, ids: set[JobId]) -> dict[JobId, Record]:
        """Return the records as they are now; the holder of its key replaces one that ended as a duplicate."""
        present = records(self._connection.collections.jobs.find({"_id": {"$in": list(ids)}}))
        holders = {record.id: self._holder(record) for record in present if record.cause is Cause.DUPLICATE}
        return {record.id: undoubted(holders.get(record.id) or record, record.created_at) for record in present}


def _first_of_each(new: Sequence[Record]) -> dict[JobId, Record]:
    """Return the first record with each id, or raise ``DuplicateId``."""
    first: dict[JobId, Record] = {}
    for job in new:
        existing(job, first.setdefault(job.id, job))
    return first


def _has_to_do_with_others(new: Record) -> bool:
    return bool(new.waiting_for) or new.parent is not None


def _recheck(new: Record) -> Effect:
    return Effect(token=ObjectId(), at=new.created_at, job_id=new.id, needs_recheck=True)


def _behind(
    new: Record, present: Record, cancel_running: str | None, token: ObjectId, now: datetime
) -> tuple[Effect, Document]:
    """Return the effects and the update by which a running record passes its key to a record that waits for its end."""
    successor = document(behind(new, present.id))
    if unique_period.is_of(present.job, present.unique):
        successor["key_from"] = present.id
    change: Document = {"$unset": {"unique": ""}}
    if cancel_running is not None and present.cancel is None:
        change["$set"] = {"cancel": cancel_request(cancel_running, now)}
    return Effect(token=token, at=now, job_id=present.id, successor=successor), change


KNOWN = 1000
"""Maximum number of classes that one store remembers."""

_AGAIN = 8
"""The newest records are read again: of concurrent inserts, one that started earlier may become visible later."""

_BACK = (4 * _AGAIN, 2000)
"""How many records are read backwards: at first, and at most."""

_PENDING = {"status": {"$lte": int(Status.PROCESSING)}}
_COMPARED = (str, int)
"""The types that the server compares as this module does."""


class Alike:
    """Finds the pending records for which a new one is the same job.

    Jobs added by ``add_job_once`` are found by their keys. For each class, a store remembers up to which record it
    knows all others and which these are; newer jobs are read backwards in the order of the collection. One that got its
    key from a running job names that, which has none since.
    """

    def __init__(self, connection: Connection, holder: Callable[[Record], Record | None]) -> None:
        self._connection = connection
        self._holder = holder
        self._known: dict[str, tuple[Any, list[Any]]] = {}
        self._many: dict[str, int] = {}  # for how many more calls such a class is assumed to have many others

    def find(self, new: Record, ignore_data: bool) -> list[Record]:
        """Return them as ``Store.alike`` says."""
        if not ignore_data and new.unique is not None:
            holder = self._holder(new)
            if holder is not None:
                return [holder]
        jobs = self._connection.collections.jobs
        documents = self._others(new.job)
        if documents is None:
            documents = list(jobs.find(_of_class(new, ignore_data)).hint(OUTCOMES))
        else:
            documents += jobs.find(holds(unique_period.of_class(new.job)))
            documents += jobs.find(_keyed(new.job)).hint(UNIQUE) if ignore_data else ()
        return _chosen(records(documents), new, ignore_data)

    def _others(self, job: str) -> list[Document] | None:
        """Return the pending documents of the class that have no key of ``add_job_once``; None if there are many."""
        calls = self._many.pop(job, 0)
        if calls:
            self._many[job] = calls - 1
            return None
        jobs = self._connection.collections.jobs
        last, ids = self._known.pop(job, (None, []))
        newest, since = self._since(last)
        if since is not None:
            ids = [*ids, *(id for document in since for id in _others_in(document, job) if id not in ids)]
        else:
            of_others = {**_PENDING, "job": job, "$nor": [{"unique": unique_period.of_class(job)}, _between(job)]}
            ids = [
                document["_id"]
                for document in jobs.find(of_others, {"_id": True}).hint(OUTCOMES).limit(unique_period.FEW + 1)
            ]
        if len(ids) > unique_period.FEW:
            self._many[job] = unique_period.FEW
            return None
        documents = list(jobs.find({"_id": {"$in": ids}, **_PENDING}).hint(BY_ID)) if ids else []
        if newest is not None:
            if len(self._known) + len(self._many) >= KNOWN:
                self._known.clear()
                self._many.clear()
            self._known[job] = (newest, [document["_id"] for document in documents])
        return documents

    def _since(self, last: ObjectId | None) -> tuple[Any, list[Document] | None]:
        """Return the record up to which all are now known, and the newer ones; None if that is unknown."""
        jobs = self._connection.collections.jobs
        fields = {"job": True, "unique": True, "status": True, "key_from": True}
        newest = None
        for most in _BACK:
            documents = list(jobs.find({}, fields).sort("$natural", DESCENDING).limit(-most))
            newest = newest or (documents[min(len(documents), _AGAIN) - 1]["_id"] if documents else None)
            ids = [document["_id"] for document in documents]
            if last is not None and last in ids:
                return newest, documents[: ids.index(last)]
            if last is None or len(documents) < most:
                break
        return newest, None


def alike_in(jobs: Collection[Document], new: Record, ignore_data: bool, session: ClientSession) -> list[Record]:
    """Return them as the session's open transaction sees them; this reads every record that may be the same."""
    if not ignore_data and new.unique is not None:
        holder = jobs.find_one(holds(new.unique), session=session)
        if holder is not None:
            return [undoubted(record(holder), new.created_at)]
    documents = jobs.find(_of_class(new, ignore_data), session=session).hint(OUTCOMES)
    return _chosen(records(documents), new, ignore_data)


def _of_class(new: Record, ignore_data: bool) -> Document:
    """Return the filter for the pending jobs of the class that may be the same."""
    return {**_PENDING, "job": new.job} | ({} if ignore_data else _comparable(decode(new.data)))


def _chosen(found: Iterable[Record], new: Record, ignore_data: bool) -> list[Record]:
    """Return the records that are the same job, in the order of ``Store.alike``."""
    return [undoubted(record, new.created_at) for record in same_jobs(found, new, ignore_data)]


def _others_in(document: Document, job: str) -> Iterator[Any]:
    """Yield the ids of jobs of the class without a key of ``add_job_once`` that a document shows."""
    if document.get("job") != job:
        return
    if "key_from" in document:
        yield document["key_from"]
    is_pending = isinstance(document.get("status"), int) and document["status"] <= Status.PROCESSING
    if is_pending and not unique_period.is_of(job, document.get("unique")):
        yield document["_id"]


def _between(job: str) -> Document:
    first, last = unique_period.range_of(job)
    return {"unique": {"$gt": first, "$lt": last}}


def _keyed(job: str) -> Document:
    first, last = unique_period.range_of(job)
    return {"unique": {"$gt": first, "$lt": last, "$type": "string"}, **_PENDING}


def _comparable(data: Any) -> Document:
    """Return the filter for data that may be the same: equal texts and whole numbers, in any order of keys."""
    if type(data) in _COMPARED:
        return {"data": data}
    if not isinstance(data, dict):
        return {}
    return {f"data.{key}": it for key, it in data.items() if type(it) in _COMPARED and key and "." not in key}
