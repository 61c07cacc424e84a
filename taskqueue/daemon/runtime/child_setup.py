"""Set up a freshly forked child: signals, descriptors, process group, exit."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NoReturn

CRASHED = 70  # EX_SOFTWARE of sysexits.h: the exit status of a child whose main raised

PR_SET_PDEATHSIG = 1  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)


def live(
    main: Callable[[], int | None], *, keep: Collection[int], parent: int, death_signal: signal.Signals
) -> NoReturn:
    """Set up the child of ``parent``, run ``main`` in it, and exit."""
    code = CRASHED
    try:
        signal.set_wakeup_fd(-1)  # first: a byte written by the child would wake the parent
        _reset_signals()
        gc.freeze()  # the child must not finalize garbage of the parent
        os.setpgid(0, 0)
        die_with(parent, death_signal)
        _drop_descriptors(keep)
        code = main() or 0
    except BaseException:  # the child must never return into the frames of the parent
        traceback.print_exc()
    finally:
        flush()
        os._exit(code)


def die_with(parent: int, death_signal: signal.Signals) -> None:
    """Request ``death_signal`` for when ``parent`` dies; raise it now if the parent is dead already."""
    prctl(PR_SET_PDEATHSIG, death_signal)
    if os.getppid() != parent:
        signal.raise_signal(death_signal)


def flush() -> None:
    """Flush the standard streams if possible, so that parent and child do not both write the same text."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # absent, broken or closed
            stream.flush()


def descriptors() -> set[int]:
    """Return the open descriptors of this process above 2."""
    numbers = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    return {number for number in numbers if number > 2 and _is_open(number)}  # the directory listing itself used one


def prctl(option: int, value: int) -> None:
    """Call prctl(2) with one argument; raise ``OSError`` if it fails."""
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}, {value}): {os.strerror(error)}")


def kill_main_thread(pid: int, signum: int) -> None:
    """Call tgkill(2) for the main thread of a process; with a libc that lacks it the kernel chooses the thread."""
    tgkill = getattr(_libc, "tgkill", None)
    if tgkill is None:
        os.kill(pid, signum)
    elif tgkill(pid, pid, signum) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"tgkill({pid}, {pid}, {signum}): {os.strerror(error)}")


def _reset_signals() -> None:
    """Remove the parent's handlers. Ignored signals stay ignored: SIGPIPE by Python, SIGHUP by nohup."""
    for signum in signal.valid_signals():
        if callable(signal.getsignal(signum)):
            signal.signal(signum, signal.SIG_DFL)


def _drop_descriptors(keep: Collection[int]) -> None:
    """Replace inherited descriptors with /dev/null.

    The peers of inherited channels see this end closed at once; an object of the parent that is closed here later
    closes the replacement, not a new file that got the same number.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in descriptors() - {*keep, *_standard_descriptors(), null}:
        try:
            os.dup2(null, number, inheritable=False)
        except OSError:  # its number is over the limit of open files, which was lowered: no new file gets it
            os.close(number)
    os.close(null)


def _standard_descriptors() -> Iterator[int]:
    """Yield the descriptors of the standard streams, which are not always 0, 1 and 2."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            yield stream.fileno()


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
