"""Permits to start a run: a worker takes them in order, and the manager revokes unused ones.

The manager sends runs to a worker before the previous one has ended, so that short runs follow each other without a
round trip. A permit decides whether such a run starts or goes back: permits lie in a pipe from which both processes
read, and the kernel gives each permit to exactly one of them.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

_PERMIT = struct.Struct("Q")  # the number of a run; a pipe never splits reads and writes of eight bytes
_PIPE_SIZE = 64 * 1024  # bytes


class StartPermits:
    """The permits of one worker, created before the fork: the manager issues and revokes, the worker takes."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._last_taken = 0

    def fileno(self) -> int:
        """Return the descriptor that the worker keeps."""
        return self._reader

    def issue(self, numbers: Iterable[int]) -> None:
        """Permit the runs with these numbers, in ascending order."""
        os.write(self._writer, b"".join(map(_PERMIT.pack, numbers)))

    def take(self, number: int) -> bool:
        """Return whether the run may start; once True, the manager can no longer revoke it."""
        try:
            while self._last_taken < number:
                (self._last_taken,) = _PERMIT.unpack(os.read(self._reader, _PERMIT.size))
        except BlockingIOError:
            return False
        return self._last_taken == number

    def revoke(self) -> list[int]:
        """Revoke all permits not taken yet, and return the numbers of their runs."""
        try:
            permits = os.read(self._reader, _PIPE_SIZE)
        except BlockingIOError:
            return []
        return [number for (number,) in _PERMIT.iter_unpack(permits)]

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._reader)
        os.close(self._writer)
