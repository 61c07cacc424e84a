"""What a node logs of a run that ended badly, and that it logs nothing of others."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from taskqueue.daemon.node.failure_log import MESSAGE_LIMIT, failure_line
from taskqueue.model.lifecycle import outcomes
from taskqueue.model.lifecycle.continuation import Continuation, Phase
from taskqueue.model.lifecycle.outcomes import Outcome
from taskqueue.model.lifecycle.settle import ended
from taskqueue.model.record import Failure, Options, Record, Status
from taskqueue.model.retry import FixedRetry
from tests.model.lifecycle.test_pending import NOW, RUN, a_record

WRONG = Failure(type="builtins.ValueError", message="no such address\nand a second line")
PATIENT = timedelta(hours=1)
STEP = Continuation(phase=Phase.RUNNING)
AGAIN = Options(retry=FixedRetry(times=1, interval=90))


def told(record: Record, outcome: Outcome) -> str | None:
    """Return what is logged when the outcome has been settled."""
    return failure_line(ended(record, outcome, RUN, NOW), NOW)


@pytest.mark.parametrize(
    ("outcome", "given", "words"),
    [
        (outcomes.Failed(failure=WRONG), {}, "ValueError: no such address; it ends as FAILED (failed)"),
        (outcomes.Failed(failure=WRONG), {"options": AGAIN}, "ValueError: no such address; it runs again in 2 min"),
        (
            outcomes.Failed(failure=WRONG, delay=0),
            {"options": AGAIN},
            "ValueError: no such address; it runs again at once",
        ),
        (outcomes.TimedOut(failure=WRONG), {}, "ValueError: no such address; it ends as TIMEOUT (timed_out)"),
        (outcomes.Crashed(failure=replace(WRONG, type="a.B", message="")), {}, "a.B; it runs again at once"),
        (
            outcomes.Unloadable(failure=WRONG, retry_for=PATIENT),
            {},
            "ValueError: no such address; it is tried again in 1 s",
        ),
        (outcomes.CheckFailed(failure=WRONG), {}, "ValueError: no such address; it is asked again in 1 s"),
        (outcomes.GivenUp(failure=WRONG), {"course": STEP}, "ValueError: no such address; it cleans up at once"),
    ],
)
def test_the_error_and_what_follows_are_one_line(outcome: Outcome, given: dict[str, object], words: str) -> None:
    record = a_record(Status.PROCESSING, **given)

    assert told(record, outcome) == f"app:Mail failed with {words}: job {record.id}"


@pytest.mark.parametrize(
    "outcome",
    [
        outcomes.Done(),
        outcomes.Canceled(),
        outcomes.Snoozed(seconds=5),
        outcomes.NotReady(reason="no file"),
        outcomes.Interrupted(),
        outcomes.HandedBack(),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
def test_of_what_did_not_go_wrong_there_is_no_line(outcome: Outcome) -> None:
    assert told(a_record(Status.PROCESSING, error=WRONG), outcome) is None


def test_of_a_canceled_job_that_cleans_up_there_is_no_line() -> None:
    assert told(a_record(Status.PROCESSING, course=STEP), outcomes.Canceled()) is None


def test_a_long_message_is_cut() -> None:
    line = told(a_record(Status.PROCESSING), outcomes.Failed(failure=replace(WRONG, message="x" * 5000)))

    assert line is not None
    assert line.count("x") == MESSAGE_LIMIT
