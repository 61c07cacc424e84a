"""The node's line to its manager: messages out, reports in, and whether there is still somebody at the other end."""

from __future__ import annotations

import logging
import signal
import time

from taskqueue.daemon.node.event_buffer import EventBuffer
from taskqueue.daemon.node.leader_hooks import LeaderHooks
from taskqueue.daemon.node.manager_reports import ManagerReports
from taskqueue.daemon.node.status import NodeStatus
from taskqueue.daemon.protocol.channel import Channel
from taskqueue.daemon.protocol.messages import (
    Ended,
    Key,
    Message,
    PoolStatus,
    Progressed,
    RunsHandedBack,
    Started,
    StartupFailed,
    WorkerChanged,
    decode,
    encode,
)
from taskqueue.daemon.protocol.start_log import StartLog
from taskqueue.daemon.runtime import child_process
from taskqueue.daemon.runtime.child_process import Child, ChildExit

log = logging.getLogger(__name__)

_KILLED = f"killed by {signal.SIGKILL.name}"
"""What ``ChildExit`` says of a worker that came to the end of the stop ladder."""


class ManagerHandle:
    """One manager, as its node sees it."""

    def __init__(
        self,
        process: Child,
        channel: Channel,
        start_log: StartLog,
        reports: ManagerReports,
        leader_hooks: LeaderHooks,
        status: NodeStatus,
        events: EventBuffer,
        silence_limit: float,
    ) -> None:
        self._process = process
        self._start_log = start_log
        self._reports = reports
        self._leader_hooks = leader_hooks
        self._status = status
        self._events = events
        self._silence_limit = silence_limit
        self.channel = channel
        self.startup_failure: StartupFailed | None = None
        """Why the manager has given up, once it has."""
        self.kills = 0
        """How many runs were killed because they did not end when a node or worker was stopped."""
        self._has_exited = False
        self._heard_at: float | None = None
        self._checked_at = time.monotonic()

    def send(self, *messages: Message) -> None:
        """Send the messages, in one piece, as soon as there is room; who is gone is told nothing."""
        if not self._has_exited:
            self.channel.send(*map(encode, messages))

    def handle(self, payload: bytes) -> None:
        """Take in one report."""
        self._heard_at = time.monotonic()
        message = decode(payload)
        if self._leader_hooks.handle(message):
            return
        match message:
            case Started():
                self._reports.on_started(message)
            case Ended():
                self.kills += message.outcome == "Interrupted" and message.exit == _KILLED
                self._reports.on_ended(message)
            case Progressed():
                self._reports.on_progressed(message)
            case RunsHandedBack():
                self._reports.on_handed_back(message)
            case PoolStatus():
                self._status.pool = message
                self._status.show()
            case WorkerChanged():
                self._events.worker_changed(message)
            case StartupFailed():
                self.startup_failure = message
            case _:
                log.error("the manager sent what only a node sends: %s", type(message).__name__)

    def is_silent(self) -> bool:
        """Return whether the manager, which answers each renewal, has said nothing for too long: it may be stopped.

        Before its first word it imports what is to be preloaded, which may take long.
        """
        now = time.monotonic()
        if self._heard_at is None:
            return False
        if now - self._checked_at > self._silence_limit:  # it is we who were stopped, and could not hear
            self._heard_at = now
        self._checked_at = now
        return now - self._heard_at > self._silence_limit

    def start_times(self) -> dict[Key, float]:
        """Return when each run began of which the workers have left word; it may have ended since."""
        return self._start_log.start_times()

    def kill(self) -> None:
        """End the manager, and with it all its workers; who is gone needs no end."""
        if self._has_exited:
            return
        self._process.signal(signal.SIGKILL)

    def reap(self) -> ChildExit:
        """Say how the manager ended, waiting for it if need be, and leave nothing of it behind."""
        self._has_exited = True
        self.channel.close()
        exit = self._process.reap()
        child_process.reap_strangers(())
        self._process.close()
        return exit
