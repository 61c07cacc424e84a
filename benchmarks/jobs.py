"""The jobs of the workloads: one does nothing, one returns its start time, one blocks until it is interrupted."""

from __future__ import annotations

import os
import socket
import time

from taskqueue.model.job import Job

LONG = 3600.0
"""Seconds that a blocking job runs unless it is interrupted."""


class Empty(Job):
    """Does nothing."""

    def start(self) -> None:
        """Return at once."""


class Moment(Job):
    """Returns its start time."""

    def start(self) -> float:
        """Return the time of this host's clock."""
        return time.time()


class Blocking(Job):
    """Sends its process id and start time to a socket; its first attempt then runs until it is interrupted."""

    def start(self) -> None:
        """Send one datagram, and block."""
        began_at = time.time()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(f"{os.getpid()} {began_at!r}".encode(), address(self.data["to"]))
        if self.attempt == 1:
            time.sleep(LONG)


def address(name: str) -> str:
    """Return the address of an abstract socket, which has no file (unix(7))."""
    return f"\0taskqueue-bench-{name}"
