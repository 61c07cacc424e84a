"""Alarms: one call at the moment that was named last, on the loop's clock or the store's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone

import pytest

from taskqueue.daemon.runtime.loop import Loop, ResettableTimer, every

HOUR = timedelta(hours=1)


def now() -> datetime:
    return datetime.now(timezone.utc)


@pytest.fixture
def loop() -> Iterator[Loop]:
    with closing(Loop()) as loop:
        yield loop


def test_the_moment_that_was_named_last_counts(loop: Loop) -> None:
    alarm = ResettableTimer(loop, now, loop.stop)
    alarm.at(now() + HOUR)
    assert alarm.is_set

    alarm.at(now() - HOUR)
    loop.run()

    assert not alarm.is_set


def test_a_later_moment_does_not_put_off_an_earlier_one(loop: Loop) -> None:
    alarm = ResettableTimer(loop, now, loop.stop)
    alarm.after(0.01)

    alarm.no_later_than(now() + HOUR)
    loop.run()


def test_an_earlier_moment_comes_before_a_later_one(loop: Loop) -> None:
    alarm = ResettableTimer(loop, now, loop.stop)
    alarm.after(3600)

    alarm.no_later_than(now())
    loop.run()


def test_an_alarm_that_is_off_does_not_call(loop: Loop) -> None:
    called: list[str] = []
    alarm = ResettableTimer(loop, now, lambda: called.append("alarm"))
    alarm.after(0)

    alarm.cancel()
    ResettableTimer(loop, now, loop.stop).after(0.01)
    loop.run()

    assert (called, alarm.is_set) == ([], False)


def test_every_calls_again_and_again(loop: Loop) -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(len(calls))
        if len(calls) == 3:
            loop.stop()

    every(loop, 0.001, call)
    loop.run()

    assert calls == [0, 1, 2]
