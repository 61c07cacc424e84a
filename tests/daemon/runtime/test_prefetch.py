"""How many jobs a node claims: never more than free slots while runs last, a batch ahead while they are short."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskqueue.daemon.runtime.prefetch import (
    MOST_SECONDS,
    PREFETCH_BYTES,
    PREFETCH_SECONDS,
    SHORT_RUN,
    SHORTEST_RUN,
    Prefetch,
)
from taskqueue.model.serializer import DATA_LIMIT


def test_a_node_without_history_claims_for_its_free_slots_only() -> None:
    prefetch = Prefetch(4)

    assert prefetch.demand(0) == 4
    assert prefetch.demand(3) == 1
    assert prefetch.demand(4) == 0


def test_short_runs_let_a_node_claim_ahead() -> None:
    prefetch = Prefetch(2)
    for _ in range(50):
        prefetch.run_took(0.001)

    assert prefetch.depth == 2 * math.ceil(PREFETCH_SECONDS / 0.001)
    assert prefetch.demand(0) == 2 + prefetch.depth


@pytest.mark.parametrize("seconds", [PREFETCH_SECONDS * 1.01, SHORT_RUN])
def test_every_slot_has_a_next_run_at_hand_while_runs_are_short(seconds: float) -> None:
    prefetch = Prefetch(4)
    prefetch.run_took(seconds)

    assert prefetch.depth == 4
    assert prefetch.demand(4) == 4


def test_a_slow_store_lets_a_node_claim_further_ahead() -> None:
    prefetch = Prefetch(2)
    prefetch.run_took(0.01)
    assert prefetch.depth == 2 * 2

    for _ in range(100):
        prefetch.store_took(0.02)
    assert prefetch.depth == 2 * 4

    prefetch.store_took(60.0)
    assert prefetch.depth == 2 * 10


def test_claims_ahead_come_in_batches() -> None:
    prefetch = Prefetch(2)
    prefetch.run_took(0.0001)

    assert prefetch.depth == 2 * 128
    assert prefetch.demand(2 + 128) == 0
    assert prefetch.demand(1 + 128) == 1 + 128


def test_a_slow_store_gets_larger_batches_of_the_shortest_runs() -> None:
    prefetch = Prefetch(2)
    prefetch.run_took(0.00001)
    for _ in range(100):
        prefetch.store_took(2 * PREFETCH_SECONDS)

    assert prefetch.depth == pytest.approx(2 * 4 * 128, abs=2)


def test_one_long_run_ends_claiming_ahead_at_once() -> None:
    prefetch = Prefetch(2)
    prefetch.run_took(0.0001)
    prefetch.run_took(SHORT_RUN * 2)

    assert prefetch.depth == 0


def test_claims_that_could_not_begin_end_claiming_ahead_until_the_next_short_run() -> None:
    prefetch = Prefetch(2)
    prefetch.run_took(0.001)
    prefetch.stop_prefetching()
    assert prefetch.demand(2) == 0

    prefetch.run_took(0.001)
    assert prefetch.depth > 0


@given(slots=st.integers(1, 64), runs=st.lists(st.floats(0, 100), max_size=20), in_flight=st.integers(0, 20_000))
def test_a_node_never_wants_less_than_nothing_nor_leaves_a_slot_free(
    slots: int, runs: list[float], in_flight: int
) -> None:
    prefetch = Prefetch(slots)
    for seconds in runs:
        prefetch.run_took(seconds)

    demand = prefetch.demand(in_flight)

    assert demand >= max(0, slots - in_flight)
    assert in_flight + demand <= max(in_flight, slots * (1 + MOST_SECONDS / SHORTEST_RUN))


def test_bytes_are_claimed_ahead_until_enough_are_in_flight() -> None:
    prefetch = Prefetch(2)
    most = PREFETCH_BYTES + 2 * DATA_LIMIT

    assert [prefetch.data(claim) for claim in (0, DATA_LIMIT, most - PREFETCH_BYTES // 2, most, 2 * most)] == [
        most,
        most - DATA_LIMIT,
        0,
        0,
        0,
    ]
