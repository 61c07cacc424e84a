"""Operations of several calls, done by the blocking client and awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from taskqueue.scheduler.calls import Calls, all_of, answered, awaited


def total(*calls: object) -> Calls[int]:
    """Return the sum of the answers; a call that fails counts nothing."""
    found = 0
    for call in calls:
        try:
            found += yield call
        except LookupError:
            continue
    return found


async def one(answer: int) -> int:
    return answer


async def lost() -> int:
    raise LookupError


async def wrong() -> int:
    raise ArithmeticError


async def numbers() -> AsyncIterator[int]:
    for number in range(3):
        yield number


def test_calls_have_answered_or_are_awaited() -> None:
    assert answered(total(1, 2)) == 3
    assert answered(total()) == 0
    assert asyncio.run(awaited(total(one(1), 2))) == 3


def test_an_error_is_raised_where_the_call_was_made() -> None:
    assert asyncio.run(awaited(total(one(1), lost(), one(2)))) == 3
    with pytest.raises(ArithmeticError):
        asyncio.run(awaited(total(wrong())))


def test_all_items_are_one_call() -> None:
    assert all_of(iter([1, 2])) == [1, 2]
    assert asyncio.run(all_of(numbers())) == [0, 1, 2]
