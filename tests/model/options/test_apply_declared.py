"""A job that was added by its path becomes what its class would have made of it, option by option."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from bson import ObjectId

from taskqueue import Check, Limit, Rate
from taskqueue.model.lifecycle import pending
from taskqueue.model.lifecycle.outcomes import Declared, Run
from taskqueue.model.lifecycle.settle import ended
from taskqueue.model.options import checked, merged
from taskqueue.model.options.new_record import record
from taskqueue.model.options.readers import stated
from taskqueue.model.options.table import OPTIONS, Scope
from taskqueue.model.record import Cause, Holder, Record, Status, changed
from taskqueue.model.retry import ExponentialRetry, FixedRetry
from taskqueue.model.schedules.origin import FromSchedule, Series

NOON = datetime(2026, 7, 1, 12, tzinfo=timezone.utc)
LATER = NOON + timedelta(seconds=30)
WEB = Holder(seat="web-1", incarnation="a")
ID = ObjectId()

DECLARED: Mapping[str, Mapping[str, Any]] = {
    "at": {"at": "+1 hour"},
    "retry": {"retry": 5},
    "retry_interval": {"retry_interval": "5s", "retry": 2},
    "retry_on": {"retry_on": [ValueError], "retry": ExponentialRetry(times=3, interval=1)},
    "retry_on_timeout": {"retry_on_timeout": False},
    "timeout": {"timeout": "90s"},
    "stall_timeout": {"stall_timeout": 30},
    "priority": {"priority": -3},
    "queue": {"queue": "mail"},
    "tags": {"tags": ["b", "a"]},
    "unique": {"unique": "only"},
    "force_spawn": {"force_spawn": True},
    "concurrency": {"concurrency": 5},
    "name": {"name": "Send an invoice"},
    "begin_within": {"begin_within": "5m"},
    "promise": {"begin_within": 30, "promise": 0.999},
    "crash_retries": {"crash_retries": 0},
    "on_crash": {"on_crash": "fail"},
    "receives": {"receives": {"page": "result"}},
    "ready": {"ready": Check("shop:is_open") & ~Check("#is_full", above=3)},
    "limits": {"limits": [Limit(2, by="to"), Rate(10, per=2_000_000, name="api")]},
    "expires": {"expires": "+2 hours"},
    "interval": {"interval": "5m"},
    "interval_reference": {"interval": 60, "interval_reference": datetime(2026, 1, 1, tzinfo=timezone.utc)},
    "until": {"interval": -1, "until": "+1 day"},
    "max_runs": {"interval": 60, "interval_reference": "start", "max_runs": 3},
    "stop_after_failures": {"interval": 60, "stop_after_failures": 2, "expires": "+1 minute"},
}
PASSED: Mapping[str, Mapping[str, Any]] = {
    "at": {"at": "+10 s"},
    "retry": {"retry": 1},
    "retry_interval": {"retry_interval": 7},
    "retry_on": {"retry_on": "app.errors.Refused"},
    "retry_on_timeout": {"retry_on_timeout": True},
    "timeout": {"timeout": None},
    "stall_timeout": {"stall_timeout": 1},
    "priority": {"priority": 4},
    "queue": {"queue": "urgent"},
    "tags": {"tags": "mine"},
    "unique": {"unique": "mine"},
    "force_spawn": {"force_spawn": False},
    "concurrency": {"limits": 3},  # a call cannot pass it
    "name": {"priority": 1},  # nor this
    "begin_within": {"priority": 1},  # nor these
    "promise": {"priority": 1},
    "crash_retries": {"crash_retries": 7},
    "on_crash": {"on_crash": "retry"},
    "receives": {"receives": "results"},
    "ready": {"ready": "#is_mine"},
    "limits": {"limits": 1},
    "expires": {"expires": "+3 hours"},
    "interval": {"interval": 1},
    "interval_reference": {"interval": 60, "interval_reference": "end"},
    "until": {"interval": 60, "until": "+2 days"},
    "max_runs": {"interval": 60, "max_runs": 9},
    "stop_after_failures": {"interval": 60, "stop_after_failures": 9},
}
BEFORE_A_RUN = {"on_dependency_failure", "ignore_data", "unique_for", "on_duplicate"}
"""Options that matter before a worker could load the class."""


def test_every_option_that_a_class_can_declare_is_tried() -> None:
    on_a_class = {name for name, option in OPTIONS.items() if option.scope >= Scope.CLASS}

    assert set(DECLARED) == set(PASSED) == on_a_class - BEFORE_A_RUN


@pytest.mark.parametrize("name", DECLARED)
def test_what_a_class_declares_comes_in_with_its_first_worker(name: str) -> None:
    by_class = added({}, DECLARED[name])
    by_path = loaded(added({}, {}), DECLARED[name])

    assert definition(by_path) == definition(by_class)
    assert (by_path.status, by_path.ready_at, by_path.rank) == (by_class.status, by_class.ready_at, by_class.rank)
    assert (by_path.attempts, by_path.attempt, by_path.started_at, by_path.holder) == ((), 1, None, None)


@pytest.mark.parametrize("name", DECLARED)
def test_what_the_adder_passed_wins(name: str) -> None:
    by_class = added(PASSED[name], DECLARED[name])
    by_path = loaded(added(PASSED[name], {}), DECLARED[name])

    assert definition(by_path) == definition(by_class)


def test_a_default_of_the_scheduler_yields_to_the_class_and_stays_where_that_says_nothing() -> None:
    by_path = loaded(added({}, {}, {"queue": "low", "priority": 3, "retry": ExponentialRetry()}), {"queue": "mail"})

    assert (by_path.queue, by_path.priority, by_path.options.retry) == ("mail", 3, ExponentialRetry())


def test_a_number_of_attempts_takes_the_place_of_a_policy_of_the_scheduler() -> None:
    by_path = loaded(added({}, {}, {"retry": ExponentialRetry()}), {"retry": 4})

    assert by_path.options.retry == FixedRetry(times=4, interval=300.0)


def test_options_that_cannot_be_fail_the_job_with_words() -> None:
    after = loaded(added({"retry_interval": 5}, {}), {"retry": ExponentialRetry()})

    assert (after.status, after.cause) == (Status.FAILED, Cause.UNLOADABLE)
    assert after.error is not None
    assert "leave out retry_interval" in after.error.message


def test_a_condition_among_depends_on_holds_besides_what_the_class_asks() -> None:
    passed, declared = {"depends_on": [Check("shop:is_paid")]}, {"ready": Check("shop:is_open")}

    by_path = loaded(added(passed, {}), declared)

    assert (
        by_path.options.ready == Check("shop:is_open") & Check("shop:is_paid") == added(passed, declared).options.ready
    )


def test_the_job_of_a_schedule_keeps_the_times_of_its_schedule() -> None:
    fired = changed(added({}, {}), origin=FromSchedule(schedule="nightly", slot=NOON))

    after = loaded(fired, {"at": "+1 hour", "interval": 60, "queue": "mail", "expires": "+1 minute"})

    assert (after.origin, after.status, after.ready_at) == (fired.origin, Status.WAITING, NOON)
    assert (after.queue, after.expires_at) == ("mail", NOON + timedelta(minutes=1))


def test_a_later_occurrence_stays_the_one_that_it_is() -> None:
    first = added({"interval": 60}, {})
    assert isinstance(first.origin, Series)
    third = changed(first, origin=replace(first.origin, occurrence=3, failed=1))

    after = loaded(third, {"max_runs": 5})

    assert after.origin == replace(first.origin, occurrence=3, failed=1, max_runs=5)


def added(passed: Mapping[str, Any], declared: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Record:
    """Return the record of a job whose class declares so much, as far as the adder knows."""
    given = checked(passed)
    every = merged(given, checked(declared, "options", Scope.CLASS), checked(defaults or {}, "Scheduler", Scope.ALL))
    made = record(job="shop:Mail", data='{"to":"a"}', options=every, given=given, id=ID, now=NOON)
    return made if declared else changed(made, options=replace(made.options, undeclared=True))


def loaded(waiting: Record, declared: Mapping[str, Any]) -> Record:
    """Return what becomes of it when a worker loads its class."""
    told = {name: stated(value) for name, value in checked(declared, "options", Scope.CLASS).items()}
    claimed = pending.claimed(waiting, WEB, LATER + timedelta(seconds=30))
    run = Run(node="web-1", pid=7, started_at=LATER)
    return ended(claimed, Declared(options=json.loads(json.dumps(told))), run, LATER)


def definition(record: Record) -> tuple[Any, ...]:
    """Return what options make of a record."""
    return (
        record.queue,
        record.priority,
        record.tags,
        record.unique,
        record.options,
        record.lane,
        record.origin,
        record.expires_at,
    )


def test_a_concurrency_that_the_call_contradicts_fails_the_job_with_words() -> None:
    after = loaded(added({"force_spawn": True}, {}), {"concurrency": 5})

    assert (after.status, after.cause) == (Status.FAILED, Cause.UNLOADABLE)
    assert after.error is not None
    assert "but force_spawn runs each in a worker of its own: pass only one of the two" in after.error.message
