"""Turns SIGTERM into ``Interrupted``, raised in the job's own code and nowhere else."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Protocol

from taskqueue.daemon.protocol.shared_memory import WorkerPage
from taskqueue.execution.executor import execute
from taskqueue.model.job import Interrupted, JobTimeout

LOOKS_EVERY = 0.02
"""Seconds between two checks whether a job has replaced the SIGTERM handler; each costs a tenth of an empty job."""


class SignalInterrupts(AbstractContextManager[None]):
    """Handles SIGTERM, and knows whether the present run has to end (implements ``job_context.Interrupts``).

    With a stop request on the worker page the signal is from the manager and concerns one run; otherwise another
    process sent it and the worker exits. A signal that comes while the worker's own code runs is raised when the job's
    code continues.
    """

    def __init__(self, page: WorkerPage) -> None:
        self._page = page
        self._number = 0
        self._reason = ""
        self._is_open = False
        self._is_due = False
        self._looked_at = 0.0
        self._cancel: Callable[[str], bool] | None = None
        self.shield = Shield(self)
        self.on_signal: Callable[[FrameType | None], None] = _nothing
        """Called with the present frame at each SIGTERM, before anything is interrupted."""
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
        """Make run ``number`` the present one."""
        self._number = number
        self._reason = ""
        self._is_due = False
        if time.monotonic() - self._looked_at > LOOKS_EVERY:
            self.look()

    def look(self) -> None:
        """Handle SIGTERM again, if a job has replaced the handler."""
        self._looked_at = time.monotonic()
        if signal.getsignal(signal.SIGTERM) != self._on_sigterm:
            signal.signal(signal.SIGTERM, self._on_sigterm)

    @property
    def stop_reason(self) -> str | None:
        """Return why the present run has to end; None if it does not."""
        return self._page.stop_reason_of(self._number) or self._reason or None

    @property
    def stopping(self) -> bool:
        """Return whether the present run should end by itself."""
        return self._page.is_node_stopping or self.stop_reason is not None

    def __enter__(self) -> None:
        self._is_open = True
        if self._is_due:
            self._is_open = False
            self._interrupt()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        self._cancel = None

    def deliver_to(self, cancel: Callable[[str], bool]) -> None:
        """Until the job's code is left call ``cancel`` with the reason, and raise only if that returns False."""
        self._cancel = cancel

    def raise_due(self) -> None:
        """Raise an interrupt that came in the meantime, in the job's code."""
        if self._is_due and self._is_open and not self.shield.depth:
            self._interrupt()

    def _on_sigterm(self, _signum: int, frame: FrameType | None) -> None:
        self.on_signal(frame)
        reason = self._page.stop_reason_of(self._number)
        if not reason:
            if self._page.has_stop_request:  # it was for an earlier run
                return
            self.leaving = True
            os.eventfd_write(self.wake_up, 1)
        self._reason = reason or "shutdown"
        if self._cancel is not None and self._cancel(self._reason):
            return
        self._is_due = True
        if frame is not None and frame.f_code not in UNSAFE_FRAMES:
            self.raise_due()

    def _interrupt(self) -> None:
        self._is_due = False
        raise (JobTimeout if self._reason == "timeout" else Interrupted)(self._reason)

    def _disarm(self) -> None:
        """Restore default signal handling in a process that a job forks."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Shielded(Protocol):
    """Interrupts that a shield holds back."""

    def raise_due(self) -> None:
        """Raise an interrupt that came in the meantime."""


class Shield(AbstractContextManager[None]):
    """The context in which a job has called the worker's code: interrupts wait until it is left.

    Other threads of the job are never interrupted: signals are handled by the main thread.
    """

    def __init__(self, interrupts: Shielded) -> None:
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
        SignalInterrupts.__enter__.__code__,
        SignalInterrupts.__exit__.__code__,
        Shield.__enter__.__code__,
        Shield.__exit__.__code__,
    )
)
