"""A store that does not answer is asked again after growing pauses, and nothing is asked of it in between."""

from __future__ import annotations

import time

import pytest

from taskqueue.daemon.node.circuit_breaker import LONGEST_PAUSE, CircuitBreaker
from taskqueue.errors import StoreUnavailable


def refuse() -> int:
    raise StoreUnavailable("sqlite:///x", "is away", "bring it back")


def test_an_answer_is_told_from_no_answer() -> None:
    health = CircuitBreaker(lambda: None)

    answer = health.attempt(lambda: None)

    assert answer is not None
    assert answer.value is None
    assert health.resume_at == 0


def test_nothing_is_asked_before_the_pause_is_over() -> None:
    changes: list[bool] = []
    health = CircuitBreaker(lambda: changes.append(health.is_degraded))
    asked: list[int] = []

    assert health.attempt(refuse) is None
    assert health.attempt(lambda: asked.append(1)) is None

    assert asked == []
    assert changes == [True]
    assert "is away" in health.reason
    assert health.resume_at > time.monotonic()


def test_pauses_grow_up_to_a_limit_and_end_with_the_first_answer(caplog: pytest.LogCaptureFixture) -> None:
    health = CircuitBreaker(lambda: None)
    pauses = []
    for _ in range(12):
        health._resume_at = 0
        health.attempt(refuse)
        pauses.append(health.resume_at - time.monotonic())

    assert pauses[0] <= 0.11
    assert LONGEST_PAUSE / 2 - 0.1 <= pauses[-1] <= LONGEST_PAUSE

    health._resume_at = 0
    assert health.attempt(lambda: 7) is not None
    assert not health.is_degraded
    assert caplog.text.count("degraded") == 1
    assert caplog.text.count("answers again") == 1


def test_other_errors_are_not_mistaken_for_an_outage() -> None:
    def blunder() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        CircuitBreaker(lambda: None).attempt(blunder)
