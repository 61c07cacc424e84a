"""Why there is no stack, before any node is asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taskqueue import Scheduler
from taskqueue.errors import JobNotFound, StackUnavailable, WrongStatus
from taskqueue.insight import host
from taskqueue.model.ids import JobId
from taskqueue.store import Store
from tests.scheduler.jobs import Echo
from tests.scheduler.playing import LEASE, seat, take


def test_a_job_that_does_not_run_has_none(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Echo)

    with pytest.raises(WrongStatus, match="is WAITING: a job can show its stack while it is PROCESSING"):
        process.stack()


def test_an_unknown_job_has_none(scheduler: Scheduler) -> None:
    with pytest.raises(JobNotFound):
        scheduler.stack(JobId())


def test_a_job_that_runs_on_no_node_says_so(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    take(store)

    with pytest.raises(StackUnavailable, match="it runs on no node: process web-1 runs it itself"):
        process.stack()
    assert store.leases() == []


def test_a_job_on_a_silent_node_says_so(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    take(store)
    held = seat(store, "web-1")
    store.resign(held.name, held.holder)
    [record] = [scheduler.get_job(process.id).snapshot]
    assert record.holder is not None
    over = replace(held, holder=record.holder, until=held.since - LEASE)
    store.acquire(over, store.now())

    with pytest.raises(StackUnavailable, match="node web-1 is dead or silent"):
        process.stack()
    assert not host.is_live(over, store.now())
