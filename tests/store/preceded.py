"""A connection to MongoDB with another writer, which may act right before each write, and each read of one document."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

from pymongo.collection import Collection

from taskqueue.store.mongodb.connection import Collections, Connection

Document: TypeAlias = dict[str, Any]

CALLS = ("bulk_write", "delete_", "find_one", "insert_", "replace_", "update_")
"""How the names of the calls of a collection begin that are preceded."""


class OtherWriter(Protocol):
    """Another client, which writes to one collection."""

    collection: str

    def precede(self, write: str, *args: Any) -> None:
        """Do what happens right before a call with this name and these arguments."""


class PrecededConnection(Connection):
    """A connection whose calls another writer precedes, once there is one."""

    other: OtherWriter | None = None

    @property
    def collections(self) -> Collections:
        real = super().collections
        if self.other is None:
            return real
        preceded: Any = _PrecededCollection(getattr(real, self.other.collection), self.other)
        return Collections(**{**vars(real), self.other.collection: preceded})


class _PrecededCollection:
    """A real collection to which another writer writes, too."""

    def __init__(self, real: Collection[Document], other: OtherWriter) -> None:
        self._real = real
        self._other = other

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._real, name)
        if not name.startswith(CALLS):
            return attribute

        def call(*args: Any, **options: Any) -> Any:
            self._other.precede(name, *args)
            return attribute(*args, **options)

        return call
