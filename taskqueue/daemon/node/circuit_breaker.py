"""Circuit breaker for store calls: after a failure no call is made until a growing, jittered pause has ended."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

from taskqueue.daemon.node.figures import Figures
from taskqueue.errors import StoreContended, StoreReplaced, StoreUnavailable

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
"""The first and the longest pause without calls, in seconds; each pause is twice the one before."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class StoreCall(Generic[Answer]):
    """A store call that another thread makes."""

    future: Future[tuple[Answer, float]]
    failures: int
    """How many calls had failed when it started."""

    def wait(self) -> None:
        """Wait until the store has answered, or the call has failed."""
        wait([self.future])


class CircuitBreaker:
    """The circuit breaker of one node."""

    def __init__(
        self,
        on_change: Callable[[], None],
        figures: Figures | None = None,
        on_contended: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_contended`` is called when other processes have preempted a change, which must be tried again."""
        self._on_change = on_change
        self._on_contended = on_contended
        self._figures = figures or Figures()
        self._pause = 0.0
        self._resume_at = 0.0
        self._repeat_at = 0.0
        self._only_reads = False
        self._failures = 0
        self.reason = ""
        """Why the store does not answer; empty while it answers."""
        self.store_was_replaced = False
        """Whether the store was replaced: it never answers this process again."""
        self.locked_by: int | None = None
        """The pid of the process that locks the store, if known."""

    @property
    def is_degraded(self) -> bool:
        """Return whether the last call failed."""
        return bool(self.reason)

    @property
    def resume_at(self) -> float:
        """Return when to repeat a call that got no answer, on the monotonic clock; if none did, a time in the past."""
        return max(self._repeat_at, self._resume_at if self.reason else 0.0)

    def call(self, operation: Callable[[], Answer], *, writes: bool = False) -> Answer | None:
        """Call the store and return its answer; None if it fails, or during a pause (see also ``carry_out``).

        ``writes`` says that an answer means a write: only a write ends an outage in which reads succeed.
        """
        if self._is_paused:
            return None
        return self._answer(lambda: _timed(operation), self._failures, writes=writes)

    def carry_out(self, operation: Callable[[], None], *, writes: bool = False) -> bool:
        """Call the store for an operation without an answer as ``call`` does; return whether it was carried out."""

        def carried_out() -> bool:
            operation()
            return True

        return self.call(carried_out, writes=writes) is True

    def begin(self, operation: Callable[[], Answer], thread: Executor) -> StoreCall[Answer] | None:
        """Call the store in another thread; None during a pause. ``end`` returns the answer."""
        if self._is_paused:
            return None
        return StoreCall(thread.submit(_timed, operation), self._failures)

    def end(self, call: StoreCall[Answer], *, writes: bool = False) -> Answer | None:
        """Wait for the call and return its answer as ``call`` does."""
        return self._answer(call.future.result, call.failures, writes=writes)

    @property
    def _is_paused(self) -> bool:
        return bool(self.reason) and time.monotonic() < self._resume_at

    def _answer(self, ask: Callable[[], tuple[Answer, float]], failures: int, *, writes: bool) -> Answer | None:
        """Return the answer; it ends an outage unless another call has failed since this one started."""
        try:
            answer, seconds = ask()
        except StoreContended as error:  # the store does answer: all other calls continue
            log.warning("retrying a change soon: %s", error)
            self._repeat_at = time.monotonic() + FIRST_PAUSE * random.uniform(0.5, 1.0)
            self._on_contended()
            return None
        except StoreUnavailable as error:
            self._figures.store_errors += 1
            self._fail(error)
            return None
        self._figures.store_calls.add(seconds)
        if self.reason and failures == self._failures and (writes or not self._only_reads):
            log.warning("the store answers again")
            self.reason = ""
            self.locked_by = None
            self._pause = 0.0
            self._only_reads = False
            self._on_change()
        return answer

    def _fail(self, error: StoreUnavailable) -> None:
        first = not self.reason
        self._failures += 1
        self._pause = min(self._pause * 2 or FIRST_PAUSE, LONGEST_PAUSE)
        self._resume_at = time.monotonic() + self._pause * random.uniform(0.5, 1.0)
        self.reason = str(error)
        self._only_reads = error.only_reads
        self.locked_by = error.held_by
        self.store_was_replaced = self.store_was_replaced or isinstance(error, StoreReplaced)
        if first and not self.store_was_replaced:
            log.warning("degraded: running jobs continue until their leases expire: %s", error)
        self._on_change()


def _timed(operation: Callable[[], Answer]) -> tuple[Answer, float]:
    """Return the answer, and the seconds that it took."""
    began = time.monotonic()
    return operation(), time.monotonic() - began
