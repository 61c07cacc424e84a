"""Calls the leader hooks of the bootstrap file, in a worker, each time the node begins or ceases to lead."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path

from taskqueue.daemon.protocol.messages import (
    BECAME_LEADER,
    NO_CLAIM,
    STEPPED_DOWN,
    Ended,
    Progressed,
    RunHook,
    RunsHandedBack,
    Started,
)
from taskqueue.model.ids import JobId

log = logging.getLogger(__name__)


class LeaderHooks:
    """The leader hooks of one node. They run one after another, and only on a change: never because a node starts."""

    def __init__(self, send: Callable[[RunHook], None], bootstrap: Path | None, on_begun: Callable[[], None]) -> None:
        """``on_begun`` is called when a hook has begun or ended, or will not be called."""
        self._send = send
        self._bootstrap = bootstrap
        self._on_begun = on_begun
        self._queued: deque[str] = deque()
        self._current: RunHook | None = None
        self._has_begun = False
        self.leads = False
        """Whether the node leads, according to the last change."""

    @property
    def is_pending(self) -> bool:
        """Return whether a hook has yet to start."""
        return bool(self._queued) or (self._current is not None and not self._has_begun)

    def leadership_changed(self, leads: bool) -> None:
        """Call the hook if ``leads`` is a change."""
        if leads is self.leads:
            return
        self.leads = leads
        log.info("this node %s", "leads the cluster" if leads else "no longer leads the cluster")
        hook = BECAME_LEADER if leads else STEPPED_DOWN
        if self._bootstrap is not None and may_define(self._bootstrap, hook):
            self._queued.append(hook)
            self._call_next()

    def on_report(self, message: Started | Progressed | Ended) -> None:
        """Handle a report about a hook."""
        current = self._current
        if current is None or message.id != current.id:
            return
        self._has_begun = True
        if isinstance(message, Ended):
            self._on_ended(message, current)
        self._on_begun()

    def on_handed_back(self, message: RunsHandedBack) -> None:
        """Drop the hooks if the manager starts no more runs."""
        hook = self._current
        if hook is not None and [hook.id, NO_CLAIM] in message.runs:
            log.error("the hook %s was not called: the node is shutting down", hook.name)
            self._current = None
            self._queued.clear()
            self._on_begun()

    def _call_next(self) -> None:
        if self._current is not None or not self._queued:
            return
        self._has_begun = False
        self._current = RunHook(id=str(JobId()), name=self._queued.popleft())
        self._send(self._current)

    def _on_ended(self, ended: Ended, hook: RunHook) -> None:
        self._current = None
        if ended.outcome != "Done":
            failure = ended.fields.get("failure", {})
            reason = f"{failure.get('type', ended.outcome)}: {failure.get('message', ended.exit)}"
            log.error("the hook %s failed: %s\n%s", hook.name, reason, failure.get("traceback", ""))
        self._call_next()


def may_define(bootstrap: Path, hook: str) -> bool:
    """Return whether the bootstrap file mentions the hook; the node does not execute the file."""
    try:
        text = bootstrap.read_text(errors="replace")
    except OSError:  # a worker will report the error
        return True
    return hook in text or "import *" in text
