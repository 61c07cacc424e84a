"""What follows from the end of an occurrence (PTS-36, X-12, X-16, X-17, vectors 6, 7 and 16)."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from bson import ObjectId

from taskqueue.errors import InvalidOption
from taskqueue.model.ids import occurrence_id, scheduled_id
from taskqueue.model.lifecycle.outcomes import Canceled, Crashed, Done, Failed, Outcome, Run, TimedOut
from taskqueue.model.lifecycle.pending import canceled, claimed, expired
from taskqueue.model.lifecycle.settle import ended
from taskqueue.model.options import checked, merged
from taskqueue.model.options.new_record import changed, in_force, record
from taskqueue.model.record import Cause, Failure, Holder, Record, Status
from taskqueue.model.retry import FixedRetry
from taskqueue.model.schedules import Again, Every
from taskqueue.model.schedules.origin import FromSchedule, Series, document, origin
from taskqueue.model.schedules.series import NextRun, advance, ends_series, successor

NOON = datetime(2026, 7, 1, 12, tzinfo=timezone.utc)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
END = NOON + 10 * MINUTE
BROKEN = Failure(type="ValueError", message="no such address")
WEB = Holder(seat="web-1", incarnation="a1")


def asked(**options: Any) -> Record:
    """Return the record of a call at noon with these options."""
    given = checked(options)
    return record(job="app:Clean", data="null", options=merged(given, {}, {}), given=given, id=ObjectId(), now=NOON)


def after(first: Record, outcome: Outcome, now: datetime = END) -> Record:
    """Return the record after a run from noon to ``now``."""
    return ended(claimed(first, WEB, NOON + HOUR), outcome, Run(node="web-1", started_at=NOON), now)


def next_of(first: Record, outcome: Outcome | None = None, now: datetime = END) -> Record:
    following = successor(after(first, outcome or Done(), now), now)
    assert following is not None
    return following


def test_the_next_occurrence_is_an_interval_after_the_end() -> None:
    following = next_of(asked(interval="1h"))

    assert (following.status, following.cause, following.ready_at) == (Status.POSTPONED, Cause.SCHEDULED, END + HOUR)


def test_it_is_an_interval_after_the_start_if_that_is_asked_for() -> None:
    assert next_of(asked(interval="1h", interval_reference="start")).ready_at == NOON + HOUR


def test_a_start_that_lies_far_back_is_followed_at_once_and_not_caught_up() -> None:
    following = next_of(asked(interval="1m", interval_reference="start"))  # PTS-36

    assert (following.status, following.ready_at) == (Status.WAITING, END)


def test_after_a_timeout_the_interval_counts_from_the_end() -> None:
    following = next_of(asked(interval=10, interval_reference="start"), TimedOut(failure=BROKEN))  # PTS-36, vector 7

    assert following.ready_at == END + 10 * SECOND


def test_minus_one_is_at_once() -> None:
    following = next_of(asked(interval=-1))

    assert (following.status, following.ready_at) == (Status.WAITING, END)


def test_a_base_time_is_met_by_every_occurrence() -> None:
    first = asked(interval="12:00:00", interval_reference="2026-07-01 03:00:00 UTC")  # LZQ-13

    assert first.ready_at == NOON + 3 * HOUR
    assert next_of(first, now=NOON + 3 * HOUR).ready_at == NOON + 15 * HOUR
    assert next_of(first, now=NOON + 3 * HOUR - SECOND).ready_at == NOON + 3 * HOUR


def test_the_successor_has_all_its_attempts_and_nothing_of_the_last_run() -> None:
    first = asked(interval=60, retry=2, tags=["a"], priority=3, queue="slow", unique="clean", timeout=5)
    failed = replace(after(first, Failed(failure=BROKEN)), state="1", attempts=())
    final = after(replace(failed, failures=2), Failed(failure=BROKEN))
    following = successor(final, END)

    assert following is not None
    assert following.options.retry == FixedRetry(times=2)  # not decremented: PW-15
    assert (following.failures, following.error, following.state, following.holder) == (0, None, None, None)
    assert (following.tags, following.priority, following.queue, following.unique) == (("a",), 3, "slow", "clean")
    assert following.options == first.options
    assert following.given == first.given


def test_a_failed_attempt_with_retries_left_has_no_successor() -> None:
    assert successor(after(asked(interval=60, retry=1), Failed(failure=BROKEN)), END) is None  # vector 6


@pytest.mark.parametrize("outcome", [Failed(failure=BROKEN), TimedOut(failure=BROKEN)])
def test_a_failed_occurrence_does_not_end_the_series(outcome: Outcome) -> None:
    assert next_of(asked(interval=60), outcome).ready_at == END + MINUTE


def test_a_crashed_occurrence_does_not_end_the_series() -> None:
    assert next_of(asked(interval=60, crash_retries=0), Crashed(failure=BROKEN)).ready_at == END + MINUTE


def test_a_canceled_occurrence_ends_the_series() -> None:
    waiting = asked(interval=60)

    assert successor(canceled(waiting, "", NOON), NOON) is None
    assert successor(after(waiting, Canceled()), END) is None
    assert successor(after(canceled(claimed(waiting, WEB, END), "enough", NOON), Done()), END) is None


def test_a_replaced_occurrence_leaves_the_series_to_its_successor() -> None:
    assert successor(canceled(asked(interval=60), "", NOON, Cause.REPLACED), NOON) is None


def test_an_occurrence_that_expired_is_followed_by_one_with_the_same_patience() -> None:
    first = asked(interval="1h", expires="+5m")
    assert first.expires_at == NOON + 5 * MINUTE
    late = expired(first, END)
    following = successor(late, END)

    assert following is not None
    assert following.expires_at == END + HOUR + 5 * MINUTE


def test_max_runs_counts_occurrences() -> None:
    first = asked(interval=60, max_runs=2)
    second = next_of(first)
    last = after(second, Done())

    assert successor(last, END) is None
    assert ends_series(last) == "max_runs=2 is reached"


def test_nothing_runs_after_until() -> None:
    first = asked(interval="1h", until=END + HOUR)

    assert next_of(first).ready_at == END + HOUR
    last = after(first, Done(), END + SECOND)
    assert successor(last, END + SECOND) is None
    assert "until=2026-07-01 13:10:00 UTC" in ends_series(last)


def test_failures_in_a_row_can_stop_a_series() -> None:
    first = asked(interval=60, stop_after_failures=2)
    second = next_of(first, Failed(failure=BROKEN))
    recovered = next_of(second, Done())
    last = after(second, Failed(failure=BROKEN))

    assert successor(last, END) is None
    assert ends_series(last) == "stop_after_failures=2 is reached"
    assert isinstance(recovered.origin, Series)
    assert recovered.origin.failed == 0


def test_the_ids_of_a_series_follow_from_its_id() -> None:
    first = asked(interval=60)
    second = next_of(first)

    assert second.id == occurrence_id(first.id, 2) == next_of(first, now=END + HOUR).id
    assert next_of(second).id == occurrence_id(first.id, 3)
    assert len({occurrence_id(first.id, number) for number in range(1000)}) == 1000


def test_a_job_without_interval_has_no_successor() -> None:
    assert successor(after(asked(), Done()), END) is None
    assert ends_series(after(asked(), Done())) == ""


def test_a_schedule_that_waits_for_the_end_learns_its_next_time() -> None:
    fired = FromSchedule(schedule="nightly", slot=NOON, trigger=Every(60))
    job = replace(asked(), origin=fired)

    assert advance(after(job, Done()), END) == NextRun(schedule="nightly", job=job.id, next_run_at=END + MINUTE)
    assert advance(after(replace(job, origin=replace(fired, trigger=None)), Done()), END) is None
    assert advance(job, END) is None


@pytest.mark.parametrize(
    "given_one",
    [
        Series(id=ObjectId(), trigger=Again(), max_runs=3),
        Series(id=ObjectId(), trigger=Every(5, NOON), until=END, occurrence=7, failed=2, expires_for=1.5),
        FromSchedule(schedule="nightly", slot=NOON),
        FromSchedule(schedule="nightly", slot=NOON, trigger=Every(60, "end")),
    ],
)
def test_an_origin_is_read_back_as_it_was(given_one: Series | FromSchedule) -> None:
    assert origin(document(given_one)) == given_one


def test_a_slot_has_one_id() -> None:
    assert scheduled_id("a", NOON) == scheduled_id("a", NOON)
    assert (
        len({scheduled_id("a", NOON), scheduled_id("b", NOON), scheduled_id("a", END), scheduled_id("a", NOON, "next")})
        == 4
    )


@pytest.mark.parametrize(
    "options",
    [
        {"interval": -2},
        {"interval": True},
        {"interval": 0.0001},
        {"interval": "often"},
        {"interval": 60, "interval_reference": "middle"},
        {"interval": 60, "max_runs": 0},
        {"interval": 60, "stop_after_failures": 101},
        {"interval": 60, "until": "soon"},
        {"interval": 60, "until": NOON - SECOND},
        {"interval": 60, "until": "+1h", "at": "+2h"},
        {"interval": "12h", "interval_reference": "2026-07-01 03:00 UTC", "until": "+1h"},
        {"interval": 60, "expires": NOON + HOUR},
        {"max_runs": 3},
        {"until": "+1h"},
        {"interval_reference": "start"},
    ],
)
def test_what_makes_no_series_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        asked(**options)


def test_an_interval_below_zero_is_told_what_minus_one_is() -> None:
    with pytest.raises(InvalidOption, match="interval=-2: pass a duration such as '5m', or -1 for at once"):
        asked(interval=-2)


@pytest.mark.parametrize("interval", [None, 0])
def test_no_interval_is_no_series(interval: object) -> None:
    assert asked(interval=interval).origin is None


def test_the_options_of_a_series_are_compared_as_they_are_kept() -> None:
    first = asked(interval="5m", interval_reference=NOON, until="+1 day", max_runs=9)

    assert changed(first, checked({"interval": 300, "interval_reference": NOON, "until": "+1 day"})) == []
    assert changed(first, checked({"interval": -1, "max_runs": 8})) == ["interval", "max_runs"]
    assert changed(asked(), checked({"interval": 60})) == ["interval"]
    assert in_force(asked(interval=-1))["interval"] == -1
