"""Reads signals from a descriptor, each with the process that has sent it; Python's handlers do not get it."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from collections.abc import Iterable, Iterator

_libc = ctypes.CDLL(None, use_errno=True)
_SET = 128  # bytes of sigset_t, of glibc and of musl
_SIGINFO = 128  # bytes of struct signalfd_siginfo
_HEAD = struct.Struct("=IiiI")  # its first fields: number, errno, code, pid
_MOST = 16  # signals of one read


class SignalFile:
    """A descriptor that is readable while one of these signals waits for this process; see signalfd(2).

    They must be blocked in every thread.
    """

    def __init__(self, signums: Iterable[signal.Signals]) -> None:
        chosen = ctypes.create_string_buffer(_SET)
        _libc.sigemptyset(chosen)
        for signum in signums:
            _libc.sigaddset(chosen, int(signum))
        self._descriptor: int = _libc.signalfd(-1, chosen, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            error = ctypes.get_errno()
            raise OSError(error, f"signalfd: {os.strerror(error)}")

    def fileno(self) -> int:
        return self._descriptor

    def read(self) -> Iterator[tuple[signal.Signals, int]]:
        """Yield the signals that wait, each with the pid of its sender; 0 for the kernel or another pid namespace."""
        try:
            received = os.read(self._descriptor, _SIGINFO * _MOST)
        except BlockingIOError:
            return
        for first in range(0, len(received), _SIGINFO):
            signum, _, _, pid = _HEAD.unpack_from(received, first)
            yield signal.Signals(signum), pid

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)
