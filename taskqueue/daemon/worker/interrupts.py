"""Turns SIGTERM into ``Interrupted``, raised in the job's own code and nowhere else."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType, TracebackType

from taskqueue.daemon.protocol.shared_memory import WorkerPage
from taskqueue.execution.executor import execute
from taskqueue.model.job import Interrupted, JobTimeout

LOOKS_EVERY = 0.02
"""Seconds between two checks whether a job has replaced the SIGTERM handler; each costs a tenth of an empty job."""


class StopRequests(AbstractContextManager[None]):
    """The requests to end one run (implements ``job_context.Interrupts``); a context in which user code runs."""

    def __init__(self, page: WorkerPage, number: int = 0) -> None:
        self._page = page
        self._number = number
        self.reason = ""
        """Why the run has to end for another reason than a request of the manager."""
        self.is_open = False
        """The job's code is running, or awaits."""
        self.is_due = False
        """A request came while it was not."""
        self.shield = Shield(self)

    @property
    def stop_reason(self) -> str | None:
        """Return why the run has to end; None if it does not."""
        return self._page.stop_reason_of(self._number) or self.reason or None

    @property
    def stopping(self) -> bool:
        """Return whether the run should end by itself."""
        return self._page.is_node_stopping or self.stop_reason is not None

    def __enter__(self) -> None:
        self.is_open = True
        if self.is_due:
            self.is_open = False
            self._interrupt()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_open = False

    def deliver_to(self, cancel: Callable[[str], bool]) -> None:
        """Do nothing: the run has a task that is canceled."""

    def raise_due(self) -> None:
        """Do nothing: the next signal comes in a second."""

    def raise_now(self) -> None:
        """Raise an interrupt in the job's code, if that is running."""
        if self.is_open and not self.shield.depth:
            self._interrupt()

    def _interrupt(self) -> None:
        self.is_due = False
        reason = self.stop_reason or ""
        raise (JobTimeout if reason == "timeout" else Interrupted)(reason)


class SignalInterrupts(StopRequests):
    """Handles SIGTERM, and knows whether the current run has to end.

    With a stop request on the worker page the signal is from the manager and concerns one run; otherwise another
    process sent it and the worker exits. A signal that comes while the worker's own code runs is raised when the job's
    code continues.
    """

    def __init__(self, page: WorkerPage) -> None:
        super().__init__(page)
        self._looked_at = 0.0
        self._cancel: Callable[[str], bool] | None = None
        self.on_signal: Callable[[FrameType | None], None] = _nothing
        """Called with the current frame at each SIGTERM, before anything is interrupted."""
        self.leaving = False
        self.wake_up = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """A descriptor that becomes readable when this worker must exit."""

    def install(self, signal_pipe: int) -> None:
        """Handle SIGTERM, and write the number of every signal to ``signal_pipe``, even while C code holds the GIL."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGINT, _ignore)  # SIG_IGN would be inherited by every program that a job starts
        signal.set_wakeup_fd(signal_pipe, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=self._disarm)

    def begin(self, number: int) -> None:
        """Make run ``number`` the current one."""
        self._number = number
        self.reason = ""
        self.is_due = False
        if time.monotonic() - self._looked_at > LOOKS_EVERY:
            self.look()

    def look(self) -> None:
        """Handle SIGTERM again, if a job has replaced the handler."""
        self._looked_at = time.monotonic()
        if signal.getsignal(signal.SIGTERM) != self._on_sigterm:
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_open = False
        self._cancel = None

    def deliver_to(self, cancel: Callable[[str], bool]) -> None:
        """Until the job's code is left call ``cancel`` with the reason, and raise only if that returns False."""
        self._cancel = cancel

    def raise_due(self) -> None:
        """Raise an interrupt that came in the meantime, in the job's code."""
        if self.is_due:
            self.raise_now()

    def _on_sigterm(self, _signum: int, frame: FrameType | None) -> None:
        self.on_signal(frame)
        reason = self._page.stop_reason_of(self._number)
        if not reason:
            if self._page.has_stop_request:  # it was for an earlier run
                return
            self.leaving = True
            os.eventfd_write(self.wake_up, 1)
        self.reason = reason or "shutdown"
        if self._cancel is not None and self._cancel(self.reason):
            return
        self.is_due = True
        if frame is not None and frame.f_code not in UNSAFE_FRAMES:
            self.raise_due()

    def _disarm(self) -> None:
        """Restore default signal handling in a process that a job forks."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Shield(AbstractContextManager[None]):
    """The context in which a job has called the worker's code: interrupts wait until it is left.

    Other threads of the job are never interrupted: signals are handled by the main thread.
    """

    def __init__(self, interrupts: StopRequests) -> None:
        self._interrupts = interrupts
        self.depth = 0

    def __enter__(self) -> None:
        self.depth += threading.current_thread() is threading.main_thread()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self.depth -= 1
        if error is None:
            self._interrupts.raise_due()


def _nothing(_frame: FrameType | None) -> None:
    """Do nothing."""


def _ignore(_signum: int, _frame: FrameType | None) -> None:
    """Do nothing: Ctrl-C at a terminal is for the node."""


# An exception raised in one of these frames would bypass the handler for it, or lose a result.
UNSAFE_FRAMES = frozenset(
    (
        execute.__code__,
        StopRequests.__enter__.__code__,
        StopRequests.__exit__.__code__,
        SignalInterrupts.__exit__.__code__,
        Shield.__enter__.__code__,
        Shield.__exit__.__code__,
    )
)
