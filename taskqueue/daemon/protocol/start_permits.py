"""Permits to begin a run: a worker takes them in order, and the manager takes back those that are left.

A run reaches a worker ahead of time, so that short ones follow each other without a round trip; yet it belongs to
whoever has its ticket. Tickets lie in a pipe, from which both read: the kernel gives each to one of them.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable

_PERMIT = struct.Struct("Q")  # the number of a run; a pipe keeps reads and writes of eight bytes whole
_PIPE_SIZE = 64 * 1024  # bytes: what a pipe holds


class StartPermits:
    """The permits for one worker. Made before the fork: the manager issues and takes back, the worker takes."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._last_taken = 0

    def fileno(self) -> int:
        """Return the descriptor that the worker keeps."""
        return self._reader

    def issue(self, numbers: Iterable[int]) -> None:
        """Permit these runs, in ascending order."""
        os.write(self._writer, b"".join(map(_PERMIT.pack, numbers)))

    def take(self, number: int) -> bool:
        """Tell whether the run may begin; once it may, it can no longer be taken back."""
        with contextlib.suppress(BlockingIOError):
            while self._last_taken < number:
                (self._last_taken,) = _PERMIT.unpack(os.read(self._reader, _PERMIT.size))
        return self._last_taken == number

    def revoke(self) -> list[int]:
        """Return the numbers of the runs that have not begun, and can not begin any more."""
        try:
            left = os.read(self._reader, _PIPE_SIZE)
        except BlockingIOError:
            return []
        return [number for (number,) in _PERMIT.iter_unpack(left)]

    def close(self) -> None:
        """Let go of the pipe."""
        os.close(self._reader)
        os.close(self._writer)
