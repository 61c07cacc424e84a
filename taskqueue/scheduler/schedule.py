"""The public handle on a named schedule: its stored state, and its operations."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from taskqueue.model.ids import JobId
from taskqueue.model.schedules.schedule import Miss, NamedSchedule
from taskqueue.scheduler import schedules
from taskqueue.scheduler.process import Process
from taskqueue.store import Store

if TYPE_CHECKING:
    from taskqueue.scheduler.scheduler import Scheduler


class ScheduleSnapshot:
    """A named schedule as it was when it was last read; nothing here reads the store."""

    snapshot: NamedSchedule
    """Its state as last read."""

    @property
    def name(self) -> str:
        """The name."""
        return self.snapshot.name

    @property
    def stage(self) -> str:
        """``active``, ``paused`` or ``ended``."""
        return self.snapshot.stage.value

    @property
    def reason(self) -> str:
        """Why it was paused or has ended."""
        return self.snapshot.reason

    @property
    def next_run_at(self) -> datetime | None:
        """When it starts a job next, in UTC; None while that is not known."""
        return self.snapshot.next_run_at

    @property
    def fired(self) -> int:
        """How many scheduled times have started a job."""
        return self.snapshot.fired

    @property
    def missed(self) -> int:
        """How many scheduled times were missed."""
        return self.snapshot.missed

    @property
    def misses(self) -> tuple[Miss, ...]:
        """The last missed times, each with a ``reason``."""
        return self.snapshot.misses

    @property
    def job_ids(self) -> tuple[JobId, ...]:
        """The ids of the last jobs that it started, the newest last."""
        return self.snapshot.recent

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.snapshot.trigger}, {self.stage}>"


class Schedule(ScheduleSnapshot):
    """A named schedule as it was when it was last read; ``refresh`` reads it again."""

    def __init__(self, scheduler: Scheduler, store: Store, schedule: NamedSchedule) -> None:
        self._scheduler = scheduler
        self._store = store
        self.snapshot = schedule

    def refresh(self) -> Schedule:
        """Read it again and return it; raise ``ScheduleNotFound`` if it was removed."""
        self.snapshot = schedules.read(self._store, self.name)
        return self

    def pause(self, reason: str = "") -> Schedule:
        """Stop it from starting jobs until it is resumed; running jobs continue."""
        self.snapshot = schedules.pause(self._store, self.name, reason)
        return self

    def resume(self) -> Schedule:
        """Resume it from now on; missed times are not made up for."""
        self.snapshot = schedules.resume(self._store, self.name)
        return self

    def trigger(self) -> Process:
        """Start one of its jobs now, whatever else it does, and return the job."""
        record = schedules.trigger_now(self._store, self.name)
        self.refresh()
        return Process(self._scheduler, record)

    def preview(self, count: int = 5) -> list[datetime]:
        """Return the next times, in UTC; if they depend on the ends of runs, as if each run ended at once."""
        return schedules.preview(self.snapshot, count, self._store.now())

    def remove(self) -> None:
        """Remove it; the jobs that it has started stay."""
        schedules.remove(self._store, self.name)

    def learn(self, asker: JobId, next_run_at: datetime | None) -> bool:
        """Store the next time that the job ``asker`` found, unless the schedule awaits another by now."""
        return schedules.learn(self._store, self.name, asker, next_run_at)
