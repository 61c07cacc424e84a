"""Retries on real nodes: whose policy decides where, what cannot decide harms its own job only, stalls end."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from taskqueue import Scheduler, Status, retry
from taskqueue.model.record import Cause
from tests.acceptance.conftest import JobFiles
from tests.acceptance.retrying import (
    Babbling,
    Busy,
    Last,
    Patient,
    Quiet,
    Raising,
    Refused,
    Refusing,
    Relenting,
    Remembering,
    Slow,
    Stuck,
)
from tests.acceptance.work import Echo
from tests.nodes import LIMIT, eventually, given_time, node


def test_a_policy_of_the_users_decides_in_the_worker(url: str, scheduler: Scheduler, tmp_path: Path) -> None:  # row 50
    good = scheduler.add_job(Refusing, {"until": 3}, retry=retry.custom(Patient, times=2))
    bad = scheduler.add_job(Refusing, {"until": 9}, retry=retry.custom(Patient, times=2))
    last = scheduler.add_job(Last, retry=retry.custom(Patient, times=3))

    with node(url, tmp_path):
        scheduler.wait_for([good, bad, last], timeout=LIMIT)

    assert (good.status, good.result) == (Status.DONE, 3)
    assert (bad.status, bad.cause, len(bad.attempts)) == (Status.FAILED, Cause.EXHAUSTED, 3)
    assert last.result == 4


def test_a_worker_finds_the_class_that_a_name_of_the_client_means(
    url: str, scheduler: Scheduler, tmp_path: Path
) -> None:
    job, names = "tests.acceptance.renamed:Declining", "tests.acceptance.renamed"
    again = scheduler.add_job(job, retry=1, retry_interval=0, retry_on=[f"{names}.Declined"])
    misspelt = scheduler.add_job(job, retry=1, retry_interval=0, retry_on=[f"{names}.Declind"])

    with node(url, tmp_path) as running:
        scheduler.wait_for([again, misspelt], timeout=LIMIT)
        log = running.log.read_text()

    assert names not in sys.modules
    assert (again.status, again.result) == (Status.DONE, 2)
    assert (misspelt.status, misspelt.cause) == (Status.FAILED, Cause.NOT_RETRIABLE)
    assert f"Its retry policy names {names}.Declind: no module" in misspelt.why()
    assert f"the retry policy of {job} names {names}.Declind, which is not an exception class" in log


def test_why_names_the_line_of_a_job_that_took_too_long(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    def timed_out(seconds: float) -> str | None:
        process = scheduler.add_job(Stuck, timeout=seconds)
        process.wait(timeout=LIMIT)
        return said if "threading.py" in (said := process.why()) else None

    with node(url, tmp_path):
        said = given_time(timed_out, 0.5)

    [line] = [line for line in said.splitlines() if line.startswith("Where the last of them was when it was ended: ")]
    assert re.search(
        r"ended: \S+/retrying\.py, line \d+, in \S*start \(in a call that had reached \S+/threading\.py, ", line
    )


def test_a_failed_job_moves_to_another_queue(url: str, scheduler: Scheduler, tmp_path: Path) -> None:  # row 57
    moved = scheduler.add_job(Refusing, {"until": 2}, retry=retry.custom(Patient, times=1, queue="slow"))

    with node(url, tmp_path, "--work-on", "default"):
        eventually(lambda: moved.refresh().queue == "slow")
    assert moved.is_waiting
    with node(url, tmp_path, "--work-on", "slow"):
        moved.wait(timeout=LIMIT)

    assert moved.result == 2


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (retry.custom("tests.acceptance.nowhere:Patient"), "cannot be loaded"),
        (retry.custom("tests.acceptance.retrying:Nobody"), "has no class Nobody"),
        (retry.custom(Patient, patience=3), "unexpected keyword argument"),
        (retry.custom(Raising), "cannot judge 'no'"),
        (retry.custom(Babbling), "it answered 'soon'"),
    ],
    ids=["no module", "no class", "other settings", "raises", "nonsense"],
)
def test_a_policy_that_cannot_decide_fails_its_job_and_nothing_else(
    url: str, scheduler: Scheduler, tmp_path: Path, policy: retry.RetryPolicy, words: str
) -> None:  # RW-10, X-11
    with node(url, tmp_path, "--pm", "static", "--min-children", "1") as running:
        failed = scheduler.add_job(Refusing, {"until": 9}, retry=policy)
        after = scheduler.add_job(Echo, "still here")
        scheduler.wait_for([failed, after], timeout=LIMIT)
        assert len(running.workers()) == 1

    assert (failed.status, failed.cause) == (Status.FAILED, Cause.UNDECIDED)
    assert failed.error is not None
    assert failed.error.type == "tests.acceptance.retrying.Refused"
    assert words in failed.error.message
    assert "its retry policy could not decide" in failed.why()
    [attempt] = failed.attempts
    assert attempt.pid == after.attempts[0].pid


def test_a_timeout_is_decided_by_the_users_policy_while_its_worker_lives(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    data = {"gate": files.gate(), "until": 2}
    process = scheduler.add_job(Slow, data, retry=retry.custom(Relenting), timeout=2)

    with node(url, tmp_path):
        process.wait(timeout=LIMIT)

    assert (process.result, [attempt.outcome for attempt in process.attempts]) == ("at last", ["TimedOut", "Done"])


def test_after_a_timeout_that_had_to_kill_no_policy_of_the_users_is_asked(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    data = {"gate": files.gate(), "deaf": True}
    process = scheduler.add_job(Slow, data, retry=retry.custom(Relenting), timeout=2)

    with node(url, tmp_path, "--grace", "0.2"):
        process.wait(timeout=LIMIT)

    assert (process.status, process.cause) == (Status.TIMEOUT, Cause.UNDECIDED)
    assert process.error is not None
    assert "the worker that would have asked it had died" in process.error.message


def test_only_errors_that_are_named_are_retried(url: str, scheduler: Scheduler, tmp_path: Path) -> None:  # row 48
    data = {"until": 2}
    tried = scheduler.add_job(Refusing, data, retry=5, retry_interval=0, retry_on=(ValueError, Refused))
    other = scheduler.add_job(Refusing, data, retry=5, retry_interval=0, retry_on="ValueError")

    with node(url, tmp_path):
        scheduler.wait_for([tried, other], timeout=LIMIT)

    assert tried.result == 2
    assert (other.status, other.cause, len(other.attempts)) == (Status.FAILED, Cause.NOT_RETRIABLE, 1)
    assert "its error is of no type that is retried" in other.why()


@pytest.mark.parametrize(("retried", "attempts"), [(True, 2), (False, 1)])
def test_whether_a_timeout_is_retried_can_be_said(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path, retried: bool, attempts: int
) -> None:  # PTS vector 7, X-11
    options: dict[str, Any] = {"retry": 1, "retry_interval": 0, "retry_on": ValueError, "retry_on_timeout": retried}
    process = scheduler.add_job(Slow, {"gate": files.gate()}, timeout=1, **options)

    with node(url, tmp_path):
        process.wait(timeout=LIMIT)

    assert (process.status, process.cause) == (Status.TIMEOUT, Cause.TIMED_OUT)
    assert len(process.attempts) == attempts


@pytest.mark.parametrize("job", [Quiet, Slow])
def test_a_run_without_progress_is_ended(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path, job: type[Quiet]
) -> None:  # X-5, PTS-24
    process = scheduler.add_job(job, {"gate": files.gate()}, stall_timeout=1, retry=1, retry_interval=0)

    with node(url, tmp_path):
        process.wait(timeout=LIMIT)

    assert (process.status, process.cause) == (Status.TIMEOUT, Cause.STALLED)
    assert [attempt.outcome for attempt in process.attempts] == ["Stalled", "Stalled"]
    assert "gave no sign of progress for" in process.why()


def test_a_stalled_run_that_does_not_end_is_killed(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    process = scheduler.add_job(Slow, {"gate": files.gate(), "deaf": True}, stall_timeout=2)

    with node(url, tmp_path, "--grace", "0.2"):
        process.wait(timeout=LIMIT)

    assert (process.status, process.cause) == (Status.TIMEOUT, Cause.STALLED)
    assert process.error is not None
    assert "no sign of progress for its stall_timeout of 2 s" in process.error.message


def test_a_run_that_tells_its_progress_is_left_alone(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    process = scheduler.add_job(Busy, {"gate": files.gate()}, stall_timeout=30)

    with node(url, tmp_path), open(files.gate(), "w") as gate:
        for number in range(3):
            gate.write("step\n")
            gate.flush()
            eventually(lambda number=number: process.refresh().progress >= number)  # type: ignore[misc]
        gate.close()
        process.wait(timeout=LIMIT)

    assert process.result == "through"


def test_an_attempt_knows_the_error_before(url: str, scheduler: Scheduler, tmp_path: Path) -> None:  # row 52, REC-19
    process = scheduler.add_job(Remembering, retry=1, retry_interval=0)

    with node(url, tmp_path):
        process.wait(timeout=LIMIT)

    assert process.result == ["tests.acceptance.retrying.Refused", "not today"]


def test_a_waiting_job_can_be_brought_forward_to_a_node_that_sleeps(
    url: str, scheduler: Scheduler, tmp_path: Path
) -> None:
    process = scheduler.add_job(Echo, "old", at="+1 hour")

    with node(url, tmp_path, "--work-on", "fast"):
        scheduler.update_job(process.id, at="now", queue="fast", data="new")
        process.wait(timeout=LIMIT)

    assert process.result == "new"


def test_what_failed_in_the_caller_is_retried_by_a_node(
    url: str, scheduler: Scheduler, tmp_path: Path
) -> None:  # REC-6
    with node(url, tmp_path):
        process = scheduler.run_job(Refusing, {"until": 2}, retry=1, retry_interval=0)
        process.wait(timeout=LIMIT)

    assert process.result == 2
    first, second = process.attempts
    assert first.node.startswith("run_job on ")
    assert first.node != second.node
