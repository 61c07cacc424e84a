"""What adding and waiting cost the caller, counted in calls of functions and statements: times depend on machines."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from taskqueue import Scheduler
from tests.scheduler.jobs import Echo


def calls(call: Callable[[], object]) -> int:
    """Return how many functions of Python run in a call."""
    begun = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal begun
        begun += event == "call"

    before = sys.getprofile()
    gc.disable()  # callbacks of a collection that happens to come are no part of the call
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
        gc.enable()
    return begun


def statements(scheduler: Scheduler, call: Callable[[], object]) -> Counter[str]:
    """Return the first words of the statements that the embedded store runs in a call."""
    said: list[str] = []
    raw = scheduler._connections.store._connection._raw  # type: ignore[attr-defined]
    raw.set_trace_callback(said.append)
    call()
    raw.set_trace_callback(None)
    return Counter(statement.split()[0] for statement in said)


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_a_job_like_the_one_before_is_added_in_few_steps(scheduler: Scheduler) -> None:
    scheduler.add_job(Echo, {"to": "a"}, retry=3, tags=["x"])

    assert calls(lambda: scheduler.add_job(Echo, {"to": "b"}, retry=3, tags=["x"])) < 95


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_a_job_of_many_takes_a_third_fewer_steps_than_one_alone(scheduler: Scheduler) -> None:
    scheduler.add_jobs([(Echo, {"to": "a"})] * 2)
    alone = calls(lambda: scheduler.add_job(Echo, {"to": "a"}))

    together = calls(lambda: scheduler.add_jobs([(Echo, {"to": "a"})] * 100)) / 100

    assert together < 0.65 * alone


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_waiting_for_a_job_that_has_ended_reads_it_once(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Echo)
    scheduler.run_pending()

    ran = statements(scheduler, lambda: scheduler.wait_for([process.id], timeout=60))

    assert ran == {"SELECT": 1}
