"""Buffers the manager's reports to its node, and sends those of one turn of the loop in one write."""

from __future__ import annotations

from collections.abc import Sequence

from taskqueue.daemon.manager.queued_run import QueuedRun
from taskqueue.daemon.protocol.channel import Channel
from taskqueue.daemon.protocol.messages import Key, Message, RunsHandedBack, encode


class ReportOutbox:
    """The reports of the present turn."""

    def __init__(self, node: Channel) -> None:
        self._node = node
        self._payloads: list[bytes] = []
        self._starts: dict[Key, int] = {}

    def add(self, message: Message) -> None:
        """Add a report of the manager itself."""
        self._payloads.append(encode(message))

    def forward(self, payload: bytes) -> None:
        """Add a worker's message as it came."""
        self._payloads.append(payload)

    def run_began(self, queued: QueuedRun, payload: bytes) -> None:
        """Add the start of a run."""
        self._starts[queued.key] = len(self._payloads)
        self._payloads.append(payload)

    def run_ended(self, queued: QueuedRun, payload: bytes) -> None:
        """Add the end of a run, and drop its start if that is of the same turn: the end has the start time."""
        start = self._starts.pop(queued.key, None)
        if start is not None:
            self._payloads[start] = b""
        self._payloads.append(payload)

    def hand_back(self, queued_runs: Sequence[QueuedRun]) -> None:
        """Add that these runs were not started and come back."""
        if queued_runs:
            self.add(RunsHandedBack(runs=[[queued.run.id, queued.run.claims] for queued in queued_runs]))

    def send(self) -> None:
        """Send all buffered reports."""
        payloads = [payload for payload in self._payloads if payload]
        self._payloads.clear()
        self._starts.clear()
        if payloads:
            self._node.send(*payloads)
