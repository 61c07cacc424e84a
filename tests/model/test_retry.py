"""Retry policies: how often, after what pause, and the same again from what was stored."""

from __future__ import annotations

import json

import pytest

from taskqueue.errors import InvalidOption
from taskqueue.model.retry import NO_RETRY, ExponentialRetry, FixedRetry, RetryPolicy, policy

EXAMPLES: list[RetryPolicy] = [
    NO_RETRY,
    FixedRetry(times=3, interval=1.5),
    FixedRetry(times=-1),
    ExponentialRetry(),
    ExponentialRetry(times=-1, interval=0, factor=3, longest=60),
]


def test_without_retry_the_first_failure_is_the_last() -> None:
    assert NO_RETRY.delay(1) is None


def test_a_fixed_policy_always_pauses_the_same() -> None:
    policy = FixedRetry(times=2, interval=300)

    assert [policy.delay(failures) for failures in (1, 2, 3)] == [300, 300, None]


def test_an_exponential_policy_doubles_its_pause_up_to_the_longest() -> None:  # REC-23
    policy = ExponentialRetry(times=5, interval=30, longest=200)

    assert [policy.delay(failures) for failures in range(1, 7)] == [30, 60, 120, 200, 200, None]


@pytest.mark.parametrize("endless", [FixedRetry(times=-1, interval=1), ExponentialRetry(times=-1, factor=100)])
def test_an_endless_policy_never_gives_up(endless: RetryPolicy) -> None:
    assert endless.delay(1_000_000) is not None


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_a_policy_comes_back_from_its_document(example: RetryPolicy) -> None:
    assert policy(json.loads(json.dumps(example.document()))) == example


@pytest.mark.parametrize(
    ("example", "words"),
    [
        (FixedRetry(), "no retry"),
        (FixedRetry(times=3, interval=60), "retry 3 times, every 60 s"),
        (FixedRetry(times=-1, interval=0.5), "retry endlessly, every 0.5 s"),
        (ExponentialRetry(times=4), "retry 4 times, after 30 s and then 2 times longer, at most 86400 s"),
        (ExponentialRetry(times=-1), "retry endlessly, after 30 s and then 2 times longer, at most 86400 s"),
    ],
)
def test_a_policy_is_told_in_words(example: RetryPolicy, words: str) -> None:
    assert str(example) == words


@pytest.mark.parametrize("times", [-2, 1.5, "3", True, None])
def test_times_that_are_no_number_of_attempts_are_refused(times: object) -> None:
    for kind in (FixedRetry, ExponentialRetry):
        with pytest.raises(InvalidOption, match="times="):
            kind(times=times)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [-1, "60", True, float("nan"), float("inf"), 1e10])
def test_pauses_that_are_no_seconds_are_refused(seconds: object) -> None:
    for kind in (FixedRetry, ExponentialRetry):
        with pytest.raises(InvalidOption, match="interval="):
            kind(interval=seconds)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="longest="):
        ExponentialRetry(longest=seconds)  # type: ignore[arg-type]


@pytest.mark.parametrize("factor", [0.5, 101, float("nan")])
def test_a_factor_that_does_not_grow_is_refused(factor: float) -> None:
    with pytest.raises(InvalidOption, match="factor="):
        ExponentialRetry(factor=factor)
