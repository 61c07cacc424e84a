"""The work of one class or queue, or of all: how much, how fast, how it ended, with which errors and for whom.

The figures come from the history, not from jobs. Tags and meta are those of the last ended jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple

from taskqueue.insight import promises
from taskqueue.insight.failure_groups import FailureGroup, query_of
from taskqueue.insight.overview import Numbered, QueueState, Run
from taskqueue.insight.promises import PromiseState
from taskqueue.model.analytics import Sample
from taskqueue.model.fingerprint import type_of
from taskqueue.model.history import BUCKETS, Durations, Figures, Part, Parts, Step, add_figures, entry
from taskqueue.model.ids import WORKFLOW_TAG
from taskqueue.model.limits import limit_keys_of
from taskqueue.model.promise import promise_of
from taskqueue.model.query import Compare, Operator
from taskqueue.model.record import Record, Status
from taskqueue.model.timestamps import EPOCH, MILLISECOND, milliseconds, moment
from taskqueue.model.wording import count, percent, span

PERCENTS = (50, 95, 99)
"""The percentiles that are shown."""

MOST_SHARES = 20
"""Maximum number of queues of a class, or classes of a queue."""

MOST_ERRORS = 20
"""Maximum number of errors of a time."""

MOST_TAGS = 20
"""Maximum number of tags, and pairs of meta, of the last jobs."""


class Scope(str, Enum):
    """What a report is about."""

    __str__ = str.__str__

    CLASS = "class"
    QUEUE = "queue"


class WorkOf(NamedTuple):
    """A class by its import path, or a queue by its name."""

    scope: Scope
    name: str

    @property
    def query(self) -> Compare:
        """Return the query for its jobs."""
        return Compare("job" if self.scope is Scope.CLASS else "queue", Operator.EQ, self.name)

    def has(self, queue: str, job: str) -> bool:
        """Return whether the report includes the figures of this queue and class."""
        return self.name == (job if self.scope is Scope.CLASS else queue)


class Period(str, Enum):
    """A time up to now for which there are figures."""

    __str__ = str.__str__

    HOUR = "1h"
    DAY = "24h"
    WEEK = "7d"

    @property
    def length(self) -> timedelta:
        """Return its length."""
        return {Period.HOUR: timedelta(hours=1), Period.DAY: timedelta(days=1), Period.WEEK: timedelta(days=7)}[self]

    @property
    def step(self) -> Step:
        """Return the length of the parts from which its figures are added up."""
        return Step.MINUTE if self is Period.HOUR else Step.HOUR

    def begin(self, now: datetime) -> datetime:
        """Return when its first part started; the last one is still running."""
        return moment(self.step.begin(milliseconds(now - self.length + self.step.length)))


@dataclass(frozen=True, kw_only=True)
class Work:
    """The figures of some time."""

    minutes: float
    added: int
    done: int
    failed: int
    """The jobs that ended as FAILED or TIMEOUT."""
    canceled: int
    failed_attempts: int
    """The attempts that failed, including the ones that ended their job."""
    waiting: Durations
    """From when the last attempt could have started to when it did, in seconds."""
    running: Durations
    """The time of the last attempt, in seconds."""

    @property
    def ended(self) -> int:
        """Return how many jobs ended in total."""
        return self.done + self.failed + self.canceled

    @property
    def per_minute(self) -> float:
        """Return how many jobs ended in a minute."""
        return self.ended / self.minutes if self.minutes else 0.0

    @property
    def failed_share(self) -> float | None:
        """Return the share of the jobs that failed, 0 to 1; None if none was done or failed."""
        return self.failed / (self.done + self.failed) if self.done or self.failed else None

    @property
    def failed_attempt_share(self) -> float | None:
        """Return the share of the attempts that failed, including attempts that are retried; None if there was none."""
        return _share_of_attempts(self)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing happened."""
        return not (self.added or self.ended or self.failed_attempts)


class WorkPart(NamedTuple):
    """A minute, or some hours, as a chart shows them."""

    at: datetime
    done: int
    failed: int
    failed_attempts: int

    @property
    def failed_attempt_share(self) -> float | None:
        """Return the share of the attempts that failed, including attempts that are retried; None if there was none."""
        return _share_of_attempts(self)


class Named(NamedTuple):
    """The figures of one queue of a class, or of one class of a queue."""

    name: str
    work: Work


@dataclass(frozen=True, kw_only=True)
class ErrorGroup(Numbered):
    """The failed attempts of a time with errors of one fingerprint."""

    job: str
    fingerprint: str
    numbers: Mapping[datetime, int]
    """How many attempts failed with it in each part of the time."""
    judged: FailureGroup | None
    """The judgement of the last hour; None if there was none then."""

    @property
    def query(self) -> dict[str, Any] | None:
        """Return the query for its jobs, including retried ones; None if no query can distinguish them."""
        return query_of(self.job, self.fingerprint)


class Share(NamedTuple):
    """The jobs with one tag, or one value of a meta key, among some jobs."""

    name: str
    """The tag, or the key of the meta."""
    value: str | None
    """The value of the key; None for a tag."""
    jobs: int
    failed: int


@dataclass(frozen=True, kw_only=True)
class LastJobs:
    """The last ended jobs, and whom they were for."""

    number: int = 0
    since: datetime | None = None
    """When the first of them ended; None if there are none."""
    shares: Sequence[Share] = ()
    """Tags and meta, those with the most failed jobs first."""


@dataclass(frozen=True, kw_only=True)
class WorkReport:
    """Everything known about a class or queue."""

    of: WorkOf
    at: datetime
    period: Period
    """The period of parts, shares, errors and slowest runs."""
    work: Mapping[Period, Work]
    parts: Sequence[WorkPart]
    named: Sequence[Named]
    """The queues of a class, or the classes of a queue, those with the most jobs first."""
    errors: Sequence[ErrorGroup]
    """The most frequent first."""
    state: QueueState | None
    """The current state of a queue; None for a class, and for a queue that has no state."""
    runs: Sequence[Run]
    """Some running jobs, the longest-running first."""
    running: int
    """How many jobs run in total."""
    slowest: Sequence[Record]
    """The slowest run of each of the slowest minutes, or hours, the slowest first."""
    last: LastJobs
    example: Record | None
    """The newest of the jobs that were read: its options are those of the class."""
    limit_families: frozenset[str] = frozenset()
    """The families of limits of the jobs that were read."""
    promise: PromiseState | None = None
    """How a class keeps its promise; None if it has none."""

    @property
    def needing(self) -> list[FailureGroup]:
        """Return the errors that are new or rising."""
        return [error.judged for error in self.errors if error.judged is not None and error.judged.needs_attention]

    @property
    def is_well(self) -> bool:
        """Return whether nobody needs to look at it."""
        is_kept = self.promise is None or self.promise.is_well
        return not self.needing and is_kept and (self.state is None or not (self.state.pause or self.state.grows))

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is known: there is no such class or queue, or it had no jobs for a week."""
        is_pending = self.state is not None and (self.state.waiting or self.state.postponed)
        return self.work[Period.WEEK].is_empty and not self.running and not is_pending


class DayHour(NamedTuple):
    """An hour of the last day."""

    at: datetime
    work: Work
    pending: int
    """How many jobs had not ended at its end, or now."""


class DayFigure(NamedTuple):
    """A figure of the last hour in words, and what it was in the same hour yesterday."""

    name: str
    value: str
    yesterday: str
    """Its value then, and the change if that says more: ``1,100, +9 %``."""
    trend: Sequence[float | None]
    """The same figure for each hour of the day, the last one for the last 60 minutes; None if there is none."""


@dataclass(frozen=True, kw_only=True)
class Day:
    """The last hour of a whole store against the same hour yesterday, and each hour since then.

    The history has no number of pending jobs; it is the current one minus what was added, plus what has ended.
    """

    at: datetime
    hour: Work
    yesterday: Work
    pending: int
    """How many jobs have not ended."""
    pending_yesterday: int
    hours: Sequence[DayHour]
    """The last 24 hours, of which the last one is still running."""
    parts: Mapping[Period, Sequence[WorkPart]]
    """The last hour by minute, and the last day by hour."""

    @property
    def figures(self) -> list[DayFigure]:
        """Return how much is done, how much fails, how long jobs wait, and how many are pending."""
        works = [*(part.work for part in self.hours[:-1]), self.hour]
        yesterday, pending = self.yesterday, f"{self.pending_yesterday:,}"
        done = f"{yesterday.done:,}" if yesterday.done else "none"
        return [
            DayFigure(
                "done in the last hour",
                f"{self.hour.done:,}",
                f"{done}{_change(self.hour.done, yesterday.done)}",
                [work.done for work in works],
            ),
            DayFigure(
                "of the attempts failed",
                _share(self.hour),
                _share(yesterday),
                [work.failed_attempt_share for work in works],
            ),
            DayFigure(
                "95 of 100 jobs waited at most",
                _waited(self.hour),
                _waited(yesterday),
                [work.waiting.percentile(95) if work.waiting.number else None for work in works],
            ),
            DayFigure(
                "pending now",
                f"{self.pending:,}",
                f"{pending}{_change(self.pending, self.pending_yesterday)}",
                [part.pending for part in self.hours],
            ),
        ]


def _share(work: Work) -> str:
    return "–" if work.failed_attempt_share is None else percent(work.failed_attempt_share)


def _waited(work: Work) -> str:
    return span(work.waiting.percentile(95)) if work.waiting.number else "–"


def _change(now: int, before: int) -> str:
    """Return how much more or less a number is than before: ``, +12 %``; empty below 1 %, or if there was none."""
    change = (now - before) / before if before else 0
    text = percent(abs(change)) if abs(change) < 1 else f"{100 * abs(change):,.0f} %"
    return f", {'+' if change > 0 else '−'}{text}" if abs(change) >= 0.005 else ""


def day_of(minutes: Parts, yesterday: Parts, hours: Parts, pending: int, now: datetime) -> Day:
    """Return the day up to now, given its last minutes, the same minutes of yesterday, and the hours since then."""
    begin, length, then = Period.DAY.begin(now), Step.HOUR.length, now - Period.DAY.length
    yesterday = {at: _up_to(part, at, then) for at, part in yesterday.items()}
    works = [
        work_of({at: part for at, part in hours.items() if moment(at) == hour}, hour, min(hour + length, now))
        for hour in (begin + place * length for place in range(round(Period.DAY.length / length)))
    ]
    numbers = [pending]  # at the end of each hour, the last one first
    for work in reversed(works):
        numbers.append(numbers[-1] - work.added + work.ended)
    of_hour = work_of({at: part for at, part in hours.items() if moment(at) == begin - length}, begin - length, begin)
    until_then = work_of(yesterday, begin - length, then)
    added, ended = of_hour.added - until_then.added, of_hour.ended - until_then.ended
    return Day(
        at=now,
        hour=work_of(minutes, Period.HOUR.begin(now), now),
        yesterday=work_of(yesterday, Period.HOUR.begin(then), then),
        pending=pending,
        pending_yesterday=max(0, numbers.pop() - added + ended),
        hours=[
            DayHour(begin + place * length, work, max(0, number))
            for place, (work, number) in enumerate(zip(works, reversed(numbers), strict=True))
        ],
        parts={
            Period.HOUR: chart_parts(minutes, Period.HOUR, now),
            Period.DAY: chart_parts(hours, Period.DAY, now),
        },
    )


def _up_to(part: Part, at: int, then: datetime) -> Part:
    """Return about what a minute had counted by then: without this, a steady rate would look like a decline."""
    passed = (milliseconds(then) - at) / (Step.MINUTE.length / MILLISECOND)
    if passed >= 1:
        return part
    return {
        key: {name: number if name == "longest_wait" else round(number * passed) for name, number in figures.items()}
        for key, figures in part.items()
    }


class Bucket(NamedTuple):
    """The durations up to a bound, and longer than the bound before."""

    bound: float
    """In seconds; infinite for the last one."""
    jobs: int
    percents: tuple[int, ...]
    """The percentiles that are in this bucket."""
    height: float
    """Its jobs against those of the largest bucket, 0 to 1."""


def histogram(durations: Durations) -> list[Bucket]:
    """Return the buckets from the first to the last one that has a duration."""
    bounds = (*BUCKETS, float("inf"))
    used = [place for place, bound in enumerate(bounds) if durations.buckets.get(bound)]
    buckets, passed, most = [], 0, max(durations.buckets.values(), default=0)
    for bound in bounds[used[0] : used[-1] + 1] if used else ():
        jobs = durations.buckets.get(bound, 0)
        ranks = ((percentile, -(-durations.number * percentile // 100)) for percentile in PERCENTS)
        percents = tuple(percentile for percentile, rank in ranks if passed < rank <= passed + jobs)
        buckets.append(Bucket(bound, jobs, percents, jobs / most))
        passed += jobs
    return buckets


def lead(report: WorkReport) -> str:
    """Return in a sentence how the class or queue is doing."""
    hour, week, state = report.work[Period.HOUR], report.work[Period.WEEK], report.state
    if report.is_empty:
        return f"No job of this {report.of.scope} for a week."
    if report.needing:
        first = report.needing[0]
        others = f", and {count(len(report.needing) - 1, 'other error')}" if len(report.needing) > 1 else ""
        return (
            f"Attention: {first.trend} error {type_of(first.fingerprint).rpartition('.')[2] or 'without a class'}, "
            f"{first.number:,} of {count(first.attempts, 'attempt')}{others}."
        )
    if report.promise is not None and not report.promise.is_well:
        in_words = promises.late_in_words if report.promise.burns else promises.budget_in_words
        return f"Its promise is not kept: {in_words(report.promise)}."
    paused = "" if state is None or state.pause is None else f"Paused by {state.pause.by}. "
    grows = "The backlog is growing. " if state is not None and state.grows else ""
    if not hour.ended:
        return f"{paused}{grows}No job ended in the last hour; {count(week.ended, 'job')} did in the last 7 days."
    share = "" if hour.failed_share is None else f", {percent(hour.failed_share)} failed"
    took = f"; 95 of 100 runs took at most {span(hour.running.percentile(95))}" if hour.running.number else ""
    return f"{paused}{grows}{count(hour.ended, 'job')} ended in the last hour{share}{took}."


def figures_in_words(report: WorkReport) -> list[tuple[str, list[str]]]:
    """Return the figures of the hour, the day and the week, by their names."""
    works = list(report.work.values())
    spreads = (("run", [work.running for work in works]), ("wait", [work.waiting for work in works]))
    return [
        *((name, [f"{getattr(work, name):,}" for work in works]) for name in ("added", "done", "failed", "canceled")),
        ("failed share", ["–" if work.failed_share is None else percent(work.failed_share) for work in works]),
        ("failed attempts", [f"{work.failed_attempts:,}" for work in works]),
        *(
            (f"{name} p{percentile}", [span(time.percentile(percentile)) if time.number else "–" for time in times])
            for name, times in spreads
            for percentile in PERCENTS
        ),
    ]


def options_in_words(record: Record) -> list[tuple[str, str]]:
    """Return the options of a run that differ from the usual ones, by name; limits without the values they count by."""
    options, promise = record.options, promise_of(record.options)
    limits = [replace(key, key=key.family) for key in limit_keys_of(record.lane)]
    named = [
        ("retry", str(options.retry).removeprefix("retry ")),
        ("timeout", span(options.timeout) if options.timeout else ""),
        ("stall timeout", span(options.stall_timeout) if options.stall_timeout else ""),
        ("limits", "; ".join(map(str, limits))),
        ("promise", "" if promise is None else promises.promise_in_words(promise)),
    ]
    return [(name, value) for name, value in named if value]


def work_of(parts: Parts, begin: datetime, end: datetime) -> Work:
    """Return the sum of these parts of the time; if the clock was set back, there are parts after its end."""
    total: Figures = {}
    for at, part in parts.items():
        for figures in part.values() if begin <= moment(at) <= end else ():
            add_figures(total, figures)
    return _work(total, (end - begin) / timedelta(minutes=1))


def _work(figures: Figures, minutes: float) -> Work:
    counted = entry(EPOCH, Step.MINUTE, "", "", figures)
    return Work(
        minutes=minutes,
        added=counted.added,
        done=counted.done,
        failed=counted.failed + counted.timeout,
        canceled=counted.canceled,
        failed_attempts=_failed_attempts(figures),
        waiting=counted.waiting,
        running=counted.running,
    )


@dataclass(frozen=True, kw_only=True)
class ClassState:
    """How a class did in the last day, and whether it needs attention."""

    name: str
    work: Work
    """Without waiting times."""
    parts: Sequence[WorkPart]
    needing: Sequence[FailureGroup]
    """The errors that are new or rising."""


def class_states(hours: Parts, runs: Parts, judged: Iterable[FailureGroup], now: datetime) -> list[ClassState]:
    """Return the classes of the last day, by name; the figures are those of all queues together."""
    begin = Period.DAY.begin(now)
    own: dict[str, Parts] = {}
    for parts in (hours, runs):
        for at, part in parts.items():
            for (queue, job), figures in part.items() if moment(at) >= begin else ():
                add_figures(own.setdefault(job, {}).setdefault(at, {}).setdefault((queue, job), {}), figures)
    needing: dict[str, list[FailureGroup]] = {}
    for group in judged:
        if group.needs_attention:
            needing.setdefault(group.job, []).append(group)
    return [
        ClassState(
            name=job,
            work=work_of(parts, begin, now),
            parts=chart_parts(parts, Period.DAY, now),
            needing=needing.get(job, ()),
        )
        for job, parts in sorted(own.items())
    ]


def chart_parts(parts: Parts, period: Period, now: datetime) -> list[WorkPart]:
    """Return the period in parts of one length: minutes, hours, or for a week three hours."""
    begin = period.begin(now)
    length = 3 * period.step.length if period is Period.WEEK else period.step.length
    numbers = [[0, 0, 0] for _ in range(round(period.length / length))]
    for at, part in parts.items():
        place = (moment(at) - begin) // length
        for figures in part.values() if 0 <= place < len(numbers) else ():
            numbers[place][0] += figures.get("done", 0)
            numbers[place][1] += figures.get("failed", 0) + figures.get("timeout", 0)
            numbers[place][2] += _failed_attempts(figures)
    return [WorkPart(begin + place * length, *of_part) for place, of_part in enumerate(numbers)]


class Sums(NamedTuple):
    """The figures of some parts of the time: by queue or class, and failed attempts by class and fingerprint."""

    named: dict[str, Figures]
    """The figures of each queue of a class, or of each class of a queue."""
    errors: dict[tuple[str, str], dict[datetime, int]]
    """How many attempts failed in each part."""

    def plus(self, other: Sums) -> Sums:
        """Return the sum."""
        named = {name: dict(figures) for name, figures in self.named.items()}
        for name, figures in other.named.items():
            add_figures(named.setdefault(name, {}), figures)
        errors = {key: {**numbers, **other.errors.get(key, {})} for key, numbers in self.errors.items()}
        return Sums(named, other.errors | errors)


def sums_of(parts: Parts, of: WorkOf) -> Sums:
    """Return the sums of these parts of the time."""
    named: dict[str, Figures] = {}
    errors: dict[tuple[str, str], dict[datetime, int]] = {}
    for begin, part in parts.items():
        at = moment(begin)
        for (queue, job), figures in part.items():
            add_figures(named.setdefault(queue if of.scope is Scope.CLASS else job, {}), figures)
            for name, number in figures.items():
                if name[:2] == "x:":
                    of_error = errors.setdefault((job, name[2:]), {})
                    of_error[at] = of_error.get(at, 0) + number
    return Sums(named, errors)


def named_work(totals: Mapping[str, Figures], begin: datetime, end: datetime) -> list[Named]:
    """Return the work of each queue or class, the most active first."""
    minutes = (end - begin) / timedelta(minutes=1)
    named = [Named(name, _work(figures, minutes)) for name, figures in totals.items()]
    return sorted(named, key=lambda row: (-row.work.ended, -row.work.added, row.name))[:MOST_SHARES]


def errors_of(
    numbers: Mapping[tuple[str, str], Mapping[datetime, int]], judged: Iterable[FailureGroup]
) -> list[ErrorGroup]:
    """Return the failed attempts by class and fingerprint, the most frequent first."""
    groups = {(group.job, group.fingerprint): group for group in judged}
    errors = [
        ErrorGroup(job=job, fingerprint=fingerprint, numbers=of_error, judged=groups.get((job, fingerprint)))
        for (job, fingerprint), of_error in numbers.items()
    ]
    return sorted(errors, key=lambda error: (-error.number, error.job, error.fingerprint))[:MOST_ERRORS]


def last_jobs(samples: Sequence[Sample]) -> LastJobs:
    """Return whom these jobs, the newest first, were for."""
    jobs: Counter[tuple[str, str | None]] = Counter()
    failed: Counter[tuple[str, str | None]] = Counter()
    for sample in samples:
        names: list[tuple[str, str | None]] = [(tag, None) for tag in sample.tags if not tag.startswith(WORKFLOW_TAG)]
        names += sample.meta.items()
        jobs.update(names)
        if sample.status in (Status.FAILED, Status.TIMEOUT):
            failed.update(names)
    shares = [Share(*name, number, failed[name]) for name, number in jobs.items()]
    shares.sort(key=lambda share: (-share.failed, -share.jobs, share.name, share.value or ""))
    return LastJobs(
        number=len(samples), since=samples[-1].ended_at if samples else None, shares=tuple(shares[:MOST_TAGS])
    )


def ended_in(part: Part) -> int:
    """Return how many ended jobs these figures include."""
    return sum(figures.get(name, 0) for figures in part.values() for name in ("done", "failed", "timeout", "canceled"))


def _share_of_attempts(work: Work | WorkPart) -> float | None:
    attempts = work.done + work.failed_attempts
    return work.failed_attempts / attempts if attempts else None


def _failed_attempts(figures: Figures) -> int:
    return sum(number for name, number in figures.items() if name.startswith("x:"))
