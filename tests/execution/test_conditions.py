"""A job that is not ready is put off, and one that cannot be asked fails alone; asked here, in the caller's process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from taskqueue import Check, Job, Process, Scheduler, Status
from taskqueue.model.record import Cause
from tests.scheduler.jobs import Bringer, Echo, Patient, Shop, forgets, is_there, stumbles

THERE = Check(is_there)
BERLIN = Check(Shop.has, ware="berlin")


@pytest.fixture
def data(tmp_path: Path) -> dict[str, str]:
    return {"file": str(tmp_path / "file"), "told": str(tmp_path / "told")}


def run(scheduler: Scheduler, job: Any, data: Any, **options: Any) -> Process:
    """Add the job, run what is pending now, and return it as it is then."""
    process = scheduler.add_job(job, data, **options)
    scheduler.run_pending(ignore_time=False)
    return process.refresh()


def test_a_class_tells_whether_its_jobs_are_ready(scheduler: Scheduler, data: dict[str, str]) -> None:  # LZQ-10
    waiting = run(scheduler, Patient, data)
    assert (waiting.status, waiting.cause, waiting.attempts) == (Status.POSTPONED, Cause.NOT_READY, ())
    assert waiting.options["ready"] == {"check": "#is_ready"}
    assert "Before it starts, a worker checks whether it is ready: #is_ready()." in waiting.why()

    Path(data["file"]).touch()
    scheduler.run_pending()

    assert waiting.refresh().result == "it was there"


def test_a_class_is_asked_too_when_its_job_was_added_by_path(scheduler: Scheduler, data: dict[str, str]) -> None:
    by_path = run(scheduler, "tests.scheduler.jobs:Patient", data)
    with_a_condition = run(scheduler, "tests.scheduler.jobs:Patient", data, ready=~THERE)

    assert (by_path.cause, with_a_condition.cause) == (Cause.NOT_READY, Cause.NOT_READY)
    assert "for #is_ready() said no" in with_a_condition.why()


def test_a_class_that_is_no_job_is_asked_by_its_own_method(scheduler: Scheduler, data: dict[str, str]) -> None:
    sale = scheduler.add_job("tests.scheduler.jobs:Shop.sell", data, ready="#is_open")
    scheduler.run_pending(ignore_time=False)
    assert (sale.refresh().cause, sale.attempts) == (Cause.NOT_READY, ())

    Path(data["file"]).touch()
    scheduler.run_pending()

    assert sale.refresh().result == "sold"


def test_a_class_that_is_no_job_and_has_no_such_method_is_named(scheduler: Scheduler, data: dict[str, str]) -> None:
    sale = run(scheduler, "tests.scheduler.jobs:Shop.sell", data, ready="#is_shut")

    assert (sale.status, sale.cause) == (Status.FAILED, Cause.UNLOADABLE)
    assert sale.error is not None
    assert sale.error.message == "#is_shut: the job's class Shop has no method is_shut"


@pytest.mark.parametrize(
    ("ready", "denial"),
    [
        (THERE, "tests.scheduler.jobs:is_there() said no"),
        (~Check("#is_urgent", limit=7), "#is_urgent(limit=7) said yes"),
        (THERE & Check("#is_urgent"), "tests.scheduler.jobs:is_there() said no"),
        (Check("#is_urgent") & THERE, "tests.scheduler.jobs:is_there() said no"),
        (THERE | ~Check("#is_urgent"), "tests.scheduler.jobs:is_there() said no, #is_urgent() said yes"),
        (~(~THERE | THERE), "not tests.scheduler.jobs:is_there() or tests.scheduler.jobs:is_there() said yes"),
        (BERLIN, "tests.scheduler.jobs:Shop.has(ware='berlin') said no"),
    ],
)
def test_why_says_which_part_of_a_condition_does_not_hold(
    scheduler: Scheduler, data: dict[str, str], ready: Check, denial: str
) -> None:
    Path(data["told"]).touch()

    process = run(scheduler, Urgent, {**data, "urgency": 9}, ready=ready)

    assert f"it was not ready, for {denial} (asked once, and again with growing pauses)" in process.why()


class Urgent(Job):
    """Is asked by conditions of the call only."""

    def is_urgent(self, limit: int = 5) -> bool:
        return bool(self.data["urgency"] > limit)

    def start(self) -> str:
        return "done"


@pytest.mark.parametrize(
    "ready", [~THERE, ~THERE & Check("#is_urgent"), THERE | Check("#is_urgent"), ~(THERE & ~THERE), None]
)
def test_a_job_whose_condition_holds_runs_at_once(scheduler: Scheduler, data: dict[str, str], ready: Check) -> None:
    assert run(scheduler, Urgent, {**data, "urgency": 9}, ready=ready).result == "done"


def test_predicates_are_asked_for_every_kind_of_job(scheduler: Scheduler) -> None:
    assert run(scheduler, Echo, "berlin", ready=BERLIN).result == "berlin"
    assert run(scheduler, "tests.scheduler.jobs:Shop.has", "berlin", ready=BERLIN).cause is Cause.FAILED  # it ran
    assert run(scheduler, Echo, "rome", ready=BERLIN).cause is Cause.NOT_READY


def test_predicates_stand_among_dependencies(scheduler: Scheduler, data: dict[str, str]) -> None:  # LZQ-7
    first = scheduler.add_job(Bringer, data)
    second = scheduler.add_job(Echo, data, depends_on=[first, THERE, "tests.scheduler.jobs:is_there"])

    scheduler.run_pending()

    assert second.refresh().status is Status.DONE


def test_running_all_asks_again_after_other_jobs_and_leaves_what_is_never_ready(
    scheduler: Scheduler, data: dict[str, str], tmp_path: Path
) -> None:
    never = scheduler.add_job(Patient, {"file": str(tmp_path / "never")})
    patient = scheduler.add_job(Patient, data)
    bringer = scheduler.add_job(Bringer, data)

    ran = scheduler.run_pending()

    assert ran == [bringer, patient]
    assert (never.refresh().status, never.cause) == (Status.POSTPONED, Cause.NOT_READY)


def test_a_job_that_is_not_ready_is_left_to_the_nodes_by_run_job(scheduler: Scheduler, data: dict[str, str]) -> None:
    process = scheduler.run_job(Patient, data)

    assert (process.status, process.cause) == (Status.POSTPONED, Cause.NOT_READY)


def test_a_check_that_fails_again_and_again_fails_its_job_and_nothing_else(
    scheduler: Scheduler, data: dict[str, str]
) -> None:
    broken = scheduler.add_job(Patient, data, ready=stumbles)
    other = scheduler.add_job(Echo, 1)
    Path(data["file"]).touch()

    scheduler.run_pending()

    assert (broken.refresh().status, broken.cause, broken.attempts) == (Status.FAILED, Cause.CHECK_FAILED, ())
    assert broken.error is not None
    assert broken.error.type == "LookupError"
    assert "its checks failed 5 times in a row" in broken.why()
    assert Path(data["told"]).read_text().startswith("no shop for")  # on_last_failure
    assert other.refresh().status is Status.DONE


def test_a_check_that_failed_once_is_told(scheduler: Scheduler) -> None:
    process = run(scheduler, Echo, 1, ready=stumbles)

    assert process.cause is Cause.NOT_READY
    assert "for the check failed: no shop for 1 (asked once" in process.why()


def test_a_predicate_that_forgets_to_answer_is_told_so(scheduler: Scheduler) -> None:
    process = run(scheduler, Echo, 1, ready=forgets)

    assert process.error is not None
    assert "it must return True or False" in process.error.message


@pytest.mark.parametrize("ready", ["tests.scheduler.jobs:nothing", "no_such_module:is_open", "#is_open"])
def test_a_predicate_that_cannot_be_loaded_is_told_like_a_class(scheduler: Scheduler, ready: str) -> None:
    process = run(scheduler, Echo, 1, ready=ready)

    assert (process.status, process.cause) == (Status.FAILED, Cause.UNLOADABLE)


def test_an_interrupted_check_gives_the_job_back(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Echo, 1, ready="tests.scheduler.jobs:is_interrupted")

    with pytest.raises(KeyboardInterrupt):
        scheduler.run_pending()

    assert (process.refresh().status, process.cause) == (Status.WAITING, Cause.HANDED_BACK)
