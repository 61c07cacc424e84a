"""Finds the pending records that are the same job as a new one.

Jobs that ``add_job_once`` added are found by their keys. A store remembers, for each class, up to which record it
knows all others and which these are; newer jobs are read backwards in the order of the collection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bson import ObjectId
from pymongo import DESCENDING
from pymongo.client_session import ClientSession
from pymongo.collection import Collection

from taskqueue.model import once_key
from taskqueue.model.record import Record, Status
from taskqueue.model.serializer import decode, same
from taskqueue.store import ALIKE
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document, record, records
from taskqueue.store.mongodb.indexes import BY_ID, OUTCOMES, UNIQUE
from taskqueue.store.mongodb.unique_keys import holds, undoubted

KNOWN = 1000
"""Classes that one store remembers at most."""

_AGAIN = 8
"""The newest records are looked at again: of inserts at the same time, one that was begun earlier may come in later."""

_BACK = (4 * _AGAIN, 2000)
"""How many records are read backwards, at first and at most."""

_PENDING = {"status": {"$lte": int(Status.PROCESSING)}}
_COMPARED = (str, int)
"""The types that the server compares as this module does."""


class Alike:
    """Finds the pending records for which a new one is the same job."""

    def __init__(self, connection: Connection, holder: Callable[[Record], Record | None]) -> None:
        self._connection = connection
        self._holder = holder
        self._known: dict[str, tuple[Any, list[Any]]] = {}
        self._many: dict[str, int] = {}  # for how many calls more such a class is taken to have many others

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
            documents += jobs.find(holds(once_key.of_class(new.job)))
            documents += jobs.find(_keyed(new.job)).hint(UNIQUE) if ignore_data else ()
        return _chosen(records(documents), new, ignore_data)

    def _others(self, job: str) -> list[Document] | None:
        """Return the pending documents of the class without a key of ``add_job_once``; None if they are many."""
        calls = self._many.pop(job, 0)
        if calls:
            self._many[job] = calls - 1
            return None
        jobs = self._connection.collections.jobs
        last, ids = self._known.pop(job, (None, []))
        newest, since = self._since(last)
        if since is not None:
            ids = [
                *ids,
                *(document["_id"] for document in since if _is_other(document, job) and document["_id"] not in ids),
            ]
        else:
            of_others = {**_PENDING, "job": job, "$nor": [{"unique": once_key.of_class(job)}, _between(job)]}
            ids = [
                document["_id"]
                for document in jobs.find(of_others, {"_id": True}).hint(OUTCOMES).limit(once_key.FEW + 1)
            ]
        if len(ids) > once_key.FEW:
            self._many[job] = once_key.FEW
            return None
        documents = list(jobs.find({"_id": {"$in": ids}, **_PENDING}).hint(BY_ID)) if ids else []
        if newest is not None:
            if len(self._known) + len(self._many) >= KNOWN:
                self._known.clear()
                self._many.clear()
            self._known[job] = (newest, [document["_id"] for document in documents])
        return documents

    def _since(self, last: ObjectId | None) -> tuple[Any, list[Document] | None]:
        """Return the record up to which all are known now, and the newer ones; None if that is unknown."""
        jobs = self._connection.collections.jobs
        fields = {"job": True, "unique": True, "status": True}
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
    """Return them as the open transaction of the session sees them; it reads all that may be the same."""
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
    """Return those of the records that are the same job, in the order of ``Store.alike``."""
    pending = [record for record in found if record.job == new.job]
    equal = [record for record in pending if ignore_data or same(record.data, new.data)]
    equal.sort(key=lambda record: (record.status is not Status.PROCESSING, record.created_at, record.id))
    return [undoubted(record, new.created_at) for record in equal[:ALIKE]]


def _is_other(document: Document, job: str) -> bool:
    is_pending = isinstance(document.get("status"), int) and document["status"] <= Status.PROCESSING
    return is_pending and document.get("job") == job and not once_key.is_of(job, document.get("unique"))


def _between(job: str) -> Document:
    first, last = once_key.range_of(job)
    return {"unique": {"$gt": first, "$lt": last}}


def _keyed(job: str) -> Document:
    first, last = once_key.range_of(job)
    return {"unique": {"$gt": first, "$lt": last, "$type": "string"}, **_PENDING}


def _comparable(data: Any) -> Document:
    """Return the filter for data that may be the same: equal texts and whole numbers, in any order of keys."""
    if type(data) in _COMPARED:
        return {"data": data}
    if not isinstance(data, dict):
        return {}
    return {f"data.{key}": it for key, it in data.items() if type(it) in _COMPARED and key and "." not in key}
