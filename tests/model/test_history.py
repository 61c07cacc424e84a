"""Figures are added up in any order to the same, percentiles are bounds, and the number of classes has a bound."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskqueue.model.history import (
    BUCKETS,
    MOST_CLASSES,
    MOST_ERRORS,
    OTHER,
    Durations,
    Figures,
    Part,
    Step,
    add_figures,
    add_part,
    add_parts,
    count_end,
    entry,
    part_of_text,
    part_text,
    within_bounds,
)
from taskqueue.model.record import Status

NOON = datetime(2026, 7, 1, 12, tzinfo=timezone.utc)


def running(durations: list[int]) -> Durations:
    """Return what is counted of runs that took so many milliseconds."""
    figures: Figures = {}
    for duration in durations:
        count_end(figures, Status.DONE, 1, None, duration, None)
    return entry(NOON, Step.MINUTE, "mail", "app:Mail", figures).running


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=50))
def test_a_percentile_is_a_bound_that_enough_jobs_do_not_exceed(durations: list[int]) -> None:
    found = running(durations)

    for percent in (1, 50, 95, 100):
        bound = found.percentile(percent)
        assert sum(duration / 1000 <= bound for duration in durations) * 100 >= percent * len(durations)
        assert bound in (*BUCKETS, max(durations) / 1000)
    assert (found.number, found.total, found.longest) == (len(durations), sum(durations) / 1000, max(durations) / 1000)


def test_a_duration_is_in_the_bucket_of_the_first_bound_that_it_does_not_exceed() -> None:
    assert running([0, 1, 2, 3, 604_800_000, 604_800_001]).buckets == {
        0.001: 2,
        0.002: 1,
        0.005: 1,
        604800.0: 1,
        float("inf"): 1,
    }


figures = st.dictionaries(st.sampled_from(("done", "ran", "longest_run", "r3", "e:app.Broken")), st.integers(1, 9))


@given(st.lists(figures, max_size=5))
def test_figures_add_up_to_the_same_in_any_order(some: list[Figures]) -> None:
    forth: Figures = {}
    back: Figures = {}
    for one in some:
        add_figures(forth, one)
    for one in reversed(some):
        add_figures(back, one)

    assert forth == back
    assert forth.get("done", 0) == sum(one.get("done", 0) for one in some)
    assert forth.get("longest_run", 0) == max((one.get("longest_run", 0) for one in some), default=0)


def test_classes_and_queues_beyond_many_are_counted_together() -> None:
    part: Part = {}
    for number in range(MOST_CLASSES + 3):
        add_part(part, {("mail", f"app:Job{number}"): {"done": 1}, (f"queue{number}", "app:Job0"): {"done": 1}})

    assert part[("mail", OTHER)] == {"done": 3}
    assert part[(OTHER, "app:Job0")] == {"done": 4}
    assert len({job for _, job in part}) == len({queue for queue, _ in part}) == MOST_CLASSES + 1


def test_errors_beyond_many_are_counted_together() -> None:
    part: Part = {}
    for number in range(MOST_ERRORS + 3):
        add_part(part, {("mail", "app:Mail"): {f"e:app.Error{number:02}": 1, "failed": 1}})
    add_part(part, {("mail", "app:Mail"): {"e:app.Error00": 1, "failed": 1}})

    errors = entry(NOON, Step.MINUTE, "mail", "app:Mail", part[("mail", "app:Mail")]).errors

    assert (len(errors), errors[OTHER], errors["app.Error00"], sum(errors.values())) == (MOST_ERRORS + 1, 3, 2, 24)


def test_fingerprints_beyond_many_are_counted_together() -> None:
    part: Part = {}
    for number in range(MOST_ERRORS + 3):
        add_part(part, {("mail", "app:Mail"): {f"x:app.Error: {chr(97 + number)}": 2, "e:app.Error": 2, "failed": 2}})

    figures = part[("mail", "app:Mail")]
    assert figures[f"x:{OTHER}"] == 6
    assert len([name for name in figures if name.startswith("x:")]) == MOST_ERRORS + 1
    assert figures["e:app.Error"] == 2 * (MOST_ERRORS + 3)


def test_names_beyond_many_are_added_as_other() -> None:
    errors = {f"e:app.Error{number}": 1 for number in range(MOST_ERRORS)}
    known: Part = {("mail", f"app:Job{number}"): dict(errors) for number in range(MOST_CLASSES)}
    more: Part = {("mail", "app:Job0"): {"e:app.Error1": 2, "e:app.New": 1}, ("mail", "app:New"): {"e:app.New": 3}}

    assert within_bounds(more, known) == {
        ("mail", "app:Job0"): {"e:app.Error1": 2, f"e:{OTHER}": 1},
        ("mail", OTHER): {"e:app.New": 3},
    }


def test_parts_come_back_from_their_text() -> None:
    part: Part = {("mail", "app:Mail"): {"done": 2, "e:app.Bröken": 1}, ("a", "b"): {"added": 1}}

    assert part_of_text(part_text(part)) == part


@pytest.mark.parametrize("damaged", [None, 1, "", "{", '"mail"', "[1]", "[[1, 2]]"])
def test_damaged_text_is_an_error(damaged: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        part_of_text(damaged)


def test_minutes_add_up_to_their_hour() -> None:
    hours: dict[int, Part] = {}

    add_parts(hours, {at: {("mail", "app:Mail"): {"done": 1}} for at in (0, 60_000, 3_540_000, 3_600_000)}, Step.HOUR)

    assert {at: part[("mail", "app:Mail")] for at, part in hours.items()} == {0: {"done": 3}, 3_600_000: {"done": 1}}
