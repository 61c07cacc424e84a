"""How many jobs a node claims: never more than free slots while runs last, a batch ahead while they are short."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskqueue.daemon.node.prefetch import AHEAD_BYTES, AHEAD_FOR, MOST_AHEAD, SHORT, Prefetch
from taskqueue.model.serializer import DATA_LIMIT


def test_a_node_without_history_claims_for_its_free_slots_only() -> None:
    appetite = Prefetch(4)

    assert appetite.wanted(0) == 4
    assert appetite.wanted(3) == 1
    assert appetite.wanted(4) == 0


def test_short_runs_let_a_node_claim_ahead() -> None:
    appetite = Prefetch(2)
    for _ in range(50):
        appetite.learn(0.001)

    assert appetite.ahead == 2 * math.ceil(AHEAD_FOR / 0.001)
    assert appetite.wanted(0) == 2 + appetite.ahead


@pytest.mark.parametrize("seconds", [AHEAD_FOR * 1.01, SHORT])
def test_every_slot_has_a_next_run_at_hand_while_runs_are_short(seconds: float) -> None:
    appetite = Prefetch(4)
    appetite.learn(seconds)

    assert appetite.ahead == 4
    assert appetite.wanted(4) == 4


def test_a_slow_store_lets_a_node_claim_further_ahead() -> None:
    appetite = Prefetch(2)
    appetite.learn(0.01)
    assert appetite.ahead == 2 * 2

    for _ in range(100):
        appetite.wait(0.02)
    assert appetite.ahead == 2 * 4

    appetite.wait(60.0)
    assert appetite.ahead == 2 * 10


def test_claims_ahead_come_in_batches() -> None:
    appetite = Prefetch(2)
    appetite.learn(0.0001)

    assert appetite.ahead == 2 * MOST_AHEAD
    assert appetite.wanted(2 + MOST_AHEAD) == 0
    assert appetite.wanted(1 + MOST_AHEAD) == 1 + MOST_AHEAD


def test_one_long_run_ends_claiming_ahead_at_once() -> None:
    appetite = Prefetch(2)
    appetite.learn(0.0001)
    appetite.learn(SHORT * 2)

    assert appetite.ahead == 0


def test_claims_that_could_not_begin_end_claiming_ahead_until_the_next_short_run() -> None:
    appetite = Prefetch(2)
    appetite.learn(0.001)
    appetite.lose()
    assert appetite.wanted(2) == 0

    appetite.learn(0.001)
    assert appetite.ahead > 0


@given(slots=st.integers(1, 64), runs=st.lists(st.floats(0, 100), max_size=20), in_flight=st.integers(0, 20_000))
def test_a_node_never_wants_less_than_nothing_nor_leaves_a_slot_free(
    slots: int, runs: list[float], in_flight: int
) -> None:
    appetite = Prefetch(slots)
    for seconds in runs:
        appetite.learn(seconds)

    wanted = appetite.wanted(in_flight)

    assert wanted >= max(0, slots - in_flight)
    assert in_flight + wanted <= max(in_flight, slots * (1 + MOST_AHEAD))


def test_bytes_are_claimed_ahead_until_enough_are_in_flight() -> None:
    appetite = Prefetch(2)
    most = AHEAD_BYTES + 2 * DATA_LIMIT

    assert [appetite.data(held) for held in (0, DATA_LIMIT, most - AHEAD_BYTES // 2, most, 2 * most)] == [
        most,
        most - DATA_LIMIT,
        0,
        0,
        0,
    ]
