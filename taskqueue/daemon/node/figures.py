"""Counts what happens in a node since its start: runs by class, their times, workers, store calls and faults.

The loop counts; the thread of the metrics reads each table in one step (``copied``), while the loop continues.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskqueue.daemon.protocol.messages import WorkerChanged
from taskqueue.daemon.runtime.child_process import boottime
from taskqueue.model.history import OTHER, kept_apart
from taskqueue.model.promise import Promise, is_kept, promise_of
from taskqueue.model.record import PRIORITY_STEP, Cause, Record, Status
from taskqueue.model.schedules.origin import FromSchedule

START_BOUNDS = (
    0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 7200.0,
)  # fmt: skip
"""The buckets of the metric for the wait of a due job before its start, in seconds."""

RUN_BOUNDS = (0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 600.0, 3600.0, 21_600.0)
"""The buckets of the metric for run times, in seconds."""

STORE_BOUNDS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
"""The buckets of the metric for store calls, in seconds."""

NEW_FOR = 4
"""The looks at the store, 15 seconds apart, after which the counts of a new queue are shown; until then they are 0."""

if TYPE_CHECKING:
    from taskqueue.daemon.node.in_flight import InFlightRun

_PRIORITY_SECONDS = PRIORITY_STEP.total_seconds()


class Histogram:
    """How many values there were up to each bound, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(eq=False, slots=True)
class _Kind:
    """The count of runs of one class, queue and outcome, and the histograms that they belong to."""

    job: str
    queue: str
    outcome: str
    run_times: Histogram
    start_delays: Histogram
    count: int = 0


@dataclass(eq=False, slots=True)
class PromiseCount:
    """The jobs of one class whose first run this node has settled, and how many of them were late."""

    promise: Promise
    """The promise of the job that was judged last."""
    number: int = 0
    late: int = 0


class Figures:
    """The counters of one node."""

    def __init__(self, *, counts_runs: bool = True) -> None:
        self.counts_runs = counts_runs
        """Whether ``settled`` must be called: without metrics, jobs cost nothing here."""
        self._kinds: dict[tuple[str, str, Status, Cause], _Kind] = {}
        self.start_delays: dict[str, Histogram] = {}
        """By queue: how long runs waited after they could start."""
        self.run_times: dict[str, Histogram] = {}
        """By class."""
        self.promises: dict[str, PromiseCount] = {}
        """By class, for classes with a promise."""
        self.schedule_successes: dict[str, float] = {}
        """By schedule: when its last job that this node settled was done, in seconds since 1970."""
        self.store_calls = Histogram(STORE_BOUNDS)
        self.store_errors = 0
        self.lost_claims = 0
        self.refused_outcomes = 0
        self.rescued_claims = 0
        self.repairs = 0
        self.spawns = 0
        self.replacements: Counter[str] = Counter()
        """Ended workers by reason."""
        self._failed: Counter[int] = Counter()
        """Failed attempts by the minute since the boot of the host."""
        self._classes: set[str] = set()
        self._queues: set[str] = set()
        self._schedules: set[str] = set()

    def settled(self, runs: Iterable[tuple[InFlightRun, bool]]) -> None:
        """Count settled runs, each with whether the store accepted its outcome."""
        kinds = self._kinds
        for claim, accepted in runs:
            after = claim.finished
            if not accepted or after is None:
                self.refused_outcomes += not accepted
                continue
            key = (after.shown_job, after.queue, after.status, after.cause)
            kind = kinds.get(key) or self._kind(*key)
            kind.count += 1
            if after.options.begin_within is not None:
                self._judge(after, kind.job)
            if after.origin is not None and after.status is Status.DONE:
                self._note_success(after)
            if claim.took is not None:
                kind.run_times.add(claim.took)
            if claim.began_at is not None:
                ready = claim.record.rank / 1000 - claim.record.priority * _PRIORITY_SECONDS
                kind.start_delays.add(max(0.0, claim.began_at.timestamp() - ready))

    def _judge(self, after: Record, job: str) -> None:
        """Count whether a job has kept the promise of its class; classes beyond the bound have different ones."""
        promise, was_kept = promise_of(after.options), is_kept(after)
        if promise is None or was_kept is None or job == OTHER:
            return
        judged = self.promises.get(job) or self.promises.setdefault(job, PromiseCount(promise))
        judged.promise = promise
        judged.number += 1
        judged.late += not was_kept

    def _note_success(self, after: Record) -> None:
        if isinstance(after.origin, FromSchedule) and after.ended_at is not None:
            schedule = kept_apart(self._schedules, after.origin.schedule)
            if schedule != OTHER:
                self.schedule_successes[schedule] = after.ended_at.timestamp()

    def attempt_failed(self) -> None:
        """Count a failed attempt, whether its job is retried or not."""
        self._failed[_minute()] += 1

    def failed_in_hour(self) -> int:
        """Return how many attempts have failed in the last 60 minutes, the current one included."""
        begin = _minute() - 59
        for minute in [minute for minute in self._failed if minute < begin]:
            del self._failed[minute]
        return self._failed.total()

    @property
    def runs(self) -> Mapping[tuple[str, str, str], int]:
        """Return the number of settled runs by class, queue and outcome."""
        runs: Counter[tuple[str, str, str]] = Counter()
        for kind in list(self._kinds.values()):
            if kind.outcome != Cause.HANDED_BACK.value:
                runs[kind.job, kind.queue, kind.outcome] += kind.count
        return runs

    @property
    def crashes(self) -> int:
        """Return the number of runs whose worker, manager or node died."""
        kinds = list(self._kinds.items())
        return sum(kind.count for (*_, cause), kind in kinds if cause is Cause.CRASHED)

    def worker_changed(self, change: WorkerChanged) -> None:
        """Count the start or the end of a worker."""
        if not change.exit:
            self.spawns += 1
            return
        self.replacements[change.kind.value] += 1

    def _kind(self, job: str, queue: str, status: Status, cause: Cause) -> _Kind:
        """Return the counter for runs of this kind, made when the first of them is settled."""
        key = (kept_apart(self._classes, job), kept_apart(self._queues, queue), status, cause)
        if key not in self._kinds:
            outcome = status.name.lower() if status.is_final else cause.value
            run_times = self.run_times.setdefault(key[0], Histogram(RUN_BOUNDS))
            start_delays = self.start_delays.setdefault(key[1], Histogram(START_BOUNDS))
            self._kinds[key] = _Kind(key[0], key[1], outcome, run_times, start_delays)
        return self._kinds[key]


class StoreCounters:
    """Counts the jobs that were added to queues and that expired in them, from repeated looks at the last minutes."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = {"added": {}, "expired": {}}
        self._queues: set[str] = set()
        self._seen: dict[tuple[int, str, str], int] | None = None
        self._looks: Counter[tuple[str, str]] = Counter()
        """How many times each figure of a queue was counted."""

    def look(self, rows: Iterable[tuple[int, str, str, int]]) -> None:
        """Count what is new in the rows, each with minute, figure, queue and number; at first only note them."""
        seen = {(minute, figure, queue): number for minute, figure, queue, number in rows}
        for key, number in seen.items():
            _, figure, queue = key
            counts, name = self._counts[figure], kept_apart(self._queues, queue)
            new = 0 if self._seen is None else max(0, number - self._seen.get(key, 0))
            counts[name] = counts.get(name, 0) + new
        self._seen = seen
        self._looks.update((figure, queue) for figure, counts in self._counts.items() for queue in counts)

    def forget(self) -> None:
        """Take the next look as the first one: another node has counted since the last."""
        self._seen = None

    def shown(self, figure: str) -> dict[str, int]:
        """Return the counts by queue, 0 for a new queue: Prometheus takes no increase from the first sample.

        Threads may call it while the loop counts.
        """
        counts = self._counts[figure].copy()
        return {queue: count * (self._looks[figure, queue] > NEW_FOR) for queue, count in counts.items()}


def _minute() -> int:
    return int(boottime() // 60)


def copied(table: Mapping[str, Histogram]) -> dict[str, tuple[Sequence[float], list[int], float]]:
    """Return bounds, counts and sum of each histogram; the table may grow at the same time."""
    return {
        name: (histogram.bounds, histogram.counts.copy(), histogram.total) for name, histogram in dict(table).items()
    }
