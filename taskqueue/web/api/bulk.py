"""The operations on bulk actions: begin one, read how its copies ended, run the rest, stop it."""

from __future__ import annotations

from typing import Any

from taskqueue.scheduler import bulk_actions, json_shapes
from taskqueue.scheduler.audit_trail import shown_query
from taskqueue.web.api.jobs import matching_query
from taskqueue.web.api.route import Answer, ApiRoute, Call
from taskqueue.web.api.schemas import INTEGER, REASON, TEXT, TIME, WHEN, exactly, optional, record

PLAN = ("first", "rate", "queue", "at")


def begin_bulk_action(call: Call) -> Any:
    """Run the ended jobs that match again as a bulk action: the first ones, at a rate, in a queue, at a time."""
    name = call.body["name"]
    query = matching_query(call)
    call.actions.begin_bulk_action(name, query, call.dashboard.overviews.now(), _plan(call))
    return Answer(status=201, document=_shown(call, name))


def get_bulk_action(call: Call) -> Any:
    """Return a bulk action: its stages, and how many of its copies are in which status."""
    return _shown(call, call.path["name"])


def run_rest(call: Call) -> Any:
    """Run the jobs again that no stage of a bulk action has looked at."""
    call.actions.continue_bulk_action(call.path["name"], _plan(call))
    return _shown(call, call.path["name"])


def stop_bulk_action(call: Call) -> Any:
    """Cancel the copies of a bulk action that have not started."""
    call.actions.stop_bulk_action(call.path["name"], call.body.get("reason", ""))
    return _shown(call, call.path["name"])


def _plan(call: Call) -> dict[str, Any]:
    return {name: call.body.get(name) for name in PLAN}


def _shown(call: Call, name: str) -> dict[str, Any]:
    action = bulk_actions.read(call.scheduler, name)
    query = shown_query(action.first.written, call.dashboard.masking)
    return {**json_shapes.bulk_action(action), "query": query}


_STAGED = {
    "first": {**optional(INTEGER), "minimum": 1, "description": "Only so many of them."},
    "rate": {**optional(TEXT), "maxLength": 20, "examples": ["50/m"]},
    "queue": {**optional(TEXT), "maxLength": 200, "description": "The queue of the copies; null is their own."},
    "at": WHEN,
}
_ACTION = record(
    {
        "name": TEXT,
        "by": TEXT,
        "created_at": TIME,
        "query": TEXT,
        "found": INTEGER,
        "left": INTEGER,
        "left_out": INTEGER,
        "taken": INTEGER,
        "statuses": {"type": "object", "additionalProperties": INTEGER},
        "stages": {"type": "array", "items": {"type": "object"}},
    }
)
_BEGIN = exactly(
    {
        "name": {"type": "string", "maxLength": 64, "examples": ["vat-fix"]},
        "query": {"type": "object", "examples": [{"status": "FAILED", "queue": "billing"}]},
    },
    **_STAGED,
)

ROUTES = (
    ApiRoute("POST /bulk", begin_bulk_action, _ACTION, body=_BEGIN, needs_body=True, created=True, statuses=(409,)),
    ApiRoute("GET /bulk/{name}", get_bulk_action, _ACTION),
    ApiRoute("POST /bulk/{name}/rest", run_rest, _ACTION, body=exactly(None, **_STAGED), statuses=(409,)),
    ApiRoute("POST /bulk/{name}/stop", stop_bulk_action, _ACTION, body=exactly(None, reason=REASON)),
)
