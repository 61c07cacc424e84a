"""W5: what a backlog costs those who add and claim jobs, and what a node needs that has nothing to do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import TypeVar

from taskqueue.cli.bench import enqueue, footprint, round_trip
from taskqueue.cli.bench.figures import Sample, percentiles
from taskqueue.cli.bench.ground import Ground
from taskqueue.cli.bench.jobs import Empty
from taskqueue.cli.bench.node import node
from taskqueue.cli.bench.scale import Scale
from taskqueue.model.lifecycle.outcomes import Done, Run
from taskqueue.model.lifecycle.settle import ended
from taskqueue.model.record import Holder, Record
from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.store import ClaimRequest, Settlement, Store
from taskqueue.store.open import open_store

AT_ONCE = 8
"""Jobs that one claim takes and one settle ends."""

_HOLDER = Holder(seat="bench", incarnation="claims")
_LEASE = timedelta(minutes=10)

Result = TypeVar("Result")


def measure(ground: Ground, scale: Scale) -> Iterator[Sample]:
    """Measure an idle node, then the same calls on an empty store and behind a backlog."""
    yield from _idle(ground, scale)
    with ground.fresh() as url, Scheduler(url) as scheduler, closing(open_store(url)) as store:
        yield from _calls("empty", scheduler, store, scale)
        yield from _trips("empty", url, ground, scheduler, scale)
        enqueue.add(scheduler, scale.backlog)
        enqueue.add(scheduler, scale.backlog, at=store.now() + timedelta(days=1))
        yield from _calls("backlog", scheduler, store, scale)
        yield from _trips("backlog", url, ground, scheduler, scale)


def _idle(ground: Ground, scale: Scale) -> Iterator[Sample]:
    """Watch a node, its manager and one worker that has run a job."""
    with ground.fresh() as url, Scheduler(url) as scheduler, node(url, ground.folder, 1) as running:
        running.wait(scheduler.add_job(Empty))
        time.sleep(scale.rest)
        before = footprint.processor_time(running.pid)
        time.sleep(scale.idle_for)
        used = footprint.processor_time(running.pid) - before
        yield Sample(name="memory of an idle node (PSS)", unit="MiB", value=footprint.memory(running.pid) / 1024**2)
        yield Sample(name="processor of an idle node", unit="% of a core", value=100 * used / scale.idle_for)


def _calls(where: str, scheduler: Scheduler, store: Store, scale: Scale) -> Iterator[Sample]:
    """Time adds of one job, and claims and settles of some."""
    adds = [_seconds(lambda: scheduler.add_job(Empty))[0] for _ in range(scale.trips)]
    claims, settles = [], []
    for _ in range(max(scale.trips // AT_ONCE, 1)):
        seconds, records = _seconds(lambda: _claim(store))
        claims.append(seconds)
        settlements = [_done(record, store) for record in records]
        settles.append(_seconds(lambda: store.settle(settlements, store.now()))[0])  # noqa: B023 - called at once
    for name, taken in (
        (f"add_job, {where}", adds),
        (f"claim of 8, {where}", claims),
        (f"settle of 8, {where}", settles),
    ):
        yield Sample(name=name, unit="ms", value=statistics.median(taken) * 1000)


def _trips(where: str, url: str, ground: Ground, scheduler: Scheduler, scale: Scale) -> Iterator[Sample]:
    """Send jobs through a node that works on another queue than that of the backlog."""
    with node(url, ground.folder, round_trip.WORKERS, "--work-on", "quick") as running:
        round_trip.warm(running, scheduler, scale, "quick")
        trips = round_trip.travel(running, scheduler, scale.trips, "quick")
    yield from percentiles(f"add_job to start, {where}", trips.to_start, (50,))
    yield from percentiles(f"add_job to result, {where}", trips.to_result, (50,))


def _claim(store: Store) -> list[Record]:
    now = store.now()
    return list(store.claim(_HOLDER, ClaimRequest(pooled=AT_ONCE), now, now + _LEASE).records)


def _done(record: Record, store: Store) -> Settlement:
    now = store.now()
    after = ended(record, Done(), Run(node=_HOLDER.seat, started_at=now), now)
    return Settlement(claims=record.claims, holder=_HOLDER, after=after)


def _seconds(call: Callable[[], Result]) -> tuple[float, Result]:
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result
