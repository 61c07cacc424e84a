"""Keeps leases as documents."""

from __future__ import annotations

from datetime import datetime

from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from taskqueue.model.reading import readable
from taskqueue.model.record import Holder
from taskqueue.model.timestamps import whole
from taskqueue.store import Lease
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document, holder_document, needed_time_in
from taskqueue.store.tries import Tries


def acquire(connection: Connection, lease: Lease, now: datetime) -> Lease:
    leases = connection.collections.leases
    change = {"$set": {"until": whole(lease.until), "about": dict(lease.about)}}
    document = leases.find_one_and_update(
        {"_id": lease.name, "holder": holder_document(lease.holder)}, change, return_document=ReturnDocument.AFTER
    )
    if document is not None:
        return _lease(document)
    change["$set"] |= {"holder": holder_document(lease.holder), "since": whole(lease.since)}
    tries = Tries(connection.address.shown, f"lease {lease.name}")
    while True:
        tries.another()
        try:
            taken: Document = leases.find_one_and_update(  # type: ignore[assignment]  # with upsert never None
                {"_id": lease.name, "$or": [{"until": {"$lte": now}}, {"until": {"$not": {"$type": "date"}}}]},
                change,
                upsert=True,
                return_document=ReturnDocument.AFTER,
            )
            return _lease(taken)
        except DuplicateKeyError:
            another = leases.find_one({"_id": lease.name})
            held = [] if another is None else list(readable([another], _lease, "a lease"))
            if held and held[0].until > now:
                return held[0]
            if another is not None and not held:
                leases.delete_one(another)


def resign(connection: Connection, name: str, holder: Holder) -> None:
    connection.collections.leases.delete_one({"_id": name, "holder": holder_document(holder)})


def leases(connection: Connection) -> list[Lease]:
    return list(readable(connection.collections.leases.find().sort("_id"), _lease, "a lease"))


def _lease(document: Document) -> Lease:
    return Lease(
        name=document["_id"],
        holder=Holder(**document["holder"]),
        since=needed_time_in(document["since"]),
        until=needed_time_in(document["until"]),
        about=dict(document["about"]),
    )
