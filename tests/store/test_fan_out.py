"""One listener rings many bells, until the last of them is closed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from taskqueue.store.bell import NEWS, WORK
from taskqueue.store.fan_out import LISTEN_PAUSE, POLL_PAUSE, FanOut, OpenBells, PollBell, RungBell
from tests.forking import fork
from tests.store.records import PATIENCE, rings


class Listener:
    """Listens until it is stopped, and counts how often that happens."""

    def __init__(self) -> None:
        self.stops = 0
        self.woken = threading.Event()
        self.fan_out = FanOut[RungBell](self._listen, self._stop)

    def bell(self, topic: str = WORK) -> RungBell:
        bell = RungBell(topic)
        assert self.fan_out.admit(bell)
        return bell

    def _listen(self) -> None:
        self.woken.wait()

    def _stop(self) -> None:
        self.stops += 1
        self.woken.set()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    for bell in listener.fan_out.bells:
        bell.close()


def test_every_bell_rings_when_anything_may_have_changed(listener: Listener) -> None:
    bells = [listener.bell(WORK), listener.bell(NEWS)]

    listener.fan_out.ring_all()

    assert [rings(bell) for bell in bells] == [True, True]


def test_a_bell_that_was_cleared_waits_for_the_next_ring(listener: Listener) -> None:
    bell = listener.bell()
    listener.fan_out.ring_all()
    assert list(bell.clear()) == [None]

    bell.ring()

    assert rings(bell)


def test_a_closed_bell_ignores_a_ring(listener: Listener) -> None:
    bell = listener.bell()
    bell.close()

    bell.ring()

    assert bell.fileno() == -1


def test_the_listener_ends_with_its_last_bell(listener: Listener) -> None:
    first, last = listener.bell(), listener.bell()
    first.close()
    assert listener.stops == 0
    assert first.is_over

    last.close()
    last.join(PATIENCE)

    assert listener.stops == 1
    assert last.is_over
    with closing(RungBell(WORK)) as late:
        assert not listener.fan_out.admit(late)


def test_a_bell_that_is_closed_twice_stops_the_listener_once(listener: Listener) -> None:
    bell = listener.bell()

    bell.close()
    bell.close()

    assert listener.stops == 1


def test_a_forked_child_that_closes_a_bell_leaves_the_listener_of_its_parent_alone(listener: Listener) -> None:
    bell = listener.bell()

    child = fork()
    if not child:
        bell.close()
        os._exit(listener.stops)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    bell.ring()
    assert rings(bell)


def test_a_pause_is_that_of_all_bells_and_of_later_ones(listener: Listener) -> None:
    bell = listener.bell()
    assert bell.pause == LISTEN_PAUSE

    listener.fan_out.set_pause(POLL_PAUSE)

    assert bell.pause == listener.bell().pause == POLL_PAUSE


def test_a_bell_without_a_listener_is_looked_at_each_second() -> None:
    with closing(PollBell()) as bell:
        assert bell.pause == POLL_PAUSE
        assert list(bell.clear()) == [None]
        assert not bell.renew()
    assert bell.is_over


def test_the_bells_of_a_store_are_closed_with_it_and_their_threads_end(listener: Listener) -> None:
    bells = OpenBells()
    kept = [bells.keep(listener.bell()), bells.keep(PollBell())]

    bells.close(PATIENCE)

    assert all(bell.is_over for bell in kept)
    assert listener.stops == 1
