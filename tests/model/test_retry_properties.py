"""What holds for every retry policy in every situation: it decides, sticks to that, and more is never less."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as some

from taskqueue.model.retry import (
    Case,
    Decision,
    ExponentialRetry,
    FilteredRetry,
    GiveUp,
    RetryIn,
    RetryPolicy,
    SelectedRetry,
    Situation,
    TableRetry,
)
from tests.model.test_retry import COUNTED, HOUR, NAMES, NOT_RETRIABLE, POLICIES, SITUATIONS

JITTERED = some.builds(
    ExponentialRetry, times=some.integers(-1, 50), interval=some.floats(0, 1e5), jitter=some.floats(0, 1)
)
TABLES = some.lists(some.tuples(some.integers(1, 10**6), some.integers(1, 10**6)), min_size=1, max_size=6).map(
    lambda rows: tuple(
        (float(age), float(min(pause, age)))
        for age, pause in zip(sorted({age for age, _ in rows}), sorted(pause for _, pause in rows), strict=False)
    )
)


def pause(decision: Decision) -> float:
    """Return the pause, endless for a policy that gives up."""
    return decision.after if isinstance(decision, RetryIn) else float("inf")


@given(POLICIES, SITUATIONS, some.integers(0, 1000), some.integers(0, 1000))
def test_the_last_attempt_stays_the_last(one: RetryPolicy, now: Situation, more: int, hours: int) -> None:
    later = replace(now, failures=now.failures + more, now=now.now + hours * HOUR)

    assert one.is_last(later) or not one.is_last(now)


@given(COUNTED, SITUATIONS)
def test_a_policy_gives_up_exactly_after_the_attempt_that_it_called_the_last(one: RetryPolicy, now: Situation) -> None:
    assert isinstance(one.decide(now), GiveUp) is one.is_last(now)


@given(JITTERED, SITUATIONS, some.floats(0, 1, exclude_max=True), some.floats(0, 1, exclude_max=True))
def test_chance_leaves_out_no_more_than_the_jitter(
    one: ExponentialRetry, now: Situation, first: float, second: float
) -> None:
    full = pause(one.decide(replace(now, chance=0.0)))
    less, least = (pause(one.decide(replace(now, chance=chance))) for chance in sorted((first, second)))

    assert least <= less <= full
    assert full == float("inf") or least >= full * (1 - one.jitter)


@given(TABLES, SITUATIONS, some.integers(0, 10**6))
def test_an_older_job_pauses_no_less_where_the_table_says_so(
    rows: tuple[tuple[float, float], ...], now: Situation, hours: int
) -> None:
    table = TableRetry(rows)

    assert pause(table.decide(now)) <= pause(table.decide(replace(now, now=now.now + hours * HOUR)))


@given(some.floats(1, 1e6), some.floats(1, 1e6), some.floats(0.001, 1e4))
def test_a_longer_span_has_no_fewer_attempts(first: float, second: float, interval: float) -> None:
    shorter, longer = (ExponentialRetry.for_an_interval(span, interval) for span in sorted((first, second)))

    assert 0 <= shorter.times <= longer.times


@given(POLICIES, some.lists(NAMES, min_size=1), some.lists(NAMES), SITUATIONS)
def test_a_filter_leaves_the_decision_to_the_other_policy_or_refuses(
    one: RetryPolicy, names: list[str], further: list[str], now: Situation
) -> None:
    narrow, wide = FilteredRetry(one, tuple(names)).decide(now), FilteredRetry(one, (*names, *further)).decide(now)

    assert narrow in (one.decide(now), NOT_RETRIABLE)
    assert pause(wide) <= pause(narrow)


@given(some.lists(some.builds(Case, some.tuples(NAMES), POLICIES), min_size=1, max_size=3), SITUATIONS)
def test_a_further_case_takes_nothing_from_those_before(cases: list[Case], now: Situation) -> None:
    some_cases, all_cases = SelectedRetry(tuple(cases[:1])).decide(now), SelectedRetry(tuple(cases)).decide(now)

    assert all_cases == some_cases or some_cases == NOT_RETRIABLE
