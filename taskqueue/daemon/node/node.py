"""The node: the one process of a host that opens the store, keeps its seat and settles what the workers did."""

from __future__ import annotations

import gc
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta

from taskqueue.daemon.manager.manager import fork_manager
from taskqueue.daemon.manager.scaling import PoolMode
from taskqueue.daemon.node import leftovers
from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.node.controls import ControlsView, holds_back
from taskqueue.daemon.node.event_buffer import EventBuffer
from taskqueue.daemon.node.exchange import Exchange
from taskqueue.daemon.node.failure_log import mishap
from taskqueue.daemon.node.host_watch import HostWatch
from taskqueue.daemon.node.in_flight import InFlightRun
from taskqueue.daemon.node.leader_hooks import LeaderHooks
from taskqueue.daemon.node.leases import NodeLeases
from taskqueue.daemon.node.maintenance import Maintenance
from taskqueue.daemon.node.manager_handle import ManagerHandle
from taskqueue.daemon.node.manager_reports import ManagerReports
from taskqueue.daemon.node.prefetch import Prefetch
from taskqueue.daemon.node.shutdown import NodeStage, ShutdownSequence
from taskqueue.daemon.node.status import NodeStatus
from taskqueue.daemon.protocol.channel import Channel
from taskqueue.daemon.protocol.encoding import run_message
from taskqueue.daemon.protocol.messages import HandBack, LeaseExtended, OutcomeSettled, Run, StartPool, Stop, Unlock
from taskqueue.daemon.protocol.start_log import StartLog
from taskqueue.daemon.runtime import child_process, systemd
from taskqueue.daemon.runtime.child_process import Child
from taskqueue.daemon.runtime.loop import Loop
from taskqueue.daemon.runtime.timers import ResettableTimer, every, on_loop_clock
from taskqueue.daemon.settings import Lead, Settings
from taskqueue.exit_codes import Exit
from taskqueue.model.lifecycle.continuation import Phase
from taskqueue.model.record import Holder, Record, Status
from taskqueue.store import CONTROLS, PLANS, STOPS, WORK, Bell, Store
from taskqueue.store.open import open_store, resolved
from taskqueue.store.redaction import without_url

log = logging.getLogger(__name__)

NEWS_WITHIN = 0.1
"""Seconds within which progress and checkpoints reach the store."""

STANDBY_LOOKS = 1.0
"""Seconds between two looks at the processes of another that holds the seat."""

SLACK = 0.1
"""Seconds after the end of a lease at which others surely see it, too."""

COLLECT_AFTER = 50_000
"""So many new objects make Python look for cycles. A turn makes thousands and no cycles; looking after every 700 took a
twentieth of the node's time."""

TRUST_MARGIN = 0.5
"""Seconds before the end of a lease at which its work must have ended; of a short lease a sixth is enough.

With a third of it for the grace (``Manager``), half a lease is left, and a renewal comes after a third.
"""


def run(settings: Settings, *, announce: Callable[[str], None], keep: Collection[int] = ()) -> int:
    """Be a node until a signal or an error ends it, and return the exit code (see ``exits``).

    ``announce`` gets the lines of the start banner; manager and workers have the descriptors in ``keep``, say those of
    a log file. Raises ``ConfigError`` and ``StoreUnavailable`` at the start.
    """
    child_process.require_linux()
    child_process.become_subreaper()
    manager, channel, start_log = fork_manager(settings, keep)
    try:
        store = open_store(settings.url)
    except BaseException:
        channel.close()
        manager.reap()
        raise
    node = Node(settings, store, manager, channel, start_log)
    for line in node.banner():
        announce(line)
    code = node.run()
    if node.starts_anew:
        log.info("starting anew, to preload the code as it is now")
        arguments = without_url(sys.orig_argv[1:])  # where every user of the host could read its password
        if settings.url is not None and arguments != sys.orig_argv[1:]:
            os.environ["TASKQUEUE_URL"] = settings.url
        os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - a shell is what is not wanted
    return code


class Node:
    """The composition root: gives each part its turn and knows nothing of how they do their work."""

    def __init__(self, settings: Settings, store: Store, manager: Child, channel: Channel, start_log: StartLog) -> None:
        holder = Holder(seat=settings.name, incarnation=secrets.token_hex(8))
        ttl = timedelta(seconds=settings.lease)
        static = settings.pm is PoolMode.STATIC
        appetite = Prefetch(settings.min_children if static else settings.max_children)
        self._settings = settings
        self._store = store
        self._holder = holder
        self._loop = Loop()
        self._presence = NodeStatus(settings, manager.pid)
        self._health = CircuitBreaker(self._on_health)
        self._exchange = Exchange(store, holder, settings, appetite, self._health)
        intake = ManagerReports(self._exchange.holdings, settings, appetite, store.now)
        self._leadership = LeaderHooks(self._send_hook, settings.bootstrap)
        self._chronicle = EventBuffer(self._loop, store, holder, self._health)
        reports = (intake, self._leadership, self._presence, self._chronicle)
        self._line = ManagerHandle(manager, channel, start_log, *reports, patience=settings.lease / 2)
        self._tenure = NodeLeases(store, holder, ttl, self._presence, self._health)
        self._decisions = ControlsView(store, holder.seat, self._health)
        self._departure = ShutdownSequence(
            loop=self._loop,
            settings=settings,
            line=self._line,
            exchange=self._exchange,
            intake=intake,
            leadership=self._leadership,
            presence=self._presence,
            forgo_lead=self._forgo_lead,
            on_stage=self._show,
        )
        self._duties = Maintenance(self._loop, store, settings, self._tenure, self._health, self._is_seated)
        self._host_watch = HostWatch(
            loop=self._loop,
            store=store,
            holder=holder,
            health=self._health,
            exchange=self._exchange,
            is_seated=self._is_seated,
            on_lead=self._lead,
            pause=settings.lease / 3,
        )
        self._bells: list[Bell] = []
        self._due = self._alarm(self._exchange.expect_due)
        self._news = self._alarm(self._exchange.tell_news)
        self._others = self._alarm(self._exchange.take_back_lost)
        self._lead_ends = self._alarm(self._on_lead)
        self._lead_is_free = self._alarm(self._lead)

    @property
    def starts_anew(self) -> bool:
        """Whether the program is to be executed again when this node has left."""
        return self._departure.starts_anew

    def banner(self) -> list[str]:
        """Return what this node is, where its jobs live and what is promised."""
        return self._presence.banner(self._store)

    def run(self) -> int:
        """Turn until the work is over, and return the exit code."""
        loop = self._loop
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.on_signal(signum, self._departure.on_stop)
        loop.on_signal(signal.SIGQUIT, self._departure.on_quit)
        loop.on_signal(signal.SIGHUP, self._departure.on_reload)
        departure = self._departure
        loop.watch_channel(self._line.channel, self._on_report, departure.on_manager_gone, departure.on_manager_broken)
        loop.after_turn(self._turn)
        every(loop, STANDBY_LOOKS, self._take_seat)
        every(loop, self._settings.lease / 3, self._renew)
        watchdog = systemd.watchdog_interval()
        if watchdog is not None:
            every(loop, watchdog, systemd.alive)
        self._departure.enter(NodeStage.STANDBY)
        self._take_seat()
        systemd.ready(self._presence.status())
        gc.freeze()  # what the start has made stays: no collection looks at it again
        gc.set_threshold(COLLECT_AFTER)
        try:
            loop.run()
        finally:
            self._leave()
        return int(self._departure.exit)

    # Taking the seat

    def _take_seat(self) -> None:
        """Take the seat when it is free, and begin; until then stand by."""
        if self._departure.stage is not NodeStage.STANDBY or not self._tenure.begin():
            return
        self._departure.enter(NodeStage.SEATED)
        log.info("node %s has its seat", self._settings.name)
        self._listen(WORK, self._exchange.expect, self._exchange.expect)
        self._listen(STOPS, self._renew, self._renew_if_busy)
        self._listen(PLANS, self._duties.fire, self._duties.fire)
        self._listen(CONTROLS, self._heed, self._heed)
        leftovers.end()  # before one of the jobs begins again beside them
        url = resolved(self._settings.url)
        self._line.send(StartPool(url=url, seat=self._holder.seat, incarnation=self._holder.incarnation))
        self._duties.begin()
        taken = self._exchange.take_over()
        if taken:
            log.warning("took over %d jobs that the last holder of seat %s left behind", taken, self._settings.name)
        self._renew()
        self._heed()

    def _listen(self, topic: str, on_ring: Callable[[], None], on_pause: Callable[[], None]) -> None:
        """Call back when the bell of the topic rings, and from time to time when it does not."""
        answer = self._health.attempt(lambda: self._store.bell(topic))
        if answer is None:
            self._loop.at(time.monotonic() + 1.0, lambda: self._listen(topic, on_ring, on_pause))
            return
        bell = answer.value

        def ring() -> None:
            bell.clear()
            on_ring()

        def look() -> None:
            number = bell.fileno()
            if bell.renew():
                self._loop.unwatch(number)
                self._loop.watch(bell, ring)
            on_pause()

        self._bells.append(bell)
        self._loop.watch(bell, ring)
        every(self._loop, bell.pause, look)

    # Work

    def _turn(self) -> None:
        """Settle what ended, claim what there is room for, and send it out: one transaction each."""
        if self._departure.stage is NodeStage.STANDBY:
            return
        for held, accepted in self._exchange.settle():
            self._confirm(held, accepted)
        if self._is_seated() and self._is_active:
            claimed = self._exchange.claim()
            if claimed:
                self._send_out(claimed)
            if self._exchange.claim_at is not None:
                self._due.no_later_than(self._exchange.claim_at)
        if self._exchange.holdings.has_news and not self._news.is_set:
            self._news.after(NEWS_WITHIN)
        unsettled = self._exchange.holdings.unsettled
        if self._departure.stage is NodeStage.LEAVING and (self._health.is_over or not unsettled):
            self._loop.stop()
        if unsettled:  # in an outage, or a claim brought what cannot be read
            self._loop.at(self._health.resume_at, self._wake)

    def _send_out(self, claimed: Sequence[Record]) -> None:
        now, begins_at = self._store.now(), self._exchange.begins_at
        not_before = None if begins_at is None else on_loop_clock(begins_at, self._store.now)
        self._line.send(*(run_message(record, now, not_before) for record in claimed))

    def _wake(self) -> None:
        """Do nothing: the turn that this begins settles and claims again."""

    def _confirm(self, held: InFlightRun, accepted: bool) -> None:
        if not accepted:
            log.warning("the store refused an outcome, the claim was lost: job %s", held.record.id)
        elif held.after is not None and held.after.status is not Status.DONE:
            told = mishap(held.after, self._store.now())
            if told is not None:
                log.info("%s", told)
        if held.confirm and held.after is not None:
            id, status = str(held.record.id), int(held.after.status)
            self._line.send(OutcomeSettled(id=id, claims=held.fence, accepted=accepted, status=status))

    def _heed(self) -> None:
        """Act on what operators have decided for the fleet; what has begun goes on, whatever that is."""
        self._host_watch.look()
        new = self._decisions.look() if self._is_seated() else None
        if new is None:
            return
        if any(map(holds_back, new)):
            self._hand_back_unbegun()
        self._exchange.expect()
        self._show()
        self._renew()

    def _hand_back_unbegun(self) -> None:
        """Have all claims returned that have not begun, those too that wait here."""
        self._exchange.hand_back_reserved()
        self._line.send(HandBack(most=len(self._exchange.holdings)))

    # Renewal

    def _renew(self) -> None:
        """Extend claims, seat and lead, and act on what comes back."""
        if self._departure.stage in (NodeStage.STANDBY, NodeStage.LEAVING):
            return
        if self._departure.stage is NodeStage.DRAINING and self._departure.is_patient:
            systemd.extend_timeout(self._settings.lease)
        asked_at = child_process.boottime()
        renewal = self._exchange.renew()
        if renewal is None:
            return
        lease = self._settings.lease
        self._line.send(LeaseExtended(until=asked_at + lease - min(TRUST_MARGIN, lease / 6)))
        for held in self._exchange.holdings:
            holding = renewal.holdings.get(held.record.id)
            if holding is None or holding.claims != held.fence:
                self._stop(held, "lost")
            elif holding.cancel_reason is not None and held.record.phase is not Phase.FAILING:
                self._exchange.holdings.asked_to_cancel(held, holding.cancel_reason, self._store.now())
                self._stop(held, "cancel")
        self._exchange.hand_back_unknown(renewal)
        self._watch_others(renewal.others_end_at)
        self._presence.running = len(self._exchange.holdings)
        if not self._tenure.keep() and self._is_seated():
            self._departure.fail(Exit.LOST)
        self._lead()
        if self._line.is_silent():
            log.error("the worker manager has been silent for half a lease and is ended")
            self._departure.kill_manager()

    def _renew_if_busy(self) -> None:
        """Look for cancel requests that no bell told of."""
        if len(self._exchange.holdings):
            self._renew()

    def _stop(self, held: InFlightRun, reason: str) -> None:
        if self._exchange.is_reserved(held):
            self._exchange.holdings.hand_back(held, self._settings.name, self._store.now())
        elif not held.stopping:
            held.stopping = reason
            self._line.send(Stop(id=str(held.record.id), claims=held.fence, reason=reason))

    def _watch_others(self, end_at: datetime | None) -> None:
        """Look for lost claims when the first lease of another node ends."""
        self._others.off()
        if end_at is not None:
            self._others.at(end_at, SLACK)

    # The lead

    @property
    def _is_active(self) -> bool:
        """Tell whether this node may claim: not while it is drained, with ``--lead cluster`` only while it leads."""
        return self._decisions.drain is None and (self._settings.lead is Lead.HOST or self._tenure.leads)

    def _lead(self) -> None:
        if not self._is_seated():
            return
        if self._decisions.drain is not None and self._settings.lead is Lead.CLUSTER:
            self._tenure.leave_lead()  # who leads there does the work
            self._on_lead()
            return
        free_at = self._tenure.lead()
        self._on_lead()
        self._lead_ends.off()
        self._lead_is_free.off()
        if self._tenure.leads:
            self._lead_ends.after(self._tenure.leads_for + 0.01)
        elif free_at is not None:
            self._lead_is_free.at(free_at, SLACK)

    def _on_lead(self) -> None:
        """Act on whether this node leads now; its hooks are called when that has changed."""
        leads = self._tenure.leads
        if leads and not self._leadership.leads:
            self._exchange.expect()
            self._loop.soon(self._duties.take_up_schedules)
        elif self._leadership.leads and not leads and not self._is_active:
            self._hand_back_unbegun()
        if leads is not self._leadership.leads:
            self._chronicle.led(leads)
        self._leadership.note(leads)
        self._show()

    def _send_hook(self, hook: Run) -> None:
        self._line.send(hook)

    # The manager

    def _on_report(self, payload: bytes) -> None:
        self._line.take(payload)
        hopeless = self._line.hopeless
        if hopeless is not None and self._is_seated():
            log.error("%s", hopeless.reason)
            self._departure.fail(Exit.BOOTSTRAP if hopeless.bootstrap else Exit.CHILDREN)
        self._departure.proceed()

    def _leave(self) -> None:
        """Give up what was held and let go of everything."""
        if self._departure.stage is NodeStage.LEAVING:
            self._chronicle.write()
            self._tenure.end()
        else:
            self._line.reap()
        for bell in self._bells:
            bell.close()
        self._host_watch.close()
        self._loop.close()
        self._store.close()
        unsettled = len(self._exchange.holdings.unsettled)
        if unsettled:
            log.error("leaving with %d outcomes unsettled: their jobs run again", unsettled)

    # Small things

    def _is_seated(self) -> bool:
        return self._departure.stage is NodeStage.SEATED

    def _forgo_lead(self) -> None:
        self._tenure.forgo_lead()
        self._on_lead()

    def _alarm(self, callback: Callable[[], None]) -> ResettableTimer:
        return ResettableTimer(self._loop, self._store.now, callback)

    def _show(self) -> None:
        waits = self._is_seated() and not self._is_active
        waiting = "is drained" if self._decisions.drain else "waits for the lead"
        self._presence.phase = waiting if waits else self._departure.stage.value
        self._presence.leads = self._tenure.leads
        self._presence.show()

    def _on_health(self) -> None:
        self._presence.degraded = self._health.reason
        if self._health.held_by:
            self._line.send(Unlock(pid=self._health.held_by))
        self._presence.show()
        if self._health.is_over and self._departure.exit is not Exit.STORE:
            log.error("leaving, to be started anew with the store as it is now: %s", self._health.reason)
            self._departure.fail(Exit.STORE)
        if not self._health.is_degraded:
            self._exchange.expect()
            self._loop.soon(self._renew)
            self._duties.resume()
