"""The manager process as its node sees it: sends messages, dispatches reports, and detects a silent manager.

A client asks for the stack of a run by a lease; the node has its manager take it, and answers by another lease.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from taskqueue.daemon.node.context import NodeContext
from taskqueue.daemon.node.event_buffer import EventBuffer
from taskqueue.daemon.node.in_flight import InFlight
from taskqueue.daemon.node.node_hooks import NodeHooks
from taskqueue.daemon.protocol import messages
from taskqueue.daemon.protocol.channel import Channel, ChannelBroken
from taskqueue.daemon.protocol.codec import decode, encode
from taskqueue.daemon.protocol.shared_memory import StartLog
from taskqueue.daemon.runtime import child_process, leftovers
from taskqueue.daemon.runtime.child_process import Child, ChildExit
from taskqueue.insight import host
from taskqueue.model.stack import ANSWER, REQUEST
from taskqueue.store import Lease

KEPT_FOR = timedelta(seconds=10)
"""How long an unread answer is kept."""


class StackRequests:
    """The requests for stacks of runs that one node knows of."""

    def __init__(self, node: NodeContext, in_flight: InFlight) -> None:
        self._node = node
        self._in_flight = in_flight
        self._asked: set[str] = set()

    def look(self, leases: Sequence[Lease]) -> list[messages.TakeStack]:
        """Return the new requests for runs of this node, and remove files of askers that were killed."""
        new: list[messages.TakeStack] = []
        asked = self._asked & {lease.name for lease in leases}
        for lease in leases:
            if not lease.name.startswith((REQUEST, ANSWER)):
                continue
            if lease.until <= self._node.store.now():
                self._resign(lease)
            elif lease.name.startswith(REQUEST) and lease.name not in asked:
                id, claims = lease.about.get("job"), lease.about.get("claims")
                if isinstance(id, str) and isinstance(claims, int) and self._in_flight.find(id, claims) is not None:
                    asked.add(lease.name)
                    new.append(messages.TakeStack(id=id, claims=claims, request=lease.name.removeprefix(REQUEST)))
        self._asked = asked
        return new

    def on_taken(self, message: messages.StackTaken) -> None:
        """Answer a request with the report of the manager."""
        now = self._node.store.now()
        answer = Lease(
            name=f"{ANSWER}{message.request}",
            holder=self._node.holder,
            since=now,
            until=now + KEPT_FOR,
            about={"stack": message.stack, "why_not": message.why_not},
        )
        self._node.breaker.call(lambda: self._node.store.acquire(answer, now))

    def _resign(self, lease: Lease) -> None:
        self._node.breaker.call(lambda: self._node.store.resign(lease.name, lease.holder))


log = logging.getLogger(__name__)

_KILLED = f"killed by {signal.SIGKILL.name}"
"""The text of ``ChildExit`` for a worker that did not end within its grace."""

LEASE_MARGIN = 0.5
"""Seconds before the end of a lease at which its runs must have ended; a sixth of a short lease.

The manager needs up to a third of the lease for the grace, so half of it remains, and renewals come after a third.
"""


@dataclass(frozen=True)
class ForkedManager:
    """A manager as it was forked, with the channel to it and the log of starts that it shares."""

    process: Child
    channel: Channel
    start_log: StartLog
    siblings: Mapping[int, int | None]
    """The children that this process already had, each with its start time, e.g. of a shell that called ``exec``."""

    def end(self) -> None:
        """Close the channel, so that the manager leaves, and wait until it has."""
        self.channel.close()
        self.process.reap()


class ManagerHandle:
    """The manager of one node."""

    def __init__(
        self,
        forked: ForkedManager,
        node: NodeContext,
        *,
        in_flight: InFlight,
        hooks: NodeHooks,
        events: EventBuffer,
        stacks: StackRequests,
        on_startup_failed: Callable[[messages.StartupFailed], None],
    ) -> None:
        """``on_startup_failed`` is called when the manager cannot start workers and has given up."""
        self.process = forked.process
        self.pid = forked.process.pid
        self.start_log = forked.start_log
        self._siblings = forked.siblings
        self._in_flight = in_flight
        self._hooks = hooks
        self._node = node
        self._events = events
        self._stacks = stacks
        self._on_startup_failed = on_startup_failed
        self._silence_limit = node.settings.lease / 2
        self.channel = forked.channel
        self.kills = 0
        """Runs killed because they did not end within the grace of a shutdown."""
        self._has_exited = False
        self._has_spoken = False
        self._unanswered_since: float | None = None
        """When the first extension of a lease was sent after which nothing has been heard."""
        self._checked_at = time.monotonic()

    def send(self, *outgoing: messages.Message) -> None:
        """Send these messages together; do nothing if the manager has exited."""
        if outgoing and not self._has_exited:
            self.channel.send(*map(encode, outgoing))

    def extend_lease(self, asked_at: float, lease: float) -> None:
        """Extend running jobs by the lease that the store has extended; ``asked_at`` is a time of CLOCK_BOOTTIME."""
        self.send(messages.LeaseExtended(until=asked_at + lease - min(LEASE_MARGIN, lease / 6)))
        if self._unanswered_since is None:
            self._unanswered_since = time.monotonic()

    def on_report(self, payload: bytes) -> None:
        """Decode one report, and call its handler."""
        self._has_spoken, self._unanswered_since = True, None
        message = decode(payload)
        match message:
            case messages.Ended() | messages.Started() | messages.Progressed() if message.claims == messages.NO_CLAIM:
                self._hooks.on_report(message)
            case messages.Ended():
                self.kills += message.outcome == "Interrupted" and message.exit == _KILLED
                self._in_flight.on_ended(message)
            case messages.Started():
                self._in_flight.on_started(message)
            case messages.Progressed():
                self._in_flight.on_progressed(message)
            case messages.Logged():
                self._in_flight.on_logged(message)
            case messages.WaitsFor():
                self._in_flight.on_waits_for(message)
            case messages.RunsHandedBack():
                self._hooks.on_handed_back(message)
                self._in_flight.on_handed_back(message)
            case messages.StackTaken():
                self._stacks.on_taken(message)
            case messages.PoolStatus():
                self._node.status.pool = message
                self._in_flight.limit(message.idle + message.busy if message.shortage else None)
                self._node.status.show()
            case messages.WorkerChanged():
                self._events.worker_changed(message)
                self._node.figures.worker_changed(message)
            case messages.StartupFailed():
                self._on_startup_failed(message)
            case _:
                log.error("protocol error: unexpected message %s from the manager", type(message).__name__)

    def read_rest(self) -> None:
        """Handle the reports that the manager has sent before it died."""
        with contextlib.suppress(ChannelBroken):
            for payload in self.channel.remaining():
                self.on_report(payload)

    def check_silence(self) -> bool:
        """Check the manager; return True if it has left an extension of the lease unanswered for too long.

        Before its first message it imports the preloaded modules, which may take long.
        """
        now = time.monotonic()
        was_suspended, self._checked_at = now - self._checked_at > self._silence_limit, now
        if not self._has_spoken or self._unanswered_since is None:
            return False
        if was_suspended:  # this process may have been unable to read
            self._unanswered_since = now
        return now - self._unanswered_since > self._silence_limit

    def kill(self) -> None:
        """Kill the manager and its workers; do nothing if it has exited."""
        if self._has_exited:
            return
        self.process.signal(signal.SIGKILL)

    def reap_orphans(self) -> None:
        """Reap dead processes that this one inherited; the manager's death is for ``reap``."""
        child_process.reap_orphans((self.process.pid,))

    def reap(self) -> ChildExit:
        """Wait for the manager to exit, kill its leftovers, and return how it ended."""
        self._has_exited = True
        self.channel.close()
        exit = self.process.reap()
        self.kill_left(child_process.KILL_TAKES_AT_MOST)
        self.process.close()
        return exit

    def kill_left(self, within: float = leftovers.KILL_TAKES_AT_MOST) -> None:
        """Kill and reap what the dead manager has left; what took long to die may have left more since."""
        siblings = [pid for pid, born in self._siblings.items() if host.born_at(pid) == born]
        child_process.reap_strangers(siblings, within=within)
