"""Judges failed attempts by class and fingerprint: whether an error is new, rises or has ended, against the last week.

Failed attempts that are retried count like those at the end of a job. The usual share of a group comes from the same
hours of the last days, or from all hours if these have few attempts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from math import sqrt
from typing import Any, NamedTuple, TypeVar

from taskqueue.model.fingerprint import part_of_message, type_of
from taskqueue.model.history import OTHER, Figures, Part, Parts, Step
from taskqueue.model.timestamps import milliseconds, moment

K = TypeVar("K")
V = TypeVar("V")

WEEK = timedelta(days=7)
"""How far back the usual share is looked for."""

NEW_FOR = timedelta(days=1)
"""How long an error counts as new after it was seen first."""

SHORT = timedelta(minutes=5)
"""What has changed suddenly shows in this time before it shows in an hour."""

FEWEST_NEW, SHARE_OF_NEW = 5, 0.02
"""A new error needs attention from this number of failed attempts and share of its class on."""

FEWEST_RISING, RISE, MORE = 10, 2.0, 0.02
"""A known error rises if this many attempts failed, and their share is twice the usual one and this much more."""

SURE = 5.0
"""How many standard deviations more than usual there must be: a week has ten thousand minutes."""

FEWEST_USUAL = 100
"""This many attempts in the same hours of the last days say what is usual; with fewer all hours of the week do."""

FEWEST_BEFORE = 50
"""An error is new if its class had this many attempts before the first one: else the class is what is new."""

OVER_AFTER = 3.0
"""An error has ended if attempts after the last one would have failed this many times at its share until then."""


class Trend(str, Enum):
    """The state of a group; ``NEW`` and ``RISING`` need attention."""

    __str__ = str.__str__

    NEW = "new"
    RISING = "rising"
    USUAL = "usual"
    OVER = "over"


class Attempts(NamedTuple):
    """How many attempts of a class ended their job, or failed, in some time."""

    ended: int = 0
    """The jobs that are DONE, FAILED or TIMEOUT."""
    failed: int = 0
    """The attempts that failed, including the ones that ended their job as FAILED or TIMEOUT."""
    last: int = 0
    """The jobs that ended as FAILED or TIMEOUT."""

    @property
    def all(self) -> int:
        """Return all attempts: the ones that ended a job, and the retried ones."""
        return self.ended + self.retried

    @property
    def retried(self) -> int:
        """Return the failed attempts after which the job was to run again."""
        return self.failed - self.last

    def plus(self, other: Attempts) -> Attempts:
        """Return the sum."""
        return Attempts(self.ended + other.ended, self.failed + other.failed, self.last + other.last)


@dataclass(frozen=True, kw_only=True)
class Usual:
    """What the hours of the last week have: attempts by class, failures by class and fingerprint, and when first."""

    attempts: Mapping[str, Attempts] = field(default_factory=dict)
    failures: Mapping[tuple[str, str], int] = field(default_factory=dict)
    first: Mapping[tuple[str, str], tuple[datetime, int]] = field(default_factory=dict)
    """The hour, or minute, of the week in which an error was seen first, and how many attempts its class had before."""
    seen: Mapping[str, int] = field(default_factory=dict)
    """How many attempts each class had in all these hours."""

    def at_minutes(self, minutes: Mapping[tuple[str, str], datetime]) -> Usual:
        """Return the same with these minutes in the place of their hours."""
        first = dict(self.first)
        for key, minute in minutes.items():
            if key in first and first[key][0] <= minute < first[key][0] + Step.HOUR.length:
                first[key] = (minute, first[key][1])
        return replace(self, first=first)


@dataclass(frozen=True, kw_only=True)
class FailureGroup:
    """The failed attempts of one class by errors of one fingerprint."""

    job: str
    fingerprint: str
    """As ``model.fingerprint`` makes it; empty for failures without an error."""
    trend: Trend
    number: int
    """How many attempts failed so within ``over``."""
    attempts: int
    """All attempts of the class within ``over``."""
    over: timedelta
    """The time before now that ``number`` and ``attempts`` are of: an hour, or a few minutes if these show it first."""
    usual: float | None
    """The usual share, 0 to 1; None if the class had no attempts in the week."""
    first_at: datetime
    """When it was seen first within the last week: the minute, or the hour if the minute was not looked up."""
    last_at: datetime
    """The minute of the last one."""

    @property
    def share(self) -> float:
        """Return the share of the attempts that failed so, 0 to 1."""
        return self.number / self.attempts if self.attempts else 0.0

    @property
    def error(self) -> str:
        """Return the dotted name of the class of the error."""
        return type_of(self.fingerprint)

    @property
    def is_sudden(self) -> bool:
        """Return whether the last few minutes show it, and the whole hour does not yet."""
        return self.over == SHORT

    @property
    def query(self) -> dict[str, Any] | None:
        """Return the query for its jobs, retried ones too; None if no query can tell them apart."""
        if OTHER in (self.job, self.fingerprint):
            return None
        text = part_of_message(self.fingerprint)
        message = {"error.message": {"$contains": text}} if text else {}
        return {"job": self.job, "error.type": self.error or None, **message}

    @property
    def needs_attention(self) -> bool:
        """Return whether it is new or rises."""
        return self.trend in (Trend.NEW, Trend.RISING)


def usual_failures(hours: Parts, now: datetime) -> Usual:
    """Return what is usual at this time of the day, by the hours of the last week."""
    last = Step.HOUR.begin(milliseconds(now))
    hour, day = Step.HOUR.length // timedelta(milliseconds=1), timedelta(days=1) // timedelta(milliseconds=1)
    same, rest = _Sums(), _Sums()
    first: dict[tuple[str, str], tuple[datetime, int]] = {}
    seen: dict[str, int] = {}
    for at in sorted(hours):
        for (_, job), figures in hours[at].items():
            failures = _failures_of(figures)
            attempts, before = _attempts(figures, failures), seen.get(job, 0)
            if at < last - hour:
                (same if (last - at) % day <= hour else rest).add(job, attempts, failures)
            for fingerprint, _ in failures:
                first.setdefault((job, fingerprint), (moment(at), before))
            seen[job] = before + attempts.all
    few: set[str] = set()
    for job, attempts in rest.attempts.items():
        if same.attempts.get(job, Attempts()).all < FEWEST_USUAL:
            same.attempts[job] = same.attempts.get(job, Attempts()).plus(attempts)
            few.add(job)
    for key, number in rest.failures.items():
        if key[0] in few:
            same.failures[key] += number
    return Usual(attempts=same.attempts, failures=same.failures, first=first, seen=seen)


class Lately:
    """The attempts of each class, and its failures by fingerprint, in each of these minutes."""

    def __init__(self, minutes: Parts) -> None:
        self.attempts: dict[str, dict[int, Attempts]] = {}
        self.failures: dict[tuple[str, str], dict[int, int]] = {}
        self._parts: dict[int, Part] = {}
        self.change_to(minutes)

    def change_to(self, minutes: Parts) -> None:
        """Hold these minutes instead; one whose part is the same object as before is not read again."""
        for at in [at for at, part in self._parts.items() if minutes.get(at) is not part]:
            self._remove(at)
        for at in minutes.keys() - self._parts.keys():
            self._add(at, minutes[at])

    def _add(self, at: int, part: Part) -> None:
        self._parts[at] = part
        for (_, job), figures in part.items():
            failures = _failures_of(figures)
            of_job = self.attempts.setdefault(job, {})
            of_job[at] = of_job.get(at, Attempts()).plus(_attempts(figures, failures))
            for fingerprint, number in failures:
                of_key = self.failures.setdefault((job, fingerprint), {})
                of_key[at] = of_key.get(at, 0) + number

    def _remove(self, at: int) -> None:
        for (_, job), figures in self._parts.pop(at).items():
            _without(self.attempts, job, at)
            for fingerprint, _ in _failures_of(figures):
                _without(self.failures, (job, fingerprint), at)

    def all_of(self, job: str, since: int = 0, until: int | None = None) -> Attempts:
        """Return the attempts of the class, from a minute on and before another one."""
        ended = failed = last = 0
        for at, attempts in self.attempts.get(job, {}).items():
            if at >= since and (until is None or at < until):
                ended, failed, last = ended + attempts.ended, failed + attempts.failed, last + attempts.last
        return Attempts(ended, failed, last)


def judged(lately: Lately, usual: Usual, now: datetime) -> list[FailureGroup]:
    """Return the groups of the last hour's failed attempts, first those in need of attention, then the largest."""
    groups = [_group(key, numbers, lately, usual, now) for key, numbers in lately.failures.items()]
    return sorted(groups, key=lambda group: (not group.needs_attention, -group.number, group.job, group.fingerprint))


def _group(
    key: tuple[str, str], numbers: Mapping[int, int], lately: Lately, usual: Usual, now: datetime
) -> FailureGroup:
    job, usually = key[0], _share(usual, key)
    number, attempts, last = sum(numbers.values()), lately.all_of(job).all, max(numbers)
    first_at, before = _first(key, min(numbers), lately, usual, now)
    is_new = first_at > now - NEW_FOR and before >= FEWEST_BEFORE
    over = Step.HOUR.length
    if _is_over(number, attempts, lately.all_of(job, last + 1).all):
        trend = Trend.OVER
    else:
        trend = _trend(number, attempts, usually or 0.0, is_new)
        if trend is Trend.USUAL:
            since = milliseconds(now - SHORT)
            in_short = sum(more for at, more in numbers.items() if at >= since)
            attempts_in_short = lately.all_of(job, since).all
            trend = _trend(in_short, attempts_in_short, usually or 0.0, is_new)
            if trend is not Trend.USUAL:
                number, attempts, over = in_short, attempts_in_short, SHORT
    return FailureGroup(
        job=job,
        fingerprint=key[1],
        trend=trend,
        number=number,
        attempts=attempts,
        over=over,
        usual=usually,
        first_at=first_at,
        last_at=moment(last),
    )


def _first(key: tuple[str, str], minute: int, lately: Lately, usual: Usual, now: datetime) -> tuple[datetime, int]:
    """Return when the error was seen first, and how many attempts its class had before, as far as a week shows."""
    at, before = usual.first.get(key, (moment(minute), usual.seen.get(key[0], 0)))
    if at >= now - Step.HOUR.length + Step.MINUTE.length:  # all its minutes are known
        at = moment(minute)
    return at, max(before, lately.all_of(key[0], until=milliseconds(at)).all)


def _without(numbers: dict[K, dict[int, V]], key: K, at: int) -> None:
    """Remove the minute, and the key if that was its last one; several queues may have the same key."""
    of_key = numbers.get(key, {})
    of_key.pop(at, None)
    if not of_key:
        numbers.pop(key, None)


class _Sums:
    """Attempts by class, and failures by class and fingerprint."""

    def __init__(self) -> None:
        self.attempts: dict[str, Attempts] = {}
        self.failures: Counter[tuple[str, str]] = Counter()

    def add(self, job: str, attempts: Attempts, failures: Sequence[tuple[str, int]]) -> None:
        self.attempts[job] = self.attempts.get(job, Attempts()).plus(attempts)
        for fingerprint, number in failures:
            self.failures[job, fingerprint] += number


def _attempts(figures: Figures, failures: Sequence[tuple[str, int]]) -> Attempts:
    last = figures.get("failed", 0) + figures.get("timeout", 0)
    return Attempts(figures.get("done", 0) + last, sum(number for _, number in failures), last)


def _failures_of(figures: Figures) -> list[tuple[str, int]]:
    return [(name[2:], number) for name, number in figures.items() if name.startswith("x:")]


def _share(usual: Usual, key: tuple[str, str]) -> float | None:
    attempts = usual.attempts.get(key[0], Attempts()).all
    return usual.failures.get(key, 0) / attempts if attempts else None


def _trend(number: int, attempts: int, usually: float, is_new: bool) -> Trend:
    """Return whether this number of failures of these attempts needs attention."""
    if not attempts:
        return Trend.USUAL
    share = number / attempts
    if is_new and number >= FEWEST_NEW and share >= SHARE_OF_NEW:
        return Trend.NEW
    expected = (usually + 1 / FEWEST_USUAL) * attempts
    is_more = number >= FEWEST_RISING and share >= RISE * usually and share >= usually + MORE
    return Trend.RISING if is_more and number - expected >= SURE * sqrt(expected) else Trend.USUAL


def _is_over(number: int, attempts: int, after: int) -> bool:
    """Return whether attempts after the last failure, as many as these, did not succeed by chance."""
    before = attempts - after
    return before > 0 and number / before * after >= OVER_AFTER
