"""Fires a schedule at its time: starts jobs, records missed times, finds the next time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from taskqueue.model.ids import JobId, scheduled_id
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.lifecycle.pending import behind
from taskqueue.model.record import Cause, Options, Record, Status, changed
from taskqueue.model.retry import ExponentialRetry
from taskqueue.model.schedules import Again, Cron, Custom, Every
from taskqueue.model.schedules import schedule as clockwork
from taskqueue.model.schedules.origin import FromSchedule
from taskqueue.model.schedules.schedule import (
    MISSES,
    RECENT,
    Miss,
    NamedSchedule,
    Overlap,
    Stage,
    made_up,
    next_version,
)
from taskqueue.model.schedules.trigger import START
from taskqueue.model.timestamps import CLOCKS_APART, whole

QUESTION = "taskqueue.execution.custom_schedule:NextTime"
"""The job that finds out the next time of a schedule with a class of its own."""

QUESTION_LIMIT = 60.0
"""Seconds that such a class may take."""

UNFIRED = "no node fired it in time"
"""The reason of a time missed while no node was the leader."""


@dataclass(frozen=True, kw_only=True)
class Firing:
    """The schedule after firing, the jobs that it starts, and the jobs that it replaces."""

    after: NamedSchedule
    jobs: tuple[Record, ...]
    give_way: tuple[JobId, ...] = ()


def first_time(schedule: NamedSchedule, now: datetime) -> datetime | None:
    """Return the first time of a schedule defined or resumed ``now``; None if a worker must be asked."""
    if isinstance(schedule.trigger, Custom):
        return None
    return schedule.trigger.after(now)


def job_for(schedule: NamedSchedule, slot: datetime, now: datetime, id: JobId | None = None) -> Record:
    """Return the job that the schedule starts for the scheduled time."""
    later = schedule.expires_for
    trigger = schedule.trigger
    follows = trigger if isinstance(trigger, Every | Again) and trigger.follows_end else None
    return changed(
        schedule.template,
        id=id or scheduled_id(schedule.name, slot),
        origin=FromSchedule(
            schedule=schedule.name,
            slot=whole(slot),
            trigger=follows,
            is_counted=schedule.stop_after_failures is not None,
        ),
        created_at=whole(now),
        ready_at=whole(min(slot, now)),
        expires_at=None if later is None else whole(slot + timedelta(seconds=later)),
        status=Status.WAITING,
        cause=Cause.ADDED,
    ).at_rank()


def ask(schedule: NamedSchedule, after: datetime, now: datetime) -> Record:
    """Return the job that asks the schedule's own class, in a worker, for its first time after ``after``."""
    return Record(
        id=scheduled_id(schedule.name, after, f"question {schedule.version}"),
        job=QUESTION,
        data=json.dumps({"schedule": schedule.name, "after": after.isoformat()}, separators=(",", ":")),
        queue=schedule.template.queue,
        priority=schedule.template.priority,
        options=Options(retry=ExponentialRetry(times=5, interval=1), timeout=QUESTION_LIMIT),
        created_at=whole(now),
        ready_at=whole(now),
    ).at_rank()


def fire(schedule: NamedSchedule, known: Mapping[JobId, Record], now: datetime) -> Firing | None:
    """Return the firing of a due schedule; None before its time. ``known`` are its recent jobs that are pending."""
    if schedule.stage is not Stage.ACTIVE or schedule.next_run_at is None or schedule.next_run_at > now:
        return None
    end = _end(schedule, schedule.next_run_at)
    if end:
        return Firing(after=next_version(schedule, stage=Stage.ENDED, reason=end, next_run_at=None), jobs=())
    return _Round(schedule, known, now).fired()


def informed(schedule: NamedSchedule, next_run_at: datetime | None) -> NamedSchedule:
    """Return the schedule with the next time of its own class; ended if there is none."""
    end = _end(schedule, next_run_at)
    if end:
        return next_version(schedule, awaits=None, stage=Stage.ENDED, reason=end)
    return next_version(schedule, awaits=None, next_run_at=next_run_at)


def begun(schedule: NamedSchedule, now: datetime) -> tuple[NamedSchedule, list[Record]]:
    """Return the schedule with its first time from now on, or with the job that finds it."""
    if isinstance(schedule.trigger, Custom):
        question = ask(schedule, now, now)
        return replace(schedule, next_run_at=None, awaits=question.id), [question]
    return replace(schedule, next_run_at=first_time(schedule, whole(now)), awaits=None), []


def reconciled(
    schedule: NamedSchedule, awaited: Record | None, now: datetime
) -> tuple[NamedSchedule, list[Record]] | None:
    """Return the schedule with its next time if the job it awaits has ended, or is gone, unnoticed; else None.

    If the job that asked the user's class is gone, another job asks.
    """
    if (
        schedule.stage is not Stage.ACTIVE
        or schedule.awaits is None
        or (awaited is not None and awaited.status.is_pending)
    ):
        return None
    if isinstance(schedule.trigger, Custom) and awaited is not None:
        reason = f"the next time could not be determined: job {schedule.awaits} ended as {awaited.status.name}"
        return next_version(schedule, stage=Stage.PAUSED, reason=reason, awaits=None), []
    return begun(next_version(schedule), now)


def brought_forward(schedule: NamedSchedule, now: datetime) -> NamedSchedule | None:
    """Return the schedule due an interval from now, if it is due later because the clock was set back; else None.

    A trigger with its own times keeps them: times that the clock has already shown have their jobs.
    """
    trigger, next_run_at = schedule.trigger, schedule.next_run_at
    if not isinstance(trigger, Every) or trigger.base is not None:
        return None
    if schedule.stage is not Stage.ACTIVE or next_run_at is None:
        return None
    latest = trigger.after(now)
    return next_version(schedule, next_run_at=latest) if next_run_at > latest + CLOCKS_APART else None


def failed_in_a_row(schedule: NamedSchedule) -> int:
    """Return how many of the last jobs that ran to their end have failed in a row."""
    failed = 0
    for id in reversed(schedule.recent):
        if schedule.ended.get(id) is False:
            break
        failed += id in schedule.ended
    return failed


def _end(schedule: NamedSchedule, slot: datetime | None) -> str:
    """Return in words why the schedule has ended before this time; empty if it continues."""
    if slot is None:
        return "its trigger has no further time"
    if schedule.until is not None and slot > schedule.until:
        return f"until={schedule.until:%Y-%m-%d %H:%M:%S} UTC has passed"
    if schedule.max_runs is not None and schedule.fired >= schedule.max_runs:
        return f"max_runs={schedule.max_runs} is reached"
    limit = schedule.stop_after_failures
    if limit is not None and failed_in_a_row(schedule) >= limit:
        return f"stop_after_failures={limit} is reached"
    return ""


class _Round:
    """One firing of a schedule, time by time."""

    def __init__(self, schedule: NamedSchedule, known: Mapping[JobId, Record], now: datetime) -> None:
        self._schedule = schedule
        self._now = whole(now)
        self._pending = [known[id] for id in schedule.recent if id in known and known[id].status.is_pending]
        self._clock = _clock(schedule)
        self._jobs: list[Record] = []
        self._give_way: list[JobId] = []
        self._misses: list[Miss] = []

    def fired(self) -> Firing:
        schedule = self._schedule
        come = self._come()
        for slot in self._chosen(come):
            if schedule.max_runs is not None and schedule.fired + len(self._jobs) >= schedule.max_runs:
                break
            self._start(slot)
        after = next_version(
            schedule,
            fired=schedule.fired + len(self._jobs),
            missed=schedule.missed + sum(miss.count for miss in self._misses),
            misses=(*schedule.misses, *self._misses)[-MISSES:],
            recent=(*schedule.recent, *(job.id for job in self._jobs))[-RECENT:],
            **self._next(come[-1]),
        )
        if after.awaits is None and after.next_run_at is None and not isinstance(schedule.trigger, Custom):
            after = replace(after, stage=Stage.ENDED, reason=_end(after, None))
        elif end := _end(after, after.next_run_at or self._now):
            after = replace(after, stage=Stage.ENDED, reason=end, next_run_at=None, awaits=None)
        jobs = tuple(self._jobs)
        if isinstance(schedule.trigger, Custom) and after.stage is Stage.ACTIVE:
            question = ask(after, come[-1], self._now)
            jobs, after = (*jobs, question), replace(after, awaits=question.id)
        return Firing(after=after, jobs=jobs, give_way=tuple(self._give_way))

    def _come(self) -> list[datetime]:
        """Return the scheduled times that have passed, in order; those beyond a bound are counted as missed."""
        schedule, first = self._schedule, self._schedule.next_run_at
        assert first is not None
        if self._clock is None:
            return [first]
        last = self._now if schedule.until is None else min(schedule.until, self._now)
        come = clockwork.come(self._clock, first, last)
        if come[0] > first:
            self._miss(
                first, come[0] - timedelta(milliseconds=1), clockwork.count(self._clock, first, come[0]), UNFIRED
            )
        return come

    def _chosen(self, come: Sequence[datetime]) -> Sequence[datetime]:
        """Return the scheduled times that are on time, and the missed times that are made up for."""
        on_time_from = self._now - timedelta(seconds=self._schedule.grace)
        late = [slot for slot in come if slot < on_time_from]
        on_time = come[len(late) :]
        most = made_up(self._schedule.misfire)
        if self._schedule.misfire == "once" and on_time:
            most = 0
        given_up = late[: len(late) - most] if most else late
        if given_up:
            self._miss(given_up[0], given_up[-1], len(given_up), UNFIRED)
        return [*late[len(given_up) :], *on_time]

    def _start(self, slot: datetime) -> None:
        """Start a job for the scheduled time, unless the rule for a waiting or running one prevents it."""
        job = job_for(self._schedule, slot, self._now)
        if self._schedule.overlap is Overlap.CANCEL_PREVIOUS:
            self._start_in_place(job)
            return
        pending = [*self._pending, *self._jobs]
        match self._schedule.overlap:
            case Overlap.SKIP if pending:
                self._overlaps(slot, pending[-1])
                return
            case Overlap.QUEUE_ONE if any(map(_unbegun, pending)):
                self._overlaps(slot, pending[-1])
                return
            case Overlap.QUEUE_ONE:
                for earlier in pending:
                    job = behind(job, earlier.id)
        self._jobs.append(job)

    def _start_in_place(self, job: Record) -> None:
        """Start the job after the jobs that give way to it; a job of the same firing has not been added yet."""
        for earlier in self._jobs:
            assert isinstance(earlier.origin, FromSchedule)
            slot = earlier.origin.slot
            self._miss(slot, slot, 1, f"the next time of the schedule had already come: job {job.id}")
        self._give_way = [pending.id for pending in self._pending]
        for id in self._give_way:
            job = behind(job, id)
        self._jobs = [job]

    def _overlaps(self, slot: datetime, pending: Record) -> None:
        what = "waits" if _unbegun(pending) else "runs"
        self._miss(slot, slot, 1, f"job {pending.id} of the schedule still {what}")

    def _miss(self, first: datetime, last: datetime, count: int, reason: str) -> None:
        self._misses.append(Miss(first=first, last=last, count=count, reason=reason))

    def _next(self, last: datetime) -> dict[str, object]:
        """Return the next time, or the job whose end decides it."""
        trigger = self._schedule.trigger
        if isinstance(trigger, Custom):
            return {"next_run_at": None, "awaits": None}
        if self._clock is not None:
            return {"next_run_at": self._clock.after(last), "awaits": None}
        pending = [*self._pending, *self._jobs]
        if not pending:
            return {"next_run_at": trigger.after(self._now), "awaits": None}
        return {"next_run_at": None, "awaits": pending[-1].id}


def _clock(schedule: NamedSchedule) -> Every | Cron | None:
    """Return a trigger whose times depend on no run; counted from scheduled times, so that late starts shift none."""
    trigger = schedule.trigger
    if isinstance(trigger, Every) and trigger.anchor == START and schedule.next_run_at is not None:
        return Every(trigger.interval, schedule.next_run_at)
    if isinstance(trigger, Custom) or trigger.follows_end:
        return None
    return trigger if isinstance(trigger, Every | Cron) else None


def _unbegun(record: Record) -> bool:
    return record.status is not Status.PROCESSING and not record.attempts
