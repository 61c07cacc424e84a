"""Permits to begin a run: each is taken by the worker or taken back by the manager, never both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from taskqueue.daemon.protocol.channel import pair
from taskqueue.daemon.protocol.start_permits import StartPermits
from taskqueue.daemon.runtime import child_process

MANY = 5_000


@pytest.fixture
def permits() -> Iterator[StartPermits]:
    permits = StartPermits()
    yield permits
    permits.close()


def test_a_run_with_a_ticket_may_begin_once(permits: StartPermits) -> None:
    permits.issue([1, 2])

    assert permits.take(1)
    assert permits.take(2)
    assert permits.revoke() == []


def test_a_run_without_a_ticket_may_not_begin(permits: StartPermits) -> None:
    assert not permits.take(1)


def test_what_was_taken_back_may_not_begin_but_what_comes_later_may(permits: StartPermits) -> None:
    permits.issue([1, 2, 3])
    assert permits.take(1)

    assert permits.revoke() == [2, 3]
    permits.issue([4])

    assert [permits.take(number) for number in (2, 3, 4)] == [False, False, True]


def test_each_ticket_goes_to_one_side_while_both_reach_for_it(permits: StartPermits) -> None:
    ours, theirs = pair()

    def take_all() -> int:
        child_process.allow_signals()
        theirs.send(b"begun")
        number = 0
        while number < MANY:
            number += 1
            theirs.send(b"%d" % (number if permits.take(number) else -number))
        theirs.flush_blocking()
        return 0

    permits.issue(range(1, MANY + 1))
    child = child_process.fork(take_all, name="taker", keep=[permits.fileno(), theirs.fileno()])
    theirs.close()
    assert ours.wait(30) == b"begun"
    back = set(permits.revoke())
    answers = [int(ours.wait(30) or 0) for _ in range(MANY)]
    child.reap()
    child.close()
    ours.close()

    begun = {number for number in answers if number > 0}
    assert not begun & back
    assert begun | back == set(range(1, MANY + 1))
