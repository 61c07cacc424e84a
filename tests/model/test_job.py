"""What a user subclasses or decorates, and what it may raise."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from taskqueue import ClassOptions, Fail, Interrupted, Job, JobTimeout, Retry, Snooze, task
from taskqueue.errors import InvalidOption
from taskqueue.retry import exponential


class Mail(Job):
    def start(self) -> str:
        return "sent"


@task
def plain(word: str) -> str:
    """Say a word."""
    return word * 2


@task(retry=3, queue="mail")
def send(to: str, body: str = "") -> str:
    return f"{to}: {body}"


def test_a_job_knows_its_run_only_while_it_runs() -> None:
    mail = Mail()

    assert mail.start() == "sent"
    for name in ("id", "attempt", "is_last_attempt", "key", "stopping", "log", "scheduler"):
        with pytest.raises(RuntimeError, match="Mail is not running: use this only inside start"):
            getattr(mail, name)
    with pytest.raises(RuntimeError):
        mail.progress(5)
    with pytest.raises(RuntimeError):
        mail.checkpoint({})


def test_a_job_without_start_says_so() -> None:
    with pytest.raises(TypeError, match=r"has no start\(\)"):
        Job().start()


def test_the_hooks_of_a_job_do_nothing_by_themselves() -> None:
    mail = Mail()
    mail.on_success()
    mail.on_failure(ValueError())
    mail.on_last_failure(ValueError())
    mail.finalize()

    assert (mail.data, mail.state, dict(mail.options)) == (None, None, {})


class Base(Job):
    options: ClassVar[ClassOptions] = {"queue": "mail", "retry": 3, "retry_interval": 5, "tags": ["a"]}


class Urgent(Base):
    options: ClassVar[ClassOptions] = {"priority": -5, "tags": ["b"]}


class Patient(Base):
    options: ClassVar[ClassOptions] = {"retry": exponential(5), "queue": "slow"}


class Both(Urgent, Patient):
    pass


class Heir(Both):
    options: ClassVar[ClassOptions] = {"retry": 0}


class Unchanged(Base):
    pass


def test_a_subclass_has_the_options_of_its_bases_and_its_own_win() -> None:
    assert Urgent.options == {"queue": "mail", "retry": 3, "retry_interval": 5, "tags": ["b"], "priority": -5}
    assert Base.options == {"queue": "mail", "retry": 3, "retry_interval": 5, "tags": ["a"]}
    assert Unchanged.options is Base.options


def test_a_subclass_may_change_each_part_of_a_promise_and_take_it_back() -> None:
    class Prompt(Job):
        options: ClassVar[ClassOptions] = {"begin_within": 30, "promise": 0.9}

    class Prompter(Prompt):
        options: ClassVar[ClassOptions] = {"promise": 0.99}

    class Slow(Prompter):
        options: ClassVar[ClassOptions] = {"begin_within": None}

    assert Prompter.options == {"begin_within": 30, "promise": 0.99}
    assert Slow.options == {"begin_within": None, "promise": 0.99}
    with pytest.raises(InvalidOption, match=r"options of .*:Vague: promise=0.9 is the share .* begin_within as well"):
        type("Vague", (Job,), {"options": {"promise": 0.9}})
    with pytest.raises(InvalidOption, match=r"promise=0\.9 is the share of jobs that start in time"):
        task(promise=0.9)(print_nothing)


def print_nothing() -> None:
    """Do nothing."""


def test_a_policy_of_a_subclass_takes_the_place_of_inherited_pauses() -> None:
    assert Patient.options == {"queue": "slow", "retry": exponential(5), "tags": ["a"]}


def test_options_of_several_bases_are_merged_in_the_order_of_methods() -> None:
    assert Both.options == {"queue": "slow", "retry": exponential(5), "tags": ["b"], "priority": -5}
    assert Heir.options == {**Both.options, "retry": 0}


@pytest.mark.parametrize("options", [["retry"], [], None, ""])
def test_options_that_are_no_mapping_are_refused(options: Any) -> None:
    with pytest.raises(InvalidOption, match="declare a mapping of names to values"):
        type("Wrong", (Base,), {"options": options})


def test_a_task_can_still_be_called() -> None:
    assert plain("a") == "aa"
    assert send("a", body="hi") == "a: hi"
    assert plain.__doc__ == "Say a word."
    assert repr(send) == f"<task {__name__}:send>"
    assert send.options == {"retry": 3, "queue": "mail"}
    assert plain.options == {}


def test_what_a_job_raises_says_what_it_means() -> None:
    assert (Retry(5).delay, str(Retry(5))) == (5.0, "asked to be retried")
    assert (Retry().delay, str(Retry(reason="busy"))) == (None, "busy")
    assert (str(Fail()), str(Fail("wrong"))) == ("gave up", "wrong")
    assert (Snooze(90).seconds, str(Snooze(90))) == (90.0, "again in 90 s")


@pytest.mark.parametrize("seconds", [-1, True, "5", float("nan"), 1e12])
def test_a_pause_is_seconds_up_to_ten_years(seconds: Any) -> None:
    with pytest.raises(ValueError, match="pass seconds between 0 and ten years"):
        Retry(seconds)
    with pytest.raises(ValueError, match="pass seconds between 0 and ten years"):
        Snooze(seconds)


@pytest.mark.parametrize("wrong", [Snooze, Retry, 5, None, ValueError("late")])
def test_a_job_ends_with_nothing_else(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"end_with\(.*\): pass Retry\(\), Fail\('why'\) or Snooze\(60\)"):
        Mail().end_with(wrong)


def test_an_interruption_is_not_caught_by_accident() -> None:
    assert not issubclass(Interrupted, Exception)
    assert issubclass(JobTimeout, Interrupted)
    assert (Interrupted().reason, Interrupted("cancel").reason, JobTimeout().reason) == (
        "shutdown",
        "cancel",
        "timeout",
    )
