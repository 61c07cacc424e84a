"""Calls hooks in a worker: the bootstrap file's own, one that applies schedules, and one that checks an outbox."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from taskqueue.daemon.node.leader_run import LeaderRun
from taskqueue.daemon.protocol import messages
from taskqueue.model.ids import new_id

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds until schedules that could not be applied are applied again; each failure in a row doubles the pause."""


@dataclass(eq=False)
class NodeHooks:
    """The hooks of one node, which run one after another. Those of the lead run on a change, not when a node starts."""

    send: Callable[[messages.RunHook], None]
    bootstrap: Path | None
    on_begun: Callable[[], None]
    """Called when a hook has started or ended, or will not be called."""
    schedules: str | None = None
    """The module whose schedules are applied."""
    try_again_after: Callable[[float], None] = lambda _: None
    """Called with the seconds after which ``apply_schedules`` must be called again, because it has failed."""
    runs: Sequence[LeaderRun] = ()
    """They continue while the node leads."""
    outboxes: Sequence[str] = ()
    """They are checked while the node does not lead."""

    def __post_init__(self) -> None:
        self._problems: Mapping[str, str] = {}
        """Why a hook with this source failed. Replaced as a whole, so any thread may look."""
        self._pause = 0.0
        self._queued: deque[tuple[str, str]] = deque()
        """Name and source of each."""
        self._current: messages.RunHook | None = None
        self._has_begun = False
        self.leads = False
        """Whether the node leads, according to the last change."""

    @property
    def is_pending(self) -> bool:
        """Return whether a hook has yet to start."""
        return bool(self._queued) or (self._current is not None and not self._has_begun)

    @property
    def is_busy(self) -> bool:
        """Return whether a hook has yet to end."""
        return bool(self._queued) or self._current is not None or any(run.is_running for run in self.runs)

    @property
    def has_failed(self) -> bool:
        """Return whether the schedules could not be applied, or the last run of an outbox's relay failed."""
        return self._pause > 0 or any(run.has_failed for run in self.runs)

    def problems(self) -> list[str]:
        """Return what the options of the node asked for and its application has refused; any thread may call it."""
        return [*self._problems.values(), *(run.problem for run in self.runs if run.problem)]

    def load_new_code(self) -> None:
        """Apply the schedules that the current code declares, and have relays run it."""
        self.apply_schedules()
        self.check_outboxes()
        for run in self.runs:
            run.restart()

    def apply_schedules(self) -> None:
        """Apply the schedules that the current code declares, unless that is about to be done."""
        if self.schedules is not None:
            self._call_once(messages.APPLY_SCHEDULES, self.schedules)

    def check_outboxes(self) -> None:
        """Import each outbox, unless this node leads: then its relay does so and reports a mistake."""
        for path in () if self.leads else self.outboxes:
            self._call_once(messages.CHECK_OUTBOX, path)

    def _call_once(self, name: str, source: str) -> None:
        if (name, source) not in self._queued:
            self._queued.append((name, source))
            self._call_next()

    def leadership_changed(self, leads: bool) -> None:
        """Call the hook if ``leads`` is a change."""
        if leads is self.leads:
            return
        self.leads = leads
        log.info("this node %s", "leads the cluster" if leads else "no longer leads the cluster")
        for run in self.runs:
            run.leadership_changed(leads)
        if leads:  # the relays report from now on
            self._problems = {source: said for source, said in self._problems.items() if source == self.schedules}
        self.call(messages.BECAME_LEADER if leads else messages.STEPPED_DOWN)

    def call(self, hook: str) -> None:
        """Call a hook of the bootstrap file after the hooks before it, unless the file does not name it."""
        if self.bootstrap is not None and may_define(self.bootstrap, hook):
            self._queued.append((hook, ""))
            self._call_next()

    def on_report(self, message: messages.Started | messages.Progressed | messages.Ended) -> None:
        """Handle a report about a hook."""
        for run in self.runs:
            run.on_report(message)
        current = self._current
        if current is None or message.id != current.id:
            return
        self._has_begun = True
        if isinstance(message, messages.Ended):
            self._on_ended(message, current)
        self.on_begun()

    def on_handed_back(self, message: messages.RunsHandedBack) -> None:
        """Drop the hooks if the manager starts no more runs."""
        for run in self.runs:
            run.on_handed_back(message)
        hook = self._current
        if hook is not None and [hook.id, messages.NO_CLAIM] in message.runs:
            log.error(
                "the hook %s was not called: the node is shutting down, and its worker has not started in time "
                "(--finish gives it more)",
                hook.name,
            )
            self._current = None
            self._queued.clear()
            self.on_begun()

    def _call_next(self) -> None:
        if self._current is not None or not self._queued:
            return
        self._has_begun = False
        name, source = self._queued.popleft()
        self._current = messages.RunHook(id=str(new_id()), name=name, source=source)
        self.send(self._current)

    def _on_ended(self, ended: messages.Ended, hook: messages.RunHook) -> None:
        self._current = None
        succeeded = ended.outcome == "Done"
        again = self._again(succeeded) if hook.name == messages.APPLY_SCHEDULES else ""
        problems = {source: said for source, said in self._problems.items() if source != hook.source}
        if not succeeded:
            failure = ended.fields.get("failure", {})
            reason = f"{failure.get('type', ended.outcome)}: {failure.get('message', ended.exit)}"
            if hook.name == messages.CHECK_OUTBOX:
                problems[hook.source] = f"the outbox {hook.source} could not be relayed: {reason}"
                log.error("%s", problems[hook.source])
            else:
                log.error("the hook %s failed: %s%s\n%s", hook.name, reason, again, failure.get("traceback", ""))
            if hook.name == messages.APPLY_SCHEDULES:
                problems[hook.source] = f"the schedules of {hook.source} are not applied: {reason}"
        self._problems = problems
        self._call_next()

    def _again(self, succeeded: bool) -> str:
        """Apply schedules again later if that failed, since the store may answer then; return words for the log."""
        self._pause = 0.0 if succeeded else min(2 * self._pause or FIRST_PAUSE, LONGEST_PAUSE)
        if succeeded:
            return ""
        self.try_again_after(self._pause)
        return f" (trying again in {self._pause:g} s)"


def may_define(bootstrap: Path, hook: str) -> bool:
    """Return whether the bootstrap file mentions the hook; the node does not execute the file."""
    try:
        text = bootstrap.read_text(errors="replace")
    except OSError:  # a worker will report the error
        return True
    return hook in text or "import *" in text
