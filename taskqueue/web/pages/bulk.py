"""A bulk action: its stages, how their copies ended, and what comes next: the rest, or a stop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from taskqueue.model.job_filter import JobFilter
from taskqueue.model.record import Status
from taskqueue.scheduler import bulk_actions
from taskqueue.scheduler.audit_trail import shown_query
from taskqueue.scheduler.bulk_actions import StageResults
from taskqueue.web.view import View, moment, see_other


def bulk(view: View) -> Mapping[str, Any]:
    """Return the state of a bulk action."""
    action = bulk_actions.read(view.scheduler, view.path["name"])
    statuses = action.statuses
    return {
        "action": action,
        "query": shown_query(action.first.written, view.masking),
        "stages": [_stage(one) for one in action.stages],
        "copies": sum(statuses.values()),
        "ended": sum(number for status, number in statuses.items() if status.is_final),
        "adding": next((one.stage for one in action.stages if one.stage.record.status.is_pending), None),
        "failed": next((one.stage for one in action.stages if one.stage.record.status is Status.FAILED), None),
        "may_act": view.may_act,
    }


def begin(view: View) -> Response:
    """Begin a bulk action on the jobs that were counted and still match."""
    query = JobFilter.of(view.form).query(view.now())
    view.masking.check_query(query, view.user)
    name = view.form.get("name", "").strip()
    view.actions.begin_bulk_action(name, query, moment("at", view.form.get("at", "")), _given(view))
    return see_other(view, f"/bulk/{name}")


def rest(view: View) -> Response:
    """Run the jobs again that no stage has looked at."""
    view.actions.continue_bulk_action(view.path["name"], _given(view))
    return see_other(view, f"/bulk/{view.path['name']}")


def stop(view: View) -> Response:
    """Cancel the copies that have not started."""
    view.actions.stop_bulk_action(view.path["name"], view.form.get("reason", ""))
    return see_other(view, f"/bulk/{view.path['name']}?done=bulk-stopped")


def _given(view: View) -> dict[str, Any]:
    """Return the plan that the fields of a form describe; an empty field says nothing."""
    given: dict[str, Any] = {
        name: view.form.get(field, "").strip() or None
        for name, field in (("first", "first"), ("rate", "rate"), ("queue", "queue"), ("at", "starts"))
    }
    first = given["first"]
    return given | {"first": int(first)} if first is not None and first.isdecimal() and len(first) < 10 else given


def _stage(results: StageResults) -> dict[str, Any]:
    """Return a stage, with a link to its copies in each status that any has."""
    counts = [
        {"status": status, "number": number, "address": _address(results, status)}
        for status, number in results.statuses.items()
        if number
    ]
    return {"stage": results.stage, "counts": counts}


def _address(results: StageResults, status: Status) -> str:
    query = bulk_actions.copies_in(results.stage.record.id, status)
    return urlencode({"q": json.dumps(query)})
