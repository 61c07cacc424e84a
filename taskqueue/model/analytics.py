"""Analytics of a period: how jobs ended, how long they waited and ran, in groups."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta
from enum import Enum

from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.record import Status
from taskqueue.model.timestamps import EPOCH

ERRORS_KEPT = 20
"""The number of error classes shown for one group, the most frequent first."""

OTHERS = "others"
"""The name under which the rarer classes of errors are counted together."""


class Grouping(str, Enum):
    """The grouping of jobs; one with several tags counts for each, one without tags for none.

    Hours and days are those of UTC, by the end of the job.
    """

    QUEUE = "queue"
    CLASS = "class"
    TAG = "tag"
    HOUR = "hour"
    DAY = "day"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """The analytics row of an ended job; times in whole milliseconds."""

    queue: str
    job: str
    tags: tuple[str, ...] = ()
    status: Status
    ended_at: datetime
    attempts: int
    """The attempts that counted, the last one included."""
    waited: int | None = None
    """From when the last attempt could begin to when it did; None if there was none, or the job was canceled."""
    ran: int | None = None
    """From the start of the last attempt to the end of the job; None as above."""
    error: str | None = None
    """The class of the error that ended it, as a dotted name."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The distribution of a duration over ``jobs``, in seconds: mean, percentiles by nearest rank, and longest."""

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
    """Those that are FAILED or TIMEOUT, for each minute of the time."""
    waiting: Spread | None
    """The time before the last attempt began, from when it could; of those that are DONE, FAILED or TIMEOUT."""
    running: Spread | None
    """The time of the last attempt, of the same jobs; None where none was ever started."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """How many jobs ended by an error of each class, the most frequent first."""

    @property
    def ended(self) -> int:
        """Return how many jobs ended in all."""
        return self.done + self.failed + self.timeout + self.canceled


@dataclass(frozen=True, kw_only=True)
class Present:
    """How many jobs are pending now, by the reason for which they wait."""

    queued: int
    """Jobs that may run at once, without running ones."""
    running: int
    postponed: int
    """Those that wait for a time."""
    blocked: int
    """Those that wait for other jobs."""
    lost: int
    """Running jobs whose lease is over: another node will rescue them."""


@dataclass(frozen=True, kw_only=True)
class Analytics:
    """Jobs that ended after ``since`` and up to ``until``, in groups and as a whole, and jobs that have not ended.

    Where more jobs ended in that time than may be looked at, ``since`` is later than ``asked_since``: the newest count.
    """

    by: Grouping
    since: datetime
    asked_since: datetime
    until: datetime
    groups: tuple[Group, ...]
    """The group with the most jobs first; hours and days in their order, those without jobs left out."""
    whole: Group
    present: Present

    @property
    def is_cut(self) -> bool:
        """Return whether the figures are for a shorter time than was asked for."""
        return self.since > self.asked_since


_NAMES: Mapping[Grouping, Callable[[Sample], Sequence[str]]] = {
    Grouping.QUEUE: lambda sample: (sample.queue,),
    Grouping.CLASS: lambda sample: (sample.job,),
    Grouping.TAG: lambda sample: sample.tags,
    Grouping.HOUR: lambda sample: (f"{sample.ended_at:%Y-%m-%dT%H:00Z}",),
    Grouping.DAY: lambda sample: (f"{sample.ended_at:%Y-%m-%d}",),
}

_PARTS = {Grouping.HOUR: timedelta(hours=1), Grouping.DAY: timedelta(days=1)}


def analytics(
    samples: Sequence[Sample], by: Grouping, since: datetime, until: datetime, at_most: int, present: Present
) -> Analytics:
    """Return the figures of the samples, which are the newest ``at_most`` + 1 of the time, or all of it, newest first.

    One too many says that there are more: then the time begins behind that one, so that nothing in it is left out;
    where all of them ended in one millisecond, there are at least ``at_most`` jobs in it, and these are looked at.
    """
    begin = since
    if len(samples) > at_most:
        begin = samples[at_most].ended_at
        samples = [sample for sample in samples if sample.ended_at > begin] or samples[:at_most]
    minutes = (until - begin) / timedelta(minutes=1)
    members: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        for name in _NAMES[by](sample):
            members[name].append(sample)
    if by in _PARTS:
        groups = [_part(name, some, _PARTS[by], begin, until) for name, some in sorted(members.items())]
    else:
        groups = sorted((_group(name, some, minutes) for name, some in members.items()), key=_by_size)
    return Analytics(
        by=by,
        since=begin,
        asked_since=since,
        until=until,
        groups=tuple(groups),
        whole=_group("all", samples, minutes),
        present=present,
    )


def _part(name: str, samples: Sequence[Sample], length: timedelta, since: datetime, until: datetime) -> Group:
    """Return the figures of an hour or day, with rates of as much of it as lies in the time."""
    begin = EPOCH + (samples[0].ended_at - EPOCH) // length * length
    return _group(name, samples, (min(begin + length, until) - max(begin, since)) / timedelta(minutes=1))


def _by_size(group: Group) -> tuple[int, str]:
    return -group.ended, group.name


def _group(name: str, samples: Sequence[Sample], minutes: float) -> Group:
    statuses = Counter(sample.status for sample in samples)
    bad = statuses[Status.FAILED] + statuses[Status.TIMEOUT]
    return Group(
        name=name,
        done=statuses[Status.DONE],
        failed=statuses[Status.FAILED],
        timeout=statuses[Status.TIMEOUT],
        canceled=statuses[Status.CANCELED],
        retried=sum(sample.attempts > 1 for sample in samples),
        attempts=sum(sample.attempts for sample in samples),
        done_per_minute=statuses[Status.DONE] / minutes if minutes else 0.0,
        failed_per_minute=bad / minutes if minutes else 0.0,
        waiting=_spread(sample.waited for sample in samples),
        running=_spread(sample.ran for sample in samples),
        errors=_errors(sample.error for sample in samples),
    )


def _spread(durations: Iterable[int | None]) -> Spread | None:
    known = sorted(duration for duration in durations if duration is not None)
    if not known:
        return None
    return Spread(
        jobs=len(known),
        mean=sum(known) / len(known) / 1000,
        p50=_percentile(known, 50),
        p95=_percentile(known, 95),
        longest=known[-1] / 1000,
    )


def _percentile(rising: Sequence[int], percent: int) -> float:
    """Return the seconds at the nearest rank: the least value that ``percent`` of 100 do not exceed."""
    return rising[-(-len(rising) * percent // 100) - 1] / 1000


def _errors(classes: Iterable[str | None]) -> Mapping[str, int]:
    counted = Counter(name for name in classes if name is not None)
    ranked = sorted(counted.items(), key=lambda entry: (-entry[1], entry[0]))
    kept, rest = dict(ranked[:ERRORS_KEPT]), ranked[ERRORS_KEPT:]
    return {**kept, OTHERS: sum(number for _, number in rest)} if rest else kept
