"""Sets and clears controls for the command line, its commands and ``top``, and records each action in the audit."""

from __future__ import annotations

from taskqueue.model.controls import EVERY_QUEUE, Control
from taskqueue.scheduler import controls
from taskqueue.scheduler.audit_trail import acting_command
from taskqueue.store import Store


def pause(store: Store, queue: str | None, reason: str, by: str | None = None) -> Control:
    """Pause the queue, or with None every queue, and return the pause."""
    with acting_command(store, "pause", queue or EVERY_QUEUE, reason=reason, by=by):
        return controls.pause(store, queue, reason, by)


def resume(store: Store, queue: str | None) -> bool:
    """Clear the pause of the queue, or with None the pause of every queue, and return whether there was one."""
    with acting_command(store, "resume", queue or EVERY_QUEUE):
        return controls.resume(store, queue)


def drain(store: Store, node: str, reason: str, by: str | None = None) -> Control:
    """Drain the node, and return the control."""
    with acting_command(store, "drain", node, reason=reason, by=by):
        return controls.drain(store, node, reason, by)


def undrain(store: Store, node: str) -> bool:
    """Allow the node to claim again, and return whether it was drained."""
    with acting_command(store, "undrain", node):
        return controls.undrain(store, node)
