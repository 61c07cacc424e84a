"""What jobs leave behind, in every system alike: a line with key, time and process when they start."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from tests.nodes import LIMIT, eventually

VARIABLE = "PEERS_RECORD"
"""Names the file, which is to be in memory: one short write for each job."""

_opened: dict[int, int] = {}


def work(key: int, seconds: float = 0.0) -> float:
    """Be the job: note the start, take that many seconds, and return the time of the start."""
    at = time.time()
    os.write(_descriptor(), b"%d %.6f %d\n" % (key, at, os.getpid()))
    if seconds:
        time.sleep(seconds)
    return at


def _descriptor() -> int:
    pid = os.getpid()
    if pid not in _opened:
        _opened[pid] = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    return _opened[pid]


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start of one job."""

    key: int
    at: float
    pid: int


class Record:
    """The file, as who measures reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clear()

    def clear(self) -> None:
        """Forget all starts."""
        self.path.write_bytes(b"")
        self.path.chmod(0o666)

    def starts(self) -> list[Start]:
        """Return all starts in the order in which they were written."""
        whole = self.path.read_bytes().rpartition(b"\n")[0]
        return [_start(line) for line in whole.splitlines()]

    def wait_for(self, count: int, limit: float = LIMIT) -> list[Start]:
        """Wait for so many starts and return them."""

        def look() -> list[Start]:
            return found if len(found := self.starts()) >= count else []

        return eventually(look, limit)


def _start(line: bytes) -> Start:
    key, at, pid = line.split()
    return Start(key=int(key), at=float(at), pid=int(pid))
