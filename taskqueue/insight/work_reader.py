"""Reads reports of classes and queues, at a bounded cost whatever the size of the store.

The history says in which minutes or hours jobs ended, and how many of all: jobs are only looked for in these, and no
more than ``WALKED`` of all jobs are passed for them.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from taskqueue.insight import overview, work_report
from taskqueue.insight.failure_groups import FailureGroup, end_of_long_ago
from taskqueue.insight.overview import QueueState, Run
from taskqueue.insight.recent_figures import KEPT_FOR, KeptFigures, RecentFigures
from taskqueue.insight.work_report import LastJobs, Period, Scope, Sums, WorkOf, WorkReport, sums_of
from taskqueue.model.history import Figures, Part, Parts, Step, add_figures
from taskqueue.model.limits import limit_keys_of
from taskqueue.model.query import RUNNING, And, Compare, Operator
from taskqueue.model.record import Record, Status
from taskqueue.model.timestamps import MILLISECOND, milliseconds, moment
from taskqueue.store import Store

MOST_KEPT = 30
"""How many classes and queues have cached figures: the most recently read ones."""

MOST_RUNS = 10
"""Maximum number of running jobs of a report."""

MOST_SLOW = 10
"""Maximum number of slow runs of a report."""

LAST = 500
"""How many of the last jobs are read for their tags and meta."""

WALKED = 2_500
"""About the most ended jobs of all classes and queues that each of the two searches passes over."""

SETTLED_WITHIN = timedelta(minutes=1)
"""A job ends this long before it is settled, and counted, at most; longer only if its node cannot reach the store."""

_ALL, _OWN = ("", "all"), ("", "own")
"""The keys of how many jobs ended in all queues, and of the sum of the figures of a report; no queue has this name."""

_RAN = Compare("status", Operator.IN, tuple(int(status) for status in (Status.DONE, Status.FAILED, Status.TIMEOUT)))


class KeptWork(NamedTuple):
    """What is cached of a class or queue."""

    figures: Mapping[Step, KeptFigures]
    long_ago: dict[Period, tuple[tuple[datetime, int], Sums]]
    """For each period of hours its sums from its first hour up to the hours that may change, with these two times."""


class WorkReader:
    """Reads reports of one store; threads may share it."""

    def __init__(self, store: Store, figures: RecentFigures, walked: int = WALKED) -> None:
        self._store = store
        self._figures = figures
        self._walked = walked
        self._lock = threading.Lock()
        self._kept: OrderedDict[WorkOf, KeptWork] = OrderedDict()

    def names(self, scope: Scope, now: datetime) -> list[str]:
        """Return all classes that had jobs within a week, or all queues that have jobs, by name."""
        if scope is Scope.QUEUE:
            return sorted({queue for queue, _ in self._store.tally()})
        hours = self._figures.hours(now - Period.WEEK.length, now)
        return sorted({job for part in hours.values() for _, job in part})

    def read(
        self, of: WorkOf, period: Period, now: datetime, judged: Sequence[FailureGroup], queues: Sequence[QueueState]
    ) -> WorkReport:
        """Return the report; an empty one for an unknown name."""
        cached = self._kept_of(of)
        every = {step: cached.figures[step].read(now - KEPT_FOR[step] + step.length, now)[0] for step in Step}
        own = {step: {at: {_OWN: part[_OWN]} for at, part in parts.items()} for step, parts in every.items()}
        begin = period.begin(now)
        sums = _sums(cached, every[period.step], of, period, now)
        state = next((queue for queue in queues if of == (Scope.QUEUE, queue.name)), None)
        runs, running = self._runs(of, state, now)
        slowest = self._slowest(of, every[period.step], period.step, begin)
        last, newest = self._last(of, every, now)
        looked_at = [*(run.record for run in runs), *slowest, *newest]
        return WorkReport(
            of=of,
            at=now,
            period=period,
            work={length: work_report.work_of(own[length.step], length.begin(now), now) for length in Period},
            parts=work_report.chart_parts(own[period.step], period, now),
            named=work_report.named_work(sums.named, begin, now),
            errors=work_report.errors_of(sums.errors, judged),
            state=state,
            runs=runs,
            running=running,
            slowest=slowest,
            last=last,
            example=max(looked_at, key=lambda record: record.created_at, default=None),
            limit_families=_limit_families(looked_at),
        )

    def _kept_of(self, of: WorkOf) -> KeptWork:
        def slim(part: Part) -> Part:
            own = {key: figures for key, figures in part.items() if of.has(*key)}
            total: Figures = {}
            for figures in own.values():
                add_figures(total, figures)
            return {_ALL: {"done": work_report.ended_in(part)}, _OWN: total, **own}

        with self._lock:
            cached = self._kept.pop(of, None) or KeptWork(
                {step: KeptFigures(self._store, step, {slim: KEPT_FOR[step]}) for step in Step}, {}
            )
            self._kept[of] = cached
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            return cached

    def _runs(self, of: WorkOf, state: QueueState | None, now: datetime) -> tuple[list[Run], int]:
        query = And((RUNNING, of.query))
        records = self._store.find(query, limit=MOST_RUNS)
        running = len(records)
        if running == MOST_RUNS:
            running = max(running, state.running) if state is not None else self._store.count(query)
        return overview.runs_of(records, overview.usual_times(self._figures.runs(now)), now), running

    def _slowest(self, of: WorkOf, parts: Parts, step: Step, begin: datetime) -> list[Record]:
        """Return the slowest run of each of the slowest parts; the history knows how long it took."""
        ranked = sorted(
            ((part[_OWN].get("longest_run", 0) / 1000, at) for at, part in parts.items() if moment(at) >= begin),
            reverse=True,
        )
        records: dict[object, Record] = {}
        walked = 0
        for longest, at in [slow_part for slow_part in ranked if slow_part[0]][:MOST_SLOW]:
            passed = parts[at][_ALL]["done"]
            if walked + passed > self._walked:
                continue
            walked += passed
            for record in self._store.find(_slow(of, longest, moment(at), step), order="-ended_at", limit=1):
                records.setdefault(record.id, record)
        return sorted(records.values(), key=lambda record: -(record.took or 0.0))

    def _last(self, of: WorkOf, parts: Mapping[Step, Parts], now: datetime) -> tuple[LastJobs, list[Record]]:
        """Return the last jobs that ended, and the record of the newest one."""
        window = _window(_spans(parts, now), self._walked)
        if window is None:
            return LastJobs(), []
        since, until, limit = window
        samples = self._store.samples(since - SETTLED_WITHIN, until, limit, of.query)
        ids = tuple(str(sample.id) for sample in samples[:1])
        return work_report.last_jobs(samples), self._store.find(Compare("id", Operator.IN, ids), limit=1) if ids else []


class Span(NamedTuple):
    """A part of the time, how many jobs of the class or queue ended in it, and how many in total."""

    begin: datetime
    end: datetime
    own: int
    all: int


class Window(NamedTuple):
    """The time in which the last jobs are looked for, and how many."""

    since: datetime
    until: datetime
    limit: int


def _spans(parts: Mapping[Step, Parts], now: datetime) -> Iterator[Span]:
    """Yield the minutes of the last hour and the hours before them, the newest first."""
    end = now
    for step in Step:
        for at in sorted(parts[step], reverse=True):
            begin, part = moment(at), parts[step][at]
            if begin < end:
                own = work_report.ended_in({_OWN: part[_OWN]})
                yield Span(begin, min(begin + step.length, end), own, part[_ALL]["done"])
        end = Period.HOUR.begin(now)


def _window(spans: Iterable[Span], walked: int) -> Window | None:
    """Return the time that has enough jobs; of a time with too many others, only as many as are passed with these."""
    since = until = None
    own = passed = 0
    for span in spans:
        if until is None and not span.own:
            continue
        if until is not None and passed + span.all > walked:
            break
        since, until = span.begin, until or span.end
        own, passed = own + span.own, passed + span.all
        if own >= LAST:
            break
    if since is None or until is None:
        return None
    return Window(since, until, min(LAST, max(1, walked * own // max(passed, walked))))


def _slow(of: WorkOf, longest: float, at: datetime, step: Step) -> And:
    """Return the query for the jobs that ran longest in this minute or hour."""
    begin, end = (milliseconds(bound) for bound in (at - SETTLED_WITHIN, at + step.length))
    return And(
        (
            _RAN,
            of.query,
            Compare("ended_at", Operator.GTE, begin),
            Compare("ended_at", Operator.LT, end),
            Compare("took", Operator.GTE, longest - MILLISECOND / timedelta(seconds=2)),
        )
    )


def _sums(cached: KeptWork, parts: Parts, of: WorkOf, period: Period, now: datetime) -> Sums:
    """Return the sums of the period; those of hours that cannot change are added up once."""
    begin, border = period.begin(now), end_of_long_ago(now)
    first = milliseconds(begin)

    def summed(since: int, until: float) -> Sums:
        return sums_of({at: _apart(part) for at, part in parts.items() if since <= at < until}, of)

    if period.step is Step.MINUTE:
        return summed(first, math.inf)
    times, before = cached.long_ago.get(period, (None, None))
    if before is None or times != (begin, border):
        before = summed(first, border)
        cached.long_ago[period] = (begin, border), before
    return before.plus(summed(max(first, border), math.inf))


def _apart(part: Part) -> Part:
    """Return the figures by queue and class."""
    return {key: figures for key, figures in part.items() if key not in (_ALL, _OWN)}


def _limit_families(records: Iterable[Record]) -> frozenset[str]:
    """Return the families of the limits of these records, such as ``limit:name=api``."""
    return frozenset(key.family for record in records for key in limit_keys_of(record.lane))
