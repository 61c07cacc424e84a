"""Everything that can be done through the dashboard: one method each, for the pages and the API alike.

Each checks what the user may do, does it, and notes it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from taskqueue.scheduler.process import Process
from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.web.problems import Problem
from taskqueue.web.settings import Settings
from taskqueue.web.users import Role
from taskqueue.web.viewers import Viewer

log = logging.getLogger(__name__)

EVERY_QUEUE = ""
"""The queue in an action that concerns all of them."""


class Actions:
    """The actions of one viewer."""

    def __init__(self, scheduler: Scheduler, settings: Settings, viewer: Viewer) -> None:
        self._scheduler = scheduler
        self._settings = settings
        self._viewer = viewer

    def cancel_job(self, id: str, reason: str = "") -> Process:
        """Cancel a job that waits, or ask one that runs to end."""
        process = self._job(id)
        self._note("cancel", str(process.id), job=process.job, reason=reason)
        return self._scheduler.cancel_job(process.id, reason or f"canceled by {self._viewer.user.name}")

    def update_job(self, id: str, changes: Mapping[str, Any]) -> Process:
        """Change ``priority``, ``at``, ``queue``, ``tags`` or ``data`` of a job that waits."""
        process = self._job(id)
        if "queue" in changes:
            self._check(changes["queue"])
        self._note("update", str(process.id), job=process.job, changed=sorted(changes))
        return self._scheduler.update_job(process.id, **changes)

    def pause_queue(self, queue: str, reason: str = "") -> None:
        """Pause a queue, or with ``EVERY_QUEUE`` all of them."""
        self._check(queue or None)
        self._note("pause", queue, reason=reason)
        self._scheduler.pause(queue or None, reason, by=self._viewer.user.name)

    def resume_queue(self, queue: str) -> bool:
        """Resume a queue, or with ``EVERY_QUEUE`` lift the pause of all; return whether there was one."""
        self._check(queue or None)
        self._note("resume", queue)
        return self._scheduler.resume(queue or None)

    def drain_node(self, node: str, reason: str = "") -> None:
        """Let a node begin no more jobs."""
        self._check(None)
        self._note("drain", node, reason=reason)
        self._scheduler.drain(node, reason, by=self._viewer.user.name)

    def undrain_node(self, node: str) -> bool:
        """Let a node begin jobs again; return whether it was drained."""
        self._check(None)
        self._note("undrain", node)
        return self._scheduler.undrain(node)

    def _job(self, id: str) -> Process:
        """Return the job; raise ``JobNotFound``, and ``Problem`` if the user may not act on it."""
        self._check_role()
        process = self._scheduler.get_job(id)
        self._check(process.queue)
        return process

    def _check_role(self) -> None:
        if self._viewer.user.role is not Role.OPERATOR:
            raise Problem(403, "forbidden", f"user {self._viewer.user.name} is a reader: an operator can do this")

    def _check(self, queue: str | None) -> None:
        """Refuse what the user may not do to this queue; None stands for what is of no one queue."""
        self._check_role()
        user = self._viewer.user
        if not user.may_act_on(queue):
            allowed = ", ".join(user.queues or ())
            what = "this concerns more" if queue is None else f"this is queue {queue}"
            raise Problem(403, "forbidden", f"user {user.name} may act on the queues {allowed} alone: {what}")

    def _note(self, action: str, target: str, **about: Any) -> None:
        """Note who does what to what."""
        user, address = self._viewer.user.name, self._viewer.address
        self._scheduler.record_action(action, target, by=user, source=address, about=about)
        log.info("%s of %r by %s from %s: %s", action, target, user, address, about)
