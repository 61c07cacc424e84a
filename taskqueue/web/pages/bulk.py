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
from taskqueue.scheduler.search import LOOKS_AT
from taskqueue.web.actions import MOST_AT_ONCE, ONLY
from taskqueue.web.pages.jobs import rows_of
from taskqueue.web.problems import Problem
from taskqueue.web.view import View, moment, see_other

ACTIONS = {
    "cancel": ("cancel", "Cancel", "pending"),
    "give-up": ("give-up", "Give up", "retrying"),
    "again": ("run-again", "Run again", "ended"),
    "now": ("start-now", "Start now", "postponed"),
}
"""For the word in an address, the name of the action, its verb, and the word for the jobs that it concerns."""


def ask(view: View) -> Any:
    """Return what the action would do: how many jobs, and a sample of them."""
    selected = JobFilter(tuple(Token("id", id) for id in view.query.getlist("id")))  # the boxes of a list of jobs
    job_filter = selected or JobFilter.of(view.query)
    word = _word(view.query)
    action, verb, kind = ACTIONS[word]
    at = view.overviews.now()
    looks_at = None if view.query.get("look") == "all" else LOOKS_AT
    matching = view.actions.matching(action, _allowed(view, job_filter), None, looks_at)
    return {
        "action": word,
        "verb": verb,
        "kind": kind,
        "filter": job_filter,
        "at": milliseconds(at),
        "number": matching.number,
        "since": matching.since,
        "is_by_end": matching.is_by_end,
        "all": job_filter.address(action=word, look="all"),
        "sample": rows_of(view, matching.sample),
        "most": MOST_AT_ONCE if action in ONLY else None,
        "may_act": view.may_act,
        "name": new_name(at),
    }


def act(view: View) -> Any:
    """Do it, to the jobs that were counted and still match."""
    job_filter = JobFilter.of(view.form)
    action, _, _ = ACTIONS[_word(view.form)]
    at = moment("at", view.form.get("at", ""))
    number = view.actions.act_on_matching(action, _allowed(view, job_filter), at, view.form.get("reason", ""))
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


def _word(given: Mapping[str, str]) -> str:
    word = given.get("action", "")
    if word not in ACTIONS:
        raise Problem("malformed-request", f"action={word[:50]!r}: use {' or '.join(ACTIONS)}")
    return word


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
