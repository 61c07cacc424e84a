"""Runs a node as a child process, and has it replace its workers whenever a Python file of the application changes."""

from __future__ import annotations

import select
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType

from taskqueue.cli import output
from taskqueue.daemon.runtime import child_process
from taskqueue.errors import ConfigError

STEP = 50
"""Milliseconds without a change after which a change counts as complete."""

DEBOUNCE = 200
"""Milliseconds for which changes are collected at most."""

LOOK = 200
"""Milliseconds between two checks of the node."""

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)


def run(folder: Path, node: Callable[[], int]) -> int:
    """Run ``node`` in a child process until it leaves, and return its exit code.

    Signals go to the node; SIGHUP, after a change in the folder, has it replace its workers after their present runs.
    Raises ``ConfigError`` without the package watchfiles.
    """
    changes = _watch(folder)
    child = child_process.fork(lambda: _node(node), name="run --reload", death_signal=signal.SIGTERM)

    def forward(signum: int, _: FrameType | None) -> None:
        child.signal(signum)

    before = {signum: signal.signal(signum, forward) for signum in FORWARDED}
    try:
        for changed in changes:
            if select.select([child], [], [], 0)[0]:
                break
            if changed and _compile(changed):
                child.signal(signal.SIGHUP)
        ended = child.reap()
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        child.close()
    return ended.code if ended.code is not None else 128 + (ended.signal or 0)


def _watch(folder: Path) -> Iterator[list[Path]]:
    """Return an iterator over the Python files that have changed together; an empty list at intervals."""
    try:
        import watchfiles
    except ImportError:
        raise ConfigError("--reload needs the package watchfiles: pip install 'taskqueue-jobs[dev]'") from None
    found = watchfiles.watch(
        folder,
        watch_filter=watchfiles.PythonFilter(),
        step=STEP,
        debounce=DEBOUNCE,
        rust_timeout=LOOK,
        yield_on_timeout=True,
        raise_interrupt=False,
    )
    return (sorted({Path(path) for _, path in together}) for together in found)


def _compile(changed: Iterable[Path]) -> bool:
    """Print which files have changed, and return whether all can be compiled; if not, the old code keeps running."""
    is_whole = True
    for path in changed:
        try:
            compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
            output.line(f"reloading: {path.name} has changed", err=True)
        except FileNotFoundError:
            output.line(f"reloading: {path.name} is gone", err=True)
        except (OSError, SyntaxError, ValueError) as error:
            output.line(f"not reloading: {path.name} cannot be compiled: {error}", err=True)
            is_whole = False
    return is_whole


def _node(node: Callable[[], int]) -> int:
    """Run the node in the child: a change before it is ready is no reason to end it."""
    signal.signal(signal.SIGHUP, lambda _number, _frame: None)
    child_process.allow_signals()
    return node()
