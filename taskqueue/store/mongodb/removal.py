"""Drops a store from its database, e.g. after a benchmark."""

from __future__ import annotations

from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.driver_errors import reaching
from taskqueue.store.mongodb.url import parse


def remove(url: str) -> None:
    """Drop the collections of the store at ``url``, with everything in them; others of the database stay."""
    connection = Connection(parse(url))
    try:
        with reaching(connection.address.shown):
            kept = connection.collections
            for collection in (kept.jobs, kept.events, kept.leases, kept.slots, kept.facts, kept.plans, kept.controls):
                collection.drop()
    finally:
        connection.close()
