"""Figures of a time: the bound is told, and parts make up the whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from taskqueue.model.analytics import ERRORS_KEPT, Analytics, Grouping, Present, Sample, of_history, of_samples
from taskqueue.model.history import OTHER, Parts, add_parts
from taskqueue.model.record import Status
from taskqueue.model.timestamps import milliseconds

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


def figures(samples: Sequence[Sample], at_most: int = 1000) -> Analytics:
    return of_samples(samples, NOON - HOUR, NOON, at_most, NOTHING)


def test_the_tags_of_workflows_are_no_groups() -> None:
    tagged = [replace(sample(1), tags=("mail", "workflow:6b03a65ab569d9f8689b9449"))]

    value = figures(tagged)
    assert ([group.name for group in value.groups], value.whole.done) == (["mail"], 1)


def of_parts(parts: Parts, by: Grouping, since: datetime = NOON - HOUR, until: datetime = NOON) -> Analytics:
    return of_history(parts, by, since, since, until, NOTHING)


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


@given(st.lists(st.sampled_from(("app:Mail", "app:Report")), max_size=30))
def test_groups_make_up_the_whole(jobs: list[str]) -> None:
    parts: Parts = {}
    for at, job in enumerate(jobs):
        add_parts(parts, {milliseconds(NOON) - at * 60_000: {("mail", job): {"done": 1, "added": 3}}})

    value = of_parts(parts, Grouping.CLASS)

    assert {group.name: group.ended for group in value.groups} == Counter(jobs)
    assert value.whole.ended == len(jobs)


def test_parts_of_the_time_come_in_order_with_rates_of_their_own() -> None:
    half_an_hour = timedelta(minutes=30)
    minutes = (0, 1, 2, 59)
    parts: Parts = {milliseconds(NOON) - minute * 60_000: {("mail", "app:Mail"): {"done": 1}} for minute in minutes}
    value = of_parts(parts, Grouping.HOUR, NOON - HOUR - half_an_hour, NOON + half_an_hour)

    assert [(part.name, part.done, part.done_per_minute) for part in value.groups] == [
        ("2026-07-01T11:00Z", 3, 3 / 60),
        ("2026-07-01T12:00Z", 1, 1 / 30),
    ]
    by_day = of_parts(parts, Grouping.DAY).groups
    assert [(part.name, part.ended) for part in by_day] == [("2026-07-01", 4)]


def test_a_part_in_which_no_job_ended_is_left_out() -> None:
    value = of_parts({milliseconds(NOON): {("mail", "app:Mail"): {"added": 1, "started": 1}}}, Grouping.QUEUE)

    assert (value.groups, value.whole.ended) == ((), 0)


def test_rare_errors_are_counted_together() -> None:
    errors = [f"app.Error{number:02}" for number in range(ERRORS_KEPT + 5)]
    samples = [sample(1, Status.FAILED, error=error) for error in [*errors, errors[-1]]]

    counted = figures(samples).whole.errors

    assert next(iter(counted)) == errors[-1]
    assert (len(counted), counted[OTHER], sum(counted.values())) == (ERRORS_KEPT + 1, 5, ERRORS_KEPT + 6)
