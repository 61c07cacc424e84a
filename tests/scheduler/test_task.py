"""Functions with ``@task``: how they are added, with which options, and what is refused before anything is stored."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from decimal import Decimal
from functools import partial, wraps
from pathlib import Path

import pytest

from taskqueue import Scheduler, task, warn_direct_calls
from taskqueue.errors import InvalidJob


@task(queue="mail", retry=3)
def send(to: str, amount: Decimal = Decimal(1), *, copies: int = 1) -> str:
    """Return what would be sent."""
    return f"{amount} to {to}, {copies} times"


def named(function: Callable[[], str]) -> Callable[[], str]:
    """Decorate a function, and keep its name."""

    @wraps(function)
    def wrapper() -> str:
        return function()

    return wrapper


@task
@named
def decorated() -> str:
    """Return a word."""
    return "done"


@task
def total(*numbers: int) -> int:
    """Return the sum."""
    return sum(numbers)


def unnamed(function: Callable[..., object]) -> Callable[..., object]:
    """Decorate a function as one does who does not know ``functools.wraps``."""

    def wrapper(*args: object) -> object:
        return function(*args)

    return wrapper


class Shop:
    def send(self) -> None: ...


def yielding() -> Iterator[int]:
    """Yield a number."""
    yield 1


async def yielding_in_a_loop() -> AsyncIterator[int]:
    """Yield a number."""
    yield 1


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: None, "a lambda has no name that a worker could import: write it with def and @task at the top level"),
        (unnamed(len), "function unnamed.<locals>.wrapper is nested, so a worker cannot import it: move it "),
        (unnamed(len), "of its module, or write @functools.wraps(function) above it if it is part of a decorator"),
        (Shop.send, "function Shop.send is nested, so a worker cannot import it: move it to the top level"),
        (Shop().send, "function Shop.send is nested"),
        (partial(print, "a"), "functools.partial(<built-in function print>, 'a') is not a function: write it with def"),
        (Shop, "<class 'tests.scheduler.test_task.Shop'> is not a function: write it with def and @task"),
        (yielding, "yielding is a generator, so none of its code would run: return a value"),
        (yielding_in_a_loop, "yielding_in_a_loop is a generator, so none of its code would run: return a value"),
    ],
)  # fmt: skip
def test_what_no_worker_could_import_or_run_is_refused_where_it_is_declared(
    function: Callable[..., object], words: str
) -> None:
    with pytest.raises(InvalidJob) as refused:
        task(function)
    assert words in str(refused.value)
    with pytest.raises(InvalidJob) as refused:
        task(queue="mail")(function)
    assert words in str(refused.value)


def test_a_decorator_that_keeps_the_name_is_no_hindrance(scheduler: Scheduler) -> None:
    assert scheduler.run_job(decorated, {}).result == "done"


@task
def confirm(to: str) -> str:
    """Call another task."""
    return send(to)


def test_a_direct_call_within_a_web_request_is_warned_of(scheduler: Scheduler) -> None:
    with warn_direct_calls():
        with pytest.warns(
            RuntimeWarning, match=r"^send\(\) runs in this request, and no job .*: write send\.add\("
        ) as got:
            assert send("ann") == "1 to ann, 1 times"
        assert send.function("ann") == "1 to ann, 1 times"  # warnings are errors here
        confirm.add(scheduler, "ann")
        assert scheduler.run_job(confirm, {"to": "bob"}).result == "1 to bob, 1 times"
    assert send("eve") == "1 to eve, 1 times"
    assert [Path(warning.filename) for warning in got] == [Path(__file__)]


def test_a_task_is_added_with_its_arguments_by_name(scheduler: Scheduler) -> None:
    process = send.add(scheduler, "a@example.org", copies=2)

    assert process.data == {"to": "a@example.org", "copies": 2}
    assert (process.queue, process.options["retry"]) == ("mail", 3)


def test_options_of_one_call_win_over_those_of_the_decorator(scheduler: Scheduler) -> None:
    urgent = send.using(queue="now", priority=-5)
    first, second = urgent.add(scheduler, to="a"), urgent.add(scheduler, to="b")

    assert [(one.queue, one.priority, one.options["retry"]) for one in (first, second)] == [("now", -5, 3)] * 2


def test_a_task_runs_with_what_was_added(scheduler: Scheduler) -> None:
    process = scheduler.run_job(send, {"to": "a", "amount": Decimal("2.50")})

    assert process.result == "2.50 to a, 1 times"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, r"send\(\) cannot be called with this data: missing a required argument: 'to'"),
        ({"to": "a", "cc": "b"}, "unexpected keyword argument 'cc'"),
        ({"to": 5}, r"data\['to'\]: 5 is not a str"),
        ({"to": "a", "amount": "x"}, r"data\['amount'\]: 'x' is not a Decimal"),
        ({"to": "a", "copies": 1.5}, r"data\['copies'\]: 1.5 is not an int"),
    ],
)
def test_arguments_that_the_function_does_not_take_are_refused(
    scheduler: Scheduler, arguments: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidJob, match=words):
        scheduler.add_job(send, arguments)
    assert list(scheduler.get_jobs()) == []


def test_an_argument_in_the_place_of_the_scheduler_is_refused() -> None:
    with pytest.raises(
        TypeError, match=re.escape("send.add() got 'ann' as its scheduler: write send.add(scheduler, …)")
    ):
        send.add("ann", Decimal(1))  # type: ignore[call-overload]


def test_the_words_of_other_systems_lead_to_those_of_this_one() -> None:
    words = "task send has no attribute 'delay': to add a job write send.add(scheduler, …), with options send.using("
    with pytest.raises(AttributeError, match=re.escape(words)):
        send.delay("ann")  # type: ignore[attr-defined]

    assert not hasattr(send, "__wrong__")


def test_positions_that_have_no_names_are_refused(scheduler: Scheduler) -> None:
    with pytest.raises(TypeError, match=r"send\(\) cannot be called with these arguments: too many positional"):
        send.add(scheduler, "a", Decimal(1), 5)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="multiple values for argument 'to'"):
        send.add(scheduler, "a", to="b")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"total\(\) takes \*args"):
        total.add(scheduler, 1, 2)
