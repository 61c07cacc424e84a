"""Finds running jobs that wait for each other's run slots, or for each other, so that none of them can end."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from taskqueue.insight.nodes import WAITS_FOR_LEAD, live_seats, name_of, slots
from taskqueue.insight.obstacles import queues_of, takes
from taskqueue.insight.records import present
from taskqueue.model.blocked_run import OWN_WORKER, POOL, BlockedRun, blocked_runs, slots_of
from taskqueue.model.ids import JobId
from taskqueue.model.record import Record, Status
from taskqueue.model.wording import some
from taskqueue.store import Lease, Store

MOST_READ = 10_000
"""Maximum number of jobs that are read while following dependencies."""

ENDLESS = 1_000_000
"""The number of run slots assumed for a node that does not report it."""


@dataclass(frozen=True)
class BlockedRuns:
    """The runs that wait for jobs, the awaited jobs, and the live nodes that may take them."""

    runs: Mapping[str, BlockedRun]
    """By the ids of the waiting jobs."""
    of_node: Mapping[str, tuple[BlockedRun, ...]]
    records: Mapping[str, Record]
    """The awaited jobs and all jobs that these wait for, by id."""
    nodes: tuple[Lease, ...]

    @cached_property
    def deadlocked(self) -> frozenset[str]:
        """The ids of the waiting jobs that cannot end unless one of them gives up its wait."""
        ids = frozenset(self.runs)
        while True:
            held = frozenset(id for id in ids if any(self._is_blocked(other, ids) for other in self.runs[id].awaited))
            if held == ids:
                return ids
            ids = held

    def is_deadlocked(self, id: str) -> bool:
        """Return whether this awaited job cannot end unless a waiting job gives up its wait."""
        return self._is_blocked(id, self.deadlocked)

    def candidates(self, record: Record) -> list[Lease]:
        """Return the nodes that take the job's queue."""
        return [node for node in self.nodes if takes(node, record.queue)]

    def first_unclaimed(self, id: str) -> Record | None:
        """Return the job awaited by the deadlocked job ``id`` that no worker can take; None if there is none."""
        seen_ids, ids = set(), [id]
        while ids:
            record = self.records.get(ids[0])
            seen_ids.add(ids[0])
            if record is not None and record.status is Status.WAITING and ids[0] not in self.runs:
                return record
            ids = [other for other in (*ids[1:], *self._before(ids[0])) if other not in seen_ids]
        return None

    def reason(self, id: str) -> str:
        """Return in words why this deadlocked job cannot end."""
        record = self.first_unclaimed(id)
        if record is None:
            return "has waited, itself or through others, for a job that waits for it"
        nodes = some([name_of(node) for node in self.candidates(record)])
        which = "" if str(record.id) == id else f"could end only after job {record.id}, which "
        return (
            f"{which}has found no worker, because every worker that takes queue {record.queue} (node {nodes}) "
            "is held by jobs that wait for other jobs"
        )

    def is_full(self, node: Lease, record: Record) -> bool:
        """Return whether the node has no free slot for the job: by its last report, or because of waits."""
        if slots_of(record.job, record.options.concurrency, record.options.force_spawn) == POOL:
            busy = node.about.get("busy")
            return isinstance(busy, int) and busy >= (slots(node) or ENDLESS)
        return self._is_held(node, record, self.runs)

    def shares_slots(self, id: str, record: Record) -> bool:
        """Return whether the run of job ``id`` takes a slot that this awaited job may need."""
        run = self.runs.get(id)
        kind = slots_of(record.job, record.options.concurrency, record.options.force_spawn)
        names = {name_of(node) for node in self.candidates(record)}
        return any(run is waiting for name in names for waiting in self.of_node.get(name, ()) if waiting.slots == kind)

    def _is_blocked(self, id: str, deadlocked: Collection[str]) -> bool:
        if id in self.runs:
            return id in deadlocked
        record = self.records.get(id)
        if record is None:
            return False
        if record.status is Status.POSTPONED:
            return any(self._is_blocked(str(other), deadlocked) for other in record.waiting_for)
        candidates = self.candidates(record) if record.status is Status.WAITING else []
        return bool(candidates) and all(self._is_held(node, record, deadlocked) for node in candidates)

    def _is_held(self, node: Lease, record: Record, waiting: Collection[str]) -> bool:
        """Return whether these waiting jobs hold all slots that the node has for the job."""
        options = record.options
        runs = [run for run in self.of_node.get(name_of(node), ()) if run.job in waiting]
        bound = queues_of(node).get(record.queue)
        if isinstance(bound, int) and sum(run.queue == record.queue for run in runs) >= bound:
            return True
        kind = slots_of(record.job, options.concurrency, options.force_spawn)
        most = options.concurrency if kind != POOL else slots(node) or ENDLESS
        return kind != OWN_WORKER and sum(run.slots == kind for run in runs) >= most

    def _before(self, id: str) -> tuple[str, ...]:
        record = self.records.get(id)
        if id in self.runs:
            ids = self.runs[id].awaited
        else:
            ids = () if record is None else tuple(map(str, record.waiting_for))
        return tuple(other for other in ids if self.is_deadlocked(other))


def find_blocked_runs(store: Store, now: datetime) -> BlockedRuns:
    """Read which running jobs wait for which others; a store without such jobs answers with one read."""
    live = live_seats(store.leases(), now)
    of_node = {name_of(lease): tuple(blocked_runs(lease.about.get("waits"))) for lease in live}
    runs = {run.job: run for of_one in of_node.values() for run in of_one}
    if not runs:
        return BlockedRuns({}, {}, {}, ())
    controls = store.controls()
    nodes = tuple(
        lease
        for lease in live
        if controls.drain_of(name_of(lease)) is None and lease.about.get("phase") != WAITS_FOR_LEAD
    )
    awaited = {id for run in runs.values() for id in run.awaited}
    return BlockedRuns(runs, of_node, with_dependencies(store, awaited), nodes)


def wait_sentences(store: Store, record: Record, now: datetime) -> Generator[str, None, list[JobId]]:
    """Say for which jobs the job waits while it runs, and which running jobs wait for it; return the awaited ones."""
    blocked = find_blocked_runs(store, now)
    id = str(record.id)
    if id in blocked.runs:
        awaited = [blocked.records[other] for other in blocked.runs[id].awaited if other in blocked.records]
        described = some([f"{_child(other, record)}{other.id} ({other.job}, {other.status.name})" for other in awaited])
        yield f"While it runs it waits for {described}, and holds a run slot of its node."
    waiting = [other for other, run in blocked.runs.items() if id in run.awaited]
    if waiting:
        yield f"Running jobs wait for it, and hold run slots: {some(waiting)}."
    for other in (id, *(blocked.runs[id].awaited if id in blocked.runs else ())):
        if other not in blocked.runs and blocked.is_deadlocked(other):
            yield f"Job {other} {blocked.reason(other)}: such a wait raises WaitDeadlock after some seconds."
            break
    return list(_ids_of(blocked.runs[id].awaited)) if id in blocked.runs else []


def _child(other: Record, record: Record) -> str:
    return "its child " if other.parent == record.id else ""


def with_dependencies(store: Store, ids: Collection[str]) -> dict[str, Record]:
    """Return these jobs and all jobs that they wait for, by id."""
    records_by_id: dict[str, Record] = {}
    unread = set(ids)
    while unread and len(records_by_id) < MOST_READ:
        records = {str(record.id): record for record in present(store, _ids_of(unread))}
        records_by_id.update(records)
        unread = {str(id) for record in records.values() for id in record.waiting_for} - records_by_id.keys()
        unread = unread if records else set()
    return records_by_id


def _ids_of(ids: Collection[str]) -> Iterator[JobId]:
    return (JobId(id) for id in ids if JobId.is_valid(id))
