"""The stages of a node, and its shutdown: on a signal, after a failure, or when its manager dies."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from taskqueue.daemon.node.context import NodeContext
from taskqueue.daemon.node.fetcher import Fetcher
from taskqueue.daemon.node.in_flight import InFlight
from taskqueue.daemon.node.manager_handle import ManagerHandle
from taskqueue.daemon.node.node_hooks import NodeHooks
from taskqueue.daemon.node.status import NodeStage
from taskqueue.daemon.protocol.channel import ChannelBroken
from taskqueue.daemon.protocol.messages import NODE_STOPPING, Recycle, Shutdown
from taskqueue.daemon.runtime import standard_streams, systemd
from taskqueue.exit_codes import Exit
from taskqueue.model.wording import count

log = logging.getLogger(__name__)

MOST_SIGNALS = 3
"""Signals that speed up a shutdown; the next one kills the manager and all workers."""

SLOWEST_ANSWER = 15.0
"""How many seconds the last calls to a slow store may take."""

HOOK_STARTS_WITHIN = 5.0
"""Seconds that a shutdown waits for the hooks ``stepped_down`` and ``node_stopping`` to start."""


class ShutdownSequence:
    """The stages of one node in order, and its exit code. It exits when all runs are settled."""

    def __init__(
        self,
        *,
        node: NodeContext,
        manager: ManagerHandle,
        fetcher: Fetcher,
        in_flight: InFlight,
        hooks: NodeHooks,
        distrust_lead: Callable[[], None],
        on_stage: Callable[[], None],
    ) -> None:
        """``distrust_lead`` is called when a shutdown starts, ``on_stage`` at each new stage."""
        self._node = node
        self._manager = manager
        self._fetcher = fetcher
        self._in_flight = in_flight
        self._hooks = hooks
        self._distrust_lead = distrust_lead
        self._on_stage = on_stage
        self._signals = 0
        self._kills_before = 0
        self._delayed_mode = ""
        self.exit = Exit.OK
        self.is_patient = False
        """Whether the shutdown waits for runs as long as they take."""
        self.restarts = False
        """Whether the program must be executed again when this node has exited."""

    def enter(self, stage: NodeStage) -> None:
        """Enter this stage."""
        self._node.status.stage = stage
        self._on_stage()

    def on_stop(self) -> None:
        """Shut down on SIGTERM or Ctrl-C; each further signal makes it faster."""
        self._signals += 1
        self._in_flight.is_stop_requested = True
        self.restarts = False
        if self._node.status.stage is NodeStage.LEAVING:
            self._node.loop.stop()
            return
        if self._signals > MOST_SIGNALS:
            self._manager.kill()
        self._start("finish" if self._signals == 1 else "quick")

    def on_quit(self) -> None:
        """Shut down on SIGQUIT, after all runs have ended on their own."""
        self.restarts = False
        self._in_flight.is_stop_requested = True
        self._start("patient")

    def on_reload(self) -> None:
        """Load new code on SIGHUP: replace the workers, or re-execute the program if modules are preloaded.

        If the terminal of the node was closed, which also sends SIGHUP, shut down as on SIGTERM.
        """
        if (
            self.restarts or self._node.status.stage in (NodeStage.STANDBY, NodeStage.SEATED)
        ) and standard_streams.has_lost_terminal():
            log.info("the terminal of this node was closed")
            self.on_stop()
            return
        if self._node.status.stage not in (NodeStage.STANDBY, NodeStage.SEATED):
            return
        systemd.reloading()
        if self._node.status.stage is NodeStage.SEATED and self._node.settings.preload:
            self.restarts = True
            log.info("loading new code: the node restarts when its running jobs have ended")
            self._start("patient")
            return
        if self._node.status.stage is NodeStage.SEATED:
            log.info("replacing every worker after its current run")
            self._manager.send(Recycle())
            self._hooks.load_new_code()
        systemd.ready(self._node.status.summary())

    def fail(self, exit: Exit) -> None:
        """Shut down quickly, with this exit code."""
        self.exit = exit
        self.restarts = False
        self._start("quick")

    def kill_manager(self) -> None:
        """Kill the manager, and with it all workers, because it does not answer."""
        self.exit = Exit.LOST
        self._manager.kill()

    def continue_after_hook(self) -> None:
        """Continue a shutdown that waited for a hook to start, if it has started."""
        if self._delayed_mode and not self._hooks.is_pending:
            self._send_shutdown()

    def on_manager_broken(self, broken: ChannelBroken) -> None:
        """Kill the manager, and with it all workers, because its channel is broken."""
        log.error("the channel from the manager is broken; killing the manager: %s", broken)
        self.kill_manager()

    def on_manager_exit(self) -> None:
        """Settle the runs that the manager can no longer report, and exit; a supervisor restarts the node."""
        for source in (self._manager.process, self._manager.channel):
            self._node.loop.unwatch(source)
        self._manager.read_rest()
        exit = self._manager.reap()
        if self._node.status.stage is not NodeStage.DRAINING:
            log.error("the worker manager died (%s)", exit)
            self.exit = self.exit or Exit.LOST
        elif self._manager.kills > self._kills_before:
            self.exit = self.exit or Exit.KILLED
        self._in_flight.on_manager_exit(self._manager.start_log.start_times())
        self.restarts = self.restarts and self._node.status.stage is NodeStage.DRAINING
        if self._node.status.stage is NodeStage.STANDBY:
            self._node.loop.stop()
        self.enter(NodeStage.LEAVING)
        systemd.extend_timeout(self._node.settings.lease + SLOWEST_ANSWER)
        self._node.loop.at(time.monotonic() + self._node.settings.lease, self._node.loop.stop)

    def _start(self, mode: str) -> None:
        """Start or speed up the shutdown, as ``mode`` says (see ``Shutdown``)."""
        if self._node.status.stage is NodeStage.LEAVING:
            return
        if self._node.status.stage is NodeStage.STANDBY:
            self._node.loop.stop()
            return
        if self._node.status.stage is NodeStage.SEATED:
            self._log_start(mode)
            self._kills_before = self._manager.kills
            self._distrust_lead()
            self._hooks.call(NODE_STOPPING)
        self.enter(NodeStage.DRAINING)
        self.is_patient = mode == "patient"
        self._fetcher.hand_back_reserved()
        if not self.restarts:
            systemd.stopping(self._node.status.summary())
        self._delayed_mode = mode
        if mode != "quick" and self._hooks.is_pending:
            self._node.loop.at(time.monotonic() + HOOK_STARTS_WITHIN, self._send_shutdown)
            return
        self._send_shutdown()

    def _log_start(self, mode: str) -> None:
        running = count(len(self._in_flight), "job")
        match mode:
            case "finish":
                log.info("shutting down: %s in flight, waiting up to %g s", running, self._node.settings.finish)
            case "patient":
                log.info("shutting down: waiting for %s to finish", running)
            case _:
                log.info("shutting down: interrupting %s in flight", running)

    def _send_shutdown(self) -> None:
        mode, self._delayed_mode = self._delayed_mode, ""
        if mode:
            self._manager.send(Shutdown(mode=mode))
