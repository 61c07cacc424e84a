"""An action on all jobs that match a filter: first their number and some of them, then a button that does it."""

from __future__ import annotations

from typing import Any

from taskqueue.model.job_filter import JobFilter, Token
from taskqueue.model.timestamps import milliseconds
from taskqueue.scheduler.bulk_actions import new_name
from taskqueue.web.actions import MOST_STARTED, STARTABLE
from taskqueue.web.pages.jobs import rows_of
from taskqueue.web.problems import Problem
from taskqueue.web.view import View, moment, see_other

ACTIONS = {"cancel": ("Cancel", "pending"), "again": ("Run again", "ended"), "now": ("Start now", "postponed")}
"""Each action as a verb, and the word for the jobs that it concerns."""


def ask(view: View) -> Any:
    """Return what the action would do: how many jobs, and a sample of them."""
    selected = JobFilter(tuple(Token("id", id) for id in view.query.getlist("id")))  # the boxes of a list of jobs
    action, wanted, query = _wanted(view, view.query.get("action", ""), selected or JobFilter.of(view.query))
    verb, kind = ACTIONS[action]
    at = view.now()
    if action == "now":
        query = {"$and": [query, STARTABLE]}
    number, sample = view.actions.matching(query, None, ended=action == "again")
    return {
        "action": action,
        "verb": verb,
        "kind": kind,
        "filter": wanted,
        "at": milliseconds(at),
        "number": number,
        "sample": rows_of(view, sample),
        "most": MOST_STARTED if action == "now" else number,
        "may_act": view.may_act,
        "name": new_name(at),
    }


def act(view: View) -> Any:
    """Do it, to the jobs that were counted and still match."""
    action, wanted, query = _wanted(view, view.form.get("action", ""), JobFilter.of(view.form))
    at = moment("at", view.form.get("at", ""))
    if action == "cancel":
        number = view.actions.cancel_jobs(query, at, view.form.get("reason", ""))
    elif action == "now":
        number = view.actions.start_now(query, at)
    else:
        number = view.actions.run_jobs_again(query, at)
    return see_other(view, f"/jobs?{wanted.address()}&done=matching&of={number}")


def _wanted(view: View, action: str, wanted: JobFilter) -> tuple[str, JobFilter, dict[str, Any]]:
    if action not in ACTIONS:
        raise Problem("malformed-request", f"action={action[:50]!r}: use {' or '.join(ACTIONS)}")
    query = wanted.query(view.now())
    view.masking.check_query(query, view.user)
    return action, wanted, query
