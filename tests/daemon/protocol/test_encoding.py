"""Claims and outcomes in messages: each outcome that a worker or its manager sends reaches the node unchanged."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any, get_args

import pytest
from bson import ObjectId

from taskqueue.daemon.protocol.codec import decode, encode, outcome_fields, outcome_of
from taskqueue.execution.run import Run, run_of
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle import outcomes
from taskqueue.model.lifecycle.continuation import Phase
from taskqueue.model.lifecycle.outcomes import Outcome
from taskqueue.model.lifecycle.recovered_copy import copy
from taskqueue.model.record import Failure, Options, Record, Status
from taskqueue.model.retry import decision_of
from taskqueue.retry import by_exception, many_times, when

FAILURE = Failure(
    type="app.Broken", message="caf\udce9", traceback="...", bases=("builtins.Exception",), unknown_names=("app.Lost",)
)
DECISION = decision_of({"after": 2.5, "queue": None})
PATIENCE = timedelta(seconds=90)

OUTCOMES: list[Outcome] = [
    outcomes.Done(),
    outcomes.Done(result='{"a": 1}', reports="[]"),
    outcomes.Failed(failure=FAILURE),
    outcomes.Failed(failure=FAILURE, delay=1.5, decision=DECISION),
    outcomes.Failed(failure=FAILURE, parts=(FAILURE, FAILURE)),
    outcomes.GivenUp(failure=FAILURE),
    outcomes.Snoozed(seconds=60.0),
    outcomes.NotReady(reason="no file"),
    outcomes.CheckFailed(failure=FAILURE),
    outcomes.Stepped(phase=Phase.FAILING, state="{}", reports=None),
    outcomes.Awaiting(ids=(ObjectId(), ObjectId())),
    outcomes.TimedOut(failure=FAILURE, decision=DECISION),
    outcomes.Stalled(failure=FAILURE),
    outcomes.Canceled(),
    outcomes.Interrupted(),
    outcomes.Interrupted(failure=FAILURE),
    outcomes.HandedBack(),
    outcomes.Crashed(failure=FAILURE),
    outcomes.Declared(options={"timeout": 5}),
    outcomes.Unloadable(failure=FAILURE, retry_for=PATIENCE),
    outcomes.Unreadable(failure=FAILURE),
]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_an_outcome_is_decoded_as_it_was_encoded(outcome: Outcome) -> None:
    fields = json.loads(json.dumps(outcome_fields(outcome)))

    assert outcome_of(type(outcome).__name__, fields, PATIENCE.total_seconds()) == outcome


@pytest.mark.parametrize(
    ("given", "sent"), [({}, None), ({"meta": {"tenant": "acme"}}, {"tenant": "acme"}), ({"meta": "damaged"}, None)]
)
def test_a_run_brings_the_meta_of_its_job(given: dict[str, Any], sent: dict[str, str] | None) -> None:
    now = datetime.now(timezone.utc)
    record = Record(id=ObjectId(), job="app:Mail", created_at=now, ready_at=now, given=given)

    run = decode(encode(run_of(record, now)))

    assert isinstance(run, Run)
    assert run.meta == sent


def test_a_run_brings_the_key_that_its_job_took_over() -> None:
    now = datetime.now(timezone.utc)
    failed = Record(id=ObjectId(), job="app:Pay", created_at=now, ready_at=now, status=Status.FAILED)

    again = copy(failed, JobId(), None, now)

    assert [run_of(record, now).key for record in (failed, again)] == [None, str(failed.id)]


def test_a_run_brings_the_names_of_errors_that_its_policy_is_for() -> None:
    now = datetime.now(timezone.utc)
    by_name = by_exception(when("json.JSONDecodeError").then(many_times(1)))
    record = Record(id=ObjectId(), job="app:Mail", created_at=now, ready_at=now, options=Options(retry=by_name))

    run = decode(encode(run_of(record, now)))

    assert isinstance(run, Run)
    assert run.error_names == ("json.JSONDecodeError",)


def test_every_outcome_is_tried() -> None:
    assert {type(outcome) for outcome in OUTCOMES} == set(get_args(Outcome))
