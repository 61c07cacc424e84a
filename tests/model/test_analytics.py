"""Figures of a time: percentiles are values that were there, the bound is told, and parts make up the whole."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from taskqueue.model.analytics import ERRORS_KEPT, OTHERS, Analytics, Grouping, Present, Sample, analytics
from taskqueue.model.record import Status

NOON = datetime(2026, 7, 1, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)
NOTHING = Present(queued=0, running=0, postponed=0, blocked=0, lost=0)
FINAL = [status for status in Status if status.is_final]


def sample(
    seconds_ago: float, status: Status = Status.DONE, ran: int | None = None, error: str | None = None
) -> Sample:
    return Sample(
        queue="mail",
        job="app:Mail",
        status=status,
        ended_at=NOON - timedelta(seconds=seconds_ago),
        attempts=1,
        ran=ran,
        error=error,
    )


def figures(samples: Sequence[Sample], at_most: int = 1000, by: Grouping = Grouping.QUEUE) -> Analytics:
    return analytics(samples, by, NOON - HOUR, NOON, at_most, NOTHING)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=50))
def test_percentiles_are_durations_that_enough_jobs_do_not_exceed(durations: list[int]) -> None:
    running = figures([sample(1, ran=duration) for duration in durations]).whole.running

    assert running is not None
    for percent, found in ((50, running.p50), (95, running.p95)):
        assert sum(duration / 1000 <= found for duration in durations) * 100 >= percent * len(durations)
        assert sum(duration / 1000 < found for duration in durations) * 100 < percent * len(durations)
    assert running.longest == max(durations) / 1000
    assert running.p50 <= running.p95 <= running.longest


def test_one_job_more_than_may_be_looked_at_shortens_the_time() -> None:
    samples = [sample(second) for second in (1, 2, 3, 4)]

    whole, cut = figures(samples, 4), figures(samples, 3)

    assert (whole.since, whole.is_cut, whole.whole.ended) == (NOON - HOUR, False, 4)
    assert (cut.since, cut.is_cut, cut.whole.ended) == (NOON - timedelta(seconds=4), True, 3)
    assert (cut.asked_since, cut.whole.done_per_minute) == (NOON - HOUR, 3 / (4 / 60))


def test_what_ended_at_the_cut_is_left_out_altogether() -> None:
    cut = figures([sample(1), sample(2), sample(2), sample(2)], 3)

    assert (cut.since, cut.whole.ended) == (NOON - timedelta(seconds=2), 1)


def test_a_time_that_is_cut_to_nothing_has_no_rate() -> None:
    cut = figures([sample(0), sample(0)], 1)

    assert (cut.since, cut.until, cut.whole.ended, cut.whole.done_per_minute) == (NOON, NOON, 1, 0.0)


def test_of_more_jobs_in_one_millisecond_than_may_be_looked_at_so_many_are() -> None:
    cut = figures([sample(1)] * 4, 3)

    assert (cut.since, cut.is_cut, cut.whole.ended) == (NOON - timedelta(seconds=1), True, 3)


@given(st.lists(st.builds(sample, st.floats(0, 3600), st.sampled_from(FINAL)), max_size=30))
def test_groups_make_up_the_whole(samples: list[Sample]) -> None:
    value = figures(samples, by=Grouping.CLASS)

    assert sum(group.ended for group in value.groups) == value.whole.ended == len(samples)


def test_parts_of_the_time_come_in_order_with_rates_of_their_own() -> None:
    half_an_hour = timedelta(minutes=30)
    samples = [sample(0), sample(60), sample(120), sample(3600 - 1)]
    value = analytics(samples, Grouping.HOUR, NOON - HOUR - half_an_hour, NOON + half_an_hour, 1000, NOTHING)

    assert [(part.name, part.done, part.done_per_minute) for part in value.groups] == [
        ("2026-07-01T11:00Z", 3, 3 / 60),
        ("2026-07-01T12:00Z", 1, 1 / 30),
    ]
    by_day = figures(samples, by=Grouping.DAY).groups
    assert [(part.name, part.ended) for part in by_day] == [("2026-07-01", 4)]


def test_rare_errors_are_counted_together() -> None:
    errors = [f"app.Error{number:02}" for number in range(ERRORS_KEPT + 5)]
    samples = [sample(1, Status.FAILED, error=error) for error in [*errors, errors[-1]]]

    counted = figures(samples).whole.errors

    assert next(iter(counted)) == errors[-1]
    assert (len(counted), counted[OTHERS], sum(counted.values())) == (ERRORS_KEPT + 1, 5, ERRORS_KEPT + 6)
