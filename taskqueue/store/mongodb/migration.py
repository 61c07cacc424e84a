"""Migrates a MongoDB store in repeatable steps; the schema number is kept in a document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pymongo import ReturnDocument

from taskqueue.errors import SchemaMismatch, StoreUnavailable
from taskqueue.model.reading import SHOWN
from taskqueue.store import SCHEMA_VERSION, Lease
from taskqueue.store.mongodb.connection import Collections, Connection
from taskqueue.store.mongodb.documents import Document
from taskqueue.store.mongodb.driver_errors import reaching
from taskqueue.store.mongodb.leases import leases
from taskqueue.store.mongodb.url import parse

SCHEMA = {"_id": "schema"}
"""The document that holds the schema number."""

STEPS: Mapping[int, Callable[[Connection], None]] = {}
"""The step to each schema after the first, if MongoDB needs one; each step may be repeated."""


def check_schema(collections: Collections, shown: str) -> None:
    """Give a new store this version's schema number; a user with read access only may open a store that has it.

    Raises ``SchemaMismatch`` for a store with another number.
    """
    version = _number(collections.facts.find_one(SCHEMA) or _begun(collections), shown)
    if version != SCHEMA_VERSION:
        raise SchemaMismatch(shown, version, SCHEMA_VERSION)


def _begun(collections: Collections) -> Document:
    """Return the document with the schema number of a new store, unless another process has just written it."""
    begun: Document = collections.facts.find_one_and_update(  # type: ignore[assignment]  # with upsert never None
        SCHEMA,
        {"$setOnInsert": {"version": SCHEMA_VERSION}},
        upsert=True,
        return_document=ReturnDocument.AFTER,
    )
    return begun


def _number(kept: Document, shown: str) -> int:
    """Return the schema number in its document; raise ``StoreUnavailable`` if it is damaged."""
    version = kept.get("version")
    if isinstance(version, int) and not isinstance(version, bool):
        return int(version)
    reason = f"has the schema number {repr(version)[:SHOWN]}, which cannot be read"
    raise StoreUnavailable(shown, reason, f"restore the document {SCHEMA} of its collection of facts")


class MongoMigration:
    """Migrates one database; see ``taskqueue.store.migration.Migration``."""

    def __init__(self, url: str) -> None:
        self._connection = Connection(parse(url))
        self.store = self._connection.address.shown

    def version(self) -> int:
        """Return the schema of the store; a new store gets this version's when it is opened."""
        with reaching(self.store):
            document = self._connection.collections.facts.find_one(SCHEMA)
        return SCHEMA_VERSION if document is None else _number(document, self.store)

    def seats(self) -> Sequence[Lease]:
        """Return the seats whose leases have not ended."""
        with reaching(self.store):
            now = self._connection.time()
            held = leases(self._connection)
        return [lease for lease in held if lease.name.startswith("seat:") and lease.until > now]

    def apply(self, number: int) -> None:
        """Do the step to this schema; the number is written once the step is complete, and never lowered."""
        if step := STEPS.get(number):
            step(self._connection)
        with reaching(self.store):
            self._connection.collections.facts.update_one(SCHEMA, {"$max": {"version": number}}, upsert=True)

    def close(self) -> None:
        """Close the client."""
        self._connection.close()
