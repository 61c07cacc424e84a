"""The forms of one job: change one that waits, and run an ended one again with other data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from taskqueue.errors import InvalidJob, Unreadable
from taskqueue.model.serializer import decode
from taskqueue.web.problems import Problem
from taskqueue.web.view import View, see_other


def change(view: View) -> Mapping[str, Any]:
    """Return the form with the present values."""
    process = view.scheduler.get_job(view.path["id"])
    given = {"priority": str(process.priority), "queue": process.queue, "at": ""}
    return _form(view, "change", given)


def save(view: View) -> Any:
    """Change the job; where a value is refused, return the form with the error."""
    process = view.scheduler.get_job(view.path["id"])
    given = {name: view.form.get(name, "").strip() for name in ("priority", "queue", "at")}
    try:
        changes: dict[str, Any] = {}
        if given["priority"] != str(process.priority):
            changes["priority"] = _integer(given["priority"])
        if given["queue"] != process.queue:
            changes["queue"] = given["queue"]
        if given["at"]:
            changes["at"] = None if given["at"] == "now" else given["at"]
        if changes:
            view.actions.update_job(view.path["id"], changes)
    except InvalidJob as error:
        return _form(view, "change", given, str(error))
    return see_other(view, f"/jobs/{process.id}?done=changed")


def edit(view: View) -> Mapping[str, Any]:
    """Return the form with the data of the job, secret values masked; masks that stay are put back by the action."""
    process = view.scheduler.get_job(view.path["id"])
    value = json.loads(process.snapshot.data)
    masked = view.masking.masked(value)
    text = json.dumps(masked, ensure_ascii=False, indent=2)
    return _form(view, "edit", {"data": text}, is_masked=masked != value)


def run(view: View) -> Any:
    """Run a copy with these data; if they are refused, return the form with the error."""
    given = {"data": view.form.get("data", "")}
    try:
        data = decode(given["data"])
    except Unreadable:
        return _form(view, "edit", given, "the data are not JSON that can be read: see quotes, commas and brackets")
    try:
        copy = view.actions.run_again(view.path["id"], data=data)
    except (InvalidJob, Problem) as error:
        return _form(view, "edit", given, str(error))
    return see_other(view, f"/jobs/{copy.id}?done=again")


def _form(
    view: View, kind: str, given: Mapping[str, str], problem: str = "", *, is_masked: bool = False
) -> Mapping[str, Any]:
    process = view.scheduler.get_job(view.path["id"])
    if not view.may_act_on(process.queue):
        raise Problem("forbidden", f"user {view.user.name} may not act on jobs of queue {process.queue}")
    if kind == "edit":
        view.actions.check_class(process.job)
    return {
        "kind": kind,
        "process": process,
        "given": given,
        "problem": problem,
        "is_masked": is_masked,
        "queues": list(view.scheduler.stats()["queues"]),
    }


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidJob(f"priority={text[:50]!r}: pass a whole number from -20 to 20") from None
