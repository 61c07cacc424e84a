"""One look at a whole store as plain values: its nodes, queues, running jobs, and failures by class and error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from taskqueue.model.analytics import Postponed
from taskqueue.model.controls import EVERY_QUEUE, Control, Controls, Kind
from taskqueue.model.history import (
    MOST_CLASSES,
    OTHER,
    Durations,
    Figures,
    HistoryEntry,
    Parts,
    Step,
    add_figures,
    entry,
)
from taskqueue.model.job_filter import PARTS_OF_POSTPONED, part_of_postponed
from taskqueue.model.record import Record, Status
from taskqueue.model.schedules.origin import FromSchedule
from taskqueue.model.schedules.schedule import NamedSchedule, Stage
from taskqueue.model.timestamps import EPOCH, MILLISECOND, milliseconds, moment


class EndedJobs(NamedTuple):
    """How many jobs of a class ended in one part of a time, and how: less than a ``HistoryEntry`` has."""

    at: datetime
    job: str
    ended: int
    failed: int
    timeout: int
    errors: Mapping[str, int]


class Numbered:
    """How many failed in each part of a time."""

    numbers: Mapping[datetime, int]

    @property
    def number(self) -> int:
        """Return how many failed."""
        return sum(self.numbers.values())

    @property
    def first_at(self) -> datetime:
        """Return the part of the time of the first one."""
        return min(self.numbers)

    @property
    def last_at(self) -> datetime:
        """Return the part of the time of the last one."""
        return max(self.numbers)


@dataclass(kw_only=True)
class Failures(Numbered):
    """The jobs of one class that failed with one error."""

    job: str
    error: str
    """The class of the error, as a dotted name; empty if there is none."""
    ended: int = 0
    """How many jobs of the class have ended in total."""
    numbers: dict[datetime, int] = field(default_factory=dict)
    """How many failed in each part of the time."""


def failures_of(parts: Iterable[HistoryEntry | EndedJobs]) -> list[Failures]:
    """Return the failures of these parts of the time, the most frequent first."""
    groups: dict[str, dict[str, Failures]] = {}
    ended: dict[str, int] = {}
    for part in parts:
        job, at, errors = part.job, part.at, part.errors
        ended[job] = ended.get(job, 0) + part.ended
        if not (part.failed or part.timeout):
            continue
        without = part.failed + part.timeout - sum(errors.values())
        of_job = groups.setdefault(job, {})
        for error, number in ({**errors, "": without} if without > 0 else errors).items():
            group = of_job.get(error)
            if group is None:
                group = of_job[error] = Failures(job=job, error=error)
            group.numbers[at] = group.numbers.get(at, 0) + number
    for job, of_job in groups.items():
        for group in of_job.values():
            group.ended = ended[job]
    failures = [group for of_job in groups.values() for group in of_job.values()]
    return sorted(failures, key=lambda group: (-group.number, group.job, group.error))


RATES_OVER = timedelta(minutes=5)
"""The time up to now for which rates are computed."""

FAILURES_OVER = timedelta(hours=1)
"""The time up to now for which failures are counted."""

ENOUGH = 3
"""From this many ended jobs of a class on, they show how long one usually takes."""

AT_LEAST = 1.0
"""A run must have taken this many seconds up to its last progress for that to predict the rest."""

LATE = 40.0
"""A job that has waited for fewer seconds is not late; notifications report a later one within a minute."""

LONG_UNKNOWN = 600.0
"""For this many seconds a backlog that is worked on is not late if nothing is known of its queue."""

_ENDS = ("done", "failed", "timeout", "canceled")
_HOUR = Step.HOUR.length // MILLISECOND


@dataclass(frozen=True, kw_only=True)
class QueueState:
    """A queue: how old its backlog is, how large, and how fast it moves; by default it has only ended jobs."""

    name: str
    oldest: float | None = None
    """How long the first waiting job has waited, in seconds; None if no job waits."""
    waiting: int = 0
    postponed: int = 0
    running: int = 0
    added_per_minute: float = 0.0
    ended_per_minute: float = 0.0
    pause: Control | None = None
    usual_wait: float = 0.0
    """How long its jobs wait at most at this time of day, in seconds; 0 if that is unknown."""

    @property
    def empty_in(self) -> float | None:
        """Return the seconds in which the waiting jobs have ended at this rate; None if they never do."""
        return self.waiting / self.ended_per_minute * 60 if self.ended_per_minute else None

    @property
    def is_quiet(self) -> bool:
        """Return whether nothing waits, runs, comes or ends in it, and nobody has paused it."""
        return not (self.waiting or self.running or self.added_per_minute or self.ended_per_minute or self.pause)

    @property
    def grows(self) -> bool:
        """Return whether a backlog that is ``LATE`` seconds old clearly gains more jobs than it loses."""
        return (self.oldest or 0) >= LATE and self.added_per_minute > 1.1 * self.ended_per_minute

    @property
    def is_late(self) -> bool:
        """Return whether its first job has waited for ``LATE`` seconds, and twice as long as is usual.

        While nothing is known of the queue, a backlog is late then if it grows or no job of it runs, and after ten
        minutes if some do.
        """
        oldest = self.oldest or 0
        if self.usual_wait:
            return oldest >= max(LATE, 2 * self.usual_wait)
        return self.grows or oldest >= (LONG_UNKNOWN if self.running else LATE)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A running job, and how long it has run and may still run, in seconds; None if that is unknown."""

    record: Record
    ran: float | None
    left: float | None
    usual: Durations | None
    """How long jobs of its class ran in the last day."""


class UpcomingHour(NamedTuple):
    """The jobs that are due in one of the next hours."""

    at: datetime
    scheduled: int
    retried: int
    """The jobs that have failed, or whose class could not be loaded."""


@dataclass(frozen=True, kw_only=True)
class Upcoming:
    """What is due in the next 24 hours, and why postponed jobs are."""

    hours: Sequence[UpcomingHour]
    """From the current hour on."""
    schedules: Sequence[NamedSchedule]
    """The schedules that are due, the soonest first, up to ``MOST_SCHEDULES``."""
    parts: Mapping[str, int]
    """How many postponed jobs are *scheduled*, *retrying*, *blocked* and *unloadable*."""
    is_complete: bool
    """Whether all postponed jobs were looked at: if not, the numbers are too low."""

    @property
    def due(self) -> str:
        """Return how many jobs are due, ``10,000+`` if some were not looked at."""
        return self._at_least(sum(hour.scheduled + hour.retried for hour in self.hours)) or "0"

    @property
    def numbers(self) -> Mapping[str, str]:
        """Return the numbers of ``parts`` as text; empty if it is not known whether there are some."""
        return {word: self._at_least(number) for word, number in self.parts.items()}

    def _at_least(self, number: int) -> str:
        return f"{number:,}" if self.is_complete else f"{number:,}+" if number else ""


MOST_SCHEDULES = 20
"""Maximum number of schedules that are read."""

MOST_DUE = 10_000
"""Maximum number of postponed jobs that are read, beginning with the first that is due."""

NEXT = 24
"""How many hours are looked ahead."""


def upcoming_of(postponed: Postponed, schedules: Sequence[NamedSchedule], now: datetime) -> Upcoming:
    """Return what is due; jobs whose time has come are due now."""
    first = moment(Step.HOUR.begin(milliseconds(now)))
    parts = dict.fromkeys(PARTS_OF_POSTPONED, 0) | {"blocked": postponed.blocked}
    numbers = [[0, 0] for _ in range(NEXT)]
    for due, number in postponed.due.items():
        word = part_of_postponed(due.cause, due.has_failed)
        parts[word] += number
        place = max(0, (due.hour - first) // Step.HOUR.length)
        if place < NEXT:
            numbers[place][word != "scheduled"] += number
    return Upcoming(
        hours=[UpcomingHour(first + place * Step.HOUR.length, *pair) for place, pair in enumerate(numbers)],
        schedules=schedules,
        parts=parts,
        is_complete=sum(postponed.due.values()) < MOST_DUE and postponed.blocked < MOST_DUE,
    )


def last_started(schedules: Iterable[NamedSchedule]) -> tuple[str, ...]:
    """Return the ids of the last jobs of active schedules, at most of ``MOST_CLASSES``, in the order of names."""
    ids = (str(schedule.recent[-1]) for schedule in schedules if schedule.stage is Stage.ACTIVE and schedule.recent)
    return tuple(islice(ids, MOST_CLASSES))


def bounded_tally(tally: Mapping[tuple[str, Status], int]) -> dict[tuple[str, str], int]:
    """Return the number of jobs by queue and status in words; queues beyond ``MOST_CLASSES`` are one."""
    named = set(sorted({queue for queue, _ in tally})[:MOST_CLASSES])
    added: dict[tuple[str, str], int] = {}
    for (queue, status), number in tally.items():
        key = (queue if queue in named else OTHER, status.name.lower())
        added[key] = added.get(key, 0) + number
    return added


class ScheduleTimes(NamedTuple):
    """The last times of active schedules by their names, at most of ``MOST_CLASSES``."""

    due: Mapping[str, datetime]
    """When each was last due, whether it then started a job or missed that time; unknown if the job was removed."""
    done: Mapping[str, datetime]
    """When its last job was done; a schedule whose last job is not DONE is left out."""


def schedule_times(schedules: Iterable[NamedSchedule], last_jobs: Iterable[Record]) -> ScheduleTimes:
    """Return the last times of schedules, given their last jobs."""
    due: dict[str, datetime] = {}
    done: dict[str, datetime] = {}
    for job in last_jobs:
        if isinstance(job.origin, FromSchedule):
            due[job.origin.schedule] = job.origin.slot
            if job.status is Status.DONE and job.ended_at is not None:
                done[job.origin.schedule] = job.ended_at
    for schedule in schedules:
        if schedule.stage is Stage.ACTIVE and schedule.misses:
            missed = schedule.misses[-1].last
            due[schedule.name] = max(due.get(schedule.name, missed), missed)
    return ScheduleTimes(dict(islice(due.items(), MOST_CLASSES)), done)


def queue_states(
    tally: Mapping[tuple[str, Status], int],
    waiting_since: Mapping[str, datetime],
    controls: Controls,
    minutes: Parts,
    now: datetime,
    usual_waits: Mapping[str, float] = MappingProxyType({}),
) -> list[QueueState]:
    """Return the queues with pending jobs, figures of the last minutes, or a pause: the oldest backlog first."""
    begin = moment(Step.MINUTE.begin(milliseconds(now - RATES_OVER)))
    length = (now - begin) / timedelta(minutes=1)
    added, ended = (_moved(minutes, milliseconds(begin), names) for names in (("added",), _ENDS))
    paused = {control.name for control in controls.kept if control.kind is Kind.PAUSE and control.name != EVERY_QUEUE}
    pending = {queue for queue, status in tally if status.is_pending}
    queues = [
        QueueState(
            name=queue,
            oldest=max(0.0, (now - waiting_since[queue]).total_seconds()) if queue in waiting_since else None,
            waiting=tally.get((queue, Status.WAITING), 0),
            postponed=tally.get((queue, Status.POSTPONED), 0),
            running=tally.get((queue, Status.PROCESSING), 0),
            added_per_minute=added.get(queue, 0) / length,
            ended_per_minute=ended.get(queue, 0) / length,
            pause=controls.pause_of(queue),
            usual_wait=usual_waits.get(queue, 0.0),
        )
        for queue in pending | paused | added.keys() | ended.keys()
    ]
    return sorted(queues, key=lambda queue: (-(queue.oldest or -1), queue.name))


def runs_of(records: Iterable[Record], usual: Mapping[str, Durations], now: datetime) -> list[Run]:
    """Return the running jobs, the longest-running first."""
    runs = []
    for record in records:
        usual_duration = usual.get(record.job)
        ran = None if record.started_at is None else max(0.0, (now - record.started_at).total_seconds())
        runs.append(Run(record=record, ran=ran, left=_left(record, ran, usual_duration), usual=usual_duration))
    return sorted(runs, key=lambda run: (-(run.ran or -1), str(run.record.id)))


def ended_jobs(minutes: Parts) -> Iterator[EndedJobs]:
    """Yield how many jobs of each class ended in each of these minutes."""
    for minute, part in minutes.items():
        at = moment(minute)
        for (_, job), figures in part.items():
            get = figures.get
            failed, timeout = get("failed", 0), get("timeout", 0)
            errors = (
                {name[2:]: number for name, number in figures.items() if name[:2] == "e:"} if failed or timeout else {}
            )
            yield EndedJobs(at, job, get("done", 0) + failed + timeout + get("canceled", 0), failed, timeout, errors)


def usual_times(hours: Parts) -> dict[str, Durations]:
    """Return how long jobs of each class ran, if enough of them did."""
    of_class: dict[str, Figures] = {}
    for part in hours.values():
        for (_, job), figures in part.items():
            add_figures(of_class.setdefault(job, {}), figures)
    durations = {job: entry(EPOCH, Step.HOUR, "", job, figures).running for job, figures in of_class.items()}
    return {job: duration for job, duration in durations.items() if duration.number >= ENOUGH}


def usual_waits(hours: Parts, now: datetime) -> dict[str, float]:
    """Return how long jobs of each queue wait at most at this time of day, in seconds, but for the worst day.

    The same day of last week counts even if it was the worst. A queue without jobs at this time of day has what is
    usual at any time.
    """
    last, hour, day = (milliseconds(now) // _HOUR * _HOUR, _HOUR, 24 * _HOUR)
    waits: dict[str, tuple[dict[int, int], dict[int, int]]] = {}
    for at, part in hours.items():
        for (queue, _), figures in part.items() if at < last - hour else ():
            same_and_all = waits.setdefault(queue, ({}, {}))
            for of_days in same_and_all if (last + hour - at) % day <= 2 * hour else same_and_all[1:]:
                number = (last + hour - at) // day
                of_days[number] = max(of_days.get(number, 0), figures.get("longest_wait", 0))
    return {queue: _but_for_the_worst(same or every) / 1000 for queue, (same, every) in waits.items()}


def _but_for_the_worst(of_days: Mapping[int, int]) -> int:
    """Return the longest wait of the days, by how long ago they were, without the worst one unless a week ago."""
    return max(sorted(of_days.values())[-2:][0], of_days.get(7, 0))


def _moved(minutes: Parts, begin: int, names: Sequence[str]) -> dict[str, int]:
    """Return how many jobs of each queue these figures count from this time on."""
    counted: dict[str, int] = {}
    for at, part in minutes.items():
        for (queue, _), figures in part.items() if at >= begin else ():
            counted[queue] = counted.get(queue, 0) + sum(figures.get(name, 0) for name in names)
    return counted


def _left(record: Record, ran: float | None, usual: Durations | None) -> float | None:
    """Return the remaining seconds, estimated from its progress, or else from other runs of its class."""
    if ran is None or record.started_at is None:
        return None
    if 0 < record.progress < 100 and record.progress_at is not None and record.progress_at >= record.started_at:
        took = (record.progress_at - record.started_at).total_seconds()
        remaining = took * 100 / record.progress - ran
        return remaining if took >= AT_LEAST and remaining > 0 else None
    remaining = 0.0 if usual is None else usual.total / usual.number - ran
    return remaining if remaining > 0 else None  # no estimate for a run that already takes longer than the mean
