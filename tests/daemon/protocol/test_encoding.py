"""Claims and outcomes in messages: each outcome that a worker or its manager sends reaches the node unchanged."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import get_args

import pytest
from bson import ObjectId

from taskqueue.daemon.protocol.encoding import outcome_fields, outcome_of
from taskqueue.model.lifecycle import outcomes
from taskqueue.model.lifecycle.continuation import Phase
from taskqueue.model.lifecycle.outcomes import Outcome
from taskqueue.model.record import Failure
from taskqueue.model.retry.decision import decision_of

FAILURE = Failure(type="app.Broken", message="caf\udce9", traceback="...", bases=("builtins.Exception",))
DECISION = decision_of({"after": 2.5, "queue": None})
PATIENCE = timedelta(seconds=90)

OUTCOMES: list[Outcome] = [
    outcomes.Done(),
    outcomes.Done(result='{"a": 1}', reports="[]"),
    outcomes.Failed(failure=FAILURE),
    outcomes.Failed(failure=FAILURE, delay=1.5, decision=DECISION),
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


def test_every_outcome_is_tried() -> None:
    assert {type(outcome) for outcome in OUTCOMES} == set(get_args(Outcome))
