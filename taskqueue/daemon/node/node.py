"""The node process: opens the store, holds its seat, and lets its parts work in the turns of one loop."""

from __future__ import annotations

import logging
import secrets
import signal
from functools import partial

from taskqueue.daemon.node import signals_of_jobs
from taskqueue.daemon.node.bell_listener import BellListener
from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.node.clocks import ClockWatch
from taskqueue.daemon.node.context import NodeContext
from taskqueue.daemon.node.controls import ControlsView, holds_back
from taskqueue.daemon.node.dispatcher import Dispatcher
from taskqueue.daemon.node.event_buffer import EventBuffer
from taskqueue.daemon.node.figures import Figures
from taskqueue.daemon.node.host_watch import HostWatch, Rescuer
from taskqueue.daemon.node.in_flight import InFlight
from taskqueue.daemon.node.leader_run import FindingsWatch, outbox_relay
from taskqueue.daemon.node.leases import LEASE_SLACK, Leadership, NodeLeases
from taskqueue.daemon.node.maintenance import Maintenance
from taskqueue.daemon.node.manager_handle import ForkedManager, ManagerHandle, StackRequests
from taskqueue.daemon.node.monitor import Monitor
from taskqueue.daemon.node.node_hooks import NodeHooks
from taskqueue.daemon.node.shutdown import ShutdownSequence
from taskqueue.daemon.node.signals_of_jobs import SignalFile
from taskqueue.daemon.node.status import NodeStage, NodeStatus
from taskqueue.daemon.protocol.messages import NODE_STARTED, Message, StartPool, StartupFailed, Unlock
from taskqueue.daemon.runtime import leftovers, standard_streams, systemd
from taskqueue.daemon.runtime.loop import Loop, every
from taskqueue.daemon.runtime.prefetch import Prefetch
from taskqueue.daemon.settings import Lead, Settings
from taskqueue.exit_codes import Exit
from taskqueue.insight.nodes import WAITS_FOR_LEAD
from taskqueue.model.record import Holder
from taskqueue.model.wording import count
from taskqueue.store import Store
from taskqueue.store.bell import CONTROLS, PLANS, STOPS, WORK
from taskqueue.store.open import resolved

log = logging.getLogger(__name__)

STANDBY_INTERVAL = 1.0
"""Seconds between two attempts to acquire a seat that another process holds, and between two searches for orphans."""


class Node:
    """The composition root: creates the parts of a node and calls them in turn."""

    def __init__(self, settings: Settings, store: Store, forked: ForkedManager) -> None:
        figures = Figures(counts_runs=settings.metrics is not None)
        self._node = node = NodeContext(
            loop=Loop(),
            store=store,
            holder=Holder(seat=settings.name, incarnation=secrets.token_hex(8)),
            settings=settings,
            status=NodeStatus(settings, forked.process.pid),
            breaker=CircuitBreaker(self._on_store_state, figures, self._on_contended),
            figures=figures,
        )
        prefetch = Prefetch(settings.slots)
        self._in_flight = InFlight(settings, prefetch, store.now)
        node.status.waits = self._in_flight.waits
        node.status.unwritten = self._in_flight.unwritten
        node.status.pids = self._in_flight.pids
        node.status.failed = figures.failed_in_hour
        watch = FindingsWatch(node, self._send)
        self._hooks = self._new_hooks(watch)
        node.status.problems = self._hooks.problems
        self._events = EventBuffer(node)
        stacks = StackRequests(node, self._in_flight)
        self._manager = self._new_manager(forked, stacks)
        self._dispatcher = Dispatcher(node, self._in_flight, prefetch, self._manager)
        self._wake = self._dispatcher.fetcher.wake
        clock_watch = ClockWatch(store.now, settings.lease)
        self._rescuer = Rescuer(node, clock_watch, self._wake)
        self._leases = NodeLeases(node, clock_watch)
        self._controls = ControlsView(node)
        self._leadership = self._new_leadership()
        self._shutdown = self._new_shutdown()
        self._maintenance = Maintenance(node, self._leases)
        self._host_watch = self._new_host_watch(stacks)
        self._has_claimed_last = False
        """Whether a claim has followed the last outcome, for ``--burst``."""
        self._bells = BellListener(node.loop, node.breaker)
        self.monitor = Monitor(node, watch)
        self._expired_timer = node.timer(self._rescuer.rescue_expired)

    def _send(self, message: Message) -> None:
        """Send a message to the manager, whose handle is made after what sends messages."""
        self._manager.send(message)

    def _new_hooks(self, watch: FindingsWatch) -> NodeHooks:
        settings = self._node.settings
        runs = [outbox_relay(path, self._node, self._send) for path in settings.outbox]
        if (settings.notify or settings.metrics) and not settings.burst:
            runs.append(watch)
        apply_later = self._node.timer(self._apply_schedules).after
        checked = () if settings.burst else settings.outbox
        return NodeHooks(self._send, settings.bootstrap, self._on_hook, settings.schedules, apply_later, runs, checked)

    def _new_manager(self, forked: ForkedManager, stacks: StackRequests) -> ManagerHandle:
        return ManagerHandle(
            forked,
            self._node,
            in_flight=self._in_flight,
            hooks=self._hooks,
            events=self._events,
            stacks=stacks,
            on_startup_failed=self._on_startup_failed,
        )

    def _new_leadership(self) -> Leadership:
        return Leadership(
            node=self._node,
            leases=self._leases,
            controls=self._controls,
            hooks=self._hooks,
            events=self._events,
            on_change=self._on_lead_changed,
            on_applied=self._show,
        )

    def _new_shutdown(self) -> ShutdownSequence:
        return ShutdownSequence(
            node=self._node,
            manager=self._manager,
            fetcher=self._dispatcher.fetcher,
            in_flight=self._in_flight,
            hooks=self._hooks,
            distrust_lead=self._leadership.distrust,
            on_stage=self._show,
        )

    def _new_host_watch(self, stacks: StackRequests) -> HostWatch:
        return HostWatch(
            node=self._node,
            rescuer=self._rescuer,
            on_lead=self._leadership.renew,
            on_leases=lambda leases: self._manager.send(*stacks.look(leases)),
            is_busy=self._in_flight.__len__,
        )

    @property
    def restarts(self) -> bool:
        """Whether the program must be executed again when this node has exited."""
        return self._shutdown.restarts

    def banner(self) -> list[str]:
        """Return the lines that describe the node, its store and the store's guarantee."""
        return self._node.status.banner(self._node.store)

    def run(self) -> int:
        """Run the loop until the node has shut down, and return the exit code."""
        loop = self._node.loop
        for signum in (signal.SIGTERM, signal.SIGINT):  # received by a thread that a library started earlier
            loop.on_signal(signum, self._shutdown.on_stop)
        loop.on_signal(signal.SIGQUIT, self._shutdown.on_quit)
        loop.on_signal(signals_of_jobs.RELOAD, self._shutdown.on_reload)
        self._signals = SignalFile((*signals_of_jobs.STOPS, signals_of_jobs.RELOAD))
        loop.watch(self._signals, self._on_signals)
        shutdown = self._shutdown
        manager = self._manager
        loop.watch(manager.process, shutdown.on_manager_exit)
        # Its end of file says nothing: a process that a preloaded module has forked keeps the channel open.
        loop.watch_channel(manager.channel, manager.on_report, lambda: None, shutdown.on_manager_broken)
        loop.after_turn(self._turn)
        standard_streams.attend(loop)
        every(loop, STANDBY_INTERVAL, self._acquire_seat)
        every(loop, self._node.settings.lease / 3, self._renew)
        every(loop, STANDBY_INTERVAL, self._manager.reap_orphans)
        every(loop, STANDBY_INTERVAL, self._publish_waits)
        if watchdog := systemd.watchdog_interval():
            every(loop, watchdog, systemd.alive)
        self.monitor.start()
        self._shutdown.enter(NodeStage.STANDBY)
        self._acquire_seat()
        try:
            loop.run()
        finally:
            self._close()
        return int(self._shutdown.exit)

    def _on_signals(self) -> None:
        """Reload, or shut down if an operator or a supervisor asks for it, but not if a job of this node does."""
        for received in self._signals.read():
            if received.signum is signals_of_jobs.RELOAD:
                self._shutdown.on_reload()
                continue
            if signals_of_jobs.return_to_job(received):
                continue
            if not self._in_flight.is_stop_requested:
                self._in_flight.suspects = signals_of_jobs.suspects(received, self._manager.pid)
            if received.signum is signal.SIGQUIT:
                self._shutdown.on_quit()
            else:
                self._shutdown.on_stop()

    def _acquire_seat(self) -> None:
        """Acquire the seat if it is free, and start to work; else stand by."""
        if self._node.status.stage is not NodeStage.STANDBY or not self._leases.acquire_seat():
            return
        self._shutdown.enter(NodeStage.SEATED)
        log.info("node %s has taken its seat", self._node.settings.name)
        on_ring = partial(self._wake, "the bell of new work rang")
        on_pause = partial(self._wake, "no bell rang for a while")
        self._bells.listen(lambda: self._node.store.bell(WORK), on_ring, on_pause)
        self._bells.listen(lambda: self._node.store.bell(STOPS), self._renew, self._renew_if_busy)
        fire = self._maintenance.fire_schedules
        self._bells.listen(lambda: self._node.store.bell(PLANS), fire, fire)
        self._bells.listen(lambda: self._node.store.bell(CONTROLS), self._apply_controls, self._apply_controls)
        leftovers.kill()  # before their jobs run again
        url = resolved(self._node.settings.url)
        folder = self.monitor.job_metrics_folder
        self._manager.send(
            StartPool(url=url, seat=self._node.holder.seat, incarnation=self._node.holder.incarnation, metrics=folder)
        )
        self._hooks.call(NODE_STARTED)
        self._hooks.apply_schedules()
        self._maintenance.start()
        rescued = self._rescuer.rescue_own_seat()
        if rescued:
            log.warning(
                "rescued %s left behind by the last holder of seat %s", count(rescued, "job"), self._node.settings.name
            )
        self._renew()
        self._hooks.check_outboxes()
        self._apply_controls()

    def _turn(self) -> None:
        """Claim jobs and settle outcomes, and end the loop if that was the last thing to do."""
        if self._node.status.stage is NodeStage.STANDBY:
            return
        self._dispatcher.work(self._may_claim)
        if self._node.settings.burst and self._node.status.is_seated:
            self._leave_when_idle()
        unsettled = self._in_flight.unsettled
        if self._node.status.stage is NodeStage.LEAVING and (self._node.breaker.store_was_replaced or not unsettled):
            self._node.loop.stop()
        if unsettled:  # in an outage, or the claim had an unreadable record
            self._node.loop.at(self._node.breaker.resume_at, lambda: None)  # the end of that turn tries again

    def _leave_when_idle(self) -> None:
        """Shut down a node that was started for the jobs that are due now, as soon as none is left.

        An outcome may have released a job whose ring has not arrived yet, so the last claim follows the last outcome.
        """
        fetcher = self._dispatcher.fetcher
        if len(self._in_flight) or self._maintenance.has_tasks or self._hooks.is_busy:
            self._has_claimed_last = False
        elif not self._may_claim():
            self._leave("this node is drained")
        elif fetcher.expects_jobs:
            return
        elif self._has_claimed_last:
            self._leave("no job is due now")
        else:
            self._has_claimed_last = True
            fetcher.wake("nothing seems to be due")
            self._node.loop.soon(lambda: None)

    def _leave(self, reason: str) -> None:
        log.info("exiting: %s", reason)
        if self._hooks.has_failed:
            self._shutdown.exit = Exit.ERROR
        self._shutdown.on_quit()

    def _apply_controls(self) -> None:
        """Apply new controls; runs that have started continue."""
        self._host_watch.check()
        new = self._controls.refresh() if self._node.status.is_seated else None
        if new is None:
            return
        if any(map(holds_back, new)):
            self._dispatcher.hand_back_unbegun()
        self._wake("controls were changed")
        self._show()
        self._renew()

    # Leases

    def _renew(self) -> None:
        """Renew claims, seat and lead; stop lost and canceled runs."""
        if self._node.status.stage in (NodeStage.STANDBY, NodeStage.LEAVING):
            return
        if self._node.status.stage is NodeStage.DRAINING and self._shutdown.is_patient:
            systemd.extend_timeout(self._node.settings.lease)
        renewal = self._dispatcher.renew()
        if renewal is None:
            return
        self._expired_timer.cancel()
        if renewal.others_end_at is not None:
            self._expired_timer.at(renewal.others_end_at, LEASE_SLACK)
        self._node.status.running = len(self._in_flight)
        if not self._leases.renew_seat() and self._node.status.is_seated:
            self._shutdown.fail(Exit.LOST)
        self._leadership.renew()
        if self._manager.check_silence():
            log.error("the worker manager has been silent for half a lease: killing it")
            self._shutdown.kill_manager()

    def _publish_waits(self) -> None:
        """Publish with the seat which runs wait for other jobs, if that has changed."""
        if self._in_flight.have_waits_changed and self._node.status.is_seated:
            self._in_flight.have_waits_changed = False
            self._leases.renew_seat()

    def _renew_if_busy(self) -> None:
        """Look for cancel requests, in case a ring was lost."""
        if len(self._in_flight):
            self._renew()

    def _on_lead_changed(self, leads: bool) -> None:
        if leads:
            self._wake("this node leads")
            self._maintenance.resume_schedules()
        elif not self._may_claim():
            self._dispatcher.hand_back_unbegun()

    def _apply_schedules(self) -> None:
        if self._node.status.is_seated:
            self._hooks.apply_schedules()

    def _on_hook(self) -> None:
        """Continue a shutdown that waits for a hook, and fire what a hook may have scheduled for now."""
        self._shutdown.continue_after_hook()
        if self._node.status.is_seated:
            self._maintenance.fire_schedules()

    def _on_startup_failed(self, failure: StartupFailed) -> None:
        if self._node.status.is_seated:
            log.error("%s", failure.reason)
            self._shutdown.fail(Exit.BOOTSTRAP if failure.bootstrap else Exit.CHILDREN)

    def _close(self) -> None:
        """Resign all leases and close everything."""
        self.monitor.close()
        if self._node.status.stage is NodeStage.LEAVING:
            self._manager.kill_left()  # before another process takes the seat
            self._events.write()
            self._leases.resign()
        else:
            self._manager.reap()
        self._dispatcher.close()
        self._bells.close()
        self._host_watch.close()
        standard_streams.attend(None)
        self._node.loop.close()
        self._signals.close()
        self._node.store.close()
        unsettled = len(self._in_flight.unsettled)
        if unsettled:
            log.error("exiting with %d outcomes not settled: these jobs will run again", unsettled)

    def _may_claim(self) -> bool:
        """Return whether this node works: not while it is drained, with ``--lead cluster`` only while it leads."""
        if self._node.status.stage is not NodeStage.SEATED or self._controls.drain is not None:
            return False
        return self._node.settings.lead is Lead.HOST or self._leases.leads

    def _show(self) -> None:
        is_paused = self._node.status.is_seated and not self._may_claim()
        waiting = "is drained" if self._controls.drain else WAITS_FOR_LEAD
        self._node.status.phase = waiting if is_paused else self._node.status.stage.value
        self._node.status.leads = self._leases.leads
        self._node.status.show()

    def _on_store_state(self) -> None:
        self._node.status.degraded = self._node.breaker.reason
        if self._node.breaker.locked_by:
            self._manager.send(Unlock(pid=self._node.breaker.locked_by))
        self._node.status.show()
        if self._node.breaker.store_was_replaced and self._shutdown.exit is not Exit.STORE:
            log.error("exiting so that the node is restarted with the new store: %s", self._node.breaker.reason)
            self._shutdown.fail(Exit.STORE)
        if not self._node.breaker.is_degraded:
            self._node.loop.soon(partial(self._resume, "the store answers again"))

    def _on_contended(self) -> None:
        self._node.loop.at(self._node.breaker.resume_at, partial(self._resume, "other processes preempted a change"))

    def _resume(self, why: str) -> None:
        """Repeat every call that may have received no answer."""
        self._wake(why)
        self._renew()
        self._maintenance.after_outage()
