"""A store that does not answer is asked again after growing pauses, and nothing is asked of it in between."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from taskqueue.daemon.node.circuit_breaker import FIRST_PAUSE, LONGEST_PAUSE, CircuitBreaker
from taskqueue.daemon.node.figures import Figures
from taskqueue.errors import StoreUnavailable
from taskqueue.store.sqlite.connection import in_words
from taskqueue.store.tries import Tries


def refuse() -> int:
    raise StoreUnavailable("sqlite:///x", "is away", "bring it back")


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as thread:
        yield thread


def test_an_answer_is_told_from_no_answer() -> None:
    breaker = CircuitBreaker(lambda: None)

    assert breaker.call(lambda: 0) == 0
    assert breaker.carry_out(lambda: None)
    assert breaker.resume_at == 0
    assert breaker.call(refuse) is None
    assert not breaker.carry_out(lambda: None)


def test_nothing_is_asked_before_the_pause_is_over() -> None:
    resume_at = 0.0
    while time.monotonic() >= resume_at:  # a machine that stops here may not ask again until the pause is over
        changes: list[bool] = []
        breaker = CircuitBreaker(partial(changes.append, True))
        asked: list[int] = []
        began = time.monotonic()
        assert breaker.call(refuse) is None
        resume_at = breaker.resume_at
        again = breaker.call(partial(asked.append, 1))

    assert (again, asked) == (None, [])
    assert changes == [True]
    assert "is away" in breaker.reason
    assert resume_at - began >= FIRST_PAUSE / 2


def test_a_change_that_others_preempt_is_no_outage_and_is_repeated() -> None:
    changes: list[bool] = []
    repeats: list[float] = []
    figures = Figures()

    def note_repeat() -> None:
        repeats.append(breaker.resume_at)

    breaker = CircuitBreaker(partial(changes.append, True), figures, note_repeat)
    tries = Tries("sqlite:///x", "job 7")
    began = time.monotonic()

    def contend() -> None:
        while True:
            tries.another()

    assert breaker.call(contend) is None
    assert (breaker.is_degraded, breaker.reason, changes, figures.store_errors) == (False, "", [], 0)
    assert began < repeats[0] <= time.monotonic() + FIRST_PAUSE
    assert breaker.call(lambda: 7) == 7


def test_pauses_grow_up_to_a_limit_and_end_with_the_first_answer(caplog: pytest.LogCaptureFixture) -> None:
    breaker = CircuitBreaker(lambda: None)
    pauses = []
    for _ in range(12):
        breaker._resume_at = 0
        began = time.monotonic()
        breaker.call(refuse)
        pauses.append((breaker.resume_at - time.monotonic(), breaker.resume_at - began))

    assert pauses[0][0] <= FIRST_PAUSE  # the machine may stop meanwhile: each bound has its own time
    assert pauses[-1][0] <= LONGEST_PAUSE
    assert pauses[-1][1] >= LONGEST_PAUSE / 2

    breaker._resume_at = 0
    assert breaker.call(lambda: 7) is not None
    assert not breaker.is_degraded
    assert caplog.text.count("degraded") == 1
    assert caplog.text.count("answers again") == 1


def test_other_errors_are_not_mistaken_for_an_outage() -> None:
    def blunder() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        CircuitBreaker(lambda: None).call(blunder)


def test_a_store_that_cannot_write_keeps_its_pause_until_a_write_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    def find_no_space() -> int:
        raise in_words("/jobs.db", "database or disk is full")

    breaker = CircuitBreaker(lambda: None)
    pauses = []
    for _ in range(12):
        breaker._resume_at = 0
        began = time.monotonic()
        assert breaker.call(find_no_space, writes=True) is None
        pauses.append(breaker.resume_at - began)
        breaker._resume_at = 0
        assert breaker.call(lambda: 7) is not None
        assert breaker.is_degraded

    assert pauses[-1] >= LONGEST_PAUSE / 2
    assert caplog.text.count("degraded") == 1
    assert "answers again" not in caplog.text

    assert breaker.call(lambda: 7, writes=True) is not None
    assert not breaker.is_degraded
    assert breaker.call(refuse) is None
    assert breaker.resume_at - time.monotonic() <= FIRST_PAUSE
    breaker._resume_at = 0
    assert breaker.call(lambda: 7) is not None
    assert not breaker.is_degraded


def test_a_call_in_another_thread_is_counted_without_what_is_done_beside_it(thread: ThreadPoolExecutor) -> None:
    figures = Figures()
    breaker = CircuitBreaker(lambda: None, figures)
    began = time.monotonic()
    beside = breaker.begin(lambda: 7, thread)
    assert beside is not None
    beside.wait()
    took_at_most = time.monotonic() - began
    time.sleep(0.001)

    assert breaker.end(beside) == 7

    assert sum(figures.store_calls.counts) == 1
    assert figures.store_calls.total <= took_at_most


def test_an_answer_does_not_end_an_outage_that_began_after_its_call(
    thread: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    breaker = CircuitBreaker(lambda: None)
    beside = breaker.begin(lambda: 7, thread)
    assert beside is not None
    assert breaker.call(refuse) is None

    assert breaker.end(beside, writes=True) == 7

    assert breaker.is_degraded
    assert "answers again" not in caplog.text
    breaker._resume_at = 0
    assert breaker.call(lambda: 7, writes=True) is not None
    assert not breaker.is_degraded


def test_nothing_is_asked_in_another_thread_before_the_pause_is_over(thread: ThreadPoolExecutor) -> None:
    resume_at = 0.0
    while time.monotonic() >= resume_at:  # as above
        breaker = CircuitBreaker(lambda: None)
        breaker.call(refuse)
        resume_at = breaker.resume_at
        beside = breaker.begin(lambda: 7, thread)

    assert beside is None
