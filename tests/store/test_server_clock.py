"""The clock of a server is estimated: asked from time to time, never ahead of the server, and also while it is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone

import pytest

from taskqueue.model.timestamps import MILLISECOND
from taskqueue.store.server_clock import ASK_FOR, ASKS, DRIFT, ESTIMATE_FOR, NEAR, ServerClock
from tests.store.records import HOUR, NOON


class Away(Exception):
    """The driver's error while the server is away."""


def a_clock(
    ask: Callable[[], datetime], estimate_for: float = ESTIMATE_FOR, monotonic: Callable[[], float] | None = None
) -> ServerClock:
    return ServerClock(ask, Away, nullcontext, estimate_for=estimate_for, monotonic=monotonic)


def test_the_clock_runs_on_while_the_server_is_away() -> None:
    answers = iter([NOON])

    def ask() -> datetime:
        for answer in answers:
            return answer
        raise Away

    clock = a_clock(ask, estimate_for=0.0)
    first = clock.now()

    assert NOON <= first <= clock.now() < NOON + HOUR
    with pytest.raises(Away):
        a_clock(ask).now()


class SlowServer:
    """Tells the host's time, ``ahead`` of it; the answers listed take so many seconds to arrive, all others none."""

    def __init__(self, *delays: float) -> None:
        self.delays = list(delays)
        self.ahead = timedelta()
        self.arrivals: list[datetime] = []

    def time(self) -> datetime:
        answer = datetime.now(timezone.utc) + self.ahead
        time.sleep(self.delays.pop(0) if self.delays else 0.0)
        self.arrivals.append(datetime.now(timezone.utc) + self.ahead)
        return answer


def test_after_an_answer_that_took_long_the_clock_asks_again() -> None:
    server = SlowServer(0.05)

    assert a_clock(server.time).now() >= server.arrivals[0] - MILLISECOND
    assert len(server.arrivals) > 1


def test_a_late_answer_does_not_set_the_clock_back() -> None:
    server = SlowServer()
    clock = a_clock(server.time)
    began = datetime.now(timezone.utc)
    clock.asked()
    doubt = datetime.now(timezone.utc) - began
    server.delays = [0.2] * ASKS
    drift = timedelta(seconds=0.2 * ASKS * DRIFT)

    assert clock.asked() >= server.arrivals[-1] - doubt - drift - 3 * MILLISECOND


@pytest.mark.parametrize("fraction", [0.0, 0.0002, 0.0004, 0.0006, 0.0008])
def test_a_late_answer_in_whole_milliseconds_does_not_set_the_clock_back(fraction: float) -> None:
    elapsed, way = fraction, 0.0

    def ask() -> datetime:
        nonlocal elapsed
        answer = NOON + int(elapsed * 1000) * MILLISECOND
        elapsed += way
        return answer

    clock = a_clock(ask, monotonic=lambda: elapsed)
    for each in (0.0, 1.3 * NEAR, 0.2):
        way = each
        asked = clock.asked()
        assert timedelta(0) <= NOON + timedelta(seconds=elapsed) - asked <= 3 * MILLISECOND


@pytest.mark.parametrize("faster", [-0.0004, 0.0, 0.0004])
def test_a_local_clock_that_runs_faster_or_slower_never_leads_ahead_of_the_server(faster: float) -> None:
    elapsed, way = 0.0, 0.05

    def pass_on(seconds: float) -> None:
        nonlocal elapsed
        elapsed += seconds

    def ask() -> datetime:
        pass_on(way)
        answer = NOON + timedelta(seconds=elapsed)
        pass_on(0.001)
        return answer

    clock = a_clock(ask, monotonic=lambda: elapsed * (1 + faster))
    for _ in range(1000):
        asked = clock.asked()
        assert timedelta(0) <= NOON + timedelta(seconds=elapsed) - asked <= timedelta(seconds=0.003)
        pass_on(10)


@pytest.mark.parametrize("ahead", [-HOUR, HOUR], ids=["back", "forward"])
def test_a_clock_of_the_server_that_was_set_is_followed(ahead: timedelta) -> None:
    server = SlowServer()
    clock = a_clock(server.time)
    clock.asked()
    server.ahead = ahead
    server.delays = [2 * NEAR] * ASKS

    assert abs(clock.asked() - server.arrivals[-1]) < timedelta(minutes=1)


def test_of_several_answers_the_first_will_do() -> None:
    def answers() -> Iterator[datetime]:
        time.sleep(2 * NEAR)
        yield NOON
        raise Away

    asked = answers()

    assert a_clock(lambda: next(asked)).now() == NOON


def test_only_the_first_time_is_waited_for_without_a_deadline() -> None:
    elapsed, deadlines = 0.0, list[float]()

    def within(seconds: float) -> nullcontext[None]:
        deadlines.append(seconds)
        return nullcontext()

    clock = ServerClock(lambda: NOON, Away, within, monotonic=lambda: elapsed)
    clock.now()
    assert deadlines == []

    elapsed += 2 * ESTIMATE_FOR
    clock.now()
    assert deadlines == [ASK_FOR]
