"""A run in the manager: queued until a worker starts it, then current until it ends."""

from __future__ import annotations

from dataclasses import dataclass

from taskqueue.daemon.protocol.messages import Key, Started
from taskqueue.daemon.runtime.loop import Timer
from taskqueue.execution.run import Run


@dataclass(eq=False, slots=True)
class QueuedRun:
    """A run with the bytes of its message, which go to the worker unchanged."""

    run: Run
    payload: bytes
    queued_at: float
    sequence: int
    """Runs start in this order."""
    is_hook: bool = False
    """It is a node hook: not a claim, so it is never handed back for another node to run."""
    stop_reason: str = ""
    """Why to end the run as soon as it has started; empty if it should run."""

    @property
    def key(self) -> Key:
        """Return the key of its claim."""
        return self.run.id, self.run.claims


@dataclass(eq=False, slots=True)
class CurrentRun:
    """The run that a worker is executing."""

    queued: QueuedRun
    number: int
    started: Started
    began_at: float
    timeout_timer: Timer | None = None
    stall_timer: Timer | None = None
    """Ends the run if it gives no sign of progress for its ``stall_timeout``."""
    progress_at: float = 0.0
    """Time of the last sign of progress, or of the start."""
    is_checking: bool = False
    """Whether the worker is only checking the job's condition."""
    has_stalled: bool = False
    reported_at: float = 0.0
    """Time of the worker's last message with progress or position."""
    known_progress_at: float = 0.0
    """When the latest progress was made that the node knows, in seconds since the boot of the host."""
    is_page_watched: bool = False
    """Whether a timer is set that reads newer progress from the worker page."""
    progress: float = 0.0
    progress_message: str = ""
    page_reported_at: float = float("-inf")
    """Time of the last report of progress that was read from the worker page."""
    held_progress: bytes = b""
    """A worker's message that came too soon after such a report; newer progress supersedes it."""
    position: str | None = None
    """The latest position of its loops that the node knows."""
    stack_request: int = 0
    """The number of the request for its last stack, made when it was asked to end; 0 if it was not."""

    def restart(self, started: Started) -> None:
        """Start the run itself after the check of its condition."""
        self.stop_timers()
        self.started = started

    def note_progress(self, progress: float, message: str, at: float) -> None:
        """Record the progress that is reported to the node; ``at`` is in seconds since the boot of the host."""
        self.known_progress_at, self.progress, self.progress_message = at, progress, message
        self.held_progress = b""

    def stop_timers(self) -> None:
        """Cancel the timers that would end the run."""
        for timer in (self.timeout_timer, self.stall_timer):
            if timer is not None:
                timer.cancel()
