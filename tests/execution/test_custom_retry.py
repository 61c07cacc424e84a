"""Retry policies of a user's own, asked in the process that runs the job, and calls that are retried in it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from taskqueue import Fail, Interrupted, Retry, Scheduler, Snooze, Status, retry
from taskqueue.errors import InvalidOption
from taskqueue.execution.loader import load_policy
from taskqueue.execution.retries import bound
from taskqueue.model.job import AwaitChildren
from taskqueue.model.record import Cause
from tests.scheduler.jobs import Broken, Deferring, Lucky, Remembering
from tests.store.records import NOON


class Counting:
    """Retries until so many attempts have failed."""

    def __init__(self, times: int = 1) -> None:
        self.times = times

    def decide(self, situation: retry.Situation) -> timedelta | None:
        """Return a pause that is written as a timedelta."""
        return timedelta(seconds=5) if situation.failures <= self.times else None

    def is_last(self, situation: retry.Situation) -> bool:
        """Return whether so many have failed."""
        return situation.failures > self.times


class Misjudging:
    """Cannot tell which attempt is the last, gives up with a reason."""

    def decide(self, _situation: retry.Situation) -> retry.GiveUp:
        """Give up."""
        return retry.GiveUp(reason="the moon is full")

    def is_last(self, _situation: retry.Situation) -> bool:
        """Fail."""
        raise ZeroDivisionError


class Exiting:
    """Wants to leave the process, and names a queue that cannot be."""

    def decide(self, situation: retry.Situation) -> retry.RetryIn:
        """Exit at the first failure."""
        if situation.failures == 1:
            raise SystemExit(3)
        return retry.RetryIn(after=0, queue="no queue")


class Mute(OSError):
    """An error whose ``__str__`` raises another."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__()
        self._raised = raised

    def __str__(self) -> str:
        raise self._raised


class Unsaid:
    """Fails with an error in whose ``__str__`` an interrupt arrives."""

    def decide(self, _situation: retry.Situation) -> None:
        """Fail."""
        raise Mute(Interrupted("shutdown"))


def situation(failures: int = 1) -> retry.Situation:
    """Return the situation after so many failures."""
    return retry.Situation(failures=failures, created_at=NOON, due_at=NOON, now=NOON, errors=("OSError", "Exception"))


def test_run_pending_asks_the_class_too(scheduler: Scheduler) -> None:
    lucky = scheduler.add_job(Lucky, 3, retry=retry.custom(Counting, times=2))
    broken = scheduler.add_job(Broken, retry=retry.custom(Counting, times=2))

    scheduler.run_pending()

    assert lucky.refresh().result == 3
    assert (broken.refresh().cause, len(broken.attempts)) == (Cause.EXHAUSTED, 3)


def test_a_class_within_other_policies_is_asked(scheduler: Scheduler) -> None:
    counting = retry.custom(Counting, times=2)
    within = retry.by_exception(
        retry.when(OSError).then(retry.only_on(counting, OSError)), retry.when(ValueError).then(retry.never())
    )
    lucky = scheduler.add_job(Lucky, 3, retry=within)
    broken = scheduler.add_job(Broken, retry=within)

    scheduler.run_pending()

    assert lucky.refresh().result == 3
    assert (broken.refresh().status, len(broken.attempts)) == (Status.FAILED, 1)


def test_the_reason_to_give_up_is_kept(scheduler: Scheduler) -> None:
    process = scheduler.run_job(Broken, retry=retry.custom(Misjudging))

    assert process.cause is Cause.FAILED
    assert process.error is not None
    assert process.error.message == "no such address, attempt 1 (the moon is full)"


@pytest.mark.parametrize(("failures", "words"), [(1, "SystemExit: 3"), (2, "queue='no queue'")])
def test_what_a_class_does_wrong_is_said(failures: int, words: str) -> None:
    policy = bound(retry.custom(Exiting), load_policy)

    decision = policy.decide(situation(failures))

    assert isinstance(decision, retry.GiveUp)
    assert words in decision.reason
    assert not policy.is_last(situation())


def test_an_interrupt_in_the_str_of_what_a_class_raises_is_raised() -> None:
    with pytest.raises(Interrupted):
        bound(retry.custom(Unsaid), load_policy).decide(situation())


def test_a_bound_policy_is_told_as_it_was() -> None:
    kept = retry.custom(Counting, times=2)

    assert bound(kept, load_policy).document() == kept.document()
    assert str(bound(kept, load_policy)) == str(kept)
    assert bound(retry.never(), load_policy) is retry.never()


def test_whether_an_attempt_is_the_last_is_for_the_class_to_say() -> None:
    assert bound(retry.custom(Counting), load_policy).is_last(situation(2))
    assert not bound(retry.custom(Misjudging), load_policy).is_last(situation(2))


# What a job says of its end, and is told of its beginning


def test_a_job_can_say_how_it_ends_and_go_on(scheduler: Scheduler) -> None:  # row 54, X-10
    process = scheduler.run_job(Deferring, retry=5, retry_interval=60)

    assert (process.status, process.cause) == (Status.POSTPONED, Cause.RETRY)
    assert process.ready_at is not None
    assert process.ready_at - process.attempts[0].ended_at == timedelta(seconds=7)
    scheduler.run_pending()
    assert (process.refresh().status, process.result) == (Status.FAILED, None)
    assert process.error is not None
    assert process.error.message == "had enough"


def test_what_a_job_raises_wins_over_what_it_said(scheduler: Scheduler) -> None:
    process = scheduler.run_job(Deferring, "raise", retry=0)

    assert process.error is not None
    assert process.error.type == "OSError"


def test_a_job_is_told_the_error_before(scheduler: Scheduler) -> None:  # row 52, REC-19
    process = scheduler.run_job(Remembering, retry=1)
    scheduler.run_pending()

    assert process.refresh().result == ["OSError", "no disk", ""]


# Calls that are retried here


class Flaky:
    """A function that raises what it is given, one after the other, and then returns."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors: Iterator[BaseException] = iter(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        for error in self.errors:
            raise error
        return "through"


def test_a_call_is_tried_until_it_works() -> None:  # row 58
    flaky = Flaky(OSError(), ValueError())

    assert retry.call(flaky, retry.many_times(2, 0.001)) == "through"
    assert flaky.calls == 3


def test_an_error_whose_str_raises_is_retried_like_others() -> None:
    assert retry.call(Flaky(Mute(RuntimeError())), retry.many_times(1, 0)) == "through"


@pytest.mark.parametrize("interrupt", [Interrupted("timeout"), KeyboardInterrupt()])
def test_an_interrupt_in_the_str_of_an_error_is_raised(interrupt: BaseException) -> None:
    flaky = Flaky(Mute(interrupt))

    with pytest.raises(type(interrupt)):
        retry.call(flaky, retry.many_times(1, 0))
    assert flaky.calls == 1


def test_a_call_that_never_works_raises_its_last_error() -> None:
    flaky = Flaky(OSError("first"), OSError("second"))

    with pytest.raises(OSError, match="second"):
        retry.call(flaky, retry.exponential(1, 0.001))


def test_a_call_is_not_tried_after_other_errors() -> None:
    class Local(Exception):
        """Not named by the policy."""

    flaky = Flaky(Local(), OSError())

    with pytest.raises(Local):
        retry.call(flaky, retry.only_on(retry.forever(0), OSError))
    with pytest.raises(KeyboardInterrupt):
        retry.call(Flaky(KeyboardInterrupt()), retry.forever(0))


@pytest.mark.parametrize("policy", [retry.forever(0), retry.only_on(retry.forever(0), Exception)])
@pytest.mark.parametrize("instruction", [Fail("gone"), Retry(60), Snooze(60), AwaitChildren([])])
def test_a_call_is_not_tried_after_what_ends_the_attempt_of_its_job(
    instruction: Exception, policy: retry.RetryPolicy
) -> None:
    flaky = Flaky(OSError(), instruction)

    with pytest.raises(type(instruction)):
        retry.call(flaky, policy)
    assert flaky.calls == 2


def test_a_class_decides_on_calls_too() -> None:
    with pytest.raises(OSError, match="first"):
        retry.call(Flaky(OSError("first"), OSError("second")), retry.custom(Counting, times=0))


def test_a_class_that_others_could_not_find_is_refused() -> None:
    class Inner:
        """Nested."""

    with pytest.raises(InvalidOption, match="top level of its module"):
        retry.custom(Inner)
