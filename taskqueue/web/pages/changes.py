"""The forms that change something: each does one action, and goes back to the page that shows what became of it."""

from __future__ import annotations

from urllib.parse import quote

from starlette.responses import Response

from taskqueue.web.view import View, see_other


def cancel(view: View) -> Response:
    """Cancel a job."""
    view.actions.cancel_job(view.path["id"], view.form.get("reason", ""))
    return see_other(view, f"/jobs/{view.path['id']}?done=canceled")


def again(view: View) -> Response:
    """Run a copy of an ended job."""
    copy = view.actions.run_again(view.path["id"])
    return see_other(view, f"/jobs/{copy.id}?done=again")


def pause_queue(view: View) -> Response:
    """Pause a queue, or with an empty name all of them."""
    queue = view.form.get("queue", "")
    view.actions.pause_queue(queue, view.form.get("reason", ""))
    return see_other(view, f"/queues?done=paused&of={quote(queue, safe='')}")


def resume_queue(view: View) -> Response:
    """Resume a queue, or with an empty name lift the pause of all."""
    view.actions.resume_queue(view.form.get("queue", ""))
    return see_other(view, "/queues?done=resumed")


def drain_node(view: View) -> Response:
    """Stop a node from starting jobs."""
    node = view.form.get("node", "")
    view.actions.drain_node(node, view.form.get("reason", ""))
    return see_other(view, f"/nodes?done=drained&of={quote(node, safe='')}")


def undrain_node(view: View) -> Response:
    """Allow a node to start jobs again."""
    view.actions.undrain_node(view.form.get("node", ""))
    return see_other(view, "/nodes?done=undrained")


def trigger_schedule(view: View) -> Response:
    """Start a job of a schedule now."""
    process = view.actions.trigger_schedule(view.path["name"])
    return see_other(view, f"/jobs/{process.id}?done=triggered")


def pause_schedule(view: View) -> Response:
    """Let a schedule start no jobs."""
    view.actions.pause_schedule(view.path["name"], view.form.get("reason", ""))
    return see_other(view, f"{_schedule(view)}?done=schedule-paused")


def resume_schedule(view: View) -> Response:
    """Let a schedule start jobs again."""
    view.actions.resume_schedule(view.path["name"])
    return see_other(view, f"{_schedule(view)}?done=schedule-resumed")


def _schedule(view: View) -> str:
    return f"/schedules/{quote(view.path['name'], safe='')}"
