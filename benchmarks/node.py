"""A real node as a child of the measurement: started as operators start it, watched, and stopped."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.jobs import address
from taskqueue.cli import bench
from taskqueue.cli.bench import STUCK_AFTER, MeasurementFailed

_PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True)
class Start:
    """A job has started: in which process, and when by this host's clock."""

    pid: int
    at: float


class StartSignals:
    """The socket to which jobs of the class ``Blocking`` send their start, past the store."""

    def __init__(self, listening: socket.socket, name: str) -> None:
        self._listening = listening
        self.data = {"to": name}
        """The data for a job."""

    def receive(self) -> Start:
        """Wait until a job has started. Raises ``MeasurementFailed``."""
        try:
            pid, at = self._listening.recv(1024).split()
        except TimeoutError:
            raise MeasurementFailed(f"no job began for {STUCK_AFTER:g} s") from None
        return Start(pid=int(pid), at=float(at))


class Node(bench.Node):
    """A node whose memory and processor time are measured."""

    def memory(self) -> int:
        """Return the proportional set size of all its processes in bytes: shared memory counts for each by its part."""
        total = 0
        for pid in family(self.pid):
            for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        return total

    def processor_time(self) -> float:
        """Return the seconds for which the threads of all its processes have run."""
        total = 0
        for pid in family(self.pid):
            for thread in (_PROC / str(pid) / "task").iterdir():
                with suppress(OSError):  # it has just ended
                    total += int((thread / "schedstat").read_text().split()[0])
        return total / 1e9


@contextmanager
def node(url: str, folder: Path, workers: int, *options: str) -> Iterator[Node]:
    """Start a node and stop it when the block is left."""
    started = Node(url, folder, workers, options)
    try:
        yield started
    finally:
        started.stop()


@contextmanager
def start_signals() -> Iterator[StartSignals]:
    """Listen to starts while the block runs."""
    name = secrets.token_hex(8)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(address(name))
        listening.settimeout(STUCK_AFTER)
        yield StartSignals(listening, name)


def family(pid: int) -> list[int]:
    """Return the process and all below it."""
    children = []
    for thread in (_PROC / str(pid) / "task").iterdir():
        children += [int(child) for child in (thread / "children").read_text().split()]
    return [pid, *(member for child in children for member in family(child))]
