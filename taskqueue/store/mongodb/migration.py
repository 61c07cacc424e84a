"""Migrates a MongoDB store: steps that may be repeated, with the number in a document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from pymongo import ReturnDocument

from taskqueue.errors import SchemaMismatch, StoreUnavailable
from taskqueue.model.reading import SHOWN
from taskqueue.store import OLDEST_SCHEMA, SCHEMA_VERSION, Lease
from taskqueue.store.mongodb import index_repair
from taskqueue.store.mongodb.connection import Collections, Connection
from taskqueue.store.mongodb.documents import Document
from taskqueue.store.mongodb.driver_errors import reaching
from taskqueue.store.mongodb.history import History
from taskqueue.store.mongodb.leases import Leases
from taskqueue.store.mongodb.url import parse

SCHEMA = {"_id": "schema"}
"""The document that holds the schema number."""

SHARED_ENTRIES = 5
"""The schema from which on the ends of a batch share an entry of the outbox."""


def _complete(connection: Connection) -> None:
    index_repair.ensure(connection.collections, connection.address.shown, _now(connection))


def _begin_history(connection: Connection) -> None:
    _complete(connection)
    with reaching(connection.address.shown, index_repair.INDEXING):
        History(connection).begin(connection.time())


_STEPS: Mapping[int, Callable[[Connection], None]] = {
    1: _complete,
    2: _complete,
    3: _begin_history,
    4: _complete,
    5: _complete,
}


def _now(connection: Connection) -> datetime:
    with reaching(connection.address.shown):
        return connection.time()


def check_schema(collections: Collections, shown: str) -> int:
    """Give a new store the present number, and return that of the store, which a user who only reads may open.

    Raises ``SchemaMismatch`` for one that this version does not work with.
    """
    version = _number(collections.facts.find_one(SCHEMA) or _begun(collections), shown)
    if not OLDEST_SCHEMA <= version <= SCHEMA_VERSION:
        raise SchemaMismatch(shown, version, SCHEMA_VERSION)
    return version


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
    """Return the schema number of its document; raise ``StoreUnavailable`` where that is damaged."""
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
        """Return the schema that the store has; one that was never opened has none."""
        with reaching(self.store):
            kept = self._connection.collections.facts.find_one(SCHEMA)
        return 0 if kept is None else _number(kept, self.store)

    def seats(self) -> Sequence[Lease]:
        """Return the seats whose leases are not over."""
        with reaching(self.store):
            now = self._connection.time()
            leases = Leases(self._connection).all()
        return [lease for lease in leases if lease.name.startswith("seat:") and lease.until > now]

    def apply(self, number: int) -> None:
        """Do the step to this schema; the number is written when all of it is done, and never lowered."""
        _STEPS[number](self._connection)
        with reaching(self.store):
            self._connection.collections.facts.update_one(SCHEMA, {"$max": {"version": number}}, upsert=True)

    def close(self) -> None:
        """Close the client."""
        self._connection.close()
