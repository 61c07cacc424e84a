"""What the relational store needs from a database: the protocols of its engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from taskqueue.model.record import Record
from taskqueue.store.bell import Bell

if TYPE_CHECKING:
    import asyncio

    from taskqueue.model.finding import Finding
    from taskqueue.store import Disagreement, Disagreements
    from taskqueue.store.relational.counts import RowCounts
    from taskqueue.store.relational.transaction import Transaction

Result = TypeVar("Result")


class Rows(Protocol):
    """What a statement has found or changed; an engine may fetch it when it is first asked for."""

    @property
    def rowcount(self) -> int:
        """How many rows were changed."""

    @property
    def lastrowid(self) -> int | None:
        """The number of the row that was inserted last, if the engine numbers rows."""

    def fetchone(self) -> Any:
        """Return the next row, None if there is none."""

    def fetchall(self) -> list[Any]:
        """Return all rows that are left."""

    def __iter__(self) -> Iterator[Any]:
        """Return the rows one by one."""


Execute: TypeAlias = Callable[..., Rows]
"""Runs a statement with its values: a sequence for ``?``, a mapping for ``:name``."""


class Database(Protocol):
    """What statements run on: a connection of the driver, or what an engine puts in its place."""

    adds: RowCounts
    """Counts added jobs for the tally and the history."""
    evaluates_data: bool
    """Whether statements may call ``data_matches``."""
    sends_together: bool
    """Whether a statement waits until its result is asked for, and is then sent with others."""

    @property
    def execute(self) -> Execute:
        """Runs a statement; it may be sent together with the next one if its result is not read."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, so that all reads see one state."""


class Sync(Enum):
    """The durability of a commit: it survives a crash of any process, or a power cut too."""

    NORMAL = "NORMAL"
    FULL = "FULL"


class CommitRinger(Protocol):
    """Rings bells after commits."""

    reaches_ends: bool
    """Whether a ring may carry the end of a job."""

    def ring(self, topics: Collection[str], end: bytes = ...) -> None:
        """Ring these topics; ``end`` is the notice of the only job that has ended."""

    def close(self) -> None:
        """Release everything."""


class Adder(Protocol):
    """Accepts records."""

    def add(self, records: Sequence[Record]) -> list[Record]:
        """Insert all records and return for each the one that is kept, in order."""

    def alike(self, new: Record, ignore_data: bool) -> list[Record]:
        """Return the pending records for which a new one is the same job (``Store.alike``)."""


class Engine(Protocol):
    """Runs reads and transactions on one database; every call either works or raises ``StoreUnavailable``."""

    url: str
    guarantee: str
    takes_calls_at_once: bool

    def read(self, action: Callable[[Database], Result]) -> Result:
        """Return the result of ``action``, which only reads; it may be run again."""

    def write(self, level: Sync, body: Callable[[Database], tuple[Transaction, Result]]) -> tuple[Transaction, Result]:
        """Run ``body`` as one transaction, commit it and return its result; undo it on any exception.

        One such transaction runs at a time in the whole store, and sees all earlier ones. The body may be run again
        from the beginning, so that it changes nothing outside the database. An engine whose database rings with the
        commit rings the topics of the work.
        """

    def within(self, session: Any, loop: asyncio.AbstractEventLoop | None) -> Adder:
        """Return an adder for the open transaction of an application's session; raise ``InvalidOption`` for others.

        An asynchronous session is used on its ``loop``.
        """

    def reach_the_disk(self) -> None:
        """Wait until all committed data would survive a power cut, if the address asks for it."""

    def alike(self, new: Record, ignore_data: bool) -> list[Record]:
        """Return the pending records for which a new one is the same job (``Store.alike``)."""

    def bell(self, topic: str) -> Bell:
        """Return a bell of the topic, listening from now on."""

    def diagnose(self) -> list[Finding]:
        """Examine the database and return the findings; only reads."""

    def strains(self) -> list[Finding]:
        """Return those findings that change by themselves (``Store.strains``)."""

    def disagreeing(self, limit: int) -> Disagreements:
        """Return derived fields that disagree with their sources (``Store.disagreeing``)."""

    def write_again(self, work: Transaction, found: Sequence[Disagreement]) -> int:
        """Rewrite these derived fields, and return for how many jobs and queues."""

    def close(self) -> None:
        """Close the connection; a later call opens it again."""
