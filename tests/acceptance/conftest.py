"""What acceptance tests share: a store of either kind, a scheduler on it, and the facts that jobs write to files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from taskqueue import Scheduler
from tests.nodes import eventually
from tests.servers import emptied


@dataclass(frozen=True)
class JobFiles:
    """Files through which jobs of ``tests.acceptance.work`` tell what they did, and gates that hold them."""

    folder: Path

    @property
    def file(self) -> str:
        """Return the file for lines of jobs."""
        return str(self.folder / "facts")

    def lines(self) -> list[str]:
        """Return the lines that jobs have written."""
        return Path(self.file).read_text().splitlines() if Path(self.file).exists() else []

    def heed(self, count: int) -> list[str]:
        """Wait until there are so many lines, and return them."""
        return eventually(lambda: lines if len(lines := self.lines()) >= count else [])

    def gate(self, name: str = "gate") -> str:
        """Return a FIFO at which a job stops."""
        path = self.folder / name
        if not path.exists():
            os.mkfifo(path)
        return str(path)

    def open(self, name: str = "gate") -> None:
        """Let the job at the gate through, once it is there."""
        with open(self.folder / name, "w") as gate:
            gate.write("go")


@pytest.fixture
def files(tmp_path: Path) -> JobFiles:
    """Return fresh files and gates."""
    folder = tmp_path / "files"
    folder.mkdir()
    return JobFiles(folder)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long), "mongodb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty store of each kind; other Pythons do without the driver of PostgreSQL."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    if request.param == "postgresql":
        return _empty_schema(request.getfixturevalue("postgresql_url"))
    return emptied(request.getfixturevalue("mongo_set"), f"acceptance_{os.getpid()}")


def _empty_schema(server: str) -> str:
    from taskqueue.store import postgresql

    url = f"{server}?taskqueue.schema=acceptance_{os.getpid()}"
    postgresql.remove(url)
    return url


@pytest.fixture
def scheduler(url: str) -> Iterator[Scheduler]:
    """Return a scheduler on the store."""
    with Scheduler(url) as scheduler:
        yield scheduler
