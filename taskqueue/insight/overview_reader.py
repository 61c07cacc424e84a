"""Reads one overview after the other from a store with few calls: nothing is read again that cannot have changed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from sys import intern

from taskqueue.insight import diagnosis, needs, overview
from taskqueue.insight.failure_groups import NEW_FOR, WEEK, FailureGroup, Lately, Usual, judged, usual_failures
from taskqueue.insight.needs import Need, Subject
from taskqueue.insight.nodes import Node, nodes_of
from taskqueue.insight.overview import QueueState, Run
from taskqueue.model.finding import Level
from taskqueue.model.history import BUCKETS, Durations, Figures, Part, Parts, Step, add_figures
from taskqueue.model.query import RUNNING
from taskqueue.model.record import Record, Status
from taskqueue.model.timestamps import MILLISECOND, milliseconds, moment
from taskqueue.store import Store

UNSETTLED: Mapping[Step, timedelta] = {Step.MINUTE: timedelta(minutes=2), Step.HOUR: timedelta(minutes=15)}
"""Minutes, or hours, that ended more recently may still change."""

KEPT_FOR: Mapping[Step, timedelta] = {Step.MINUTE: timedelta(hours=1), Step.HOUR: timedelta(days=7)}
"""How far back they are kept."""

USUAL_OVER = timedelta(days=1)
"""For this long, an hour also says how long jobs ran."""

AT_ONCE = 30
"""Minutes or hours that are read together: with all their figures they take much memory."""

EVERY_QUEUE = ""
"""The queue of hours: they are those of all queues together."""

Slim = Callable[[Part], Part]


class RecentFigures:
    """The recent figures of one store; threads may share it."""

    def __init__(self, store: Store) -> None:
        self._minutes = _Kept(store, Step.MINUTE, KEPT_FOR[Step.MINUTE], _slim_minute)
        self._hours = _Kept(store, Step.HOUR, KEPT_FOR[Step.HOUR], _slim_hour)
        self._runs = _Kept(store, Step.HOUR, USUAL_OVER, _runs_of_hour)

    def minutes(self, now: datetime) -> Parts:
        """Return the numbers of the minutes that began in the last hour, by queue and class."""
        return self._minutes.read(now - KEPT_FOR[Step.MINUTE] + Step.MINUTE.length - MILLISECOND, now)

    def hours(self, since: datetime, now: datetime) -> Parts:
        """Return the numbers of the hours from the one of ``since`` on, by class, of all queues together."""
        return self._hours.read(since, now)

    def runs(self, now: datetime) -> Parts:
        """Return how long jobs ran in the hours of the last day, by class, of all queues together."""
        return self._runs.read(now - USUAL_OVER, now)


class _Kept:
    """The figures of the parts of a time, in the form that ``slim`` gives them."""

    def __init__(self, store: Store, step: Step, kept_for: timedelta, slim: Slim) -> None:
        self._store = store
        self._step = step
        self._kept_for = kept_for
        self._slim = slim
        self._lock = threading.Lock()
        self._parts: Parts = {}
        self._first: int | None = None
        self._read_to = 0

    def read(self, since: datetime, now: datetime) -> Parts:
        with self._lock:
            begin, oldest = self._step.begin(milliseconds(since)), self._step.begin(milliseconds(now - self._kept_for))
            if self._first is None or begin < self._first:
                self._read(begin, milliseconds(now))
                self._first = begin  # once it was read: an outage leaves nothing behind that was not
            else:
                unsettled = self._step.begin(self._read_to - UNSETTLED[self._step] // MILLISECOND)
                self._read(max(unsettled, oldest), milliseconds(now))
            self._forget(oldest)
            return {at: part for at, part in self._parts.items() if at >= begin}

    def _read(self, first: int, last: int) -> None:
        length = AT_ONCE * (self._step.length // MILLISECOND)
        for begin in range(first, last + 1, length):
            end = min(last, begin + length - 1)
            parts = self._store.history(self._step, moment(begin), moment(end))
            self._parts.update({at: self._slim(part) for at, part in parts.items()})
        self._read_to = last

    def _forget(self, before: int) -> None:
        for at in [at for at in self._parts if at < before]:
            del self._parts[at]
        if self._first is not None:
            self._first = max(self._first, before)


_NUMBERS = ("added", "done", "failed", "timeout", "canceled")
_RUN = ("ran", "longest_run", *(f"r{number}" for number in range(len(BUCKETS) + 1)))


def _numbers(figures: Figures) -> Figures:
    """Return the numbers of jobs and errors, without times."""
    errors = {intern(name): value for name, value in figures.items() if name.startswith(("e:", "x:"))}
    return {name: figures[name] for name in _NUMBERS if name in figures} | errors


def _runs(figures: Figures) -> Figures:
    return {name: figures[name] for name in _RUN if name in figures}


def _slim_minute(part: Part) -> Part:
    return {(intern(queue), intern(job)): _numbers(figures) for (queue, job), figures in part.items()}


def _slim_hour(part: Part) -> Part:
    return _of_classes(part, _numbers)


def _runs_of_hour(part: Part) -> Part:
    return _of_classes(part, _runs)


def _of_classes(part: Part, wanted: Callable[[Figures], Figures]) -> Part:
    slim: Part = {}
    for (_, job), figures in part.items():
        add_figures(slim.setdefault((EVERY_QUEUE, intern(job)), {}), wanted(figures))
    return slim


MOST_RUNS = 200
"""The most running jobs that are read."""

SELDOM = 15.0
"""Seconds between two reads of values that change seldom and cost more."""

SHARE = 50
"""The pause between two such reads is at least this many times the duration of the last one."""

MOST_HOURS = 3
"""The most hours that one read looks through for the minutes of new errors."""

FEW = 10_000
"""Where more jobs than these wait for their time or for others, `taskqueue doctor` looks through them, not this."""


@dataclass(frozen=True, kw_only=True)
class Overview:
    """One look at a store."""

    at: datetime
    nodes: list[Node]
    queues: list[QueueState]
    """The oldest backlog first."""
    runs: list[Run]
    """At most ``MOST_RUNS``, those first that have run longest."""
    running: int
    """How many jobs run in all."""
    groups: list[FailureGroup]
    """The failed attempts of the last hour, judged: first the ones in need of attention."""
    needs: list[Need]
    """What somebody should act on, errors first."""
    tally: Mapping[tuple[str, Status], int]
    """How many jobs there are, by queue and status."""
    minutes: Parts
    """The numbers of the last hour, by minute, queue and class."""


class OverviewReader:
    """Reads overviews of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.figures = RecentFigures(store)
        self._usual: dict[str, Durations] = {}
        self._usual_failures = Usual()
        self._lately = Lately({})
        self._first_minutes: dict[tuple[str, str], datetime] = {}
        self._looked_up: set[datetime] = set()
        self._flaws: list[Need] = []
        self._seldom_at = 0.0

    def now(self) -> datetime:
        """Return the store's time, which jobs are kept with: that of this host may be another."""
        return self._store.now()

    def read(self) -> Overview:
        """Return the present state: seven calls of the store, or a few more every quarter of a minute or so."""
        store = self._store
        now, leases, controls = store.now(), store.leases(), store.controls()
        tally, since = store.tally(), store.waiting_since()
        records = store.find(RUNNING, limit=MOST_RUNS)
        minutes = self.figures.minutes(now)
        if time.monotonic() >= self._seldom_at:
            self._read_seldom(now, _all(tally, Status.POSTPONED))
        running = _all(tally, Status.PROCESSING)
        nodes = nodes_of(leases, controls, _by_node(records, running), now)
        queues = overview.queue_states(tally, since, controls, minutes, now)
        runs = overview.runs_of(records, self._usual, now)
        self._lately.change_to(minutes)
        groups = judged(self._lately, self._usual_failures, now)
        all_needs = [
            *needs.of_nodes(leases, nodes, queues, now),
            *needs.of_queues(leases, queues, controls, now),
            *needs.of_runs(runs, now),
            *needs.of_failures(groups, self._lately, now),
            *self._flaws,
        ]
        return Overview(
            at=now,
            nodes=nodes,
            queues=queues,
            runs=runs,
            running=max(running, len(records)),
            groups=groups,
            needs=sorted(all_needs, key=lambda need: need.level is not Level.ERROR),
            tally=tally,
            minutes=minutes,
        )

    def _read_seldom(self, now: datetime, postponed: int) -> None:
        began = time.monotonic()
        self._usual = overview.usual_times(self.figures.runs(now))
        self._usual_failures = self._with_minutes(usual_failures(self.figures.hours(now - WEEK, now), now), now)
        self._flaws = list(self._find_flaws(now, postponed))
        took = time.monotonic() - began
        self._seldom_at = began + max(SELDOM, SHARE * took)

    def _with_minutes(self, usual: Usual, now: datetime) -> Usual:
        """Return the same with the minutes of new errors, of which each call looks up some."""
        have_ended = now - Step.HOUR.length - UNSETTLED[Step.MINUTE]
        hours = {at for at, _ in usual.first.values() if now - NEW_FOR < at <= have_ended} - self._looked_up
        for hour in sorted(hours)[-MOST_HOURS:]:
            minutes = Lately(self._store.history(Step.MINUTE, hour, hour + Step.HOUR.length - MILLISECOND))
            new = {
                key: min(numbers)
                for key, numbers in minutes.failures.items()
                if usual.first.get(key, ())[:1] == (hour,)
            }
            self._first_minutes |= {key: moment(at) for key, at in new.items()}
            self._looked_up.add(hour)
        self._looked_up = {hour for hour in self._looked_up if now - hour <= NEW_FOR}
        self._first_minutes = {key: at for key, at in self._first_minutes.items() if key in usual.first}
        return usual.at_minutes(self._first_minutes)

    def _find_flaws(self, now: datetime, postponed: int) -> Iterator[Need]:
        for findings_of, subject in ((diagnosis.unloadable, Subject.UNLOADABLE), (diagnosis.blocked, Subject.JOB)):
            for finding in findings_of(self._store) if postponed <= FEW else ():
                if finding.level is not Level.OK:
                    yield needs.of_finding(finding, subject)
        yield from needs.of_schedules(self._store.schedules(), now)


def _by_node(records: list[Record], running: int) -> Mapping[str, int] | None:
    """Return how many jobs each node runs; None where not all were read: then the nodes say it."""
    if running > len(records):
        return None
    return Counter(record.holder.seat for record in records if record.holder is not None)


def _all(tally: Mapping[tuple[str, Status], int], wanted: Status) -> int:
    """Return how many jobs of all queues have the status."""
    return sum(number for (_, status), number in tally.items() if status is wanted)
