"""Exceptions that policies name: every public name of a class matches, and a name that nothing has is reported."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from taskqueue import Process, Scheduler, Status, retry
from taskqueue.execution.retries import with_public_names
from taskqueue.insight.diagnosis import unknown_names
from taskqueue.model.lifecycle import outcomes
from taskqueue.model.record import Failure
from taskqueue.model.retry import named_errors, policy
from taskqueue.store import Store

JOB = "tests.execution.other_names:Raising"


class Asking:
    """A policy of the user's own, which asks by name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def decide(self, situation: retry.Situation) -> float | None:
        return 60 if situation.is_a(self.name) else None


def as_document(name: str) -> dict[str, Any]:
    """Return the options as the command line has them."""
    inner = {"policy": "fixed", "times": 1, "interval": 60}
    return {"retry": {"policy": "selected", "cases": [{"types": [name], "inner": inner}]}}


ONCE = retry.many_times(1, 60)
WAYS: dict[str, Callable[[str], dict[str, Any]]] = {
    "retry_on": lambda name: {"retry": 1, "retry_on": [name]},
    "only_on": lambda name: {"retry": retry.only_on(ONCE, name)},
    "by_exception": lambda name: {"retry": retry.by_exception(retry.when(name).then(ONCE))},
    "nested": lambda name: {"retry": retry.by_exception(retry.when(Exception).then(retry.only_on(ONCE, name)))},
    "document": as_document,
    "class": lambda name: {"retry": retry.custom(Asking, name=name)},
}


def failed(scheduler: Scheduler, data: str, **options: Any) -> Process[Any]:
    """Run one attempt of a job that fails, and return its state after that."""
    process = scheduler.add_job(JOB, data, **options)
    scheduler.run_pending(once=True)
    process.refresh()
    return process


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("json", "json.JSONDecodeError"),
        ("json", "json.decoder.JSONDecodeError"),
        ("json", "ValueError"),
        ("queue", "queue.Empty"),
        ("os", "IOError"),
        ("os", "socket.error"),
        ("os", "builtins.OSError"),
        ("", "tests.execution.other_names.Refused"),
        ("", "tests.execution.other_names._Refused"),
    ],
)
def test_every_public_name_of_a_class_matches(scheduler: Scheduler, data: str, name: str, way: str) -> None:
    assert failed(scheduler, data, **WAYS[way](name)).status is Status.POSTPONED


@pytest.mark.parametrize("name", ["json.JSONDecodError", "not_there.Busy", "queue.Full", "KeyError"])
def test_other_names_do_not_match(scheduler: Scheduler, name: str) -> None:
    assert failed(scheduler, "json", retry=1, retry_on=[name]).cause == "not_retriable"


def test_a_worker_needs_no_name_from_the_client() -> None:
    failure = Failure(type="json.decoder.JSONDecodeError", message="", bases=("ValueError", "Exception"))
    part = Failure(type="PermissionError", message="", bases=("OSError", "Exception"))
    names = ("json.JSONDecodeError", "IOError", "Exception")

    named = with_public_names(outcomes.Failed(failure=failure, parts=(failure, part)), names, JOB)
    late = with_public_names(outcomes.TimedOut(failure=failure), names, JOB)

    assert isinstance(named, outcomes.Failed)
    assert isinstance(late, outcomes.TimedOut)
    assert named.failure.bases == late.failure.bases == ("ValueError", "Exception", "json.JSONDecodeError")
    assert named.parts[1].bases == ("OSError", "Exception", "IOError")
    assert with_public_names(outcomes.Done(), names, JOB) == outcomes.Done()


def test_a_name_that_nothing_has_is_in_the_log_in_why_and_in_the_findings(
    scheduler: Scheduler, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    types = ["json.Misspelt", "KeyError", "not_there.Busy"]
    with caplog.at_level(logging.WARNING, "taskqueue"):
        first = failed(scheduler, "json", retry=1, retry_on=types)
        failed(scheduler, "json", retry=1, retry_on=types)
        failed(scheduler, "json", retry=1, retry_on=["KeyError"])

    said = "Its retry policy names json.Misspelt, not_there.Busy: no module that was loaded when it failed has"
    warned = [record.message for record in caplog.records if "names json.Misspelt, which" in record.message]
    assert len(warned) == 1
    assert first.error is not None
    assert first.error.unknown_names == ("json.Misspelt", "not_there.Busy")
    assert said in first.why()
    [finding] = unknown_names(store, store.now())
    assert finding.says.startswith(f"{first.id} ({JOB}): {said}") or said in finding.says
    assert finding.do == "check the spelling, and whether the job imports the module"


def test_a_job_that_is_tried_again_is_found_too(scheduler: Scheduler, store: Store) -> None:
    tried = failed(scheduler, "json", retry=1, retry_on=["ValueError", "json.Missing"])

    assert tried.status is Status.POSTPONED
    [finding] = unknown_names(store, store.now())
    assert "json.Missing" in finding.says


def test_the_same_policy_is_the_same_whether_the_client_knew_the_class_or_not(scheduler: Scheduler) -> None:
    by_name = retry.by_exception(retry.when("json.JSONDecodeError").then(ONCE))
    plain = as_document("json.JSONDecodeError")["retry"]
    scheduler.add_job_once(JOB, "json", retry=plain)

    assert policy(by_name.document()).document()["cases"][0]["defined"] == ["json.decoder.JSONDecodeError"]
    assert policy(by_name.document()) == policy(plain)
    assert scheduler.add_job_once(JOB, "json", retry=by_name).existed
    assert not scheduler.add_job_once(JOB, "json", retry=retry.by_exception(retry.when("KeyError").then(ONCE))).existed
    assert named_errors(by_name) == ("json.JSONDecodeError",)
