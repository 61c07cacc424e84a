"""What a node logs of each run: its level, its words and its fields."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta

import pytest

from taskqueue.daemon.node.run_log import MESSAGE_LIMIT, log_run, runs
from taskqueue.model.lifecycle import outcomes
from taskqueue.model.lifecycle.continuation import Continuation, Phase
from taskqueue.model.lifecycle.outcomes import Outcome
from taskqueue.model.lifecycle.settle import ended
from taskqueue.model.record import Failure, Options, Record, Status
from taskqueue.model.retry import FixedRetry
from tests.model.lifecycle.test_pending import NOW, RUN, a_record

WRONG = Failure(type="ValueError", message="no such address\nand a second line")
PATIENT = timedelta(hours=1)
TOOK = timedelta(milliseconds=120)
STEP = Continuation(phase=Phase.RUNNING)
AGAIN = Options(retry=FixedRetry(times=1, interval=90))


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def logged(after: Record, level: int = logging.DEBUG) -> logging.LogRecord | None:
    """Return what is logged of a run that led to the record."""
    lines, before = Lines(), runs.level
    runs.addHandler(lines)
    runs.setLevel(level)
    try:
        log_run(after, NOW + TOOK)
    finally:
        runs.setLevel(before)
        runs.removeHandler(lines)
    return lines.records[0] if lines.records else None


def line(record: Record, outcome: Outcome) -> tuple[str, str]:
    """Return level and words of the line when the outcome has been settled."""
    found = logged(ended(record, outcome, RUN, NOW + TOOK))
    assert found is not None
    return found.levelname, found.getMessage()


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

    level = "ERROR" if "it ends as" in words else "WARNING"
    run = "" if isinstance(outcome, outcomes.CheckFailed) else " (attempt 1, 120 ms)"
    assert line(record, outcome) == (level, f"app:Mail failed with {words}{run}")


def test_a_run_that_is_done_is_one_line_with_attempt_and_time() -> None:
    assert line(a_record(Status.PROCESSING), outcomes.Done()) == ("INFO", "app:Mail is done (attempt 1, 120 ms)")


@pytest.mark.parametrize(
    "outcome",
    [
        outcomes.Canceled(),
        outcomes.Snoozed(seconds=5),
        outcomes.NotReady(reason="no file"),
        outcomes.HandedBack(),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
def test_a_run_that_neither_succeeded_nor_failed_is_logged_at_debug(outcome: Outcome) -> None:
    level, words = line(a_record(Status.PROCESSING, error=WRONG), outcome)

    assert level == "DEBUG"
    assert words.startswith("app:Mail is ")


def test_an_interrupted_run_is_logged_at_info_and_at_warning_where_nobody_asked_for_it() -> None:
    record = a_record(Status.PROCESSING)

    assert line(record, outcomes.Interrupted()) == (
        "INFO",
        "app:Mail was interrupted; it runs again (attempt 1, 120 ms)",
    )
    assert line(record, outcomes.Interrupted(failure=WRONG)) == (
        "WARNING",
        "app:Mail was interrupted: no such address; it runs again (attempt 1, 120 ms)",
    )


def test_a_canceled_job_that_cleans_up_is_logged_at_debug() -> None:
    assert line(a_record(Status.PROCESSING, course=STEP), outcomes.Canceled())[0] == "DEBUG"


def test_nothing_is_made_of_a_run_below_the_level() -> None:
    assert logged(ended(a_record(Status.PROCESSING), outcomes.Done(), RUN, NOW), logging.WARNING) is None


def test_the_line_has_the_fields_of_the_run_and_a_final_failure_its_traceback() -> None:
    record = a_record(Status.PROCESSING, queue="mail")
    failed = outcomes.Failed(failure=replace(WRONG, traceback="Traceback\nValueError: no such address\n"))

    found = logged(ended(record, failed, RUN, NOW + TOOK))

    assert found is not None
    assert found.exc_text == "Traceback\nValueError: no such address"
    fields = vars(found)
    assert (fields["job_id"], fields["job"], fields["queue"], fields["attempt"]) == (
        *(str(record.id), "app:Mail", "mail", 1),
    )
    assert (fields["status"], fields["cause"], fields["took"]) == ("FAILED", "failed", 0.12)


def test_a_failed_attempt_that_is_not_the_last_has_no_traceback() -> None:
    failed = outcomes.Failed(failure=replace(WRONG, traceback="Traceback\n"))

    found = logged(ended(a_record(Status.PROCESSING, options=AGAIN), failed, RUN, NOW))

    assert found is not None
    assert found.exc_text is None


def test_a_long_message_is_cut() -> None:
    _, words = line(a_record(Status.PROCESSING), outcomes.Failed(failure=replace(WRONG, message="y" * 5000)))

    assert words.count("y") == MESSAGE_LIMIT


def test_a_clock_that_is_behind_makes_no_run_shorter_than_nothing() -> None:
    late = RUN._replace(started_at=NOW + TOOK + timedelta(milliseconds=1))
    found = logged(ended(a_record(Status.PROCESSING), outcomes.Done(result=None), late, NOW + TOOK))

    assert found is not None
    assert found.getMessage().endswith("is done (attempt 1, 0 ms)")
