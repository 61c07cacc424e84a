"""Permits to begin a run: each is taken by the worker or taken back by the manager, never both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from taskqueue.daemon.protocol.channel import pair
from taskqueue.daemon.protocol.start_permits import StartPermits
from taskqueue.daemon.runtime import child_process

MANY = 5_000


@pytest.fixture
def tickets() -> Iterator[StartPermits]:
    tickets = StartPermits()
    yield tickets
    tickets.close()


def test_a_run_with_a_ticket_may_begin_once(tickets: StartPermits) -> None:
    tickets.issue([1, 2])

    assert tickets.take(1)
    assert tickets.take(2)
    assert tickets.take_back() == []


def test_a_run_without_a_ticket_may_not_begin(tickets: StartPermits) -> None:
    assert not tickets.take(1)


def test_what_was_taken_back_may_not_begin_but_what_comes_later_may(tickets: StartPermits) -> None:
    tickets.issue([1, 2, 3])
    assert tickets.take(1)

    assert tickets.take_back() == [2, 3]
    tickets.issue([4])

    assert [tickets.take(number) for number in (2, 3, 4)] == [False, False, True]


def test_each_ticket_goes_to_one_side_while_both_reach_for_it(tickets: StartPermits) -> None:
    ours, theirs = pair()

    def take_all() -> int:
        child_process.allow_signals()
        theirs.send(b"begun")
        number = 0
        while number < MANY:
            number += 1
            theirs.send(b"%d" % (number if tickets.take(number) else -number))
        theirs.drain()
        return 0

    tickets.issue(range(1, MANY + 1))
    child = child_process.fork(take_all, name="taker", keep=[tickets.fileno(), theirs.fileno()])
    theirs.close()
    assert ours.wait(30) == b"begun"
    back = set(tickets.take_back())
    answers = [int(ours.wait(30) or 0) for _ in range(MANY)]
    child.reap()
    child.close()
    ours.close()

    begun = {number for number in answers if number > 0}
    assert not begun & back
    assert begun | back == set(range(1, MANY + 1))
