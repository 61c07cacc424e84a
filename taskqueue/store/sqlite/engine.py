"""What the engine of a SQLite file is, whoever opened the connection: its facts, and reads that are its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from taskqueue.errors import InvalidOption
from taskqueue.model.record import Record
from taskqueue.store.bell import ENDS, Doorbell
from taskqueue.store.relational.end_notice import record_of
from taskqueue.store.relational.engine import Adder, Sync, Work
from taskqueue.store.sqlite.alike import Alike
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
        """The permissions of the file; those of its bells are the same."""
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

    def disagreeing(self, limit: int) -> Disagreements:
        from taskqueue.store.sqlite import derived_fields

        return self.read(lambda raw: derived_fields.disagreeing(raw, limit))

    def write_again(self, work: Work, found: Sequence[Disagreement]) -> int:
        from taskqueue.store.sqlite import derived_fields

        return derived_fields.write_again(work, found)
