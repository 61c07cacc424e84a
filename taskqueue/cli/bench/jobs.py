"""The jobs that are measured: they do nothing, say when they began, or run until they are ended."""

from __future__ import annotations

import os
import socket
import time

from taskqueue.model.job import Job

LONG = 3600.0
"""Seconds that a job runs which is to be interrupted."""


class Empty(Job):
    """Does nothing."""

    def start(self) -> None:
        """Return at once."""


class Moment(Job):
    """Says when it began."""

    def start(self) -> float:
        """Return the time of this host's clock."""
        return time.time()


class Beacon(Job):
    """Tells a socket which process runs it since when; its first attempt then runs until it is ended."""

    def start(self) -> None:
        """Send one datagram, and stay."""
        began_at = time.time()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as teller:
            teller.sendto(f"{os.getpid()} {began_at!r}".encode(), address(self.data["to"]))
        if self.attempt == 1:
            time.sleep(LONG)


def address(name: str) -> str:
    """Return the address of a socket that has no place in the filesystem (unix(7), abstract)."""
    return f"\0taskqueue-bench-{name}"
