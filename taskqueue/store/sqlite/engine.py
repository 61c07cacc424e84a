"""The common part of the engines of a SQLite file, whoever opened it: facts, reads, and the search for the same job."""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from taskqueue.errors import InvalidOption
from taskqueue.model import unique_period
from taskqueue.model.record import Record, Status
from taskqueue.store import ALIKE
from taskqueue.store.arguments import same_jobs
from taskqueue.store.bell import ENDS, Doorbell
from taskqueue.store.relational.columns import COLUMNS, Row
from taskqueue.store.relational.engine import Adder, Sync
from taskqueue.store.relational.inserts import RELEASED
from taskqueue.store.relational.rows import record
from taskqueue.store.relational.settlements import record_of
from taskqueue.store.relational.transaction import Transaction
from taskqueue.store.sqlite.database import SqliteDatabase
from taskqueue.store.sqlite.url import SqliteUrl

if TYPE_CHECKING:
    import asyncio

    from taskqueue.model.finding import Finding
    from taskqueue.store import Disagreement, Disagreements

Result = TypeVar("Result")

_GUARANTEES = {
    "full": "an acknowledged job survives a power cut (SQLite, synchronous=full)",
    "normal": "an acknowledged job survives the crash of any process, "
    "a power cut may lose the last ones (SQLite, synchronous=normal)",
}


class SqliteEngine(ABC):
    """The engine of one file; see ``taskqueue.store.relational.engine.Engine`` for what each method promises."""

    takes_calls_at_once = False

    def __init__(self, address: SqliteUrl) -> None:
        self.address = address
        self.url = address.url
        self.guarantee = _GUARANTEES[address.synchronous]
        self.mode = 0
        """The permissions of the file, and of its bells."""
        self._alike = Alike()

    @abstractmethod
    def read(self, action: Callable[[SqliteDatabase], Result]) -> Result:
        """Return the result of ``action``."""

    @abstractmethod
    def write(self, level: Sync, body: Callable[[SqliteDatabase], Result]) -> Result:
        """Run ``body`` as one transaction and return its result."""

    @abstractmethod
    def reach_the_disk(self) -> None:
        """Wait until all committed data would survive a power cut, if the address asks for it."""

    @abstractmethod
    def close(self) -> None:
        """Close the file, if it was opened here."""

    def alike(self, new: Record, ignore_data: bool) -> list[Record]:
        return self.read(lambda raw: self._alike.find(raw, new, ignore_data))

    def within(self, session: Any, loop: asyncio.AbstractEventLoop | None) -> Adder:  # noqa: ARG002
        raise InvalidOption(
            "session is for PostgreSQL and MongoDB: on SQLite, add the job through Scheduler(connection=…)"
        )

    def bell(self, topic: str) -> Doorbell:
        reader = (record_of,) if topic == ENDS else ()
        return Doorbell(self.address.bells, topic, self.mode, *reader)

    def diagnose(self) -> list[Finding]:
        from taskqueue.store.sqlite import diagnosis

        return self.read(lambda raw: diagnosis.diagnose(raw, self.address))

    def strains(self) -> list[Finding]:
        from taskqueue.store.sqlite import diagnosis

        return self.read(lambda raw: diagnosis.strains(raw, self.address))

    def disagreeing(self, limit: int) -> Disagreements:
        from taskqueue.store.sqlite import derived_fields

        return self.read(lambda raw: derived_fields.disagreeing(raw, limit))

    def write_again(self, work: Transaction, found: Sequence[Disagreement]) -> int:
        from taskqueue.store.sqlite import derived_fields

        return derived_fields.write_again(work, found)


_HOLDER = f"SELECT {COLUMNS} FROM jobs WHERE unique_key = ? AND status <= 2"
_KEYED = (
    f"SELECT {COLUMNS} FROM jobs INDEXED BY jobs_unique WHERE unique_key > ? AND unique_key < ? AND status <= 2 "
    f"ORDER BY status = {int(Status.PROCESSING)} DESC, created_at, id LIMIT {ALIKE}"
)
_OTHERS = "job = ? AND (unique_key IS NULL OR (unique_key <> ? AND NOT (unique_key > ? AND unique_key < ?)))"
_NEWEST = (
    f"SELECT rowid, id, (SELECT records FROM tally WHERE queue = '' AND status = {RELEASED}) "
    "FROM jobs ORDER BY rowid DESC LIMIT 1"
)
_IS_THERE = "SELECT 1 FROM jobs WHERE rowid = ? AND id = ?"
_OTHERS_SINCE = (
    f"SELECT id FROM jobs NOT INDEXED WHERE rowid > ? AND status <= 2 AND {_OTHERS} LIMIT {unique_period.FEW + 1}"
)
_PENDING = f"SELECT {COLUMNS} FROM jobs WHERE id IN (SELECT value FROM json_each(?)) AND status <= 2"

# Each status has an index of its own; unless it is named, SQLite would also read ended jobs.
_BY_STATUS = tuple(
    f"FROM jobs INDEXED BY {index} WHERE status = {int(status)} AND "
    for status, index in (
        (Status.PROCESSING, "jobs_running"),
        (Status.WAITING, "jobs_waiting"),
        (Status.POSTPONED, "jobs_postponed"),
    )
)
_ALL_OTHERS = (
    f"{' UNION ALL '.join(f'SELECT id {source} {_OTHERS}' for source in _BY_STATUS)} LIMIT {unique_period.FEW + 1}"
)
_ALL = " UNION ALL ".join(f"SELECT {COLUMNS} {source} job = ?" for source in _BY_STATUS)
# Texts of equal data have equal lengths, whatever the order of keys.
_ALL_AS_LONG = " UNION ALL ".join(f"SELECT {COLUMNS} {source} job = ? AND length(data) = ?" for source in _BY_STATUS)

KNOWN = 1000
"""Maximum number of classes that one store remembers."""


class Alike:
    """Finds the pending records for which a new one is the same job.

    Jobs that ``add_job_once`` added are found by their keys. For each class, a store remembers up to which row it knows
    all others and which these are: rows are numbered in the order in which they come in, as long as the last one is
    there, and no running job has given up its key.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, str, int | None], Sequence[str]]] = {}
        self._many: dict[str, int] = {}  # for how many more calls such a class counts as one with many others

    def find(self, raw: sqlite3.Connection, new: Record, ignore_data: bool) -> list[Record]:
        """Return them as ``Store.alike`` does."""
        if not ignore_data:
            holder = raw.execute(_HOLDER, (new.unique,)).fetchone()
            if holder is not None:
                return [record(holder)]
        rows = self._others(raw, new.job)
        if rows is not None:
            rows += raw.execute(_HOLDER, (unique_period.of_class(new.job),)).fetchall()
            rows += raw.execute(_KEYED, unique_period.range_of(new.job)).fetchall() if ignore_data else []
        elif ignore_data:
            rows = raw.execute(_ALL, (new.job,) * 3).fetchall()
        else:
            rows = raw.execute(_ALL_AS_LONG, (new.job, len(new.data)) * 3).fetchall()
        return same_jobs(map(record, rows), new, ignore_data)

    def _others(self, raw: sqlite3.Connection, job: str) -> list[Row] | None:
        """Return the pending rows of the class without a key of ``add_job_once``; None if they are many."""
        calls = self._many.pop(job, 0)
        if calls:
            self._many[job] = calls - 1
            return None
        keys = (job, unique_period.of_class(job), *unique_period.range_of(job))
        newest = raw.execute(_NEWEST).fetchone()  # read first: later rows are read by the next call
        last, ids = self._known.pop(job, (None, ()))
        is_current = last is not None and newest is not None and last[2] == newest[2]
        if last is not None and is_current and raw.execute(_IS_THERE, last[:2]).fetchone() is not None:
            ids = [*ids, *(id for (id,) in raw.execute(_OTHERS_SINCE, (last[0], *keys)))]
        else:
            ids = [id for (id,) in raw.execute(_ALL_OTHERS, keys * 3)]
        if len(ids) > unique_period.FEW:
            self._many[job] = unique_period.FEW
            return None
        rows = raw.execute(_PENDING, (json.dumps(ids),)).fetchall() if ids else []
        if newest is not None:
            if len(self._known) + len(self._many) >= KNOWN:
                self._known.clear()
                self._many.clear()
            self._known[job] = (newest, [row[0] for row in rows])
        return rows
