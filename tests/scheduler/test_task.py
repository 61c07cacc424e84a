"""Functions with ``@task``: how they are added, with which options, and what is refused before anything is stored."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest

from taskqueue import Scheduler, task
from taskqueue.errors import InvalidJob


@task(queue="mail", retry=3)
def send(to: str, amount: Decimal = Decimal(1), *, copies: int = 1) -> str:
    """Return what would be sent."""
    return f"{amount} to {to}, {copies} times"


@task
def total(*numbers: int) -> int:
    """Return the sum."""
    return sum(numbers)


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
    words = "task send has no attribute 'delay'; to add a job write send.add(scheduler, …), with options send.using("
    with pytest.raises(AttributeError, match=re.escape(words)):
        send.delay("ann")  # type: ignore[attr-defined]

    assert not hasattr(send, "__wrong__")


def test_positions_that_have_no_names_are_refused(scheduler: Scheduler) -> None:
    with pytest.raises(TypeError, match="too many positional arguments"):
        send.add(scheduler, "a", Decimal(1), 5)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="multiple values for argument 'to'"):
        send.add(scheduler, "a", to="b")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"total\(\) takes \*args"):
        total.add(scheduler, 1, 2)
