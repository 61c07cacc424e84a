"""Analytics of a period: how jobs ended, how long they waited and ran, in groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import NamedTuple

from taskqueue.model.history import OTHER, Durations, Figures, Parts, Step, add_figures, count_end, entry
from taskqueue.model.ids import WORKFLOW_TAG, JobId
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.record import Cause, Status
from taskqueue.model.timestamps import EPOCH, moment

ERRORS_KEPT = 20
"""The number of error classes shown for one group, the most frequent first."""


class Grouping(str, Enum):
    """The grouping of jobs; a job with several tags counts for each tag, a job without tags for none.

    Hours and days are in UTC, by the end of the job.
    """

    QUEUE = "queue"
    CLASS = "class"
    TAG = "tag"
    HOUR = "hour"
    DAY = "day"


class Due(NamedTuple):
    """Postponed jobs that wait only for a time and are due in the same hour."""

    cause: Cause
    has_failed: bool
    hour: datetime
    """The hour in which they are due."""


class Postponed(NamedTuple):
    """The postponed jobs: how many are due in which hour, and how many wait for other jobs."""

    due: Mapping[Due, int]
    blocked: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """The analytics row of an ended job; times in whole milliseconds."""

    queue: str
    job: str
    tags: tuple[str, ...] = ()
    meta: Mapping[str, str] = field(default_factory=dict)
    status: Status
    ended_at: datetime
    attempts: int
    """The attempts that counted, including the last one."""
    waited: int | None = None
    """From when the last attempt could start to when it did; None if there was none, or the job was canceled."""
    ran: int | None = None
    """From the start of the last attempt to the end of the job; None as above."""
    error: str | None = None
    """The class of the error that ended it, as a dotted name."""
    id: JobId | None = field(default=None, compare=False)
    """None for a sample that was built by hand."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The distribution of a duration over ``jobs``, in seconds: the mean, percentiles, and the longest.

    A percentile is the upper bound of the bucket that it is in (``history.BUCKETS``), and no more than the longest.
    """

    jobs: int
    mean: float
    p50: float
    p95: float
    longest: float


@dataclass(frozen=True, kw_only=True)
class Group:
    """The figures of one queue, class, tag or part of the time, or of all jobs (named ``all``)."""

    name: str
    done: int
    failed: int
    timeout: int
    canceled: int
    retried: int
    """The jobs that took more than one attempt."""
    attempts: int
    done_per_minute: float
    failed_per_minute: float
    """Jobs that are FAILED or TIMEOUT, for each minute of the time."""
    waiting: Spread | None
    """From when the last attempt could start to when it did, of jobs that are DONE, FAILED or TIMEOUT."""
    running: Spread | None
    """The time of the last attempt, of the same jobs; None if no job was ever started."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """How many jobs ended with an error of each class, the most frequent first."""

    @property
    def ended(self) -> int:
        """Return how many jobs ended in total."""
        return self.done + self.failed + self.timeout + self.canceled


@dataclass(frozen=True, kw_only=True)
class Present:
    """How many jobs are pending now, by the reason for which they wait."""

    queued: int
    """Jobs that may run at once, without running ones."""
    running: int
    postponed: int
    """Jobs that wait for a time."""
    blocked: int
    """Jobs that wait for other jobs."""
    lost: int
    """Running jobs whose lease has expired: another node will rescue them."""


@dataclass(frozen=True, kw_only=True)
class Analytics:
    """Jobs that ended after ``since`` and up to ``until``, in groups and as a whole, and jobs that have not ended.

    If more jobs ended than may be read, figures by tag cover only the newest: then ``since`` is later than
    ``asked_since``. All other figures start with the minute of ``asked_since``, or with its hour if that is long ago.
    """

    by: Grouping
    since: datetime
    asked_since: datetime
    until: datetime
    groups: tuple[Group, ...]
    """The group with the most jobs first; hours and days in order, without the empty ones."""
    whole: Group
    present: Present

    @property
    def is_cut(self) -> bool:
        """Return whether the figures cover a shorter time than requested."""
        return self.since > self.asked_since


def of_samples(
    samples: Sequence[Sample], since: datetime, until: datetime, at_most: int, present: Present
) -> Analytics:
    """Return the figures by tag of the samples: the newest ``at_most`` + 1 of the period, or all, newest first.

    One sample beyond ``at_most`` means that there are more: then the period starts after that sample, so that it is
    complete. If all of them ended in the same millisecond, the first ``at_most`` are counted.
    """
    begin = since
    if len(samples) > at_most:
        begin = samples[at_most].ended_at
        samples = [sample for sample in samples if sample.ended_at > begin] or samples[:at_most]
    minutes = (until - begin) / timedelta(minutes=1)
    whole: Figures = {}
    tags: dict[str, Figures] = {}
    for sample in samples:
        named = (tag for tag in sample.tags if not tag.startswith(WORKFLOW_TAG))
        for figures in (whole, *(tags.setdefault(tag, {}) for tag in named)):
            count_end(figures, sample.status, sample.attempts, sample.waited, sample.ran, sample.error)
    return Analytics(
        by=Grouping.TAG,
        since=begin,
        asked_since=since,
        until=until,
        groups=_by_size(tags, minutes),
        whole=_group("all", whole, minutes),
        present=present,
    )


def of_history(
    parts: Parts, by: Grouping, since: datetime, asked_since: datetime, until: datetime, present: Present
) -> Analytics:
    """Return the figures of all parts of a time, by anything but tag."""
    minutes = (until - since) / timedelta(minutes=1)
    whole: Figures = {}
    groups: dict[str, Figures] = {}
    for at, part in parts.items():
        when = f"{moment(at):{_FORMS[by]}}" if by in _FORMS else ""
        for (queue, job), figures in part.items():
            if _ENDS.isdisjoint(figures):
                continue
            name = queue if by is Grouping.QUEUE else when or job
            add_figures(groups.setdefault(name, {}), figures)
    for figures in groups.values():
        add_figures(whole, figures)
    if by in _LENGTHS:
        shown = tuple(_part(name, figures, by, since, until) for name, figures in sorted(groups.items()))
    else:
        shown = _by_size(groups, minutes)
    return Analytics(
        by=by,
        since=since,
        asked_since=asked_since,
        until=until,
        groups=shown,
        whole=_group("all", whole, minutes),
        present=present,
    )


_FORMS = {Grouping.HOUR: "%Y-%m-%dT%H:00Z", Grouping.DAY: "%Y-%m-%d"}
_LENGTHS = {Grouping.HOUR: timedelta(hours=1), Grouping.DAY: timedelta(days=1)}
_ENDS = frozenset(("done", "failed", "timeout", "canceled"))


def _part(name: str, figures: Figures, by: Grouping, since: datetime, until: datetime) -> Group:
    """Return the figures of an hour or day, with rates over the part of it that lies in the period."""
    begin = datetime.strptime(name, _FORMS[by]).replace(tzinfo=timezone.utc)
    return _group(name, figures, (min(begin + _LENGTHS[by], until) - max(begin, since)) / timedelta(minutes=1))


def _by_size(groups: Mapping[str, Figures], minutes: float) -> tuple[Group, ...]:
    by_name = (_group(name, figures, minutes) for name, figures in groups.items())
    return tuple(sorted(by_name, key=lambda group: (-group.ended, group.name)))


def _group(name: str, figures: Figures, minutes: float) -> Group:
    counted = entry(EPOCH, Step.MINUTE, "", "", figures)
    bad = counted.failed + counted.timeout
    return Group(
        name=name,
        done=counted.done,
        failed=counted.failed,
        timeout=counted.timeout,
        canceled=counted.canceled,
        retried=counted.retried,
        attempts=counted.attempts,
        done_per_minute=counted.done / minutes if minutes else 0.0,
        failed_per_minute=bad / minutes if minutes else 0.0,
        waiting=_spread(counted.waiting),
        running=_spread(counted.running),
        errors=_errors(counted.errors),
    )


def _spread(durations: Durations) -> Spread | None:
    if not durations.number:
        return None
    return Spread(
        jobs=durations.number,
        mean=durations.total / durations.number,
        p50=durations.percentile(50),
        p95=durations.percentile(95),
        longest=durations.longest,
    )


def _errors(counted: Mapping[str, int]) -> Mapping[str, int]:
    ranked = sorted(counted.items(), key=lambda item: (item[0] == OTHER, -item[1], item[0]))
    most_frequent, rest = dict(ranked[:ERRORS_KEPT]), ranked[ERRORS_KEPT:]
    return {**most_frequent, OTHER: sum(number for _, number in rest)} if rest else most_frequent
