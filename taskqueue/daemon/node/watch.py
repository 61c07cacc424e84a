"""Keeps the run that looks for findings, and sends them, in a worker of the leader; counts what it reports."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping

from taskqueue.daemon.node.context import NodeContext
from taskqueue.daemon.node.leader_run import LeaderRun
from taskqueue.daemon.protocol.messages import WATCH, Message, Progressed, RunHook
from taskqueue.model.finding import Level
from taskqueue.model.serializer import encode


class FindingsWatch(LeaderRun):
    """The watch of one node, for its receivers of notifications and its metrics.

    A run ends after some minutes, and the next one starts.
    """

    def __init__(self, node: NodeContext, send: Callable[[Message], None]) -> None:
        """``send`` sends a message to the manager."""
        receivers, holder = list(node.settings.notify), node.holder
        data = {"receivers": receivers, "node": holder.seat, "incarnation": holder.incarnation}
        hook = RunHook(id="", name=WATCH, data=encode(data, "notify"))
        super().__init__(hook, "the look for findings failed", node, send)
        self.sends = bool(receivers)
        """Whether there are receivers."""
        self.deliveries: Counter[str] = Counter()
        """Messages that were ``sent``, and deliveries that ``failed``."""
        self.waiting = 0
        """Messages that no receiver has taken yet."""
        self.findings: Mapping[Level, int] | None = None
        """How many things need attention, by their level; None before they were counted."""
        self.looked_at = time.time()
        """When the last look was reported, in seconds since 1970, or when this node began to lead."""

    def leadership_changed(self, leads: bool) -> None:
        """Start or stop looking."""
        if leads:
            self.looked_at = time.time()
        else:
            self.findings = None
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
        self.waiting = report["waiting"]
        self.deliveries.update(sent=report["sent"], failed=report["failed"])
