"""Divides waiting into steps: a generator does the work and asks for polls, its driver waits as its caller does.

A thread is blocked by a poll; an event loop watches the descriptors instead (``async_steps``).
"""

from __future__ import annotations

import select
import sys
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, NamedTuple, TypeAlias, TypeVar

from taskqueue.errors import StoreUnavailable

LONGEST_OUTAGE = 60.0
"""How many seconds a wait tolerates a store that does not answer."""

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0
"""Seconds between two attempts to read from a store that does not answer: the first, growing to the longest."""

Ready: TypeAlias = frozenset[int]
NUDGED: Ready = frozenset([-1])
"""The answer to a poll that its driver ended early, before anything was readable."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Poll(NamedTuple):
    """A request of a generator: wait until a descriptor is readable, and send back the readable ones."""

    descriptors: tuple[int, ...]
    seconds: float

    def wait(self) -> Ready:
        """Wait in this thread."""
        if "asyncio" in sys.modules:
            _warn_in_event_loop()
        descriptors = select.poll()
        for descriptor in self.descriptors:
            descriptors.register(descriptor, select.POLLIN)
        return frozenset([descriptor for descriptor, _ in descriptors.poll(self.seconds * 1000)])


Steps: TypeAlias = Generator[Poll | Item, Ready, Any]


def items(steps: Steps[Item]) -> Generator[Item, None, None]:
    """Yield the items of the steps; wait in this thread between them."""
    with closing(steps):
        try:
            step = next(steps)
            while True:
                if isinstance(step, Poll):
                    step = steps.send(step.wait())
                else:
                    yield step
                    step = next(steps)
        except StopIteration:
            return


def finished(steps: Generator[Poll, Ready, Result]) -> Result:
    """Return the result of steps that only yield polls; wait in this thread between them."""
    try:
        poll = next(steps)
        while True:
            poll = steps.send(poll.wait())
    except StopIteration as end:
        result: Result = end.value
        return result


def patiently(
    read: Callable[[], Result],
    deadline: float | None,
    refuse_if_closed: Callable[[], None],
    failed: StoreUnavailable | None = None,
) -> Generator[Poll, Ready, Result]:
    """Read from the store, repeatedly during an outage, but not beyond the deadline nor for more than a minute.

    ``failed`` is the error of an attempt just before.
    """
    give_up_at = time.monotonic() + LONGEST_OUTAGE
    pause = FIRST_PAUSE
    while True:
        try:
            if failed is not None:
                error, failed = failed, None
                raise error
            return read()
        except StoreUnavailable:
            refuse_if_closed()
            if time.monotonic() + pause > min(give_up_at, deadline or give_up_at):
                raise
        yield Poll((), pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _warn_in_event_loop() -> None:
    """Warn a caller that is about to block a running event loop, once per place, subject to Python's filters."""
    import asyncio
    import inspect

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals["__name__"].partition(".")[0] == "taskqueue":
        frame, level = frame.f_back, level + 1
    warnings.warn(
        "this wait for jobs blocks the running event loop: use AsyncScheduler and await it, "
        "or call it in a thread (asyncio.to_thread)",
        RuntimeWarning,
        stacklevel=level,
    )
