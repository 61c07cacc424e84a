"""What a manager reports to its node: all of one turn of its loop together, in one write."""

from __future__ import annotations

from collections.abc import Sequence

from taskqueue.daemon.manager.worker_handle import QueuedRun
from taskqueue.daemon.protocol.channel import Channel
from taskqueue.daemon.protocol.messages import Key, Message, RunsHandedBack, encode


class ReportOutbox:
    """Reports that wait for the end of the turn."""

    def __init__(self, node: Channel) -> None:
        self._node = node
        self._payloads: list[bytes] = []
        self._starts: dict[Key, int] = {}

    def add(self, message: Message) -> None:
        """Report something that the manager itself has to say."""
        self._payloads.append(encode(message))

    def forward(self, payload: bytes) -> None:
        """Report what a worker said, in its own words."""
        self._payloads.append(payload)

    def run_began(self, queued: QueuedRun, payload: bytes) -> None:
        """Report that a run began."""
        self._starts[queued.key] = len(self._payloads)
        self._payloads.append(payload)

    def run_ended(self, queued: QueuedRun, payload: bytes) -> None:
        """Report that a run ended; if it began in the same turn, the end says it all."""
        start = self._starts.pop(queued.key, None)
        if start is not None:
            self._payloads[start] = b""
        self._payloads.append(payload)

    def hand_back(self, queued_runs: Sequence[QueuedRun]) -> None:
        """Report that these runs have not begun, and come back."""
        if queued_runs:
            self.add(RunsHandedBack(runs=[[queued.run.id, queued.run.claims] for queued in queued_runs]))

    def send(self) -> None:
        """Send all that was reported."""
        payloads = [payload for payload in self._payloads if payload]
        self._payloads.clear()
        self._starts.clear()
        if payloads:
            self._node.send(*payloads)
