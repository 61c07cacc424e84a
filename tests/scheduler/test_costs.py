"""What adding and waiting cost the caller, counted in calls of functions and statements: times depend on machines."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from taskqueue import Scheduler
from taskqueue.store import Store
from tests import budgets
from tests.nodes import eventually
from tests.scheduler.jobs import Echo
from tests.scheduler.meanwhile import Meanwhile
from tests.scheduler.playing import LIMIT, begin, end, play, take


def calls(call: Callable[[], object]) -> int:
    """Return how many functions of Python run in a call."""
    begun = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal begun
        begun += event == "call"

    before = sys.getprofile()
    gc.disable()  # callbacks of a collection that happens to come are not part of the call
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
    raw = scheduler._connections.store._engine._raw  # type: ignore[attr-defined]
    raw.set_trace_callback(said.append)
    call()
    raw.set_trace_callback(None)
    return Counter(statement.split()[0] for statement in said)


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_a_job_like_the_one_before_is_added_in_few_steps(scheduler: Scheduler) -> None:
    scheduler.add_job(Echo, {"to": "a"}, retry=3, tags=["x"])

    budgets.keep("sqlite.add.calls", calls(lambda: scheduler.add_job(Echo, {"to": "b"}, retry=3, tags=["x"])))


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
@pytest.mark.parametrize("options", [(), ({},)])
def test_a_job_among_many_alike_is_added_in_few_steps(scheduler: Scheduler, options: tuple[Any, ...]) -> None:
    def added(count: int) -> int:
        return calls(lambda: scheduler.add_jobs([(Echo, {"to": str(number)}, *options) for number in range(count)]))

    added(200)

    budgets.keep("sqlite.bulk.calls", (added(200) - added(100)) / 100)


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


@pytest.fixture
def listening(scheduler: Scheduler, store: Store, tmp_path: Path) -> Callable[[], bool]:
    """Have the client wait once, and the store know of it; return whether a thread waits for a ring, however long."""
    process = scheduler.add_job(Echo)
    play(store)
    process.wait()
    bell = scheduler._connections.listener._bell
    assert bell is not None
    bell.pause = LIMIT
    yesterday = time.time() - 86_400
    os.utime(tmp_path / "jobs.db.bells", (yesterday, yesterday))
    process = scheduler.add_job(Echo)
    play(store)
    process.wait()
    return lambda: scheduler._connections.listener._reader is not None


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_a_job_that_is_added_and_waited_for_is_not_read_at_all(
    scheduler: Scheduler, store: Store, listening: Callable[[], bool]
) -> None:
    process = scheduler.add_job(Echo)
    with Meanwhile(lambda: eventually(listening) and play(store)):
        ran = statements(scheduler, process.wait)

    assert (ran, process.is_done, process.result) == ({}, True, "played")
    assert process.snapshot == scheduler.get_job(process.id).snapshot


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_ends_of_other_jobs_are_no_reason_to_read(
    scheduler: Scheduler, store: Store, listening: Callable[[], bool]
) -> None:
    scheduler.add_jobs([(Echo, None)] * 3)
    process = scheduler.add_job(Echo)
    listener = scheduler._connections.listener

    def end_one_by_one() -> None:
        eventually(listening)
        for record in take(store):
            silence = listener.silence
            end(store, begin(store, record))
            eventually(lambda: listener.silence is not silence)  # noqa: B023 - called at once

    with Meanwhile(end_one_by_one):
        assert statements(scheduler, process.wait) == {}

    assert process.is_done


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_a_job_that_ended_in_a_heard_silence_is_read(
    scheduler: Scheduler, store: Store, listening: Callable[[], bool]
) -> None:
    process = scheduler.add_job(Echo)
    with Meanwhile(lambda: eventually(listening) and play(store)):
        scheduler.wait_for([process.id])  # hears its ring, and leaves the handle as it was

    assert statements(scheduler, process.wait) == {"SELECT": 1}
    assert process.is_done
