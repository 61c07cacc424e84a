"""Reads one overview after the other from a store, with few calls each: nothing is read again that cannot change."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from taskqueue.model.finding import Level
from taskqueue.model.history import Durations, Parts
from taskqueue.model.query import RUNNING
from taskqueue.model.record import Record, Status
from taskqueue.scheduler import diagnosis, needs, overview
from taskqueue.scheduler.failures import Failures, failures_of
from taskqueue.scheduler.needs import Need, Subject
from taskqueue.scheduler.nodes import Node, nodes_of
from taskqueue.scheduler.overview import QueueState, Run
from taskqueue.scheduler.recent_figures import RecentFigures
from taskqueue.store import Store

MOST_RUNS = 200
"""The most running jobs that are read."""

SELDOM = 15.0
"""Seconds between two reads of values that change seldom and cost more."""

SHARE = 50
"""The pause between two such looks is at least so many times as long as the last one took."""

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
    failures: list[Failures]
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
        failures = failures_of(overview.ended_jobs(minutes))
        found = [
            *needs.of_nodes(leases, nodes, queues, now),
            *needs.of_queues(leases, queues, controls, now),
            *needs.of_runs(runs, now),
            *needs.of_failures(failures),
            *self._flaws,
        ]
        return Overview(
            at=now,
            nodes=nodes,
            queues=queues,
            runs=runs,
            running=max(running, len(records)),
            failures=failures,
            needs=sorted(found, key=lambda need: need.level is not Level.ERROR),
            tally=tally,
            minutes=minutes,
        )

    def _read_seldom(self, now: datetime, postponed: int) -> None:
        began = time.monotonic()
        self._usual = overview.usual_times(self.figures.runs(now))
        self._flaws = list(self._find_flaws(now, postponed))
        took = time.monotonic() - began
        self._seldom_at = began + max(SELDOM, SHARE * took)

    def _find_flaws(self, now: datetime, postponed: int) -> Iterator[Need]:
        for found, subject in ((diagnosis.unloadable, Subject.UNLOADABLE), (diagnosis.blocked, Subject.JOB)):
            for finding in found(self._store) if postponed <= FEW else ():
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
