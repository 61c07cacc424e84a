"""Reads overviews of a store with few calls: nothing that cannot have changed is read again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from taskqueue.insight import diagnosis, needs, notifications, overview, promises, work_report
from taskqueue.insight.failure_groups import (
    NEW_FOR,
    RELEASED_FOR,
    FailureGroup,
    Lately,
    Usual,
    end_of_long_ago,
    judged,
    usual_failures,
    usual_long_ago,
)
from taskqueue.insight.failure_states import Decisions, FailureDecision, FailureState, decisions_of
from taskqueue.insight.limit_states import LimitUse, limit_uses
from taskqueue.insight.needs import Need, Subject
from taskqueue.insight.nodes import Node, live_and_lost, nodes_of
from taskqueue.insight.overview import QueueState, Run, ScheduleTimes, Upcoming
from taskqueue.insight.promises import JudgedJobs, PromiseState
from taskqueue.insight.recent_figures import UNSETTLED, RecentFigures
from taskqueue.insight.releases import Release, releases_of
from taskqueue.insight.work_reader import WorkReader
from taskqueue.insight.work_report import Day, Period, Scope, WorkOf, WorkReport
from taskqueue.model.finding import Level
from taskqueue.model.history import Durations, Parts, Step
from taskqueue.model.query import RUNNING, Compare, Operator
from taskqueue.model.record import Record, Status, changed
from taskqueue.model.timestamps import MILLISECOND, milliseconds, moment
from taskqueue.store import Store

MOST_RUNS = 200
"""Maximum number of running jobs that are read."""

SELDOM = 15.0
"""Seconds between two reads of values that change seldom and cost more."""

SHARE = 50
"""The pause between two such reads is at least this many times the duration of the last one."""

MOST_HOURS = 3
"""Maximum number of hours that one read looks through for the minutes of new errors."""

FEW = 10_000
"""If more jobs than this wait for their time or for others, only `taskqueue doctor` looks through them."""


_SLIM: Mapping[str, Any] = {"data": "null", "given": {}, "state": None, "result": None, "error": None, "attempts": ()}
"""The fields of an ended job that may be large and that its schedule does not need."""


@dataclass(frozen=True, kw_only=True)
class Overview:
    """One look at a store."""

    at: datetime
    nodes: list[Node]
    numbers_of_nodes: Mapping[str, int]
    """How many nodes are live, and lost."""
    queues: list[QueueState]
    """The oldest backlog first."""
    runs: list[Run]
    """At most ``MOST_RUNS``, the longest-running first."""
    running: int
    """How many jobs run in total."""
    groups: list[FailureGroup]
    """The failed attempts of the last hour, judged: first the ones in need of attention, last the muted ones."""
    decisions: list[FailureDecision]
    """The active decisions about errors, including errors that have not happened lately."""
    releases: list[Release]
    """The marked releases, the oldest first."""
    needs: list[Need]
    """What somebody should act on, the errors first."""
    promises: Mapping[str, PromiseState]
    """How each class with a promise keeps it, by name."""
    schedule_times: ScheduleTimes
    tally: Mapping[tuple[str, Status], int]
    """How many jobs there are, by queue and status."""
    minutes: Parts
    """The numbers of the last hour, by minute, queue and class."""
    whole: Parts
    """The figures of the last hour by minute, of all queues and classes together."""

    @property
    def live_nodes(self) -> list[Node]:
        """Return the nodes that are live."""
        return [node for node in self.nodes if node.is_live]

    @property
    def workers_in_words(self) -> str:
        """Return how many workers of the live nodes are busy, and how many they may have."""
        busy, most = (sum(node.number(name) for node in self.live_nodes) for name in ("busy", "max_children"))
        return f"{busy} of {most} workers busy"

    @property
    def ended_per_minute(self) -> float:
        """Return how many jobs of all queues end in a minute."""
        return sum(queue.ended_per_minute for queue in self.queues)

    @property
    def oldest(self) -> float | None:
        """Return for how many seconds the first of all waiting jobs has waited; None if no job waits."""
        return max((queue.oldest for queue in self.queues if queue.oldest is not None), default=None)


class OverviewReader:
    """Reads overviews of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.figures = RecentFigures(store)
        self._work = WorkReader(store, self.figures)
        self._usual: dict[str, Durations] = {}
        self._usual_failures = Usual()
        self._usual_long_ago: tuple[int, Usual] | None = None
        self._usual_waits: dict[str, float] = {}
        self._lately = Lately({})
        self._first_minutes: dict[tuple[str, str], datetime] = {}
        self._looked_up: set[datetime] = set()
        self._hours_of_regressed: dict[int, Lately] = {}
        self._judged: JudgedJobs = {}
        self._schedule_times = ScheduleTimes({}, {})
        self._ended_jobs: dict[str, Record] = {}
        self._flaws: list[Need] = []
        self._led_at: datetime | None = None
        self._seldom_at = 0.0
        self._upcoming: tuple[float, Upcoming] | None = None

    def now(self) -> datetime:
        """Return the store's clock, which stamps jobs; this host's clock may differ."""
        return self._store.now()

    def read(self) -> Overview:
        """Return the current state: seven calls of the store, or a few more every quarter of a minute or so."""
        store = self._store
        now, leases, controls = store.now(), store.leases(), store.controls()
        decisions = decisions_of(leases)
        tally, since = store.tally(), store.waiting_since()
        records = store.find(RUNNING, limit=MOST_RUNS)
        (minutes, whole), releases = self.figures.last_hour(now), releases_of(leases)
        if time.monotonic() >= self._seldom_at:
            self._read_seldom(now, _all(tally, Status.POSTPONED), releases, decisions)
        running = _all(tally, Status.PROCESSING)
        nodes = nodes_of(leases, controls, _by_node(records, running), now)
        self._led_at = now if any(node.is_leader for node in nodes) else self._led_at
        queues = overview.queue_states(tally, since, controls, minutes, now, self._usual_waits)
        runs = overview.runs_of(records, self._usual, now)
        self._lately.change_to(minutes)
        groups = judged(self._lately, self._usual_failures, now, decisions, releases)
        promise_states = promises.promises_of(self._judged, promises.judged_in(minutes)) if self._judged else {}
        all_needs = [
            *needs.of_nodes(leases, nodes, queues, now, self._led_at),
            *needs.of_queues(leases, queues, controls, now),
            *needs.of_runs(runs, now),
            *needs.of_failures(groups, self._lately, now),
            *promises.needs_of(promise_states, now),
            *notifications.flaws(leases, now),
            *self._flaws,
        ]
        return Overview(
            at=now,
            nodes=nodes,
            numbers_of_nodes=live_and_lost(leases, now),
            queues=queues,
            runs=runs,
            running=max(running, len(records)),
            groups=groups,
            decisions=[decision for decision in decisions.values() if not decision.has_ended(now)],
            releases=releases,
            needs=sorted(all_needs, key=lambda need: need.level is not Level.ERROR),
            promises=promise_states,
            schedule_times=self._schedule_times,
            tally=tally,
            minutes=minutes,
            whole=whole,
        )

    def day(self, state: Overview) -> Day:
        """Return the last hour against the same hour yesterday, and the hours of a day, up to the current state."""
        pending = sum(number for (_, status), number in state.tally.items() if status.is_pending)
        return work_report.day_of(
            state.whole, self.figures.yesterday(state.at), self.figures.day(state.at), pending, state.at
        )

    def limit_uses(self) -> Mapping[str, LimitUse]:
        """Return how far each limit is used, by its family, for the metrics."""
        return limit_uses(self._store)

    def upcoming(self, now: datetime) -> Upcoming:
        """Return what is due in the next 24 hours; the answer is kept for about 15 seconds."""
        cached = self._upcoming
        if cached is None or time.monotonic() >= cached[0]:
            began = time.monotonic()
            until = now + overview.NEXT * Step.HOUR.length
            schedules, _ = self._store.due(until, overview.MOST_SCHEDULES)
            upcoming = overview.upcoming_of(self._store.postponed(overview.MOST_DUE), schedules, now)
            cached = self._upcoming = _next_at(began), upcoming
        return cached[1]

    def forget(self) -> None:
        """Read what is due again at the next call, because something has changed it."""
        self._upcoming = None

    def report(self, of: WorkOf, period: Period, state: Overview) -> WorkReport:
        """Return what is known about a class or queue, given the current state; empty if nothing is known."""
        report = self._work.read(of, period, state.at, state.groups, state.queues)
        return replace(report, promise=state.promises.get(of.name)) if of.scope is Scope.CLASS else report

    def names(self, scope: Scope) -> list[str]:
        """Return all classes that had jobs within a week, or all queues that have jobs, by name."""
        return self._work.names(scope, self._store.now())

    def _read_seldom(self, now: datetime, postponed: int, releases: Sequence[Release], decisions: Decisions) -> None:
        began = time.monotonic()
        hours, runs, waits, promised = self.figures.usual(now)
        self._usual = overview.usual_times(runs)
        self._usual_waits = overview.usual_waits(waits, now)
        border = end_of_long_ago(now)
        if self._usual_long_ago is None or self._usual_long_ago[0] != border:
            self._usual_long_ago = (border, usual_long_ago(hours, now))
        usual = usual_failures(hours, now, self._usual_long_ago[1])
        usual = self._with_minutes(usual, now, releases)
        self._usual_failures = replace(usual, last=self._last_of_resolved(usual, now, decisions))
        self._judged = promises.judged_in(promised)
        schedules = self._store.schedules()
        self._schedule_times = overview.schedule_times(
            schedules, self._read_last_jobs(overview.last_started(schedules))
        )
        self._flaws = [*self._find_flaws(postponed), *needs.of_schedules(schedules, now)]
        self._seldom_at = _next_at(began)

    def _read_last_jobs(self, ids: Sequence[str]) -> Iterable[Record]:
        """Return the last jobs of schedules; those that have ended are not read again."""
        ended = {id: self._ended_jobs[id] for id in ids if id in self._ended_jobs}
        unknown = tuple(id for id in ids if id not in ended)
        jobs = self._store.find(Compare("id", Operator.IN, unknown), limit=len(unknown)) if unknown else []
        self._ended_jobs = ended | {str(job.id): changed(job, **_SLIM) for job in jobs if job.status.is_final}
        return [*ended.values(), *jobs]

    def _with_minutes(self, usual: Usual, now: datetime, releases: Sequence[Release]) -> Usual:
        """Return the same with the minutes of new errors; each call looks up some, and all of hours of a release."""
        have_ended = now - Step.HOUR.length - UNSETTLED[Step.MINUTE]
        seen = {at for at, _ in usual.first.values() if now - RELEASED_FOR < at <= have_ended} - self._looked_up
        last = sorted(hour for hour in seen if hour > now - NEW_FOR)[-MOST_HOURS:]
        released = {moment(Step.HOUR.begin(milliseconds(release.at))) for release in releases}
        for hour in {*last, *(seen & released)}:
            minutes = Lately(self._store.history(Step.MINUTE, hour, hour + Step.HOUR.length - MILLISECOND))
            new = {
                key: min(numbers)
                for key, numbers in minutes.failures.items()
                if usual.first.get(key, ())[:1] == (hour,)
            }
            self._first_minutes |= {key: moment(at) for key, at in new.items()}
            self._looked_up.add(hour)
        self._looked_up = {hour for hour in self._looked_up if now - hour <= RELEASED_FOR}
        self._first_minutes = {key: at for key, at in self._first_minutes.items() if key in usual.first}
        return usual.at_minutes(self._first_minutes)

    def _last_of_resolved(self, usual: Usual, now: datetime, decisions: Decisions) -> Mapping[tuple[str, str], int]:
        """Return the last minutes with failures by errors that were resolved before the end of its hour.

        They are looked up for as long as minutes are kept: an error that has failed again must not be taken for
        resolved once an hour has passed.
        """
        oldest = milliseconds(now - RELEASED_FOR)
        hours: dict[int, list[tuple[str, str]]] = {}
        for key, decision in decisions.items():
            _, hour = usual.unbroken.get(key, (0, 0))
            begin = Step.HOUR.begin(milliseconds(decision.since))
            if decision.state is FailureState.RESOLVED and hour >= max(begin, oldest):
                hours.setdefault(hour, []).append(key)
        settled = milliseconds(now - Step.HOUR.length - UNSETTLED[Step.HOUR])
        for hour in hours.keys() - self._hours_of_regressed.keys():
            end = moment(hour) + Step.HOUR.length - MILLISECOND
            self._hours_of_regressed[hour] = Lately(self._store.history(Step.MINUTE, moment(hour), end))
        last = {
            key: max(minutes)
            for hour, keys in hours.items()
            for key in keys
            if (minutes := self._hours_of_regressed[hour].failures.get(key))
        }
        self._hours_of_regressed = {
            hour: minutes for hour, minutes in self._hours_of_regressed.items() if hour in hours and hour <= settled
        }
        return last

    def _find_flaws(self, postponed: int) -> Iterator[Need]:
        for findings_of, subject in ((diagnosis.unloadable, Subject.UNLOADABLE), (diagnosis.blocked, Subject.JOB)):
            for finding in findings_of(self._store) if postponed <= FEW else ():
                if finding.level is not Level.OK:
                    yield needs.of_finding(finding, subject)
        for finding in self._store.strains():
            if finding.level is not Level.OK:
                yield replace(needs.of_finding(finding, Subject.STORE), topic=finding.about)


def _next_at(began: float) -> float:
    """Return when values that were read from ``began`` until now may be read again."""
    return began + max(SELDOM, SHARE * (time.monotonic() - began))


def _by_node(records: list[Record], running: int) -> Mapping[str, int] | None:
    """Return how many jobs each node runs; None if not all were read, in which case the nodes report it."""
    if running > len(records):
        return None
    return Counter(record.holder.seat for record in records if record.holder is not None)


def _all(tally: Mapping[tuple[str, Status], int], of_status: Status) -> int:
    """Return how many jobs of all queues have the status."""
    return sum(number for (_, status), number in tally.items() if status is of_status)
