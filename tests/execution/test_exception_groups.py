"""What errors in exception groups, as of ``asyncio.TaskGroup``, mean for their job: as much as errors on their own."""

from __future__ import annotations

import asyncio
import builtins
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from taskqueue import (
    Fail,
    Interrupted,
    Job,
    JobTimeout,
    Process,
    Retry,
    RunningJob,
    Scheduler,
    Snooze,
    Status,
    StepwiseJob,
    retry,
)
from taskqueue.execution.exception_groups import leaves, related
from taskqueue.execution.failures import failure_of, parts_of
from taskqueue.execution.loader import CannotLoad, load
from taskqueue.model.lifecycle import outcomes
from tests.execution.test_executor import ran

TaskGroup: Any = vars(asyncio)["TaskGroup"]  # of Python 3.11 and newer, as are the groups
Group: Any = vars(builtins)["BaseExceptionGroup"]
Errors: Any = vars(builtins)["ExceptionGroup"]


class Denied(Exception):
    """An error of the tests."""


class Several(Errors):  # type: ignore[misc]
    """A group of the tests, whose own attribute hides its errors."""

    exceptions = property(lambda _: 1 / 0)


ERRORS: dict[str, Callable[[], BaseException]] = {
    "fail": lambda: Fail("gone"),
    "fail again": lambda: Fail("lost"),
    "retry": lambda: Retry(3600, "busy"),
    "retry soon": lambda: Retry(60),
    "snooze": lambda: Snooze(1800),
    "refused": lambda: ConnectionRefusedError("no route to a"),
    "reset": lambda: ConnectionResetError("reset by b"),
    "denied": lambda: Denied("for ann"),
    "denied too": lambda: Denied("for bob"),
    "key": lambda: KeyError("x"),
}


async def in_groups(*names: str) -> None:
    """Raise the errors of these names at once, each in a task of its own, within two task groups."""

    async def fail(name: str) -> None:
        error = ERRORS[name]()
        raise error

    async def inner() -> None:
        async with TaskGroup() as group:
            for name in names:
                group.create_task(fail(name))

    async with TaskGroup() as group:
        group.create_task(inner())


class Grouped(Job):
    """Raises the errors that its data name."""

    async def start(self) -> None:
        await in_groups(*self.data)


class Counted(Grouped):
    """Counts its attempts."""

    attempts: ClassVar[list[int]] = []

    async def start(self) -> None:
        self.attempts.append(self.attempt)
        await super().start()


def run(scheduler: Scheduler, *names: str, **options: Any) -> Process[Any]:
    """Run one attempt of a job that raises these errors, and return its state after that."""
    process = scheduler.add_job(Grouped, list(names), **options)
    scheduler.run_pending(once=True)
    process.refresh()
    return process


def pause(process: Process[Any]) -> float:
    """Return the seconds from the end of the last attempt to the next."""
    ready_at = process.snapshot.ready_at
    assert ready_at is not None
    return (ready_at - process.attempts[-1].ended_at).total_seconds()


def test_a_fail_in_a_group_ends_the_job_at_once(scheduler: Scheduler) -> None:
    Counted.attempts.clear()
    process = scheduler.add_job(Counted, ["fail"], retry=2)

    scheduler.run_pending()

    process.refresh()
    assert process.status is Status.FAILED
    assert Counted.attempts == [1]
    assert process.error is not None
    assert (process.error.type, process.error.message) == ("taskqueue.Fail", "gone")
    assert "in fail" in process.error.traceback
    assert "ExceptionGroup" in process.error.traceback


@pytest.mark.parametrize("beside", ["refused", "snooze", "retry"])
def test_a_fail_counts_before_all_that_was_raised_beside_it(scheduler: Scheduler, beside: str) -> None:
    process = run(scheduler, beside, "fail", "fail again", retry=2)

    assert process.status is Status.FAILED
    assert process.error is not None
    assert (process.error.type, process.error.message) == ("taskqueue.Fail", "2 errors: gone; lost")


def test_a_retry_in_a_group_has_its_own_pause(scheduler: Scheduler) -> None:
    process = run(scheduler, "refused", "snooze", "retry", "retry soon", retry=2)

    assert process.status is Status.POSTPONED
    assert pause(process) == pytest.approx(3600)
    assert process.snapshot.failures == 1
    assert process.error is not None
    assert process.error.type == "taskqueue.Retry"


def test_a_snooze_in_a_group_is_no_failed_attempt(scheduler: Scheduler) -> None:
    process = run(scheduler, "snooze")

    assert process.status is Status.POSTPONED
    assert pause(process) == pytest.approx(1800)
    assert process.snapshot.failures == 0
    assert process.error is None


def test_errors_beside_a_snooze_are_in_the_log(scheduler: Scheduler, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "taskqueue"):
        process = run(scheduler, "refused", "snooze")

    assert process.snapshot.failures == 0
    assert "ConnectionRefusedError: no route to a" in caplog.text


@pytest.mark.parametrize(
    ("names", "types", "is_retried"),
    [
        (["refused"], (ConnectionError,), True),
        (["denied"], (ConnectionError,), False),
        (["refused", "reset"], (ConnectionError,), True),
        (["refused", "denied"], (ConnectionError, Denied), True),
        (["refused", "denied"], (ConnectionError,), False),
        (["denied", "refused"], (ConnectionError,), False),
        (["refused", "denied"], (Errors,), True),
    ],
)
def test_retry_on_wants_every_error_of_a_group(
    scheduler: Scheduler, names: list[str], types: tuple[type[Exception], ...], is_retried: bool
) -> None:
    process = run(scheduler, *names, retry=2, retry_on=types)

    assert (process.status is Status.POSTPONED) is is_retried
    assert process.cause == ("retry" if is_retried else "not_retriable")


BY_EXCEPTION = retry.by_exception(
    retry.when(Denied).then(retry.never()),
    retry.when(ConnectionRefusedError).then(retry.many_times(3, 60)),
    retry.when(ConnectionError).then(retry.many_times(3, 600)),
)


@pytest.mark.parametrize(
    ("names", "expected"),
    [(["refused"], 60), (["refused", "reset"], 600), (["reset", "refused"], 600), (["refused", "denied"], None)],
)
def test_each_error_of_a_group_has_its_case_and_the_strictest_decides(
    scheduler: Scheduler, names: list[str], expected: float | None
) -> None:
    process = run(scheduler, *names, retry=BY_EXCEPTION)

    assert process.status is (Status.FAILED if expected is None else Status.POSTPONED)
    assert expected is None or pause(process) == pytest.approx(expected)


class Lenient:
    """A policy of the user's own that gives up after one error only."""

    def decide(self, situation: retry.Situation) -> float | None:
        return None if situation.is_a(f"{__name__}.Denied") and "bob" in situation.message else 90.0


@pytest.mark.parametrize(("names", "is_retried"), [(["refused", "key"], True), (["refused", "denied too"], False)])
def test_a_policy_of_the_user_is_asked_about_each_error(
    scheduler: Scheduler, names: list[str], is_retried: bool
) -> None:
    process = run(scheduler, *names, retry=retry.custom(Lenient))

    assert process.status is (Status.POSTPONED if is_retried else Status.FAILED)


@pytest.mark.parametrize(
    ("names", "type", "message"),
    [
        (["refused"], "ConnectionRefusedError", "no route to a"),
        (["denied", "denied"], f"{__name__}.Denied", "2 errors: for ann"),
        (["denied", "denied too"], f"{__name__}.Denied", "2 errors: for ann; for bob"),
        (["refused", "key"], "ExceptionGroup", "2 errors: ConnectionRefusedError: no route to a; KeyError: 'x'"),
    ],
)
def test_the_error_that_is_shown_names_the_errors_of_the_group(
    scheduler: Scheduler, names: list[str], type: str, message: str
) -> None:
    error = run(scheduler, *names).error

    assert error is not None
    assert (error.type, error.message) == (type, message)
    assert "ExceptionGroup" in error.traceback
    assert "ExceptionGroup" in (error.type, *error.bases)


class Parent(Job):
    """Waits for its child in a task group."""

    async def start(self) -> str:
        if self.state is None:
            self.checkpoint({})
            self.state = {}
            self.scheduler.add_job(Child, parent=self)

        async def wait() -> None:
            self.wait_children()

        async with TaskGroup() as group:
            group.create_task(wait())
        return "whole"


class Child(Job):
    """Does nothing."""

    def start(self) -> None: ...


def test_a_job_waits_for_its_children_in_a_group(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Parent)

    scheduler.run_pending()

    process.refresh()
    assert process.result == "whole"
    assert process.snapshot.failures == 0


class Steps(StepwiseJob):
    """Snoozes in its first iteration, and fails for good in its second."""

    runs: ClassVar[list[int]] = []

    async def iterate(self) -> bool:
        self.runs.append(self.attempt)
        await in_groups("snooze" if len(self.runs) == 1 else "fail")
        return True


def test_a_step_ends_as_the_instruction_in_its_group_says(scheduler: Scheduler) -> None:
    Steps.runs.clear()
    process = scheduler.add_job(Steps, retry=3)

    scheduler.run_pending()

    process.refresh()
    assert process.status is Status.FAILED
    assert Steps.runs == [1, 1]
    assert process.error is not None
    assert process.error.type == "taskqueue.Fail"


def test_the_caller_gets_the_group_as_it_was_raised_and_nothing_of_a_snooze(scheduler: Scheduler) -> None:
    with pytest.raises(Errors) as raised:
        scheduler.run_job(Grouped, ["refused"], reraise=True)

    assert [type(leaf.error) for leaf in leaves(raised.value)] == [ConnectionRefusedError]
    assert scheduler.run_job(Grouped, ["snooze"], reraise=True).status is Status.POSTPONED


@pytest.mark.parametrize(("name", "outcome"), [("snooze", "Snoozed"), ("fail", "GivenUp"), ("refused", "Failed")])
def test_a_hook_may_run_the_job_in_a_group(url: str, name: str, outcome: str, caplog: pytest.LogCaptureFixture) -> None:
    async def around(_job: RunningJob, proceed: Callable[[], Any]) -> None:
        async with TaskGroup():
            await proceed()

    with Scheduler(url, around_run=around) as scheduler, caplog.at_level(logging.ERROR, "taskqueue"):
        process = run(scheduler, name)

    assert process.attempts[-1].outcome == outcome
    assert caplog.text == ""


def test_an_instruction_of_a_hook_in_a_group_counts(url: str) -> None:
    async def around(_job: RunningJob, proceed: Callable[[], Any]) -> None:
        await proceed()
        await in_groups("snooze")

    with Scheduler(url, around_run=around) as scheduler:
        process = run(scheduler)

    assert process.attempts[-1].outcome == "Snoozed"


def test_a_call_is_tried_again_as_every_error_of_a_group_allows() -> None:
    calls: list[list[str]] = [["refused", "reset"], ["refused", "key"], ["refused"]]

    def call() -> None:
        asyncio.run(in_groups(*calls.pop(0)))

    with pytest.raises(Errors):
        retry.call(call, retry.only_on(retry.many_times(5, 0), ConnectionError))
    assert calls == [["refused"]]


@pytest.mark.parametrize("instruction", ["fail", "retry", "snooze"])
def test_a_call_is_not_tried_again_after_an_instruction_in_a_group(instruction: str) -> None:
    calls: list[list[str]] = [["refused", instruction], ["refused"]]

    with pytest.raises(Errors):
        retry.call(lambda: asyncio.run(in_groups(*calls.pop(0))), retry.many_times(1, 0))
    assert calls == [["refused"]]


@pytest.mark.parametrize("error", [Interrupted("shutdown"), JobTimeout()])
def test_an_interruption_in_a_group_ends_the_run_as_it_was_asked_to(error: Interrupted) -> None:
    grouped = Group("both", [ValueError("first"), Group("inner", [error])])

    assert ran(grouped, "shutdown").outcome == outcomes.Interrupted()
    assert ran(grouped, "cancel").outcome == outcomes.Canceled()
    assert isinstance(ran(grouped, "timeout").outcome, outcomes.TimedOut)
    unasked = ran(grouped, None).outcome
    assert isinstance(unasked, outcomes.Failed)
    assert unasked.failure.message == "a job raised Interrupted without a request to end"


def test_an_error_in_a_group_that_came_up_after_an_interruption_is_one() -> None:
    late = OSError("closed already")
    late.__context__ = Interrupted()

    assert ran(Errors("cleaning", [late]), "shutdown").outcome == outcomes.Interrupted()
    assert isinstance(ran(Errors("cleaning", [late]), None).outcome, outcomes.Failed)


def test_a_module_that_raises_a_group_is_described_by_the_group_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "raising_group.py").write_text(
        "raise ExceptionGroup('no mongodb://app:hidden@db', [ValueError('a'), ValueError('b')])"
    )

    with pytest.raises(CannotLoad) as refused:
        load("raising_group:Mail")

    failure = refused.value.failure
    words = "raising_group:Mail cannot be loaded: no mongodb://app:***@db (2 sub-exceptions)"
    assert (failure.type, failure.message, failure.bases) == ("ExceptionGroup", words, ())
    assert "ValueError: b" in failure.traceback
    assert "hidden" not in failure.traceback


def test_groups_are_taken_apart_whatever_their_class_depth_and_size() -> None:
    deep: BaseException = Denied("deep")
    for _ in range(5_000):
        deep = Errors("deeper", [deep])
    own = Several("mine", [Denied("a"), KeyError("b")])
    own.__cause__ = own

    assert [str(leaf.error) for leaf in leaves(deep)] == ["deep"]
    assert leaves(own)[0].classes[:3] == (Denied, Exception, BaseException)
    assert Several in leaves(own)[0].classes
    assert [type(error) for error in related(own)] == [Several, KeyError, Denied]
    assert len(parts_of(Errors("many", [builtins.type(f"E{n}", (Exception,), {})() for n in range(200)]))) == 50
    assert len(failure_of(Errors("long", [ValueError("x" * 9_000), KeyError("y" * 9_000)])).message) == 8 * 1024


AS_PYTHON_3_10 = """
import builtins, sys, types
from taskqueue.execution.exception_groups import leaves

package = types.ModuleType("exceptiongroup")
package.BaseExceptionGroup = vars(builtins).pop("BaseExceptionGroup")
group = ExceptionGroup("both", [KeyError("a"), OSError("b")])
print([type(leaf.error).__name__ for leaf in leaves(group)])
sys.modules["exceptiongroup"] = package
print([type(leaf.error).__name__ for leaf in leaves(group)])
"""


def test_groups_of_the_package_for_python_3_10_are_taken_apart() -> None:
    printed = subprocess.run([sys.executable, "-c", AS_PYTHON_3_10], check=True, capture_output=True, text=True).stdout

    assert printed.splitlines() == ["['ExceptionGroup']", "['KeyError', 'OSError']"]
