"""A job that blocks the event loop of its worker is reported with its stack."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from taskqueue.daemon.worker.watched_loop import WatchedLoop
from taskqueue.scheduler.run_inline import CallerInterrupts
from tests.chaos.test_shortage import of_a_user
from tests.daemon.fake_node import MOST
from tests.nodes import LIMIT

LOGGER = logging.getLogger("taskqueue.daemon.worker.watched_loop")


class Reports(logging.Handler):
    """Keeps what is reported, and lets a test wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.came = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        self.came.set()


@pytest.fixture
def reports() -> Iterator[Reports]:
    reports = Reports()
    LOGGER.addHandler(reports)
    yield reports
    LOGGER.removeHandler(reports)


@pytest.fixture
def loop() -> Iterator[WatchedLoop]:
    loop = WatchedLoop(blocked_for=0.05)
    yield loop
    loop.close()


def hold_up(came: threading.Event) -> bool:
    return came.wait(MOST)


def test_a_job_that_blocks_the_loop_is_reported_once_with_its_stack(loop: WatchedLoop, reports: Reports) -> None:
    async def block() -> None:
        assert hold_up(reports.came)
        assert not threading.Event().wait(0.2)

    loop.run_job("shop:Mail 1", block(), CallerInterrupts())

    [text] = reports.texts
    first, *stack = text.splitlines()
    assert first == "a job has blocked its event loop for over 0.05 s: shop:Mail 1"
    assert stack[0].endswith("in block")
    assert "assert hold_up(reports.came)" in stack[1]


def test_the_thread_has_ended_when_the_loop_is_closed() -> None:
    loop = WatchedLoop(blocked_for=0.01)
    assert loop.run_job("shop:Mail 1", asyncio.sleep(0, 1), CallerInterrupts()) == 1
    loop.close()

    assert "event loop watch" not in [thread.name for thread in threading.enumerate()]


SHORT_OF_THREADS = """
import asyncio, logging, resource, sys, threading
from taskqueue.daemon.worker.watched_loop import WatchedLoop
from taskqueue.scheduler.run_inline import CallerInterrupts

logging.basicConfig(format="%(message)s", stream=sys.stdout)
logging.getLogger("taskqueue").setLevel(logging.DEBUG)
soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
loop = WatchedLoop()
print("result", loop.run_job("shop:Mail 1", asyncio.sleep(0, 1), CallerInterrupts()))
resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
print("result", loop.run_job("shop:Mail 2", asyncio.sleep(0, 2), CallerInterrupts()))
print(*[thread.name for thread in threading.enumerate()], sep=", ")
loop.close()
"""


def test_jobs_run_while_no_thread_can_be_started_and_are_watched_later() -> None:
    done = subprocess.run(
        [*of_a_user(), sys.executable, "-c", SHORT_OF_THREADS], capture_output=True, text=True, timeout=LIMIT
    )

    warning = "a job that blocks its event loop is not reported for now: can't start new thread"
    assert done.stdout.splitlines() == [warning] * 2 + ["result 1", "result 2", "MainThread, event loop watch"], done
    assert done.returncode == 0


class LateInterrupts(CallerInterrupts):
    """Keeps what cancels a run, for a request that comes behind its end."""

    cancel: Callable[[str], bool]

    def deliver_to(self, cancel: Callable[[str], bool]) -> None:
        self.cancel = cancel


def test_a_request_that_comes_when_the_job_has_returned_cancels_nothing_else(loop: WatchedLoop) -> None:
    late = LateInterrupts()
    loop.run_job("shop:Mail 1", asyncio.sleep(0), late)
    late.cancel("timeout")

    assert loop.run_job("shop:Mail 2", asyncio.sleep(0, 2), CallerInterrupts()) == 2
