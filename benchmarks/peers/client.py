"""What every system is asked to do, and the place where it does it."""

from __future__ import annotations

import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.peers.record import VARIABLE, Record

ROOT = Path(__file__).parents[2]
PATIENCE = 5.0
"""Seconds that workers get to leave; leaving is not measured."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one run of one system happens."""

    folder: Path
    record: Record
    server: str
    """The address of the server that the system uses; empty for none."""

    def environment(self, name: str) -> dict[str, str]:
        """Return what jobs, workers and client find in their environment."""
        return {
            "PEER": name,
            "PEERS_FOLDER": str(self.folder),
            "PEERS_SERVER": self.server,
            VARIABLE: str(self.record.path),
            "PYTHONPATH": str(ROOT),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }


class Client(ABC):
    """One system, as an application uses it. All jobs call ``record.work`` with what they are given."""

    @abstractmethod
    def add(self, key: int, seconds: float = 0.0) -> object:
        """Add a job and return what ``result`` takes."""

    def commands(self, workers: int) -> list[list[str]]:
        """Return the command lines of a node with so many worker processes, or start them here and return none."""
        raise NotImplementedError(f"{type(self).__module__} runs no jobs")

    def add_many(self, keys: range) -> None:
        """Add empty jobs as fast as the interface allows."""
        for key in keys:
            self.add(key)

    def add_at(self, key: int, at: float) -> None:
        """Add an empty job that is due at a Unix time."""
        raise NotImplementedError(f"{type(self).__module__} has no jobs for later")

    def result(self, handle: object) -> object:
        """Wait for the end of the job and return its result."""
        raise NotImplementedError(f"{type(self).__module__} keeps no results")

    def close(self) -> None:  # noqa: B027 - most have nothing to do
        """Let go of connections."""


@contextmanager
def workers(client: Client, place: Place, name: str, count: int) -> Iterator[list[psutil.Process]]:
    """Run a node of so many worker processes and yield the processes that were started for it."""
    environment = {**os.environ, **place.environment(name)}
    with (place.folder / "node.log").open("ab") as log:
        started = [
            subprocess.Popen(
                command,
                cwd=place.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            for command in client.commands(count)
        ]
    try:
        yield [psutil.Process(one.pid) for one in started]
    finally:
        family = [member for one in started if one.poll() is None for member in _family(one.pid)]
        for one in started:
            one.terminate()
        _, left = psutil.wait_procs(family, timeout=PATIENCE)
        for member in left:
            member.kill()
        for one in started:
            one.wait()


def _family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]
