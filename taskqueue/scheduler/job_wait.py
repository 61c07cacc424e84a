"""Watches the waits of running jobs for other jobs: a wait that cannot end raises ``WaitDeadlock``."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import closing
from itertools import islice
from weakref import WeakKeyDictionary

from taskqueue.errors import StoreUnavailable, WaitDeadlock
from taskqueue.insight.deadlock import BlockedRuns, find_blocked_runs, with_dependencies
from taskqueue.insight.nodes import live_seats
from taskqueue.insight.obstacles import takes
from taskqueue.insight.records import present
from taskqueue.model.blocked_run import MOST_AWAITED
from taskqueue.model.ids import JobId
from taskqueue.model.log_fields import CURRENT, RunFields
from taskqueue.model.record import Record, Status
from taskqueue.scheduler.poll import Item, Poll, Steps
from taskqueue.store import Store

log = logging.getLogger(__name__)

FIRST_LOOK = 0.2
"""Seconds after which a wait checks whether the awaited jobs depend on the waiting job; most waits are shorter."""

LOOKS_EVERY = 1.0
"""Seconds between two checks whether the awaited jobs can run, and before the node learns of the wait."""

SHARE_OF_TIME = 20
"""A process spends at most one Nth of its time on these reads."""

RAISES_AFTER = 5.0
"""Seconds for which waits hold all workers before a wait raises, and after which a wait warns."""

WAY_OUT = (
    "make the rest of the work a job with depends_on, or a StepwiseJob that waits for its children; "
    "or give the awaited jobs a queue with workers of its own, or more workers (--max-children); "
    "or await them in an async job with concurrency"
)

_lock = threading.Lock()


class _Observer:
    """Reads for all waits of this process which runs of a store wait for which jobs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due_at = 0.0
        self._found = BlockedRuns({}, {}, {}, ())

    def look(self, store: Store) -> BlockedRuns:
        """Return the waits as they were a moment ago."""
        with self._lock:
            begun_at = time.monotonic()
            if begun_at >= self._due_at:
                self._found = find_blocked_runs(store, store.now())
                took = time.monotonic() - begun_at
                self._due_at = begun_at + max(LOOKS_EVERY / 2, took * SHARE_OF_TIME)
            return self._found


_observers: WeakKeyDictionary[Store, _Observer] = WeakKeyDictionary()


class JobWait:
    """One wait of a running job, from its start to ``end``."""

    def __init__(self, store: Store, run: RunFields) -> None:
        self._store = store
        self._run = run
        self._runs = list(_with_outer(run))
        self._began_at = time.monotonic()
        self._look_at = self._began_at + FIRST_LOOK
        self._has_read_dependencies = False
        self._deadlocked: dict[str, float] = {}
        """Since when the awaited jobs are seen to be deadlocked."""
        self._has_warned = False
        self._has_ended = False

    @property
    def is_of_this_process(self) -> bool:
        """Return whether the job runs in this process, and not in a parent of it."""
        return self._runs[-1].pid in (None, os.getpid())

    @property
    def seconds(self) -> float:
        """Return for how long to wait until the next look."""
        return max(0.0, self._look_at - time.monotonic())

    def begin(self, ids: Collection[JobId]) -> None:
        """Raise ``WaitDeadlock`` if the job is among those that it waits for."""
        for run in self._runs:
            if JobId(run.job_id) in ids:
                raise WaitDeadlock(
                    self._run.job_id,
                    run.job_id,
                    "which runs until this wait has ended",
                    "wait for it in another job, or in the program that added it",
                )

    def look(self, ids: Collection[JobId]) -> None:
        """Raise ``WaitDeadlock`` if one of these jobs, which have not ended, cannot end; look only when it is time."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOKS_EVERY
        awaited = tuple(map(str, islice(ids, MOST_AWAITED)))
        try:
            if not self._has_read_dependencies:
                self._check_dependencies(awaited)
                self._has_read_dependencies = True
                self._look_at = self._began_at + LOOKS_EVERY
                return
            self._report(awaited)
            self._check(awaited, _observer(self._store).look(self._store), now)
            if self._runs[-1].report_awaited is None and now - self._began_at >= RAISES_AFTER:
                self._check_nodes(awaited)
        except StoreUnavailable:  # the wait itself survives an outage, or raises
            self._deadlocked.clear()

    def watched(self, steps: Steps[Item], ids: Collection[JobId]) -> Steps[Item]:
        """Run the steps of a wait for these jobs, which yields their records, and look between the steps."""
        open_ids = dict.fromkeys(ids)
        with closing(steps):
            try:
                step = next(steps)
                while True:
                    if isinstance(step, Poll):
                        self.look(open_ids)
                        step = steps.send((yield step._replace(seconds=min(step.seconds, self.seconds))))
                        continue
                    if isinstance(step, Record):
                        open_ids.pop(step.id, None)
                    yield step
                    step = next(steps)
            except StopIteration as end:
                return end.value

    def _check_dependencies(self, awaited: Collection[str]) -> None:
        """Raise ``WaitDeadlock`` if an awaited job waits for the end of this one."""
        own = {run.job_id for run in self._runs}
        records = with_dependencies(self._store, awaited)
        for id in awaited:
            seen, ids = set(), [id]
            while ids:
                record = records.get(ids.pop())
                if record is None or record.id in seen or record.status is not Status.POSTPONED:
                    continue
                seen.add(record.id)
                ids += map(str, record.waiting_for)
                if own.intersection(ids):
                    raise WaitDeadlock(
                        self._run.job_id,
                        id,
                        "which waits for the end of this one",
                        "leave out this wait, or the dependency",
                    )

    def _check(self, awaited: Collection[str], blocked: BlockedRuns, now: float) -> None:
        """Raise ``WaitDeadlock`` if an awaited job has been deadlocked for long; warn about a long wait once."""
        self._deadlocked = {id: self._deadlocked.get(id, now) for id in awaited if blocked.is_deadlocked(id)}
        for id, since in self._deadlocked.items():
            if now - since >= RAISES_AFTER:
                raise WaitDeadlock(self._run.job_id, id, f"which for {RAISES_AFTER:g} s {blocked.reason(id)}", WAY_OUT)
        if self._has_warned or self._deadlocked or now - self._began_at < RAISES_AFTER:
            return
        for id in awaited:
            record = blocked.records.get(id)
            if record is None or record.status is not Status.WAITING:
                continue
            candidates = blocked.candidates(record)
            if blocked.shares_slots(self._runs[-1].job_id, record) and all(
                blocked.is_full(node, record) for node in candidates
            ):
                waits = f"holds a worker while it waits for job {id}, which waits for a free worker of queue"
                self._warn(f"this job {waits} {record.queue}: {WAY_OUT}")
                return

    def _check_nodes(self, awaited: Collection[str]) -> None:
        """Warn once if a program waits, within a call, for a job that may not be run before the wait has ended."""
        now = self._store.now()
        nodes = live_seats(self._store.leases(), now)
        for record in () if self._has_warned else present(self._store, map(JobId, awaited)):
            if record.status is Status.WAITING and not any(takes(node, record.queue) for node in nodes):
                waits = f"waits for job {record.id}, but the call that runs this job runs no other until it ends"
                way_out = "start one, or make the rest of the work a job with depends_on"
                self._warn(f"this job {waits}, and no node takes queue {record.queue}: {way_out}")
                return

    def _warn(self, message: str) -> None:
        self._has_warned = True
        token = CURRENT.set(self._run)
        try:
            log.warning("%s", message, extra=dict(self._run.items()))
        finally:
            CURRENT.reset(token)

    def end(self) -> None:
        """Tell the node that this wait has ended."""
        self._report(())
        self._has_ended = True  # in case another thread looks late

    def _report(self, awaited: tuple[str, ...]) -> None:
        """Tell the node which jobs all waits of the run are for, if that has changed."""
        run = self._runs[-1]
        with _lock:
            before = run.awaited or {}
            if self._has_ended or before.get(self, ()) == awaited:
                return
            after = {**before, self: awaited}
            if not awaited:
                del after[self]
            run.awaited = after
            ids = list(dict.fromkeys(id for ids_of_wait in after.values() for id in ids_of_wait))[:MOST_AWAITED]
            if run.report_awaited is not None:
                run.report_awaited(ids)


def of_running_job(store: Store, ids: Collection[JobId]) -> JobWait | None:
    """Return the watch over a wait for these jobs that starts now; None outside of jobs. Raises ``WaitDeadlock``.

    Hooks after the run, and processes that the job has forked, are outside.
    """
    run = CURRENT.get()
    if run is None or run.keep is None:
        return None
    wait = JobWait(store, run)
    if not wait.is_of_this_process:
        return None
    wait.begin(ids)
    return wait


def _with_outer(run: RunFields) -> Iterator[RunFields]:
    """Yield the run, and those in whose process it runs, the outermost last."""
    current: RunFields | None = run
    while current is not None:
        yield current
        current = current.outer


def _observer(store: Store) -> _Observer:
    with _lock:
        return _observers.setdefault(store, _Observer())
