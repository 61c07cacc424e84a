"""Judges failed attempts by class and fingerprint: whether an error is new, rises or has ended, against the last week.

Failed attempts that are retried count like those at the end of a job. The usual share of a group comes from the same
hours of the last days, or from all hours if these have few attempts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from itertools import accumulate
from math import sqrt
from typing import Any, NamedTuple, TypeVar

from taskqueue.insight.failure_states import Decisions, FailureDecision, FailureState
from taskqueue.insight.releases import Release, release_before
from taskqueue.model.fingerprint import group_id, part_of_message, type_of
from taskqueue.model.history import OTHER, Figures, Part, Parts, Step
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.model.wording import span

K = TypeVar("K")
V = TypeVar("V")

WEEK = timedelta(days=7)
"""How far back the usual share is computed."""

NEW_FOR = timedelta(days=1)
"""How long an error counts as new after it was first seen."""

RELEASED_FOR = Step.MINUTE.kept_for
"""How long the release before its first occurrence is named: as long as the minute of that is known."""

JUDGED_OVER = (Step.HOUR.length, timedelta(minutes=5), timedelta(minutes=2))
"""The times up to now in which failures are judged: a sudden change shows in the short ones first."""

FEWEST_NEW, SHARE_OF_NEW = 5, 0.02
"""A new error needs attention from this many failed attempts, and this share of its class."""

FEWEST_RISING, RISE, MORE = 10, 2.0, 0.02
"""A known error rises if this many attempts failed, and their share is twice the usual one, and this much more than
that of almost any hour of the last week."""

SURE = 5.0
"""How many standard deviations more than usual there must be: a week has ten thousand minutes."""

FEWEST_USUAL = 100
"""With this many attempts in the same hours of the last days, these define what is usual; else the whole week does."""

FEWEST_OF_HOUR = 50
"""An hour with fewer attempts of a class does not show how much of it may fail at times."""

OFTEN = 0.05
"""In this share of its hours more of a class may have failed than counts as usual at times."""

FEWEST_BEFORE = 50
"""An error is new if its class had this many attempts before it: otherwise the class itself is new."""

OVER_AFTER = 3.0
"""An error has ended if later attempts would have failed this many times at its previous share."""


_HOUR = Step.HOUR.length // timedelta(milliseconds=1)


class Trend(str, Enum):
    """The state of a group; ``NEW`` and ``RISING`` need attention."""

    __str__ = str.__str__

    NEW = "new"
    RISING = "rising"
    USUAL = "usual"
    OVER = "over"


class Attempts(NamedTuple):
    """How many attempts of a class ended their job or failed in some time."""

    ended: int = 0
    """The jobs that are DONE, FAILED or TIMEOUT."""
    failed: int = 0
    """The failed attempts, including those that ended their job as FAILED or TIMEOUT."""
    last: int = 0
    """The jobs that ended as FAILED or TIMEOUT."""

    @property
    def all(self) -> int:
        """Return all attempts, including the retried ones."""
        return self.ended + self.retried

    @property
    def retried(self) -> int:
        """Return the failed attempts that were retried."""
        return self.failed - self.last

    def plus(self, other: Attempts) -> Attempts:
        """Return the sum."""
        return Attempts(self.ended + other.ended, self.failed + other.failed, self.last + other.last)


@dataclass(frozen=True, kw_only=True)
class Usual:
    """The hours of the last week: attempts by class, failures by class and fingerprint, and first occurrences."""

    attempts: Mapping[str, Attempts] = field(default_factory=dict)
    failures: Mapping[tuple[str, str], int] = field(default_factory=dict)
    at_times: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """The share of failures, 0 to 1, that only one of 20 hours exceeds, however many attempts there were."""
    first: Mapping[tuple[str, str], tuple[datetime, int]] = field(default_factory=dict)
    """The hour or minute in which an error was first seen, and how many attempts its class had before."""
    seen: Mapping[str, int] = field(default_factory=dict)
    """How many attempts each class had in all these hours."""
    unbroken: Mapping[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """The first and last of the last hours in a row that each had a failure, in milliseconds since 1970."""
    last: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The last minute with a failure, in milliseconds since 1970, of errors for which it was looked up."""

    def at_minutes(self, minutes: Mapping[tuple[str, str], datetime]) -> Usual:
        """Return the same with these minutes instead of their hours."""
        first = dict(self.first)
        for key, minute in minutes.items():
            if key in first and first[key][0] <= minute < first[key][0] + Step.HOUR.length:
                first[key] = (minute, first[key][1])
        return replace(self, first=first)


@dataclass(frozen=True, kw_only=True)
class FailureGroup:
    """The failed attempts of one class with errors of one fingerprint."""

    job: str
    fingerprint: str
    """As ``model.fingerprint`` computes it; empty for failures without an error."""
    trend: Trend
    number: int
    """How many attempts failed with it within ``over``."""
    attempts: int
    """All attempts of the class within ``over``."""
    over: timedelta
    """The time up to now that ``number`` and ``attempts`` cover: an hour, or a few minutes if only these show it."""
    usual: float | None
    """The usual share, 0 to 1; None if the class had no attempts in the week."""
    first_at: datetime
    """When it was first seen within the last week: the minute, or the hour if the minute was not looked up."""
    last_at: datetime
    """The minute of the last one."""
    release: Release | None = None
    """The last release before it was first seen, if it was not seen before that in the last week."""
    state: FailureState = FailureState.OPEN
    decision: FailureDecision | None = None
    """What a person has decided last about it, even if that no longer applies."""

    @property
    def id(self) -> str:
        """Return its short name, for commands."""
        return group_id(self.job, self.fingerprint)

    @property
    def word(self) -> str:
        """Return its state if a person has decided about it, else its trend; ``few`` if nothing is usual yet."""
        if self.state is not FailureState.OPEN:
            return str(self.state)
        return "few" if self.trend is Trend.USUAL and not self.usual else str(self.trend)

    @property
    def share(self) -> float:
        """Return the share of attempts that failed with it, 0 to 1."""
        return self.number / self.attempts if self.attempts else 0.0

    @property
    def error(self) -> str:
        """Return the dotted name of the class of the error."""
        return type_of(self.fingerprint)

    @property
    def lately(self) -> str:
        """Return ``over`` in words: ``last hour``, ``last 5 min``."""
        return "last hour" if self.over == JUDGED_OVER[0] else f"last {span(self.over.total_seconds())}"

    @property
    def query(self) -> dict[str, Any] | None:
        """Return the query for its jobs, including retried ones; None if no query can distinguish them."""
        return query_of(self.job, self.fingerprint)

    @property
    def needs_attention(self) -> bool:
        """Return whether it was resolved and fails again, or is new or rises and nobody has muted it."""
        if self.state is FailureState.OPEN:
            return self.trend in (Trend.NEW, Trend.RISING)
        return self.state is FailureState.REGRESSED


def query_of(job: str, fingerprint: str) -> dict[str, Any] | None:
    """Return the query for the jobs of a class with errors of one fingerprint; None if there is none."""
    if OTHER in (job, fingerprint):
        return None
    text = part_of_message(fingerprint)
    message = {"error.message": {"$contains": text}} if text else {}
    return {"job": job, "error.type": type_of(fingerprint) or None, **message}


def usual_failures(hours: Parts, now: datetime, long_ago: Usual | None = None) -> Usual:
    """Return what is usual at this time of day, from the hours of the last week.

    ``long_ago`` is what ``usual_long_ago`` has returned at the same ``end_of_long_ago``, so that these hours are not
    read again.
    """
    usual = usual_long_ago(hours, now) if long_ago is None else long_ago
    first, seen, unbroken = dict(usual.first), dict(usual.seen), dict(usual.unbroken)
    for at in sorted(at for at in hours if at >= end_of_long_ago(now)):
        for (_, job), figures in hours[at].items():
            _see(at, job, figures, first, seen, unbroken)
    return replace(usual, first=first, seen=seen, unbroken=unbroken)


def end_of_long_ago(now: datetime) -> int:
    """Return when the first hour started that may still change or is about to be judged, in milliseconds since 1970."""
    return Step.HOUR.begin(milliseconds(now)) - _HOUR


def usual_long_ago(hours: Parts, now: datetime) -> Usual:
    """Return what is usual at this time of day, from the hours before ``end_of_long_ago`` alone."""
    last = Step.HOUR.begin(milliseconds(now))
    same, rest = _Sums(), _Sums()
    first: dict[tuple[str, str], tuple[datetime, int]] = {}
    seen: dict[str, int] = {}
    unbroken: dict[tuple[str, str], tuple[int, int]] = {}
    counted: Counter[str] = Counter()
    shares: dict[tuple[str, str], list[float]] = {}
    for at in sorted(at for at in hours if at < end_of_long_ago(now)):
        sums = same if (last - at) % (24 * _HOUR) <= _HOUR else rest
        for (_, job), figures in hours[at].items():
            attempts, failures = _see(at, job, figures, first, seen, unbroken)
            sums.add(job, attempts, failures)
            if attempts.all >= FEWEST_OF_HOUR and at < last - 24 * _HOUR:  # a rise of today is not usual tomorrow
                counted[job] += 1
                for fingerprint, number in failures:
                    shares.setdefault((job, fingerprint), []).append(number / attempts.all)
    few: set[str] = set()
    for job, attempts in rest.attempts.items():
        if same.attempts.get(job, Attempts()).all < FEWEST_USUAL:
            same.attempts[job] = same.attempts.get(job, Attempts()).plus(attempts)
            few.add(job)
    for key, number in rest.failures.items():
        if key[0] in few:
            same.failures[key] += number
    at_times = {}
    for key, of_hours in shares.items():
        place = int(OFTEN * counted[key[0]])  # the hours without a failure are not listed
        at_times[key] = sorted(of_hours, reverse=True)[place] if place < len(of_hours) else 0.0
    return Usual(
        attempts=same.attempts, failures=same.failures, at_times=at_times, first=first, seen=seen, unbroken=unbroken
    )


def _see(
    at: int,
    job: str,
    figures: Figures,
    first: dict[tuple[str, str], tuple[datetime, int]],
    seen: dict[str, int],
    unbroken: dict[tuple[str, str], tuple[int, int]],
) -> tuple[Attempts, list[tuple[str, int]]]:
    """Note the failures of a class in an hour that follows all noted ones; return its attempts and failures."""
    failures = _failures_of(figures)
    attempts, before = _attempts(figures, failures), seen.get(job, 0)
    for fingerprint, _ in failures:
        first.setdefault((job, fingerprint), (moment(at), before))
        begin, end = unbroken.get((job, fingerprint), (at, at))
        unbroken[job, fingerprint] = (begin if at - end <= _HOUR else at, at)
    seen[job] = before + attempts.all
    return attempts, failures


class Lately:
    """The attempts of each class, and its failures by fingerprint, in each of these minutes."""

    def __init__(self, minutes: Parts) -> None:
        self.attempts: dict[str, dict[int, Attempts]] = {}
        self.failures: dict[tuple[str, str], dict[int, int]] = {}
        self._parts: dict[int, Part] = {}
        self._sums: dict[str, tuple[list[int], list[Attempts]]] = {}
        """The minutes of each class, and the sums of its attempts before each of them and after the last one."""
        self.change_to(minutes)

    def change_to(self, minutes: Parts) -> None:
        """Replace the minutes; a minute whose part is the same object as before is not read again."""
        for at in [at for at, part in self._parts.items() if minutes.get(at) is not part]:
            self._remove(at)
        for at in minutes.keys() - self._parts.keys():
            self._add(at, minutes[at])
        self._sums.clear()

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

    def number_of(self, group: FailureGroup) -> int:
        """Return how many attempts of all these minutes failed like those of the group."""
        return sum(self.failures.get((group.job, group.fingerprint), {}).values())

    def all_of(self, job: str, since: int = 0, until: int | None = None) -> Attempts:
        """Return the attempts of the class from one minute on and before another."""
        times, sums = self._sums.get(job) or self._summed(job)
        first = bisect_left(times, since)
        end = len(times) if until is None else max(first, bisect_left(times, until))
        before, upto = sums[first], sums[end]
        return Attempts(upto.ended - before.ended, upto.failed - before.failed, upto.last - before.last)

    def _summed(self, job: str) -> tuple[list[int], list[Attempts]]:
        of_job = self.attempts.get(job, {})
        times = sorted(of_job)
        sums = list(accumulate((of_job[at] for at in times), Attempts.plus, initial=Attempts()))
        self._sums[job] = times, sums
        return times, sums


def judged(
    lately: Lately, usual: Usual, now: datetime, decisions: Decisions | None = None, releases: Sequence[Release] = ()
) -> list[FailureGroup]:
    """Return the groups of the last hour's failed attempts: first those in need of attention, muted ones last."""
    groups = []
    for key, numbers in lately.failures.items():
        group, decision = _group(key, numbers, lately, usual, now, releases), (decisions or {}).get(key)
        if decision is not None:
            state = _state(decision, max(*numbers, usual.last.get(key, 0)), usual.unbroken.get(key), now)
            is_larger = state is FailureState.MUTED and _has_grown(decision, numbers, lately, now)
            group = replace(group, decision=decision, state=FailureState.OPEN if is_larger else state)
        groups.append(group)
    for key, decision in (decisions or {}).items():
        last = usual.last.get(key)
        if key not in lately.failures and last is not None and _has_regressed(decision, last):
            groups.append(_quiet(decision, moment(last), lately, usual, releases))
    return sorted(groups, key=_place)


def _place(group: FailureGroup) -> tuple[object, ...]:
    return group.state.is_silent, not group.needs_attention, -group.number, group.job, group.fingerprint


def _state(decision: FailureDecision, last: int, unbroken: tuple[int, int] | None, now: datetime) -> FailureState:
    """Return whether the decision still applies to an error that has failed in this minute last.

    An error that is muted until it happens again has stopped if no attempt failed with it for an hour of the clock.
    """
    since = milliseconds(decision.since)
    if decision.state is FailureState.RESOLVED:
        return FailureState.REGRESSED if _has_regressed(decision, last) else FailureState.RESOLVED
    if decision.until is not None:
        return FailureState.MUTED if now < decision.until else FailureState.OPEN
    latest = Step.HOUR.begin(last)
    begin, end = unbroken or (latest, latest)
    happens_again = (begin if latest - end <= _HOUR else latest) > since
    return FailureState.OPEN if happens_again else FailureState.MUTED


def _has_regressed(decision: FailureDecision, last: int) -> bool:
    """Return whether the last failure came after it was resolved; failures of the same minute may have come before."""
    since = Step.MINUTE.begin(milliseconds(decision.since))
    return decision.state is FailureState.RESOLVED and last > since


def _has_grown(decision: FailureDecision, numbers: Mapping[int, int], lately: Lately, now: datetime) -> bool:
    """Return whether failures that are muted without a time have risen above their share when they were muted."""
    if decision.until is not None or decision.share is None:
        return False
    shares = shares_of(numbers, lately, decision.job, now)
    return any(_trend(share, decision.share, 0.0, is_new=False) is Trend.RISING for share in shares)


class Share(NamedTuple):
    """How many attempts of a class failed with one error in the time up to now, and how many there were."""

    number: int
    attempts: int
    over: timedelta

    @property
    def value(self) -> float:
        """Return it as 0 to 1."""
        return self.number / self.attempts if self.attempts else 0.0


def shares_of(numbers: Mapping[int, int], lately: Lately, job: str, now: datetime) -> list[Share]:
    """Return the share of an error that failed so often in these minutes, in each time of ``JUDGED_OVER``."""
    shares = [Share(sum(numbers.values()), lately.all_of(job).all, JUDGED_OVER[0])]
    for over in JUDGED_OVER[1:]:
        since = milliseconds(now - over)
        number = sum(number for at, number in numbers.items() if at >= since)
        shares.append(Share(number, lately.all_of(job, since).all, over))
    return shares


def _quiet(
    decision: FailureDecision, last: datetime, lately: Lately, usual: Usual, releases: Sequence[Release]
) -> FailureGroup:
    """Return the group of an error that has failed after it was resolved, but not in the last hour."""
    key = (decision.job, decision.fingerprint)
    first, before = usual.first.get(key, (last, 0))
    return FailureGroup(
        job=decision.job,
        fingerprint=decision.fingerprint,
        trend=Trend.OVER,
        number=0,
        attempts=lately.all_of(decision.job).all,
        over=Step.HOUR.length,
        usual=_share(usual, key),
        first_at=first,
        last_at=last,
        release=None if before < FEWEST_BEFORE else release_before(releases, first),
        state=FailureState.REGRESSED,
        decision=decision,
    )


def _group(
    key: tuple[str, str],
    numbers: Mapping[int, int],
    lately: Lately,
    usual: Usual,
    now: datetime,
    releases: Sequence[Release],
) -> FailureGroup:
    job, usually = key[0], _share(usual, key)
    shares, last = shares_of(numbers, lately, job, now), max(numbers)
    share = shares[0]
    first_at, before = _first(key, min(numbers), lately, usual, now)
    was_seen = before < FEWEST_BEFORE or first_at <= now - RELEASED_FOR  # or it would have been, had it been there
    is_new = first_at > now - NEW_FOR and not was_seen
    if _is_over(share.number, share.attempts, lately.all_of(job, last + 1).all):
        trend = Trend.OVER
    else:
        trends = [_trend(each, usually or 0.0, usual.at_times.get(key, 0.0), is_new=is_new) for each in shares]
        unusual = [place for place, trend in enumerate(trends) if trend is not Trend.USUAL]
        share, trend = shares[min(unusual, default=0)], trends[min(unusual, default=0)]
    return FailureGroup(
        job=job,
        fingerprint=key[1],
        trend=trend,
        number=share.number,
        attempts=share.attempts,
        over=share.over,
        usual=usually,
        first_at=first_at,
        last_at=moment(last),
        release=None if was_seen else release_before(releases, first_at),
    )


def _first(key: tuple[str, str], minute: int, lately: Lately, usual: Usual, now: datetime) -> tuple[datetime, int]:
    """Return when the error was first seen, and how many attempts its class had before, within the last week."""
    at, before = usual.first.get(key, (moment(minute), usual.seen.get(key[0], 0)))
    if at >= now - Step.HOUR.length + Step.MINUTE.length:  # all its minutes are known
        at = moment(minute)
    return at, max(before, lately.all_of(key[0], until=milliseconds(at)).all)


def _without(numbers: dict[K, dict[int, V]], key: K, at: int) -> None:
    """Remove the minute, and the key if it has no other; several queues may share a key."""
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


def _trend(share: Share, usually: float, at_times: float, *, is_new: bool) -> Trend:
    """Return whether this share of failures needs attention."""
    if is_new and share.number >= FEWEST_NEW and share.value >= SHARE_OF_NEW:
        return Trend.NEW
    most = max(usually, at_times)
    expected = (most + 1 / FEWEST_USUAL) * share.attempts
    is_more = share.number >= FEWEST_RISING and share.value >= max(RISE * usually, most + MORE)
    return Trend.RISING if is_more and share.number - expected >= SURE * sqrt(expected) else Trend.USUAL


def _is_over(number: int, attempts: int, after: int) -> bool:
    """Return whether attempts after the last failure, as many as these, did not succeed by chance."""
    before = attempts - after
    return before > 0 and number / before * after >= OVER_AFTER
