"""An action on all jobs that match a filter: first their number and some of them, then a button that does it."""

from __future__ import annotations

from typing import Any

from taskqueue.model.timestamps import milliseconds
from taskqueue.web.job_filter import JobFilter, moment
from taskqueue.web.pages.jobs import rows_of
from taskqueue.web.problems import Problem
from taskqueue.web.view import View, see_other

ACTIONS = {"cancel": ("Cancel", "pending"), "again": ("Run again", "ended")}
"""Each action as a verb, and the word for the jobs that it is for."""


def ask(view: View) -> Any:
    """Return what the action would do: how many jobs, and a sample of them."""
    action, wanted, query = _wanted(view, view.query.get("action", ""), JobFilter.of(view.query))
    verb, kind = ACTIONS[action]
    at = view.now()
    number, sample = view.actions.matching(query, None, ended=action == "again")
    return {
        "action": action,
        "verb": verb,
        "kind": kind,
        "filter": wanted,
        "at": milliseconds(at),
        "number": number,
        "sample": rows_of(view, sample),
        "may_act": view.may_act,
    }


def act(view: View) -> Any:
    """Do it, to the jobs that were counted and still match."""
    action, wanted, query = _wanted(view, view.form.get("action", ""), JobFilter.of(view.form))
    at = moment("at", view.form.get("at", ""))
    if action == "cancel":
        number = view.actions.cancel_jobs(query, at, view.form.get("reason", ""))
    else:
        number = view.actions.run_jobs_again(query, at)
    return see_other(view, f"/jobs?{wanted.address()}&done=matching&of={number}")


def _wanted(view: View, action: str, wanted: JobFilter) -> tuple[str, JobFilter, dict[str, Any]]:
    if action not in ACTIONS:
        raise Problem("malformed-request", f"action={action[:50]!r}: use {' or '.join(ACTIONS)}")
    query = wanted.query()
    view.masking.check_query(query, view.user)
    return action, wanted, query
