"""What SIGTERM does in a worker, by what its slate says; each case in a process of its own."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable

import pytest

from taskqueue.daemon.protocol.shared_memory import WorkerPage
from taskqueue.daemon.runtime import child_process
from taskqueue.daemon.worker.interrupts import SignalInterrupts
from taskqueue.execution.failures import failure_of
from taskqueue.model.job import Interrupted


def in_a_worker(run: Callable[[SignalInterrupts, WorkerPage], bool]) -> bool:
    """Call this in a forked process that has a guard, and return whether it returned True."""

    def live() -> int:
        page = WorkerPage()
        interrupts = SignalInterrupts(page)
        _, writer = os.pipe2(os.O_NONBLOCK)
        interrupts.install(writer)
        child_process.allow_signals()
        return 0 if run(interrupts, page) else 1

    child = child_process.fork(live, name="guarded")
    try:
        return child.reap().code == 0
    finally:
        child.close()


def interruption(interrupts: SignalInterrupts, send: Callable[[], None]) -> str:
    """Return why the code of a job is interrupted when ``send`` is called in it; empty if it is not."""
    try:
        with interrupts:
            send()
    except Interrupted as interrupted:
        return interrupted.reason
    return ""


def sigterm() -> None:
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("reason", ["cancel", "timeout", "lost", "shutdown"])
def test_the_job_is_interrupted_for_the_reason_on_the_slate(reason: str) -> None:
    def run(interrupts: SignalInterrupts, page: WorkerPage) -> bool:
        interrupts.begin(1)
        page.request_stop(1, reason)
        return (
            interruption(interrupts, sigterm) == reason and interrupts.stop_reason == reason and not interrupts.leaving
        )

    assert in_a_worker(run)


def test_a_signal_for_a_run_that_is_over_interrupts_no_other() -> None:
    def run(interrupts: SignalInterrupts, page: WorkerPage) -> bool:
        page.request_stop(1, "cancel")
        interrupts.begin(2)
        return interruption(interrupts, sigterm) == "" and interrupts.stop_reason is None and not interrupts.leaving

    assert in_a_worker(run)


def test_a_signal_of_somebody_else_means_that_the_worker_is_to_leave() -> None:
    def run(interrupts: SignalInterrupts, page: WorkerPage) -> bool:
        interrupts.begin(1)
        reason = interruption(interrupts, sigterm)
        awake, _, _ = select.select([interrupts.wake_up], [], [], 0)
        return (
            reason == "shutdown"
            and interrupts.leaving
            and interrupts.stopping
            and bool(awake)
            and not page.is_node_stopping
        )

    assert in_a_worker(run)


def test_what_comes_outside_of_the_jobs_code_is_raised_when_it_goes_on() -> None:
    def run(interrupts: SignalInterrupts, page: WorkerPage) -> bool:
        interrupts.begin(1)
        page.request_stop(1, "cancel")
        sigterm()
        return interruption(interrupts, lambda: None) == "cancel" and interruption(interrupts, lambda: None) == ""

    assert in_a_worker(run)


def test_our_own_code_is_finished_before_the_job_is_interrupted() -> None:
    done = []

    def run(interrupts: SignalInterrupts, page: WorkerPage) -> bool:
        def call_ours() -> None:
            with interrupts.shield:
                sigterm()
                done.append(1)

        interrupts.begin(1)
        page.request_stop(1, "cancel")
        return interruption(interrupts, call_ours) == "cancel" and done == [1]

    assert in_a_worker(run)


def test_the_traceback_of_an_interrupt_ends_with_the_code_that_it_interrupted() -> None:
    def run(interrupts: SignalInterrupts, page: WorkerPage) -> bool:
        def wait_long() -> None:
            try:
                sigterm()
            finally:
                raise ValueError("no end")

        interrupts.begin(1)
        page.request_stop(1, "timeout")
        try:
            with interrupts:
                wait_long()
        except ValueError as error:
            said = failure_of(error).traceback
            return "no end" in said and "in wait_long" in said and "worker/interrupts.py" not in said
        return False

    assert in_a_worker(run)


def test_an_error_of_our_own_code_is_not_replaced() -> None:
    def run(interrupts: SignalInterrupts, page: WorkerPage) -> bool:
        def call_ours() -> None:
            with interrupts.shield:
                sigterm()
                raise ValueError("refused")

        interrupts.begin(1)
        page.request_stop(1, "cancel")
        try:
            interruption(interrupts, call_ours)
        except ValueError:
            return True
        return False

    assert in_a_worker(run)


def test_ctrl_c_is_for_the_node() -> None:
    def run(interrupts: SignalInterrupts, _: WorkerPage) -> bool:
        interrupts.begin(1)
        return (
            interruption(interrupts, lambda: signal.raise_signal(signal.SIGINT)) == ""
            and interrupts.stop_reason is None
        )

    assert in_a_worker(run)
