"""The metrics of a node and, on the leader, of the cluster, in the text formats of Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from taskqueue.daemon.node.context import NodeContext
from taskqueue.daemon.node.figures import copied
from taskqueue.daemon.node.health import Backlog, BacklogReader, NodeHealth
from taskqueue.daemon.node.job_metrics import Family, JobMetrics
from taskqueue.daemon.node.leader_run import FindingsWatch
from taskqueue.errors import ConfigError
from taskqueue.insight import overview
from taskqueue.model.finding import Level
from taskqueue.model.history import MOST_CLASSES
from taskqueue.model.version import VERSION

try:
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector
except ImportError:
    raise ConfigError("--metrics needs the package prometheus-client: pip install 'taskqueue-jobs[metrics]'") from None

OF_PROCESS = frozenset(
    sample for family in ProcessCollector(registry=None).collect() for sample in (family.name, f"{family.name}_total")
)
"""The names of the metrics of the node's process; those of the node start with ``taskqueue_``."""

Row = tuple[Sequence[str], float]

_OF_LIMITS = (
    ("limit_used", "Places that are taken, of the fullest key of the limit.", 0),
    ("limit_size", "Places that this key has.", 1),
    ("limit_waiting", "Jobs with the limit that wait, for whatever reason, of 20,000 that are read.", 2),
)
_OF_QUEUES = (("added", "Jobs that were added."), ("expired", "Jobs that were canceled because they expired."))
_SEVERITIES = (Level.WARNING, Level.ERROR)


class Metrics(Collector):
    """Reads counters and snapshots of the loop; it never calls the store."""

    def __init__(
        self,
        node: NodeContext,
        health: NodeHealth,
        backlog: BacklogReader,
        watch: FindingsWatch,
        jobs: JobMetrics | None = None,
    ) -> None:
        self._node = node.holder.seat
        self._status = node.status
        self._figures = node.figures
        self._health = health
        self._backlog = backlog
        self._watch = watch
        self._jobs = jobs
        self._begun: set[str] = set()
        """The classes whose promises have been shown."""
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics in a format that the ``Accept`` header allows, and its content type."""
        encode, kind = choose_encoder(accept)
        return encode(self._registry), kind

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the registry need not collect to know the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with its current values."""
        yield from self._of_runs()
        yield from self._of_promises()
        yield from self._of_workers()
        yield from self._of_store()
        yield from self._of_node()
        if self._status.leads:
            yield from _of_cluster(self._backlog.refresh())
            yield from _of_findings(self._watch)
        if self._jobs is not None:
            yield from map(_of_job, self._jobs.families())

    def _of_runs(self) -> Iterator[Metric]:
        figures = self._figures
        runs = dict(figures.runs).items()
        yield _counter("runs", "Runs that this node has settled, by the resulting state of their jobs.",
                       ("class", "queue", "outcome"), runs)  # fmt: skip
        yield _histogram("start_delay_seconds", "How long runs waited after they could start.", "queue",
                         copied(figures.start_delays))  # fmt: skip
        yield _histogram("run_seconds", "How long runs took.", "class", copied(figures.run_times))
        yield _count("crashes", "Runs whose worker, manager or node died.", figures.crashes)
        yield _count("lost_claims", "Claims that this node lost to another while they ran.", figures.lost_claims)
        yield _count("refused_outcomes", "Outcomes that the store refused: the claim was lost.",
                     figures.refused_outcomes)  # fmt: skip
        yield _count("rescued_claims", "Claims of other nodes that this node rescued.", figures.rescued_claims)
        yield _count("repairs", "Unfinished changes of dead nodes that this node completed.", figures.repairs)

    def _of_promises(self) -> Iterator[Metric]:
        """Yield what alerts need to tell whether classes keep their promises, and schedules do their work.

        A class is shown with 0 once: Prometheus takes no increase from a first sample, and the jobs before it may be
        the backlog that this node has worked off.
        """
        judged = [((job,), counts) for job, counts in dict(self._figures.promises).items()]
        begun = self._begun.copy()
        self._begun.update(job for (job,), _ in judged)
        of_class = ("class",)
        yield _counter("promise_jobs", "Jobs that started, and whose class promises when.", of_class,
                       ((job, counts.number * (job[0] in begun)) for job, counts in judged))  # fmt: skip
        yield _counter("promise_late", "Jobs that started later than their class promises.", of_class,
                       ((job, counts.late * (job[0] in begun)) for job, counts in judged))  # fmt: skip
        yield _gauge("promise_ratio", "The share of jobs that start in time, as promised.", of_class,
                     ((job, counts.promise.share) for job, counts in judged))  # fmt: skip
        yield _gauge("promise_begin_within_seconds", "How soon jobs start, as promised.", of_class,
                     ((job, counts.promise.within) for job, counts in judged))  # fmt: skip
        done = dict(self._figures.schedule_successes)
        for schedule, at in self._watch.schedules.get("done", {}).items():
            done[schedule] = max(at, done.get(schedule, at))
        yield _gauge("schedule_last_success_timestamp_seconds", "When a job of the schedule was last done.",
                     ("schedule",), (((schedule,), at) for schedule, at in done.items()))  # fmt: skip

    def _of_workers(self) -> Iterator[Metric]:
        pool, figures = self._status.pool, self._figures
        rows = [(("idle",), pool.idle), (("busy",), pool.busy), (("forced",), pool.forced),
                (("concurrent",), pool.concurrent)]  # fmt: skip
        yield _gauge("workers", "Workers of this node.", ("state",), rows)
        memory = [((process,), used) for process, used in self._status.use.memory.items()]
        yield _gauge("memory_bytes", "Resident memory of the node, its manager and its workers.", ("process",), memory)
        yield _count("worker_spawns", "Workers that were started.", figures.spawns)
        replaced = [((reason,), count) for reason, count in dict(figures.replacements).items()]
        yield _counter("worker_exits", "Workers that have ended, by reason.", ("reason",), replaced)

    def _of_store(self) -> Iterator[Metric]:
        calls = self._figures.store_calls
        counted = {"": (calls.bounds, calls.counts.copy(), calls.total)}
        yield _histogram("store_call_seconds", "Answered calls of the node's loop to its store.", "", counted)
        yield _count("store_errors", "Calls to the store that failed.", self._figures.store_errors)
        up = [((), float(not self._status.degraded))]
        yield _gauge("store_up", "1 while the store answers, 0 while the node is degraded.", (), up)

    def _of_node(self) -> Iterator[Metric]:
        health = self._health.document()
        yield _gauge("node_info", "This node.", ("node", "version"), [((self._node, VERSION), 1)])
        yield _gauge("live", "1 while the loop of this node runs.", (), [((), float(health["live"]))])
        yield _gauge("ready", "1 while this node takes jobs.", (), [((), float(health["ready"]))])
        yield _gauge("leader", "1 on the node that leads the cluster.", (), [((), float(health["leads"]))])


def _of_job(family: Family) -> Metric:
    metric = Metric(family.name, family.meaning, family.kind)
    for name, labels, value in family.samples:
        metric.add_sample(name, labels, value)
    return metric


def _of_cluster(backlog: Backlog | None) -> Iterator[Metric]:
    """Yield the figures of the whole store, which only the leader has."""
    backlog = backlog or Backlog()
    yield _gauge("jobs", "Jobs in the store.", ("queue", "status"), overview.bounded_tally(backlog.jobs).items())
    now = time.monotonic()
    oldest = sorted(backlog.waiting_since.items(), key=lambda item: item[1])[:MOST_CLASSES]
    ages = [((queue,), max(0.0, now - since)) for queue, since in oldest]
    yield _gauge("oldest_waiting_seconds", "Age of the next waiting job.", ("queue",), ages)
    nodes = [((state,), count) for state, count in backlog.nodes.items()]
    yield _gauge("nodes", "Live nodes, and nodes that fell silent within the last hour.", ("state",), nodes)
    held = backlog.controls.shown()
    yield _gauge("paused", "1 for each paused queue.", ("queue",), (((name,), 1) for name in held["paused"]))
    yield _gauge("drained", "1 for each drained node.", ("node",), (((name,), 1) for name in held["drained"]))


def _of_findings(watch: FindingsWatch) -> Iterator[Metric]:
    """Yield how many findings there are, with no samples before they were counted, and what became of messages."""
    findings = watch.findings
    rows = [] if findings is None else [((level.value,), findings.get(level, 0)) for level in _SEVERITIES]
    yield _gauge("findings", "What needs attention, as the overview and doctor say.", ("severity",), rows)
    looked = "When this leader last looked for findings, or became the leader."
    yield _gauge("findings_looked_timestamp_seconds", looked, (), [((), watch.looked_at)])
    yield _gauge("promise_budget_ratio", "Error budget that is left of 30 days, by import path.", ("class",),
                 (((job,), left) for job, left in watch.budgets.items()))  # fmt: skip
    for name, meaning, place in _OF_LIMITS:
        yield _gauge(name, meaning, ("limit",), (((limit,), use[place]) for limit, use in watch.limits.items()))
    for figure, meaning in _OF_QUEUES:
        numbers = watch.counters.shown(figure).items()
        yield _counter(figure, meaning, ("queue",), (((queue,), number) for queue, number in numbers))
    yield _gauge("schedule_last_due_timestamp_seconds", "When an active schedule was last due.", ("schedule",),
                 (((schedule,), at) for schedule, at in watch.schedules.get("due", {}).items()))  # fmt: skip
    if watch.sends:
        deliveries = dict(watch.deliveries)
        outcomes = [((outcome,), deliveries.get(outcome, 0)) for outcome in ("sent", "failed")]
        yield _counter("notifications", "Notifications sent, and tries that failed.", ("outcome",), outcomes)
        waiting = "Notifications that their receivers have not accepted yet."
        yield _gauge("notifications_waiting", waiting, (), [((), watch.waiting)])


def _count(name: str, meaning: str, value: float) -> Metric:
    return _counter(name, meaning, (), [((), value)])


def _counter(name: str, meaning: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    family = CounterMetricFamily(f"taskqueue_{name}", meaning, labels=labels)
    for values, count in rows:
        family.add_metric(values, count)
    return family


def _gauge(name: str, meaning: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    family = GaugeMetricFamily(f"taskqueue_{name}", meaning, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _histogram(
    name: str, meaning: str, label: str, table: Mapping[str, tuple[Sequence[float], list[int], float]]
) -> Metric:
    family = HistogramMetricFamily(f"taskqueue_{name}", meaning, labels=[label] if label else [])
    for value, (bounds, counts, total) in table.items():
        buckets, so_far = [], 0
        for bound, count in zip((*(f"{bound:g}" for bound in bounds), "+Inf"), counts, strict=True):
            so_far += count
            buckets.append((bound, so_far))
        family.add_metric([value] if label else [], buckets, total)
    return family
