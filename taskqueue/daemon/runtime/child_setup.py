"""Make a process of its own out of the copy of the parent that fork leaves: the first steps of a child and its last."""

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

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def live(
    main: Callable[[], int | None], *, keep: Collection[int], parent: int, death_signal: signal.Signals
) -> NoReturn:
    """Be the child of ``parent`` from the first instruction to the last, with ``main`` in between."""
    code = CRASHED
    try:
        signal.set_wakeup_fd(-1)  # first of all: a byte of ours would wake the parent
        _reset_signals()
        gc.freeze()  # garbage of the parent is not ours to finalize
        os.setpgid(0, 0)
        die_with(parent, death_signal)
        _drop_descriptors(keep)
        code = main() or 0
    except BaseException:  # whatever it is, the child must not return into the frames of the parent
        traceback.print_exc()
    finally:
        flush()
        os._exit(code)


def die_with(parent: int, death_signal: signal.Signals) -> None:
    """Ask for ``death_signal`` when ``parent`` dies; it comes also when that has happened already."""
    prctl(_PR_SET_PDEATHSIG, death_signal)
    if os.getppid() != parent:
        signal.raise_signal(death_signal)


def flush() -> None:
    """Empty the buffers of the standard streams as far as they can, so that no text is written twice."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # absent, broken or closed
            stream.flush()


def descriptors() -> set[int]:
    """Return the descriptors above the standard streams that are open in this process."""
    numbers = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    return {number for number in numbers if number > 2 and _is_open(number)}  # the folder itself was one of them


def prctl(option: int, value: int) -> None:
    """Do what prctl(2) does with one argument; raise ``OSError`` where it refuses."""
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}, {value}): {os.strerror(error)}")


def _reset_signals() -> None:
    """Undo the parent's handlers. What is ignored stays so: SIGPIPE by Python, SIGHUP by nohup."""
    for signum in signal.valid_signals():
        if callable(signal.getsignal(signum)):
            signal.signal(signum, signal.SIG_DFL)


def _drop_descriptors(keep: Collection[int]) -> None:
    """Replace what was inherited by /dev/null.

    Siblings and parents see our end of their channels closed at once; an object of the parent that is closed here
    later closes the replacement, not a file that was given the same number since.
    """
    kept = {*keep, *_standard_descriptors()}
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in descriptors() - kept - {null}:
        os.dup2(null, number, inheritable=False)
    os.close(null)


def _standard_descriptors() -> Iterator[int]:
    """Yield where the standard streams really go: not always to 0, 1 and 2."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            yield stream.fileno()


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
