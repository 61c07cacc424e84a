"""How a run ended, as the plain fields of a message."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from taskqueue.model.lifecycle import outcomes
from taskqueue.model.retry.decision import decision_document


def outcome_fields(outcome: outcomes.Outcome) -> dict[str, Any]:
    """Return the fields of an outcome as plain JSON values."""
    match outcome:
        case outcomes.Done(result=result, reports=reports):
            return {"result": result} if reports is None else {"result": result, "reports": reports}
        case outcomes.Stepped(phase=phase, state=state, reports=reports):
            return {"phase": phase.value, "state": state, "reports": reports}
        case outcomes.Failed(failure=failure, delay=delay, decision=decision):
            return {"failure": asdict(failure), "delay": delay, "decision": decision and decision_document(decision)}
        case outcomes.TimedOut(failure=failure, decision=decision):
            return {"failure": asdict(failure), "decision": decision and decision_document(decision)}
        case outcomes.Snoozed(seconds=seconds):
            return {"seconds": seconds}
        case outcomes.NotReady(reason=reason):
            return {"reason": reason}
        case outcomes.Declared(options=options):
            return {"options": options}
        case outcomes.Awaiting(ids=ids):
            return {"ids": [str(id) for id in ids]}
        case (
            outcomes.GivenUp(failure=failure)
            | outcomes.Unloadable(failure=failure)
            | outcomes.CheckFailed(failure=failure)
            | outcomes.Unreadable(failure=failure)
        ):
            return {"failure": asdict(failure)}
    return {}
