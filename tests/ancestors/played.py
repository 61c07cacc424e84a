"""Runs of jobs at times of a test's choice: what a node does, through its own connection to the store."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timedelta
from typing import ClassVar

from taskqueue import Job
from taskqueue.model.lifecycle.outcomes import Failed, Outcome, TimedOut
from taskqueue.model.record import Failure, Record
from taskqueue.store import Store
from tests.store.records import NOON, claim, kept, settle

REFUSED = Failed(
    failure=Failure(type="shop.Refused", message="no", bases=("builtins.RuntimeError", "builtins.Exception"))
)
TOO_LONG = TimedOut(failure=Failure(type="taskqueue.model.job.JobTimeout", message="after 5 s"))


class Telling(Job):
    """Tells its progress twice, and returns what the store has of it then, and how many seconds that took."""

    def start(self) -> tuple[float, float]:
        begin = time.monotonic()
        self.progress(self.data[0])
        self.progress(self.data[1])
        took = time.monotonic() - begin
        return self.scheduler.get_job(self.id).progress, took


class Noting(Job):
    """Writes its data down, in the process it runs in."""

    noted: ClassVar[list[object]] = []

    def start(self) -> None:
        self.noted.append(self.data)


def run(store: Store, at: datetime, outcome: Outcome | None = None) -> Record | None:
    """Run the next job at this time to the outcome, DONE without one; return what is kept of it, None without a job."""
    taken = claim(store, now=at).records
    if not taken:
        return None
    [begun] = taken
    assert settle(store, replace(begun, started_at=at), outcome, at) == {begun.id}
    return kept(store, begun.id)


def failing(store: Store, record: Record, outcome: Outcome = REFUSED) -> tuple[list[float], Record]:
    """Run the job again and again, each time to this outcome, and return its pauses in seconds and its end."""
    store.add([record])
    at, pauses = NOON, list[float]()
    while True:
        after = run(store, at, outcome)
        assert after is not None
        if after.status.is_final:
            return pauses, after
        assert after.ready_at is not None
        if not pauses and after.ready_at > at:
            assert run(store, after.ready_at - timedelta(milliseconds=1)) is None
        pauses.append((after.ready_at - at).total_seconds())
        at = after.ready_at
