"""Have a process die with its parent: what prctl(2) offers for it."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with(parent: int, death_signal: signal.Signals) -> None:
    """Ask for ``death_signal`` when ``parent`` dies; it comes also when that has happened already."""
    prctl(_PR_SET_PDEATHSIG, death_signal)
    if os.getppid() != parent:
        signal.raise_signal(death_signal)


def prctl(option: int, value: int) -> None:
    """Do what prctl(2) does with one argument; raise ``OSError`` where it refuses."""
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}, {value}): {os.strerror(error)}")
