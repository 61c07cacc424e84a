"""Migrates a SQLite store: each step is one transaction, with the number in ``user_version``."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from urllib.parse import quote

from taskqueue.errors import StoreUnavailable
from taskqueue.store import Lease
from taskqueue.store.sqlite import history, schema
from taskqueue.store.sqlite.leases import lease_of
from taskqueue.store.sqlite.url import location


def _begin_history(raw: sqlite3.Connection) -> None:
    schema.complete(raw)
    history.begin(raw.execute)


_STEPS: Mapping[int, Callable[[sqlite3.Connection], None]] = {
    1: schema.complete,
    2: schema.complete,
    3: _begin_history,
    4: schema.complete,  # rows that are there stay as they are
    5: schema.complete,
}
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
        """Return the schema that the store has; a new file has none, and gets the present one when it is opened."""
        with self._in_words():
            return schema.version(self._raw, self.store) or 0

    def seats(self) -> Sequence[Lease]:
        """Return the seats whose leases are not over."""
        with self._in_words():
            if schema.version(self._raw, self.store) is None:
                return []
            return [lease_of(row) for row in self._raw.execute(_SEATS, (time.time_ns() // 1_000_000,))]

    def apply(self, number: int) -> None:
        """Do the step to this schema in one transaction."""
        with self._in_words():
            self._raw.execute("BEGIN IMMEDIATE")
            try:
                if (schema.version(self._raw, self.store) or 0) < number:
                    _STEPS[number](self._raw)
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
            raise StoreUnavailable(self.store, f"cannot be migrated ({error})", "see the text of the error") from error
