"""Actions on all jobs that match a filter: at once, after a question that counts them, or in stages.

The page of a bulk action shows its stages and how their copies ended, and begins the rest or stops it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from taskqueue.model.job_filter import JobFilter, Token
from taskqueue.model.record import Status
from taskqueue.model.timestamps import milliseconds
from taskqueue.scheduler import bulk_actions
from taskqueue.scheduler.audit_trail import shown_query
from taskqueue.scheduler.bulk_actions import StageResults, new_name
from taskqueue.scheduler.changes import WAITS_AGAIN
from taskqueue.scheduler.search import LOOKS_AT
from taskqueue.web.actions import MOST_AT_ONCE, STARTABLE
from taskqueue.web.pages.jobs import rows_of
from taskqueue.web.problems import Problem
from taskqueue.web.view import View, moment, see_other

ACTIONS = {
    "cancel": ("Cancel", "pending"),
    "give-up": ("Give up", "retrying"),
    "again": ("Run again", "ended"),
    "now": ("Start now", "postponed"),
}
"""Each action as a verb, and the word for the jobs that it concerns."""

ONLY = {"give-up": WAITS_AGAIN, "now": STARTABLE}
"""The queries of actions that concern only some of the matching jobs."""


def ask(view: View) -> Any:
    """Return what the action would do: how many jobs, and a sample of them."""
    selected = JobFilter(tuple(Token("id", id) for id in view.query.getlist("id")))  # the boxes of a list of jobs
    job_filter = selected or JobFilter.of(view.query)
    action, query = _action(view.query), _allowed(view, job_filter)
    verb, kind = ACTIONS[action]
    at = view.overviews.now()
    if action in ONLY:
        query = {"$and": [query, ONLY[action]]}
    looks_at = None if view.query.get("look") == "all" else LOOKS_AT
    matching = view.actions.matching(query, None, ended=action == "again", looks_at=looks_at)
    return {
        "action": action,
        "verb": verb,
        "kind": kind,
        "filter": job_filter,
        "at": milliseconds(at),
        "number": matching.number,
        "is_complete": matching.is_complete,
        "looks_at": LOOKS_AT,
        "all": job_filter.address(action=action, look="all"),
        "sample": rows_of(view, matching.sample),
        "most": MOST_AT_ONCE if action in ONLY else matching.number,
        "may_act": view.may_act,
        "name": new_name(at),
    }


def act(view: View) -> Any:
    """Do it, to the jobs that were counted and still match."""
    job_filter = JobFilter.of(view.form)
    action, query = _action(view.form), _allowed(view, job_filter)
    at = moment("at", view.form.get("at", ""))
    if action == "cancel":
        number = view.actions.cancel_jobs(query, at, view.form.get("reason", ""))
    elif action == "give-up":
        number = view.actions.give_up_jobs(query, at, view.form.get("reason", ""))
    elif action == "now":
        number = view.actions.start_now(query, at)
    else:
        number = view.actions.run_jobs_again(query, at)
    return see_other(view, f"/jobs?{job_filter.address()}&done=matching&of={number}")


def bulk(view: View) -> Mapping[str, Any]:
    """Return the state of a bulk action."""
    action = bulk_actions.read(view.scheduler, view.path["name"])
    statuses, stages = action.statuses, [results.stage for results in action.stages]
    return {
        "action": action,
        "query": shown_query(action.first.written, view.masking),
        "stages": [_stage(results) for results in action.stages],
        "copies": sum(statuses.values()),
        "ended": sum(number for status, number in statuses.items() if status.is_final),
        "adding": next((stage for stage in stages if stage.record.status.is_pending), None),
        "failed": next((stage for stage in stages if stage.record.status is Status.FAILED), None),
        "may_act": view.may_act,
    }


def begin(view: View) -> Response:
    """Begin a bulk action on the jobs that were counted and still match."""
    query = _allowed(view, JobFilter.of(view.form))
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


def _action(given: Mapping[str, str]) -> str:
    action = given.get("action", "")
    if action not in ACTIONS:
        raise Problem("malformed-request", f"action={action[:50]!r}: use {' or '.join(ACTIONS)}")
    return action


def _allowed(view: View, job_filter: JobFilter) -> dict[str, Any]:
    """Return the query of the filter. Raises ``InvalidQuery`` if it searches for values that this user may not see."""
    query = job_filter.query(view.overviews.now())
    view.masking.check_query_of(query, view.user)
    return query


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
