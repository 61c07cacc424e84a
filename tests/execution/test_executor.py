"""How a run ends when it is interrupted from outside, and what is kept of errors."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from typing import Any

import pytest
from bson import ObjectId

from taskqueue import Interrupted, Job, JobTimeout, Retry, Snooze
from taskqueue.execution.attempt import finished
from taskqueue.execution.executor import Ran, execute
from taskqueue.execution.failures import MESSAGE_LIMIT, TRACEBACK_LIMIT, brief, failure_of
from taskqueue.execution.job_context import JobContext
from taskqueue.execution.loader import Loaded
from taskqueue.execution.run import Run
from taskqueue.model.lifecycle import outcomes


class Context(JobContext):
    """Surrounds a run that does nothing with it."""

    scheduler: Any = None

    def __init__(self, interrupts: Guard) -> None:
        run = Run(
            id=str(ObjectId()),
            claims=1,
            job="tests:Ending",
            data="null",
            state=None,
            attempt=1,
            is_last=True,
            timeout=None,
            force_spawn=False,
            queue="default",
        )
        super().__init__(run, interrupts)

    def report_check(self) -> None:
        """Say nothing."""

    def report_start(self) -> bool:
        """Begin."""
        return True

    def _run_coroutine(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run nothing."""

    def _keep_progress(self, percent: float, message: str) -> None:
        """Keep nothing."""

    def _keep_state(self, text: str) -> None:
        """Keep nothing."""

    def _keep_position(self, text: str) -> None:
        """Keep nothing."""

    def _keep_line(self, at: float, level: str, logger: str, text: str) -> None:
        """Keep nothing."""


class Guard(nullcontext[None]):
    """Ends the run for one reason, or asks it to end by itself."""

    def __init__(self, stop_reason: str | None, stopping: bool = False) -> None:
        super().__init__()
        self.stop_reason = stop_reason
        self.stopping = stopping

    def deliver_to(self, cancel: Callable[[str], bool]) -> None:
        """Cancel nothing."""


class Ending(Job):
    """Raises its data, which no store could keep."""

    error: BaseException | None = None

    def start(self) -> str:
        if self.error is not None:
            raise self.error
        return "returned"


class CleaningUp(Ending):
    """Fails while it is interrupted."""

    def start(self) -> str:
        try:
            raise Interrupted
        finally:
            raise OSError("the connection is closed already")


def ran(
    error: BaseException | None, stop_reason: str | None, job: type[Ending] = Ending, stopping: bool = False
) -> Ran:
    """Run a job that ends with the error while this is the reason to stop."""

    def make() -> Job:
        ending = job()
        ending.error = error
        return ending

    loaded = Loaded(path="tests:Ending", make=make, work="start", has_hooks=True)
    interrupts = Guard(stop_reason, stopping)
    ran: Ran = finished(execute(loaded, Context(interrupts), interrupts))
    return ran


@pytest.mark.parametrize(
    ("error", "stop_reason", "outcome"),
    [
        (None, None, outcomes.Done),
        (None, "shutdown", outcomes.Done),
        (None, "cancel", outcomes.Canceled),
        (None, "timeout", outcomes.TimedOut),
        (None, "lost", outcomes.Done),
        (ValueError(), None, outcomes.Failed),
        (ValueError(), "shutdown", outcomes.Failed),
        (ValueError(), "cancel", outcomes.Canceled),
        (ValueError(), "timeout", outcomes.TimedOut),
        (Interrupted(), None, outcomes.Failed),
        (Interrupted("shutdown"), "shutdown", outcomes.Interrupted),
        (Interrupted("cancel"), "cancel", outcomes.Canceled),
        (Interrupted("lost"), "lost", outcomes.Interrupted),
        (JobTimeout(), "timeout", outcomes.TimedOut),
        (JobTimeout(), None, outcomes.Failed),
    ],
)
def test_what_ends_a_run_from_outside_decides(
    error: BaseException | None, stop_reason: str | None, outcome: type
) -> None:
    assert type(ran(error, stop_reason).outcome) is outcome


@pytest.mark.parametrize("error", [Interrupted("cancel"), JobTimeout()])
def test_an_interruption_that_nobody_asked_for_is_a_failure(error: Interrupted) -> None:
    outcome = ran(error, None).outcome

    assert isinstance(outcome, outcomes.Failed)
    assert outcome.failure.message == "a job raised Interrupted without a request to end"


def test_a_job_may_end_itself_when_its_node_stops() -> None:
    assert ran(Interrupted(), None, stopping=True).outcome == outcomes.Interrupted()
    assert ran(None, None, CleaningUp, stopping=True).outcome == outcomes.Interrupted()
    assert isinstance(ran(None, None, stopping=True).outcome, outcomes.Done)


def test_an_error_while_a_job_is_shut_down_is_an_interruption() -> None:
    assert ran(None, "shutdown", CleaningUp).outcome == outcomes.Interrupted()
    assert isinstance(ran(None, None, CleaningUp).outcome, outcomes.Failed)


class Late(Context):
    """Is interrupted before the coroutine of the job has begun."""

    def _run_coroutine(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        raise Interrupted("shutdown")


class Unbegun(Job):
    """Has a coroutine that is never begun."""

    async def start(self) -> None:
        """Do nothing."""


def test_a_coroutine_that_an_interruption_kept_from_its_start_is_warned_of_nowhere() -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        interrupts = Guard("shutdown")
        loaded = Loaded(path="tests:Unbegun", make=Unbegun, work="start", has_hooks=False)
        ended: Ran | None = finished(execute(loaded, Late(interrupts), interrupts))
        assert ended is not None
        assert isinstance(ended.outcome, outcomes.Interrupted)
        ended = None
        gc.collect()

    assert warned == []


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


class Misreturning(Ending):
    def start(self) -> Any:
        return {Unspeakable(): 1}


def test_a_result_whose_own_code_raises_ends_the_job() -> None:
    outcome = ran(None, None, Misreturning).outcome

    assert isinstance(outcome, outcomes.GivenUp)
    assert "has the key an Unspeakable whose repr() raises RuntimeError" in outcome.failure.message


class ComputedFloat(float):
    def __float__(self) -> float:
        return float("nan")


@pytest.mark.parametrize("seconds", [None, "60", -1, 1e12, 10**400, float("nan"), ComputedFloat(5)], ids=type)
def test_times_that_were_set_in_an_exception_later_fail_the_attempt(seconds: Any) -> None:
    snooze, retry = Snooze(60), Retry(60)
    snooze.seconds, retry.delay = seconds, seconds

    snoozed, retried = ran(snooze, None).outcome, ran(retry, None).outcome

    assert isinstance(snoozed, outcomes.Failed)
    assert "Snooze(" in snoozed.failure.message
    assert "pass seconds between 0 and ten years" in snoozed.failure.message
    assert isinstance(retried, outcomes.Failed)
    assert ("Retry(" in retried.failure.message) == (seconds is not None)  # without a time the policy decides


class Incomparable(Exception):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = Exception.__hash__


def test_errors_that_cannot_be_compared_are_failures_with_their_cause() -> None:
    error = Incomparable("second")
    error.__cause__ = Incomparable("first")

    outcome = ran(error, None, stopping=True).outcome

    assert isinstance(outcome, outcomes.Failed)
    assert "first" in outcome.failure.traceback


def test_errors_are_cut_and_made_storable() -> None:
    long = failure_of(ValueError("x" * 100_000))
    assert len(long.message) == MESSAGE_LIMIT
    assert len(long.traceback) == TRACEBACK_LIMIT
    assert failure_of(ValueError("\udc80")).message == "\\udc80"
    assert failure_of(Unspeakable()).message == "(its __str__ raised RuntimeError)"
    assert brief(Unspeakable()) == "Unspeakable: (its __str__ raised RuntimeError)"


def test_an_error_is_named_with_its_bases() -> None:
    failure = failure_of(Unspeakable())

    assert failure.type == "tests.execution.test_executor.Unspeakable"
    assert failure.bases == ("Exception", "BaseException")


class Typed(Job[int, None]):
    """Tells its hook what it has."""

    heard: object = None

    def start(self) -> None:
        """Do nothing."""

    def on_last_failure(self, error: Exception) -> None:
        self.log.info("%s: %s", self.id, error)
        self.heard = self.data


def test_the_hooks_of_a_job_whose_data_do_not_fit_have_them_as_they_are_kept() -> None:
    interrupts = Guard(None)
    context = Context(interrupts)
    context.data = '"soon"'
    loaded = Loaded(path="tests:Typed", make=Typed, work="start", target=Typed, has_hooks=True)

    misfit: Ran = finished(execute(loaded, context, interrupts))

    assert isinstance(misfit.outcome, outcomes.GivenUp)
    assert isinstance(misfit.job, Typed)
    misfit.job.on_last_failure(ValueError())
    assert (misfit.job.id, misfit.job.heard) == (context.id, "soon")
