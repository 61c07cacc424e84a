"""What jobs tell a socket about themselves while they run, without the store in between."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from taskqueue.cli.bench.jobs import address
from taskqueue.cli.bench.node import STUCK_AFTER, MeasurementFailed


@dataclass(frozen=True, kw_only=True)
class Signal:
    """A job runs: in which process, since when by this host's clock."""

    pid: int
    began_at: float


class Beacons:
    """The socket that jobs of the class ``Beacon`` tell."""

    def __init__(self, listening: socket.socket, name: str) -> None:
        self._listening = listening
        self.data = {"to": name}
        """The data for a job."""

    def heed(self) -> Signal:
        """Wait until a job has begun. Raises ``MeasurementFailed``."""
        try:
            pid, began_at = self._listening.recv(1024).split()
        except TimeoutError:
            raise MeasurementFailed(f"no job began for {STUCK_AFTER:g} s") from None
        return Signal(pid=int(pid), began_at=float(began_at))


@contextmanager
def beacons() -> Iterator[Beacons]:
    """Listen while the block runs."""
    name = secrets.token_hex(8)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(address(name))
        listening.settimeout(STUCK_AFTER)
        yield Beacons(listening, name)
