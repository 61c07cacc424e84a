"""What follows when a node begins or ceases to lead: a hook of the bootstrap file, run once each time, in a worker."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path

from taskqueue.daemon.protocol.messages import Ended, Message, Progressed, Run, RunsHandedBack, Started
from taskqueue.model.ids import JobId

log = logging.getLogger(__name__)

BECAME_LEADER = "became_leader"
STEPPED_DOWN = "stepped_down"
HOOKS = (BECAME_LEADER, STEPPED_DOWN)
"""Functions of the bootstrap file, called with a ``Scheduler`` on a change only: never because a node starts (GZ-5)."""

LIMIT = 60.0
"""Seconds that a hook may take."""


class LeaderHooks:
    """The changes of one node's lead, each told to a worker of its own, one after another."""

    def __init__(self, send: Callable[[Run], None], bootstrap: Path | None) -> None:
        self._send = send
        self._bootstrap = bootstrap
        self._queued: deque[str] = deque()
        self._current: Run | None = None
        self._has_begun = False
        self.leads = False
        """Whether the node leads, as far as the hooks have been told."""

    @property
    def is_pending(self) -> bool:
        """Return whether a hook has yet to begin."""
        return bool(self._queued) or (self._current is not None and not self._has_begun)

    def leadership_changed(self, leads: bool) -> None:
        """Take in whether the node leads now; a change calls its hook."""
        if leads is self.leads:
            return
        self.leads = leads
        log.info("this node %s", "leads the cluster" if leads else "leads no more")
        hook = BECAME_LEADER if leads else STEPPED_DOWN
        if self._bootstrap is not None and may_define(self._bootstrap, hook):
            self._queued.append(hook)
            self._call_next()

    def handle(self, message: Message) -> bool:
        """Take in a report if it is about a hook, and return whether it was."""
        current = self._current
        if current is None:
            return False
        if isinstance(message, RunsHandedBack):
            return self._on_handed_back(message, current)
        if not isinstance(message, Started | Progressed | Ended) or message.id != current.id:
            return False
        self._has_begun = True
        if isinstance(message, Ended):
            self._on_ended(message, current)
        return True

    def _call_next(self) -> None:
        if self._current is not None or not self._queued:
            return
        self._has_begun = False
        self._current = Run(
            id=str(JobId()),
            claims=0,
            job=self._queued.popleft(),
            data="null",
            state=None,
            attempt=1,
            is_last=True,
            timeout=LIMIT,
            force_spawn=True,  # a full pool does not delay it
        )
        self._send(self._current)

    def _on_ended(self, ended: Ended, run: Run) -> None:
        self._current = None
        if ended.outcome != "Done":
            failure = ended.fields.get("failure", {})
            reason = f"{failure.get('type', ended.outcome)}: {failure.get('message', ended.exit)}"
            log.error("the hook %s failed: %s\n%s", run.job, reason, failure.get("traceback", ""))
        self._call_next()

    def _on_handed_back(self, message: RunsHandedBack, run: Run) -> bool:
        """Take in that the manager begins nothing any more; what else the message tells is not our affair."""
        if [run.id, run.claims] in message.runs:
            log.error("the hook %s was not run: the workers are being ended", run.job)
            self._current = None
            self._queued.clear()
        return False


def may_define(bootstrap: Path, hook: str) -> bool:
    """Return whether a worker is to look for the hook in the file, which is not executed here: is it named in there?"""
    try:
        text = bootstrap.read_text(errors="replace")
    except OSError:  # a worker will say what is wrong with it
        return True
    return hook in text or "import *" in text
