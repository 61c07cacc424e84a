"""The forms that change something; each returns to a page, above which a sentence says what was done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import quote

from starlette.responses import Response

from taskqueue.model.limits import COUNT_LIMIT
from taskqueue.scheduler.operations import OPERATIONS, AnyOperation, Target
from taskqueue.web.view import Button, Page, View, button_of, path_of, see_other

SENTENCES: Mapping[str, str] = {
    "canceled": "Done: the job is canceled, or asked to end if it runs.",
    "started": "Done: the job no longer waits for its pause.",
    "given-up": "Done: the job has ended as failed, or ends so when it has cleaned up.",
    "again": "Done: this copy runs again.",
    "changed": "Done: the job is changed.",
    "triggered": "Done: the schedule has started this job.",
    "schedule-defined": "Done: the schedule is defined.",
    "schedule-removed": "Done: the schedule is removed; the jobs that it has started stay.",
    "schedule-paused": "Done: the schedule starts no jobs until it is resumed.",
    "schedule-resumed": "Done: the schedule starts jobs again.",
    "limit": "Done: the limit is changed.",
    "bulk-stopped": "Done: the copies that had not started are canceled.",
    "matching": "Done: {of} jobs.",
}
"""Other actions than declared operations, by the word in an address; no other text of an address is shown."""

NUMBERS: Mapping[str, str] = {
    "0": "Nothing was left to do: somebody else did it since the jobs were counted.",
    "1": "Done: 1 job.",
}
"""The sentences for numbers that have their own."""


def cancel(view: View) -> Response:
    """Cancel a job."""
    view.actions.cancel_job(view.path["id"], view.form.get("reason", ""))
    return see_other(view, f"/jobs/{view.path['id']}?done=canceled")


def now(view: View) -> Response:
    """Let a job that waits for its pause start now."""
    view.actions.update_job(view.path["id"], {"at": None})
    return see_other(view, f"/jobs/{view.path['id']}?done=started")


def give_up(view: View) -> Response:
    """End a job that waits to run again as failed."""
    view.actions.give_up_job(view.path["id"], view.form.get("reason", ""))
    return see_other(view, f"/jobs/{view.path['id']}?done=given-up")


def again(view: View) -> Response:
    """Run a copy of an ended job."""
    copy = view.actions.run_again(view.path["id"])
    return see_other(view, f"/jobs/{copy.id}?done=again")


def operate(operation: AnyOperation, view: View) -> Response:
    """Do a declared operation, and return to the page of its targets; releases are on the page of failures."""
    name = view.form.get(operation.target, "")
    values = {value: text for value, text in view.form.items() if value in ("reason", "until", "at") and text}
    view.actions.operate(operation, name, values)
    page = "failures" if operation.target is Target.RELEASE else f"{operation.target}s"
    return see_other(view, f"/{page}?done={operation.name}&of={quote(name, safe='')}")


OF_OPERATIONS = [Page(path=path_of(each), show=partial(operate, each), method="POST") for each in OPERATIONS.values()]
"""The routes of the forms of declared operations."""


def trigger_schedule(view: View) -> Response:
    """Start a job of a schedule now."""
    process = view.actions.trigger_schedule(view.path["name"])
    return see_other(view, f"/jobs/{process.id}?done=triggered")


def pause_schedule(view: View) -> Response:
    """Stop a schedule from starting jobs."""
    view.actions.pause_schedule(view.path["name"], view.form.get("reason", ""))
    return see_other(view, f"{_schedule(view)}?done=schedule-paused")


def resume_schedule(view: View) -> Response:
    """Allow a schedule to start jobs again."""
    view.actions.resume_schedule(view.path["name"])
    return see_other(view, f"{_schedule(view)}?done=schedule-resumed")


def _schedule(view: View) -> str:
    return f"/schedules/{quote(view.path['name'], safe='')}"


@dataclass(frozen=True, kw_only=True)
class Done:
    """What was done, in a sentence."""

    says: str
    undo: Button | None = None


def done_of(query: Mapping[str, str]) -> Done | None:
    """Return the action that the address names as done, or None."""
    word, of = query.get("done", ""), query.get("of", "")
    if word in OPERATIONS:
        return _operated(OPERATIONS[word], of)
    if word not in SENTENCES:
        return None
    says = SENTENCES[word]
    if word == "matching":
        says = NUMBERS.get(of) or says.format(of=f"{int(of):,}" if of.isdecimal() and len(of) < 10 else "all")
    was = query.get("was", "-")
    if word == "limit" and (not was or (was.isdecimal() and len(was) <= len(str(COUNT_LIMIT)))):
        back = f"back to {was}" if was else "restore what the code declares"
        fields = {"of": of, "count": was}
        return Done(says=says, undo=Button(label=f"Undo: {back}", path="/limits/change", fields=fields))
    return Done(says=says)


def _operated(operation: AnyOperation, name: str) -> Done:
    target = f"the {operation.target}" if name else operation.target.words(name)
    reverse = operation.reverse()
    undo = None if reverse is None else replace(button_of(reverse, name), label="Undo")
    return Done(says=f"Done: {operation.done.format(target=target)}.", undo=undo)
