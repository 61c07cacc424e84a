"""Figures of jobs by minute and hour, queue and class: how they are counted, added up and stored as text."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from operator import attrgetter
from typing import Any, TypeAlias

from taskqueue.model.fingerprint import fingerprint
from taskqueue.model.promise import figure_name, is_kept, promise_of
from taskqueue.model.reading import text
from taskqueue.model.record import RANK_A_PRIORITY, Cause, Record, Status
from taskqueue.model.serializer import clean
from taskqueue.model.timestamps import MILLISECOND, milliseconds, moment

MOST_CLASSES = 200
"""How many classes, and how many queues, a minute or an hour distinguishes; the others are counted as ``OTHER``."""

OTHER = "other"
"""The name under which further classes, queues and errors are counted together."""

MOST_ERRORS = 20
"""How many classes of errors, fingerprints and promises are distinguished for one queue and class."""

BUCKETS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0,
    1800.0, 3600.0, 7200.0, 21600.0, 43200.0, 86400.0, 604800.0,
)  # fmt: skip
"""The upper bounds, in seconds, of the buckets of durations; a last bucket has all that were longer."""

_BOUNDS = tuple(round(bound * 1000) for bound in BUCKETS)


class Step(str, Enum):
    """The length of the periods by which figures are counted."""

    MINUTE = "minute"
    HOUR = "hour"

    @property
    def length(self) -> timedelta:
        """Return how long a part is."""
        return _LENGTHS[self]

    @property
    def kept_for(self) -> timedelta:
        """Return how long figures of such parts are kept."""
        return _KEPT[self]

    def begin(self, at: int) -> int:
        """Return the start of the part that contains a time, both in milliseconds since 1970."""
        length = _MILLISECONDS[self]
        return at // length * length

    def end(self, at: datetime) -> datetime:
        """Return the last millisecond of the part that contains a time."""
        return moment(self.begin(milliseconds(at))) + (self.length - MILLISECOND)


_LENGTHS = {Step.MINUTE: timedelta(minutes=1), Step.HOUR: timedelta(hours=1)}
_MILLISECONDS = {step: length // MILLISECOND for step, length in _LENGTHS.items()}
_KEPT = {Step.MINUTE: timedelta(hours=72), Step.HOUR: timedelta(days=90)}

Figures: TypeAlias = dict[str, int]
"""Numbers by name, without zeros: see ``entry``. Times are sums of milliseconds; ``w3`` is a bucket
of waiting times, ``r3`` one of run times, ``e:`` comes before the class of an error that ended jobs, ``x:`` before the
fingerprint of an error of failed attempts, retried ones included, and ``k:`` and ``l:`` before a promise, of jobs that
have kept it or were late (``model.promise``)."""

Part: TypeAlias = dict[tuple[str, str], Figures]
"""The figures of one part of the time, by queue and class."""

Parts: TypeAlias = dict[int, Part]
"""The figures of several parts, by their starts in milliseconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class Durations:
    """Durations of ``number`` jobs, in seconds: their sum, the longest, and how many are in each bucket.

    ``buckets`` has an upper bound (the last one is infinite) and how many were longer than the bound before, and no
    longer than this.
    """

    number: int
    total: float
    longest: float
    buckets: Mapping[float, int]

    def percentile(self, percent: int) -> float:
        """Return the bound that this many of 100 do not exceed: the bound of its bucket, at most the longest time."""
        rank = -(-self.number * percent // 100)
        for bound, jobs in self.buckets.items():
            rank -= jobs
            if rank <= 0:
                return min(bound, self.longest)
        return self.longest


@dataclass(frozen=True, kw_only=True)
class HistoryEntry:
    """The figures of one class of jobs in one queue, in the minute or hour from ``at`` on."""

    at: datetime
    step: Step
    queue: str
    job: str
    """The import path of the class; ``other`` for classes beyond ``MOST_CLASSES``."""
    added: int
    started: int
    """The attempts that started, counted when they ended."""
    done: int
    failed: int
    timeout: int
    canceled: int
    retried: int
    """The ended jobs that took more than one attempt."""
    attempts: int
    """All attempts of the ended jobs."""
    waiting: Durations
    """From when the last attempt could start to when it did, of jobs that ended as DONE, FAILED or TIMEOUT."""
    running: Durations
    """From the start of the last attempt to the end of the job; of the same jobs."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """How many jobs ended with an error of each class."""

    @property
    def ended(self) -> int:
        """Return how many jobs ended in total."""
        return self.done + self.failed + self.timeout + self.canceled


_ENDS = {Status.DONE: "done", Status.FAILED: "failed", Status.CANCELED: "canceled", Status.TIMEOUT: "timeout"}
_FAILED = (Status.FAILED, Status.TIMEOUT)
_RETRIED = (Cause.RETRY, Cause.CRASHED)
_WAITED = tuple(f"w{number}" for number in range(len(BUCKETS) + 1))
_RAN = tuple(f"r{number}" for number in range(len(BUCKETS) + 1))
LONGEST = ("longest_wait", "longest_run")
"""The figures that are maxima, not sums."""
_BOUNDED = ("e:", "x:", "k:", "l:")
"""What names of figures begin with of which there are at most ``MOST_ERRORS``, for one queue and class."""
_key = attrgetter("queue", "job")
_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode


def has_failed(after: Record) -> bool:
    """Return whether an attempt that left the job in this state has failed, which its job may survive by a retry."""
    return after.status in _FAILED or (after.status < Status.PROCESSING and after.cause in _RETRIED)


def ended_part(settled: Iterable[Record], ended: Iterable[Record]) -> Part:
    """Return the figures of claims that were settled as these records, and of jobs that ended otherwise."""
    part: Part = {}
    plain: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
    for after in settled:
        key = _key(after)
        if after.options.begin_within is not None:
            _count_promise(part.setdefault(key, {}), after)
        last = after.attempts[-1] if after.attempts else None
        has_begun = last is not None and last.claims == after.claims and last.started_at is not None
        if has_begun and after.status is Status.DONE and not after.failures and not after.crashes:
            times = plain.get(key)
            if times is None:
                times = plain[key] = ([], [])
            waited, ran = _times(after)
            times[0].append(waited)
            times[1].append(ran)
            continue
        figures = part.setdefault(key, {})
        if has_begun:
            figures["started"] = figures.get("started", 0) + 1
        if after.status > Status.PROCESSING:
            _count_end(figures, after)
        elif after.cause in _RETRIED:
            _count_failure(figures, after)
    for after in ended:
        _count_end(part.setdefault(_key(after), {}), after)
        _count_promise(part[_key(after)], after)
    for key, (waits, runs) in plain.items():
        figures = _plain_figures(waits, runs)
        if key in part:
            add_figures(part[key], figures)
        else:
            part[key] = figures
    return {key: figures for key, figures in part.items() if figures}


def _plain_figures(waits: Sequence[int], runs: Sequence[int]) -> Figures:
    """Return the figures of jobs that are DONE with their first attempt, as most are: a third of the time of each."""
    jobs = len(waits)
    figures = {
        "started": jobs, "done": jobs, "attempts": jobs,
        "waited": sum(waits), "longest_wait": max(waits), "ran": sum(runs), "longest_run": max(runs),
    }  # fmt: skip
    for names, times in ((_WAITED, waits), (_RAN, runs)):
        for time in times:
            name = names[bisect_left(_BOUNDS, time)]
            figures[name] = figures.get(name, 0) + 1
    return figures


def _times(after: Record) -> tuple[int, int]:
    """Return how long an ended job waited and ran, in milliseconds."""
    assert after.started_at is not None
    assert after.ended_at is not None
    began = milliseconds(after.started_at)
    waited = began - after.rank + after.priority * RANK_A_PRIORITY
    ran = (after.ended_at - after.started_at) // MILLISECOND
    return max(waited, 0), max(ran, 0)


def _count_end(figures: Figures, after: Record) -> None:
    status = after.status
    waited, ran = (None, None) if after.started_at is None or after.ended_at is None else _times(after)
    error = None if after.error is None else clean(after.error.type)
    count_end(figures, status, after.failures + after.crashes + (status is Status.DONE), waited, ran, error)
    if after.cause is Cause.EXPIRED:
        figures["expired"] = figures.get("expired", 0) + 1
    if status in _FAILED and after.cause is not Cause.GIVEN_UP:  # its last attempt was counted when it was retried
        _count_failure(figures, after)


def _count_promise(figures: Figures, after: Record) -> None:
    promise, is_in_time = promise_of(after.options), is_kept(after)
    if promise is not None and is_in_time is not None:
        name = figure_name(promise, kept=is_in_time)
        figures[name] = figures.get(name, 0) + 1


def _count_failure(figures: Figures, after: Record) -> None:
    name = f"x:{fingerprint(after.error)}"
    figures[name] = figures.get(name, 0) + 1


def count_end(
    figures: Figures, status: Status, attempts: int, waited: int | None, ran: int | None, error: str | None
) -> None:
    """Count one ended job, with the times of its last attempt in milliseconds, and the class of its error."""
    name, get = _ENDS[status], figures.get
    figures[name] = get(name, 0) + 1
    if attempts:
        figures["attempts"] = get("attempts", 0) + attempts
        if attempts > 1:
            figures["retried"] = get("retried", 0) + 1
    if status is Status.CANCELED:
        return
    if waited is not None:
        figures["waited"] = get("waited", 0) + waited
        if waited > get("longest_wait", -1):
            figures["longest_wait"] = waited
        bucket = _WAITED[bisect_left(_BOUNDS, waited)]
        figures[bucket] = get(bucket, 0) + 1
    if ran is not None:
        figures["ran"] = get("ran", 0) + ran
        if ran > get("longest_run", -1):
            figures["longest_run"] = ran
        bucket = _RAN[bisect_left(_BOUNDS, ran)]
        figures[bucket] = get(bucket, 0) + 1
    if error is not None:
        name = f"e:{error}"
        figures[name] = get(name, 0) + 1


def add_figures(into: Figures, more: Figures) -> None:
    """Add the numbers of ``more``; of the longest times, keep the longer."""
    if not into:
        into.update(more)
        return
    get = into.get
    for name, value in more.items():
        before = get(name)
        if before is None:
            into[name] = value
        elif name not in LONGEST:
            into[name] = before + value
        elif value > before:
            into[name] = value


def gather(into: Parts, at: int, part: Part) -> None:
    """Merge the figures of one part of the time into those of others, before ``add_parts`` bounds their number."""
    of_time = into.setdefault(at, {})
    for key, figures in part.items():
        if key in of_time:
            add_figures(of_time[key], figures)
        else:
            of_time[key] = dict(figures)


def add_part(into: Part, more: Part) -> None:
    """Add the figures of ``more``, classes beyond ``MOST_CLASSES`` under ``OTHER``."""
    queues, jobs = {queue for queue, _ in into}, {job for _, job in into}
    for (queue, job), figures in more.items():
        key = (kept_apart(queues, queue), kept_apart(jobs, job))
        add_figures(into.setdefault(key, {}), figures)
    for figures in into.values():
        _bound_errors(figures)


def add_parts(into: Parts, more: Parts, step: Step = Step.MINUTE) -> None:
    """Add the figures of minutes to the figures of the hours or days that contain them."""
    for at, part in more.items():
        add_part(into.setdefault(step.begin(at), {}), part)


def kept_apart(known: set[str], name: str) -> str:
    """Return the name of a class or queue, adding it to the known ones; ``OTHER`` if there are too many."""
    if name in known or len(known) < MOST_CLASSES:
        known.add(name)
        return name
    return OTHER


def _bound_errors(figures: Figures) -> None:
    for prefix in _BOUNDED:
        errors = [name for name in figures if name.startswith(prefix)]
        if len(errors) > MOST_ERRORS:
            other = prefix + OTHER
            errors.sort(key=lambda name: (name == other, -figures[name], name))
            figures[other] = sum(figures.pop(name) for name in errors[MOST_ERRORS:])


def within_bounds(more: Part, known: Part) -> Part:
    """Return the figures to add to ``known``: names beyond the limit become ``OTHER``."""
    queues, jobs = {queue for queue, _ in known}, {job for _, job in known}
    bounded: Part = {}
    for (queue, job), figures in more.items():
        key = (kept_apart(queues, queue), kept_apart(jobs, job))
        into = bounded.setdefault(key, {})
        errors = {name for name in (*known.get(key, ()), *into) if name[:2] in _BOUNDED}
        for name, value in figures.items():
            add_figures(into, {_error_apart(errors, name) if name[:2] in _BOUNDED else name: value})
    return bounded


def _error_apart(errors: set[str], name: str) -> str:
    prefix = name[:2]
    if name not in errors and sum(error.startswith(prefix) for error in errors) >= MOST_ERRORS:
        return prefix + OTHER
    errors.add(name)
    return name


def part_text(part: Part) -> str:
    """Return the part as text."""
    return _encode([[*key, figures] for key, figures in part.items()])


def part_of_text(kept: Any) -> Part:
    """Return the part in the text; raise ``TypeError`` or ``ValueError`` if it is damaged."""
    return {(queue, job): figures for queue, job, figures in json.loads(text(kept))}


def entries(parts: Parts, step: Step) -> Iterator[HistoryEntry]:
    """Return the entries of these parts, by time, queue and class."""
    for at, part in sorted(parts.items()):
        for (queue, job), figures in sorted(part.items()):
            yield entry(moment(at), step, queue, job, figures)


def entry(at: datetime, step: Step, queue: str, job: str, figures: Mapping[str, int]) -> HistoryEntry:
    """Return the entry with these figures."""
    names = ("added", "started", "done", "failed", "timeout", "canceled", "retried", "attempts")
    return HistoryEntry(
        at=at,
        step=step,
        queue=queue,
        job=job,
        **{name: figures.get(name, 0) for name in names},
        waiting=_durations(figures, _WAITED, "waited", "longest_wait"),
        running=_durations(figures, _RAN, "ran", "longest_run"),
        errors={name[2:]: value for name, value in sorted(figures.items()) if name.startswith("e:")},
    )


def _durations(figures: Mapping[str, int], names: tuple[str, ...], total: str, longest: str) -> Durations:
    bounds = (*BUCKETS, float("inf"))
    buckets = {bound: figures[name] for bound, name in zip(bounds, names, strict=True) if name in figures}
    return Durations(
        number=sum(buckets.values()),
        total=figures.get(total, 0) / 1000,
        longest=figures.get(longest, 0) / 1000,
        buckets=buckets,
    )
