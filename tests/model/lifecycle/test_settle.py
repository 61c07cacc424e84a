"""What a failed attempt leads to: what the policy is told, what it decides, and how the record says so."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from bson import ObjectId

from taskqueue import retry
from taskqueue.errors import InvalidOption, WrongStatus
from taskqueue.model.lifecycle.outcomes import Crashed, Failed, Outcome, Run, Stalled, TimedOut
from taskqueue.model.lifecycle.recovered_copy import copy
from taskqueue.model.lifecycle.settle import ended, is_last_attempt
from taskqueue.model.options.update import revised
from taskqueue.model.record import Cause, Failure, Holder, Options, Record, Status
from taskqueue.model.retry import RetryIn, RetryPolicy

NOON = datetime(2026, 7, 1, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)
BROKEN = Failure(type="KeyError", message="no such key", bases=("LookupError", "Exception", "BaseException", "object"))
OVERDUE = Failure(type="taskqueue.JobTimeout", message="too long", bases=("taskqueue.Interrupted", "BaseException"))


def running(policy: RetryPolicy, *, retry_on_timeout: bool = True, **fields: Any) -> Record:
    """Return a record that runs since noon."""
    values: dict[str, Any] = {"created_at": NOON, "started_at": NOON, **fields}
    options = Options(retry=policy, retry_on_timeout=retry_on_timeout)
    holder = Holder(seat="web-1", incarnation="a")
    return Record(
        id=ObjectId(), job="app:Mail", status=Status.PROCESSING, ready_at=NOON + HOUR, holder=holder, claims=1,
        options=options, **values,
    )  # fmt: skip


def after(record: Record, outcome: Outcome, now: datetime = NOON, chance: float = 0.0) -> Record:
    """Return the record after the outcome."""
    return ended(record, outcome, Run(node="web-1", started_at=NOON, chance=chance), now)


def test_the_pause_counts_from_the_failure() -> None:  # vector 3
    record = after(running(retry.many_times(3, 60)), Failed(failure=BROKEN), NOON + HOUR)

    assert (record.status, record.cause, record.ready_at) == (Status.POSTPONED, Cause.RETRY, NOON + HOUR + HOUR / 60)


def test_the_chance_of_the_run_spreads_the_pause() -> None:
    record = after(running(retry.exponential(3, 60, jitter=1)), Failed(failure=BROKEN), chance=0.75)

    assert record.ready_at == NOON + timedelta(seconds=15)


@pytest.mark.parametrize(
    ("given", "pause"),
    [
        ({}, None),
        ({"at": (NOON + 2 * HOUR).isoformat()}, 60),
        ({"at": "+2 hours"}, 60),
        ({"at": NOON.isoformat()}, None),
    ],
)
def test_an_age_counts_from_the_time_the_call_named(given: dict[str, str], pause: int | None) -> None:
    record = running(retry.time_table({"1h": "1m"}), given=given)

    failed = after(record, Failed(failure=BROKEN), NOON + 2 * HOUR + HOUR / 2)

    assert failed.ready_at == (pause and NOON + 2.5 * HOUR + timedelta(seconds=pause))


def test_the_policy_decides_whether_and_the_job_when() -> None:
    asked = Failed(failure=BROKEN, delay=7)

    assert after(running(retry.many_times(1, 60)), asked).ready_at == NOON + timedelta(seconds=7)
    assert after(running(retry.never()), asked).status is Status.FAILED


@pytest.mark.parametrize(
    ("policy", "outcome", "status", "cause"),
    [
        (retry.never(), Failed(failure=BROKEN), Status.FAILED, Cause.FAILED),
        (retry.never(), TimedOut(failure=OVERDUE), Status.TIMEOUT, Cause.TIMED_OUT),
        (retry.never(), Stalled(failure=OVERDUE), Status.TIMEOUT, Cause.STALLED),
        (retry.only_on(retry.forever(), OSError), Failed(failure=BROKEN), Status.FAILED, Cause.NOT_RETRIABLE),
        (retry.custom("app:Mine"), Failed(failure=BROKEN), Status.FAILED, Cause.UNDECIDED),
        (retry.custom("app:Mine"), TimedOut(failure=OVERDUE), Status.TIMEOUT, Cause.UNDECIDED),
        (retry.by_exception(retry.when(OSError).then(retry.forever())), TimedOut(failure=OVERDUE), Status.TIMEOUT,
         Cause.NOT_RETRIABLE),
    ],
)  # fmt: skip
def test_the_cause_says_why_there_is_no_other_attempt(
    policy: RetryPolicy, outcome: Outcome, status: Status, cause: Cause
) -> None:
    record = after(running(policy), outcome)

    assert (record.status, record.cause, record.failures) == (status, cause, 1)
    assert record.error is not None
    assert record.error.type == record.attempts[-1].error.type  # type: ignore[union-attr]


@pytest.mark.parametrize("outcome", [TimedOut(failure=OVERDUE), Stalled(failure=OVERDUE)])
def test_a_timeout_is_retried_unless_that_was_ruled_out(outcome: Outcome) -> None:  # PTS vector 7
    assert after(running(retry.many_times(2, 10)), outcome).ready_at == NOON + timedelta(seconds=10)
    assert after(running(retry.only_on(retry.forever(), OSError)), outcome).cause is Cause.RETRY
    assert after(running(retry.forever(), retry_on_timeout=False), outcome).status is Status.TIMEOUT


def test_a_crash_is_none_of_a_policys_errors() -> None:  # other than REC-25, no filter keeps a job from a rerun
    record = after(running(retry.only_on(retry.never(), OSError)), Crashed(failure=BROKEN))

    assert (record.status, record.cause, record.crashes, record.failures) == (Status.WAITING, Cause.CRASHED, 1, 0)


def test_the_decision_of_a_class_is_followed() -> None:
    record = running(retry.custom("app:Mine"), queue="fast")

    again = after(record, Failed(failure=BROKEN, decision=RetryIn(after=9, queue="slow")))

    assert (again.queue, again.ready_at, again.error) == ("slow", NOON + timedelta(seconds=9), BROKEN)
    assert after(record, Failed(failure=BROKEN, decision=RetryIn(after=9))).queue == "fast"


@pytest.mark.parametrize(("failures", "is_last"), [(0, False), (1, False), (2, True)])
def test_a_job_knows_its_last_attempt(failures: int, is_last: bool) -> None:  # REC-19
    assert is_last_attempt(running(retry.many_times(2), failures=failures), NOON) is is_last


def test_what_runs_is_neither_revised_nor_copied() -> None:
    record = running(retry.never())

    with pytest.raises(WrongStatus):
        revised(record, {"priority": 1}, None, NOON)
    with pytest.raises(WrongStatus):
        copy(record, ObjectId(), None, NOON)


def test_a_waiting_job_is_not_planned_beyond_its_end() -> None:
    waiting = Record(id=ObjectId(), job="app:Mail", created_at=NOON, ready_at=NOON, expires_at=NOON + HOUR)

    with pytest.raises(InvalidOption, match="pass an earlier time"):
        revised(waiting, {"at": NOON + HOUR}, None, NOON)
    assert revised(waiting, {"at": NOON - HOUR}, None, NOON + HOUR / 2).ready_at == NOON - HOUR
