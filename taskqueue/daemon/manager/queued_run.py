"""A run in the hands of the manager: queued, and then in progress in one worker."""

from __future__ import annotations

from dataclasses import dataclass

from taskqueue.daemon.protocol.messages import Key, Run, Started
from taskqueue.daemon.runtime.loop import Timer


@dataclass(eq=False, slots=True)
class QueuedRun:
    """A run with the bytes of its message, which go to the worker unchanged."""

    run: Run
    payload: bytes
    queued_at: float
    sequence: int
    """Runs start in this order."""
    is_hook: bool = False
    """It is a leader hook: not a claim, so it is never handed back for another node to run."""
    stop_reason: str = ""
    """Why to end the run as soon as it has started; empty if it should run."""

    @property
    def key(self) -> Key:
        """Return the key of the claim."""
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
    """The worker only checks the job's condition."""
    has_stalled: bool = False
    reported_at: float = 0.0
    """Time of the worker's last message with progress or position."""
    known_progress_at: float = 0.0
    """Time, on the host's clock, of the latest progress that the node knows."""
    is_page_watched: bool = False
    """A timer is set that reads newer progress from the worker page."""
    progress: float = 0.0
    progress_message: str = ""
    position: str | None = None
    """The latest position of its loops that the node knows."""

    def restart(self, started: Started) -> None:
        """Begin the run itself after the check of its condition."""
        self.stop_timers()
        self.started = started

    def note_progress(self, progress: float, message: str, at: float) -> None:
        """Record the progress that is reported to the node; ``at`` is a time of the host's clock."""
        self.known_progress_at, self.progress, self.progress_message = at, progress, message

    def stop_timers(self) -> None:
        """Cancel the timers that would end the run."""
        for timer in (self.timeout_timer, self.stall_timer):
            if timer is not None:
                timer.cancel()
