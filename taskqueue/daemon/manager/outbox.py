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

    def tell(self, message: Message) -> None:
        """Report something that the manager itself has to say."""
        self._payloads.append(encode(message))

    def pass_on(self, payload: bytes) -> None:
        """Report what a worker said, in its own words."""
        self._payloads.append(payload)

    def begun(self, order: QueuedRun, payload: bytes) -> None:
        """Report that a run began."""
        self._starts[order.key] = len(self._payloads)
        self._payloads.append(payload)

    def ended(self, order: QueuedRun, payload: bytes) -> None:
        """Report that a run ended; if it began in the same turn, the end says it all."""
        start = self._starts.pop(order.key, None)
        if start is not None:
            self._payloads[start] = b""
        self._payloads.append(payload)

    def hand_back(self, orders: Sequence[QueuedRun]) -> None:
        """Report that these runs have not begun, and come back."""
        if orders:
            self.tell(RunsHandedBack(runs=[[order.run.id, order.run.claims] for order in orders]))

    def send(self) -> None:
        """Send all that was reported."""
        payloads = [payload for payload in self._payloads if payload]
        self._payloads.clear()
        self._starts.clear()
        if payloads:
            self._node.send(*payloads)
