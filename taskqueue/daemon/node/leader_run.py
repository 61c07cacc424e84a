"""Keeps a run going in a worker beside the pool while this node leads: an outbox relay, or the search for findings.

When a run has ended, another one follows; each failure in a row doubles the pause before it.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from taskqueue.daemon.node.context import NodeContext
from taskqueue.daemon.node.figures import StoreCounters
from taskqueue.daemon.protocol.messages import (
    EMPTY_OUTBOX,
    NO_CLAIM,
    RELAY_OUTBOX,
    WATCH,
    Ended,
    Message,
    Progressed,
    RunHook,
    RunsHandedBack,
    Started,
    Stop,
    changed,
)
from taskqueue.model.finding import Level
from taskqueue.model.ids import new_id
from taskqueue.model.serializer import encode

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds until the next run starts; a run that fails after the longest pause starts with the first one again."""


class LeaderRun:
    """A hook that is called as long as this node leads; with ``--burst`` only once."""

    def __init__(
        self, hook: RunHook, failure_words: str, node: NodeContext, send: Callable[[RunHook | Stop], None]
    ) -> None:
        """Each run gets an id in place of the hook's own; ``failure_words`` start the log line of a failure."""
        self._hook = hook
        self._failure_words = failure_words
        self._send = send
        self._is_once = node.settings.burst
        self._timer = node.timer(self._start)
        self._leads = False
        self._run_id = ""
        """The id of the current run; empty if there is none."""
        self._started_at = 0.0
        self._is_stopping = False
        self._pause = 0.0
        self._problem = ""

    @property
    def is_running(self) -> bool:
        """Return whether a run has yet to end."""
        return bool(self._run_id)

    @property
    def has_failed(self) -> bool:
        """Return whether the last run has failed."""
        return self._pause > 0

    @property
    def problem(self) -> str:
        """Return why the last run failed; empty if it did not, or if the next one lasts. Any thread may ask."""
        lasts = self._run_id and time.monotonic() - self._started_at > LONGEST_PAUSE
        return "" if lasts or not self._leads else self._problem

    def leadership_changed(self, leads: bool) -> None:
        """Start a run if this node leads now, else stop it."""
        self._leads = leads
        self._timer.cancel()
        if leads:
            self._start()
        else:
            self._stop()

    def restart(self) -> None:
        """Let the next run, with the current code, follow at once."""
        self._stop()

    def _stop(self) -> None:
        if self._run_id and not self._is_stopping:
            self._is_stopping = True
            self._send(Stop(id=self._run_id, claims=NO_CLAIM, reason="lost"))

    def on_report(self, message: Started | Progressed | Ended) -> None:
        """Handle a report, which may be about another run."""
        if message.id != self._run_id:
            return
        if isinstance(message, Progressed):
            self.on_progressed(message)
        elif isinstance(message, Ended):
            self._run_id = ""
            self._on_ended(message)

    def on_progressed(self, message: Progressed) -> None:
        """Handle what the run reports while it continues."""

    def on_handed_back(self, message: RunsHandedBack) -> None:
        """Note that the manager has not started the run; try again later if this node leads then."""
        if [self._run_id, NO_CLAIM] in message.runs:
            self._run_id, self._is_stopping = "", False
            self._start_later()

    def _start(self) -> None:
        if self._leads and not self._run_id:
            self._run_id, self._started_at = str(new_id()), time.monotonic()
            self._send(changed(self._hook, id=self._run_id))

    def _start_later(self) -> None:
        if self._leads and not self._is_once:
            self._timer.after(self._pause or FIRST_PAUSE)

    def _on_ended(self, ended: Ended) -> None:
        was_stopped, self._is_stopping = self._is_stopping, False
        if was_stopped:
            self._start()
            return
        if ended.outcome == "Done" or time.monotonic() - self._started_at > LONGEST_PAUSE:
            self._pause, self._problem = 0.0, ""
        is_well = ended.outcome == "Done" or (ended.outcome == "Interrupted" and not self._is_once)
        if not is_well:  # a run is interrupted when all workers are replaced
            self._pause = min(2 * self._pause or FIRST_PAUSE, LONGEST_PAUSE)
            failure = ended.fields.get("failure") or {}
            reason = f"{failure.get('type', ended.outcome)}: {failure.get('message') or ended.exit}"
            retry = "" if self._is_once else f" (trying again in {self._pause:g} s)"
            self._problem = f"{self._failure_words}: {reason}"
            log.error("%s%s", self._problem, retry)
        self._start_later()


def outbox_relay(outbox: str, node: NodeContext, send: Callable[[RunHook | Stop], None]) -> LeaderRun:
    """Return the relay of the outbox with this path, ``module:name``; with ``--burst`` it ends when that is empty."""
    hook = RunHook(id="", name=EMPTY_OUTBOX if node.settings.burst else RELAY_OUTBOX, source=outbox)
    return LeaderRun(hook, f"the outbox {outbox} is not relayed", node, send)


class FindingsWatch(LeaderRun):
    """The watch of one node, for its receivers of notifications and its metrics.

    A run ends after some minutes, and the next one starts.
    """

    def __init__(self, node: NodeContext, send: Callable[[Message], None]) -> None:
        """``send`` sends a message to the manager."""
        receivers, holder = list(node.settings.notify), node.holder
        has_metrics = node.settings.metrics is not None
        data = {"receivers": receivers, "node": holder.seat, "incarnation": holder.incarnation, "metrics": has_metrics}
        hook = RunHook(id="", name=WATCH, data=encode(data, "notify"))
        super().__init__(hook, "the search for findings failed", node, send)
        self.sends = bool(receivers)
        """Whether there are receivers."""
        self.deliveries: Counter[str] = Counter()
        """Messages that were ``sent``, and deliveries that ``failed``."""
        self.waiting = 0
        """Messages that no receiver has taken yet."""
        self.findings: Mapping[Level, int] | None = None
        """How many things need attention, by their level; None before they were counted."""
        self.budgets: Mapping[str, float] = {}
        """The share of the error budget that is left, by the import path of each class with a promise."""
        self.schedules: Mapping[str, Mapping[str, float]] = {}
        """When each active schedule was last ``due``, and its last job was ``done``, in seconds since 1970."""
        self.limits: Mapping[str, Sequence[int]] = {}
        """By limit: how many places of its fullest key are taken, how many it has, and how many jobs wait."""
        self.counters = StoreCounters()
        self.looked_at = time.time()
        """When the last look was reported, in seconds since 1970, or when this node started to lead."""

    def leadership_changed(self, leads: bool) -> None:
        """Start or stop looking."""
        if leads:
            self.looked_at = time.time()
        else:
            self.findings, self.budgets, self.schedules, self.limits = None, {}, {}, {}
            self.counters.forget()
        super().leadership_changed(leads)

    def restart(self) -> None:
        """Do nothing: no run has code of the application, and a stopped one might deliver a message twice."""

    def on_progressed(self, message: Progressed) -> None:
        """Record the numbers of one look."""
        if message.state is None:
            return
        report = json.loads(message.state)
        self.looked_at = time.time()
        self.findings = {level: report["findings"].get(level.value, 0) for level in (Level.ERROR, Level.WARNING)}
        self.budgets, self.schedules, self.limits = report["budgets"], report["schedules"], report["limits"]
        self.counters.look(report["of_queues"])
        self.waiting = report["waiting"]
        self.deliveries.update(sent=report["sent"], failed=report["failed"])
