"""Migrates a SQLite store: each step is one transaction, with the number in ``user_version``."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from urllib.parse import quote

from taskqueue.errors import StoreUnavailable
from taskqueue.store import SCHEMA_VERSION, Lease
from taskqueue.store.relational.leases import lease_of
from taskqueue.store.sqlite import schema
from taskqueue.store.sqlite.url import location

STEPS: Mapping[int, Callable[[sqlite3.Connection], None]] = {}
"""The step to each schema after the first, if it changes something here."""

_SEATS = "SELECT name, seat, incarnation, since, until, about FROM leases WHERE name LIKE 'seat:%' AND until > ?"


class SqliteMigration:
    """Migrates one file; see ``taskqueue.store.migration.Migration``."""

    def __init__(self, url: str) -> None:
        address = location(url)
        self.store = str(address.path)
        if not address.path.is_file():
            raise StoreUnavailable(self.store, "there is no such file", "name the store with --url")
        self._raw = sqlite3.connect(
            f"file:{quote(self.store)}?mode=rw", uri=True, timeout=address.timeout, isolation_level=None
        )

    def version(self) -> int:
        """Return the schema version of the store; a new file gets the current one when it is opened."""
        with self._in_words():
            return schema.version(self._raw, self.store) or SCHEMA_VERSION

    def seats(self) -> Sequence[Lease]:
        """Return the seats whose leases have not ended."""
        with self._in_words():
            return [lease_of(row) for row in self._raw.execute(_SEATS, (time.time_ns() // 1_000_000,))]

    def apply(self, number: int) -> None:
        """Apply the step to this schema in one transaction."""
        with self._in_words():
            self._raw.execute("BEGIN IMMEDIATE")
            try:
                if self.version() < number:
                    if step := STEPS.get(number):
                        step(self._raw)
                    self._raw.execute(f"PRAGMA user_version = {number}")
                self._raw.execute("COMMIT")
            finally:
                if self._raw.in_transaction:
                    self._raw.execute("ROLLBACK")

    def close(self) -> None:
        """Close the file."""
        self._raw.close()

    @contextlib.contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreUnavailable(self.store, f"cannot be migrated ({error})", "fix the cause, then retry") from error
