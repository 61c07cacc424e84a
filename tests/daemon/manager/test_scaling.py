"""How many children a pool starts and retires: every mode, by example, by table and by chance."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskqueue.daemon.manager.scaling import (
    EARLY_DEATHS_ENDURED,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    Backoff,
    PoolChange,
    PoolState,
    decide,
)
from taskqueue.daemon.settings import PoolMode, Settings

NOW = 1000.0
TIMEOUT = 30.0


def a_pool(mode: PoolMode = PoolMode.DYNAMIC, least: int = 1, most: int = 2) -> Settings:
    return Settings(name="web-1", pm=mode, min_children=least, max_children=most, idle_timeout=TIMEOUT)


def settled(settings: Settings, state: PoolState) -> PoolState:
    """Carry out plans, every child getting ready and taking a job at once, until nothing is left to do."""
    for _ in range(100):
        step = decide(settings, state, now=NOW)
        if step == PoolChange():
            return state
        taken = min(step.spawn, state.waiting)
        fresh = range(1, step.spawn - taken + 1)
        state = replace(
            state,
            busy=state.busy + taken,
            waiting=state.waiting - taken,
            idle={pid: since for pid, since in state.idle.items() if pid not in step.retire}
            | dict.fromkeys(fresh, NOW),
            forced_waiting=state.forced_waiting - step.forced,
        )
        if not step.spawn and not step.forced and not step.retire:
            return state
    raise AssertionError(f"plans for {settings} never come to rest")


# PTS-27, PTS-28, PTS-29: the ancestor's own vectors, number 11.


def test_dynamic_starts_its_minimum() -> None:
    assert decide(a_pool(least=2), PoolState(), now=NOW).spawn == 2


def test_dynamic_from_none_grows_to_its_maximum_and_no_further() -> None:
    after = settled(a_pool(least=0, most=2), PoolState(waiting=9))

    assert (after.busy, after.waiting) == (2, 7)


def test_static_runs_a_forced_job_beside_its_children() -> None:
    after = settled(a_pool(PoolMode.STATIC, least=1), PoolState(forced_waiting=1))

    assert (after.serving, after.forced_waiting) == (1, 0)


def test_on_demand_has_no_child_without_a_job() -> None:
    assert decide(a_pool(PoolMode.ONDEMAND), PoolState(), now=NOW) == PoolChange()


def test_on_demand_has_one_child_for_one_job() -> None:
    assert settled(a_pool(PoolMode.ONDEMAND), PoolState(waiting=1)).serving == 1


def test_a_forced_job_has_no_child_before_it_is_due_and_one_then() -> None:
    on_demand = a_pool(PoolMode.ONDEMAND)

    assert decide(on_demand, PoolState(forced_waiting=0), now=NOW).forced == 0
    assert decide(on_demand, PoolState(forced_waiting=1), now=NOW + 10).forced == 1


def test_on_demand_does_not_refill_to_the_minimum_after_an_exit() -> None:  # PW-12
    assert decide(a_pool(PoolMode.ONDEMAND, least=1), PoolState(leaving=0), now=NOW) == PoolChange()


@pytest.mark.parametrize("mode", [PoolMode.STATIC, PoolMode.DYNAMIC])
def test_an_exit_is_refilled_to_the_minimum(mode: PoolMode) -> None:  # PTS-31
    assert decide(a_pool(mode, least=2, most=4), PoolState(busy=1), now=NOW).spawn == 1


def test_dynamic_starts_no_child_while_an_idle_one_can_take_the_job() -> None:
    assert decide(a_pool(most=4), PoolState(idle={7: NOW}, waiting=1), now=NOW).spawn == 0


def test_children_that_are_starting_are_not_started_again() -> None:
    assert decide(a_pool(most=8), PoolState(starting=3, waiting=3), now=NOW).spawn == 0


def test_static_starts_no_more_children_than_its_minimum_whatever_waits() -> None:
    assert decide(a_pool(PoolMode.STATIC, least=2, most=9), PoolState(busy=2, waiting=50), now=NOW).spawn == 0


@pytest.mark.parametrize("mode", PoolMode)
def test_a_child_that_leaves_keeps_its_place_until_it_is_gone(mode: PoolMode) -> None:
    pool = a_pool(mode, least=2, most=2)

    assert decide(pool, PoolState(busy=1, leaving=1, waiting=1), now=NOW).spawn == 0
    assert decide(pool, PoolState(busy=1, leaving=0, waiting=1), now=NOW).spawn == 1


def test_forced_children_are_not_counted_among_the_others() -> None:  # issue 25 of the ancestor
    assert decide(a_pool(most=2), PoolState(forced_starting=5, waiting=2), now=NOW).spawn == 2


# What is retired, and when.


def test_a_surplus_child_is_retired_after_a_quiet_time_the_longest_idle_first() -> None:
    state = PoolState(idle={11: NOW - 5, 12: NOW - TIMEOUT, 13: NOW - TIMEOUT - 1})

    assert decide(a_pool(least=1, most=3), state, now=NOW).retire == (13, 12)


def test_the_plan_says_when_the_next_child_has_been_quiet_for_long_enough() -> None:
    step = decide(a_pool(least=0, most=3), PoolState(idle={11: NOW - 5, 12: NOW - TIMEOUT}), now=NOW)

    assert (step.retire, step.review_at) == ((12,), NOW - 5 + TIMEOUT)


def test_a_pool_at_its_minimum_need_not_be_looked_at_again() -> None:
    assert decide(a_pool(least=2), PoolState(idle={1: 0.0, 2: 0.0}), now=NOW) == PoolChange()


def test_on_demand_retires_an_idle_child_at_once_unless_a_job_waits_for_it() -> None:
    on_demand = a_pool(PoolMode.ONDEMAND, most=4)

    assert decide(on_demand, PoolState(idle={5: NOW}), now=NOW).retire == (5,)
    assert decide(on_demand, PoolState(idle={5: NOW}, waiting=1), now=NOW) == PoolChange()
    assert decide(on_demand, PoolState(idle={5: NOW}, starting=1, waiting=1), now=NOW) == PoolChange()


def test_children_above_lowered_bounds_are_retired_without_a_quiet_time() -> None:
    assert decide(a_pool(most=2), PoolState(idle={1: NOW, 2: NOW - 1, 3: NOW - 2}), now=NOW).retire == (3,)
    assert decide(a_pool(PoolMode.STATIC), PoolState(idle={1: NOW, 2: NOW - 1}), now=NOW).retire == (2,)


# The same for every small pool there can be, and for large ones by chance.


def every_census() -> list[PoolState]:
    return [
        PoolState(
            idle=dict.fromkeys(range(idle), NOW - age), busy=busy, starting=starting, leaving=leaving, waiting=waiting
        )
        for idle, age, busy, starting, leaving, waiting in itertools.product(
            range(4), (0.0, TIMEOUT), range(4), range(3), range(3), range(4)
        )
    ]


def every_pool() -> list[Settings]:
    return [
        a_pool(mode, least, most)
        for mode, least, most in itertools.product(PoolMode, range(4), range(1, 5))
        if least <= most and (mode is not PoolMode.STATIC or least)
    ]


def check_bounds(settings: Settings, state: PoolState, step: PoolChange) -> None:
    after = state.serving + step.spawn - len(step.retire)
    demand = min(max(state.busy + state.waiting, settings.floor), settings.slots)
    assert step.spawn >= 0
    assert step.spawn == 0 or state.serving + state.leaving + step.spawn <= settings.slots
    assert step.spawn == 0 or state.serving + step.spawn <= demand
    assert after >= min(state.serving, demand)
    assert not (step.spawn and step.retire)
    assert len(state.idle) - len(step.retire) >= min(state.waiting, len(state.idle))
    assert set(step.retire) <= set(state.idle)
    if not state.leaving:
        assert state.serving + step.spawn >= demand
    if step.review_at is not None:
        assert step.review_at > NOW  # a plan that asks to be made again at once would make the loop spin


@pytest.mark.parametrize("settings", every_pool(), ids=lambda pool: f"{pool.pm.value}-{pool.floor}-{pool.slots}")
def test_every_small_pool_stays_within_its_bounds_and_serves_the_demand(settings: Settings) -> None:
    for state in every_census():
        check_bounds(settings, state, decide(settings, state, now=NOW))


numbers = st.integers(min_value=0, max_value=500)
censuses = st.builds(
    PoolState,
    idle=st.dictionaries(st.integers(2, 10_000), st.floats(NOW - 3 * TIMEOUT, NOW), max_size=30),
    busy=numbers,
    starting=numbers,
    leaving=numbers,
    waiting=numbers,
    forced_starting=numbers,
    forced_waiting=numbers,
)
pools = st.builds(
    lambda mode, least, more: a_pool(mode, least, least + more),
    st.sampled_from(PoolMode),
    st.integers(1, 200),
    st.integers(0, 200),
)


@given(pools, censuses)
def test_any_pool_stays_within_its_bounds(settings: Settings, state: PoolState) -> None:
    step = decide(settings, state, now=NOW)

    check_bounds(settings, state, step)
    assert 0 <= step.forced <= state.forced_waiting


@given(pools, numbers, numbers)
def test_any_pool_comes_to_rest(settings: Settings, waiting: int, forced_waiting: int) -> None:
    after = settled(settings, PoolState(waiting=waiting, forced_waiting=forced_waiting))

    assert after.busy == min(waiting, settings.slots)
    assert after.serving == max(after.busy, settings.floor)


# Children that die before their first job.


def test_pauses_double_from_a_tenth_of_a_second_and_then_it_gives_up() -> None:
    backoff, now, pauses = Backoff(), NOW, []
    while not backoff.exhausted:
        backoff = backoff.died_early(now)
        pauses.append(backoff.resumes_at - now)
        now = backoff.resumes_at

    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4])
    assert len(pauses) == EARLY_DEATHS_ENDURED
    assert pauses[0] == pytest.approx(FIRST_PAUSE)
    assert not backoff.allows(now + 3600)


def test_children_that_die_together_count_as_one_death() -> None:
    backoff = Backoff().died_early(NOW).died_early(NOW).died_early(NOW + FIRST_PAUSE / 2)

    assert backoff.deaths == 1


def test_a_child_that_lives_to_its_first_job_makes_up_for_all_deaths() -> None:
    assert Backoff().died_early(NOW).survived() == Backoff()


def test_a_shortage_never_leads_to_giving_up_and_its_pauses_are_bounded() -> None:
    backoff, now, pauses = Backoff(), NOW, []
    for _ in range(2000):
        backoff = backoff.fell_short(now).fell_short(now)
        pauses.append(backoff.resumes_at - now)
        now = backoff.resumes_at

    assert pauses[:8] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, LONGEST_PAUSE])
    assert max(pauses) == pytest.approx(LONGEST_PAUSE)
    assert backoff.allows(now)
    assert backoff.recovered() == Backoff(resumes_at=backoff.resumes_at)


def test_one_child_at_a_time_is_started_after_a_shortage() -> None:
    backoff = Backoff().fell_short(NOW)
    state = PoolState(waiting=8)

    assert decide(a_pool(most=8), state, now=NOW, backoff=backoff) == PoolChange(review_at=NOW + FIRST_PAUSE)
    assert decide(a_pool(most=8), state, now=NOW + FIRST_PAUSE, backoff=backoff).spawn == 1


def test_nothing_is_started_in_a_pause_and_the_plan_says_when_it_ends() -> None:
    backoff = Backoff().died_early(NOW)
    step = decide(a_pool(most=8), PoolState(waiting=8, forced_waiting=3), now=NOW, backoff=backoff)

    assert step == PoolChange(review_at=NOW + FIRST_PAUSE)


def test_one_child_at_a_time_is_started_after_a_pause() -> None:
    backoff = Backoff().died_early(NOW)
    later = backoff.resumes_at
    pool = a_pool(most=8)

    assert decide(pool, PoolState(waiting=8, forced_waiting=3), now=later, backoff=backoff) == PoolChange(spawn=1)
    assert decide(pool, PoolState(waiting=8, starting=1), now=later, backoff=backoff) == PoolChange()
    assert decide(pool, PoolState(idle={3: NOW}, forced_waiting=3), now=later, backoff=backoff) == PoolChange(forced=1)
    assert (
        decide(pool, PoolState(idle={3: NOW}, forced_starting=1, forced_waiting=2), now=later, backoff=backoff)
        == PoolChange()
    )


def test_nothing_is_started_after_giving_up() -> None:
    backoff = Backoff(deaths=EARLY_DEATHS_ENDURED, resumes_at=NOW)

    assert decide(a_pool(), PoolState(waiting=1), now=NOW + 1, backoff=backoff) == PoolChange()


def test_the_modes_are_known_by_the_names_of_the_ancestor() -> None:
    assert [PoolMode(name) for name in ("static", "dynamic", "ondemand")] == list(PoolMode)
