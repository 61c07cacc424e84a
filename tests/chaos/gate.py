"""A gate: what a job or a starting worker waits at until a test lets it through."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

ROOM = 4096
"""Bytes that an open gate holds: one for each that passes."""


class Gate:
    """A FIFO; it is closed at first. Those who come to an open gate do not wait."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._held = -1

    def open(self) -> None:
        """Let everyone through, those who wait and those who come."""
        if self._held < 0:
            self._held = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            os.write(self._held, bytes(ROOM))

    def close(self) -> None:
        """Let nobody through any more."""
        if self._held < 0:
            return
        with suppress(BlockingIOError):
            while os.read(self._held, ROOM):
                pass
        os.close(self._held)
        self._held = -1


def pass_through(path: str) -> None:
    """Wait until the gate is open."""
    with open(path, "rb", buffering=0) as gate:
        gate.read(1)
