"""Buffers the events of a node and writes them to the store together, off the path of any job."""

from __future__ import annotations

import itertools
from typing import Any

from taskqueue.daemon.node.context import NodeContext
from taskqueue.daemon.protocol.messages import WorkerChanged
from taskqueue.model.events import BECAME_LEADER, STEPPED_DOWN, WORKER_ENDED, WORKER_SPAWNED
from taskqueue.store import Event

WRITE_WITHIN = 0.5
"""Seconds after which an event is written, so that a growing pool takes one write."""

MOST_KEPT = 1000
"""Events buffered during an outage of the store; the oldest above this number are dropped."""


class EventBuffer:
    """The events of one incarnation of a node."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._numbers = itertools.count(1)
        self._unwritten: list[Event] = []
        self._timer = node.timer(self.write)

    def worker_changed(self, message: WorkerChanged) -> None:
        """Add the event that a worker was started, or has ended."""
        if message.exit:
            details = {"why": message.reason, "job": message.job}
            facts = {name: value for name, value in details.items() if value}
            self._add(WORKER_ENDED, {"pid": message.pid, "exit": message.exit, **facts})
        else:
            self._add(WORKER_SPAWNED, {"pid": message.pid})

    def leadership_changed(self, leads: bool) -> None:
        """Add the event that the node has started or stopped leading."""
        self._add(BECAME_LEADER if leads else STEPPED_DOWN, {})

    def write(self) -> None:
        """Write the buffered events; in an outage keep them and try again later."""
        self._timer.cancel()
        unwritten, self._unwritten = self._unwritten[-MOST_KEPT:], []
        if unwritten and not self._node.breaker.carry_out(
            lambda: self._node.store.record_events(unwritten), writes=True
        ):
            self._unwritten = unwritten
            self._timer.after(WRITE_WITHIN)

    def _add(self, name: str, about: dict[str, Any]) -> None:
        holder = self._node.holder
        self._unwritten.append(
            Event(
                id=f"{holder.seat}/{holder.incarnation}:{next(self._numbers)}:{name}",
                name=name,
                at=self._node.store.now(),
                node=holder.seat,
                about=about,
            )
        )
        if not self._timer.is_set:
            self._timer.after(WRITE_WITHIN)
