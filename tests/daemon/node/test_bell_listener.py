"""Bells that a node listens to: their rings, and their pauses, which may change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from taskqueue.daemon.node.bell_listener import BellListener
from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.runtime.loop import Loop
from taskqueue.errors import StoreUnavailable
from taskqueue.store.bell import Bell
from taskqueue.store.mongodb.bells import StreamBell

HOUR = 3600.0
MOMENT = 0.01


@pytest.fixture
def loop() -> Iterator[Loop]:
    with closing(Loop()) as loop:
        yield loop


@pytest.fixture
def listener(loop: Loop) -> Iterator[BellListener]:
    with closing(BellListener(loop, CircuitBreaker(lambda: None))) as listener:
        yield listener


@pytest.fixture
def bell() -> Iterator[StreamBell]:
    with closing(StreamBell("work")) as bell:
        bell.pause = HOUR
        yield bell


def test_a_ring_calls_back(loop: Loop, listener: BellListener, bell: StreamBell) -> None:
    listener.listen(lambda: bell, loop.stop, lambda: pytest.fail("no pause is over"))

    bell.ring(1)
    loop.run()


def test_a_new_bell_is_looked_at_again_soon_and_then_after_its_pauses(
    loop: Loop, listener: BellListener, bell: StreamBell
) -> None:
    looks: list[str] = []

    def look() -> None:
        looks.append("look")
        loop.soon(loop.stop)

    listener.listen(lambda: bell, lambda: pytest.fail("it has not rung"), look)
    loop.run()  # the pause of the bell is an hour

    assert looks == ["look"]


def test_a_pause_that_a_ring_shortens_counts_at_once(loop: Loop, listener: BellListener, bell: StreamBell) -> None:
    rung: list[str] = []
    listener.listen(lambda: bell, lambda: rung.append("ring"), loop.stop)

    bell.pause = MOMENT  # as when the change stream breaks
    bell.ring(1)
    loop.run()

    assert rung == ["ring"]


def test_each_pause_has_the_length_that_holds_when_it_begins(
    loop: Loop, listener: BellListener, bell: StreamBell
) -> None:
    looks: list[float] = []

    def look() -> None:
        looks.append(bell.pause)
        if len(looks) == 3:
            loop.stop()
        bell.pause = MOMENT / 2

    bell.pause = MOMENT
    listener.listen(lambda: bell, lambda: None, look)
    loop.run()

    assert looks == [MOMENT, MOMENT / 2, MOMENT / 2]


def test_a_bell_that_the_store_cannot_give_is_asked_for_again(
    loop: Loop, listener: BellListener, bell: StreamBell
) -> None:
    answers: list[StreamBell | None] = [None, bell]

    def open_bell() -> Bell:
        answer = answers.pop(0)
        if answer is None:
            raise StoreUnavailable("the store", "no server answers", "start one")
        return answer

    bell.pause = MOMENT
    listener.listen(open_bell, lambda: None, loop.stop)
    loop.run()

    assert not answers
