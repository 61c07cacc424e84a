"""The stages of a node, and its shutdown: on a signal, after a failure, or when its manager dies."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

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

HOOK_STARTS_WITHIN = 10.0
"""Seconds that a shutdown waits for the hooks ``stepped_down`` and ``node_stopping`` to start, or ``--finish`` seconds.

Their worker runs the bootstrap file first, which takes long on a busy host.
"""


@dataclass(eq=False, kw_only=True)
class ShutdownSequence:
    """The stages of one node in order, and its exit code. It exits when all runs are settled."""

    node: NodeContext
    manager: ManagerHandle
    fetcher: Fetcher
    in_flight: InFlight
    hooks: NodeHooks
    distrust_lead: Callable[[], None]
    """Called when a shutdown starts."""
    on_stage: Callable[[], None]
    """Called at each new stage."""

    def __post_init__(self) -> None:
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
        self.node.status.stage = stage
        self.on_stage()

    def on_stop(self) -> None:
        """Shut down on SIGTERM or Ctrl-C; each further signal makes it faster."""
        self._signals += 1
        self.in_flight.is_stop_requested = True
        self.restarts = False
        if self.node.status.stage is NodeStage.LEAVING:
            self.node.loop.stop()
            return
        if self._signals > MOST_SIGNALS:
            self.manager.kill()
        self._start("finish" if self._signals == 1 else "quick")

    def on_quit(self) -> None:
        """Shut down on SIGQUIT, after all runs have ended on their own."""
        self.restarts = False
        self.in_flight.is_stop_requested = True
        self._start("patient")

    def on_reload(self) -> None:
        """Load new code on SIGHUP: replace the workers, or re-execute the program if modules are preloaded.

        If the terminal of the node was closed, which also sends SIGHUP, shut down as on SIGTERM.
        """
        if (
            self.restarts or self.node.status.stage in (NodeStage.STANDBY, NodeStage.SEATED)
        ) and standard_streams.has_lost_terminal():
            log.info("the terminal of this node was closed")
            self.on_stop()
            return
        if self.node.status.stage not in (NodeStage.STANDBY, NodeStage.SEATED):
            return
        systemd.reloading()
        if self.node.status.stage is NodeStage.SEATED and self.node.settings.preload:
            self.restarts = True
            log.info("loading new code: the node restarts when its running jobs have ended")
            self._start("patient")
            return
        if self.node.status.stage is NodeStage.SEATED:
            log.info("replacing every worker after its current run")
            self.manager.send(Recycle())
            self.hooks.load_new_code()
        systemd.ready(self.node.status.summary())

    def fail(self, exit: Exit) -> None:
        """Shut down quickly, with this exit code."""
        self.exit = exit
        self.restarts = False
        self._start("quick")

    def kill_manager(self) -> None:
        """Kill the manager, and with it all workers, because it does not answer."""
        self.exit = Exit.LOST
        self.manager.kill()

    def continue_after_hook(self) -> None:
        """Continue a shutdown that waited for a hook to start, if it has started."""
        if self._delayed_mode and not self.hooks.is_pending:
            self._send_shutdown()

    def on_manager_broken(self, broken: ChannelBroken) -> None:
        """Kill the manager, and with it all workers, because its channel is broken."""
        log.error("the channel from the manager is broken; killing the manager: %s", broken)
        self.kill_manager()

    def on_manager_exit(self) -> None:
        """Settle the runs that the manager can no longer report, and exit; a supervisor restarts the node."""
        for source in (self.manager.process, self.manager.channel):
            self.node.loop.unwatch(source)
        self.manager.read_rest()
        exit = self.manager.reap()
        if self.node.status.stage is not NodeStage.DRAINING:
            log.error("the worker manager died (%s)", exit)
            self.exit = self.exit or Exit.LOST
        elif self.manager.kills > self._kills_before:
            self.exit = self.exit or Exit.KILLED
        self.in_flight.on_manager_exit(self.manager.start_log.start_times())
        self.restarts = self.restarts and self.node.status.stage is NodeStage.DRAINING
        if self.node.status.stage is NodeStage.STANDBY:
            self.node.loop.stop()
        self.enter(NodeStage.LEAVING)
        systemd.extend_timeout(self.node.settings.lease + SLOWEST_ANSWER)
        self.node.loop.at(time.monotonic() + self.node.settings.lease, self.node.loop.stop)

    def _start(self, mode: str) -> None:
        """Start or speed up the shutdown, as ``mode`` says (see ``Shutdown``)."""
        if self.node.status.stage is NodeStage.LEAVING:
            return
        if self.node.status.stage is NodeStage.STANDBY:
            self.node.loop.stop()
            return
        if self.node.status.stage is NodeStage.SEATED:
            self._log_start(mode)
            self._kills_before = self.manager.kills
            self.distrust_lead()
            self.hooks.call(NODE_STOPPING)
        self.enter(NodeStage.DRAINING)
        self.is_patient = mode == "patient"
        self.fetcher.hand_back_reserved()
        if not self.restarts:
            systemd.stopping(self.node.status.summary())
        self._delayed_mode = mode
        if mode != "quick" and self.hooks.is_pending:
            within = max(HOOK_STARTS_WITHIN, self.node.settings.finish)
            self.node.loop.at(time.monotonic() + within, self._send_shutdown)
            return
        self._send_shutdown()

    def _log_start(self, mode: str) -> None:
        running = count(len(self.in_flight), "job")
        match mode:
            case "finish":
                log.info("shutting down: %s in flight, waiting up to %g s", running, self.node.settings.finish)
            case "patient":
                log.info("shutting down: waiting for %s to finish", running)
            case _:
                log.info("shutting down: interrupting %s in flight", running)

    def _send_shutdown(self) -> None:
        mode, self._delayed_mode = self._delayed_mode, ""
        if mode:
            self.manager.send(Shutdown(mode=mode))
