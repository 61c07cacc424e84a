"""The node: the one process of a host that opens the store, keeps its seat and settles what the workers did."""

from __future__ import annotations

import logging
import secrets
import signal
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import Enum

from taskqueue.daemon import process, systemd
from taskqueue.daemon.appetite import Appetite
from taskqueue.daemon.channel import Channel
from taskqueue.daemon.election import Election
from taskqueue.daemon.exchange import Exchange
from taskqueue.daemon.exits import Exit
from taskqueue.daemon.health import Health
from taskqueue.daemon.holdings import Held
from taskqueue.daemon.intake import Intake
from taskqueue.daemon.loop import Loop, Timer
from taskqueue.daemon.manager import fork_manager
from taskqueue.daemon.messages import (
    Arm,
    Confirmed,
    Drain,
    Ended,
    Hopeless,
    Message,
    Noted,
    Pool,
    Recycle,
    Run,
    Started,
    Stop,
    Trust,
    Untaken,
    decode,
    encode,
)
from taskqueue.daemon.pool import PoolMode
from taskqueue.daemon.presence import Presence, version
from taskqueue.daemon.process import Child
from taskqueue.daemon.retention import Retention
from taskqueue.daemon.seat import Seat, SeatLock, held_by
from taskqueue.daemon.settings import Settings
from taskqueue.model.record import Holder, Record
from taskqueue.store import STOPS, WORK, Bell, Lease, Store
from taskqueue.store.opening import open_store, resolved

log = logging.getLogger(__name__)

NEWS_WITHIN = 0.1
"""Seconds within which progress and checkpoints reach the store."""

STANDBY_LOOKS = 1.0
"""Seconds between two looks at the seat's lock file while another holds the seat."""

MEND_EVERY = 30.0

TRUST_MARGIN = 0.5
"""Seconds before the end of a lease at which its work must have ended."""


class Phase(Enum):
    """Where a node is in its life."""

    STANDBY = "waits for its seat"
    SEATED = "works"
    DRAINING = "ends its work"
    LEAVING = "leaves"


def run(settings: Settings, *, announce: Callable[[str], None]) -> int:
    """Be a node until a signal or an error ends it, and return the exit code (see ``exits``).

    ``announce`` gets the lines of the start banner. Raises ``ConfigError`` and ``StoreUnavailable`` at the start.
    """
    process.require_linux()
    process.become_subreaper()
    lock = SeatLock(resolved(settings.url), settings.name)
    manager, channel = fork_manager(settings, keep=[lock.fileno()])
    try:
        store = open_store(settings.url)
    except BaseException:
        channel.close()
        manager.reap()
        lock.close()
        raise
    node = Node(settings, store, manager, channel, lock)
    for line in node.banner():
        announce(line)
    return node.run()


class Node:
    """The composition root: gives each part its turn and knows nothing of how they do their work."""

    def __init__(self, settings: Settings, store: Store, manager: Child, channel: Channel, lock: SeatLock) -> None:
        self._settings = settings
        self._store = store
        self._manager = manager
        self._channel = channel
        self._lock = lock
        self._lease = timedelta(seconds=settings.lease)
        self._holder = Holder(seat=settings.name, incarnation=secrets.token_hex(8))
        self._loop = Loop()
        self._presence = Presence(settings)
        self._health = Health(self._on_health)
        static = settings.pm is PoolMode.STATIC
        self._appetite = Appetite(settings.min_children if static else settings.max_children)
        self._exchange = Exchange(store, self._holder, settings, self._appetite, self._health)
        self._intake = Intake(self._exchange.holdings, settings, self._appetite, store.now)
        self._seat = Seat(store, self._holder, self._lease)
        self._election = Election(store, self._holder, self._lease)
        self._retention = Retention(store, settings)
        self._phase = Phase.STANDBY
        self._exit = Exit.OK
        self._signals = 0
        self._bells: dict[str, Bell] = {}
        self._due: Timer | None = None
        self._seat_lease_of_another: Lease | None = None
        self._others: Timer | None = None
        self._heard_at = time.monotonic()
        self._checked_at = self._heard_at

    def banner(self) -> list[str]:
        """Return what this node is, where its jobs live and what is promised."""
        settings = self._settings
        queues = ", ".join(
            f"{name}{'' if bound is None else f' (at most {bound})'}" for name, bound in settings.queues.items()
        )
        return [
            f"taskqueue {version()}: node {settings.name}",
            f"store      {self._store.url}",
            f"guarantee  {self._store.guarantee}",
            f"pool       {settings.pm.value}, {settings.min_children} to {settings.max_children} workers",
            f"queues     {queues or 'all'}",
        ]

    def run(self) -> int:
        """Turn until the work is over, and return the exit code."""
        loop = self._loop
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.on_signal(signum, self._on_stop)
        loop.on_signal(signal.SIGQUIT, self._on_drain)
        loop.on_signal(signal.SIGHUP, self._on_reload)
        loop.watch_channel(self._channel, self._on_message, self._on_manager_gone)
        loop.after_turn(self._turn)
        self._every(STANDBY_LOOKS, self._look_at_seat)
        self._every(self._settings.lease / 3, self._renew)
        self._every(NEWS_WITHIN, self._exchange.tell_news)
        self._every(MEND_EVERY, self._mend)
        watchdog = systemd.watchdog_interval()
        if watchdog is not None:
            self._every(watchdog, systemd.alive)
        self._presence.phase = self._phase.value
        self._look_at_seat()
        systemd.ready(self._presence.status())
        try:
            loop.run()
        finally:
            self._leave()
        return int(self._exit)

    # Seat

    def _look_at_seat(self) -> None:
        """Take the seat when it is free; until then stand by."""
        if self._phase is not Phase.STANDBY:
            return
        holder = self._seat_lease_of_another
        if holder is not None and self._store.now() < holder.until and not self._lock.take():
            return
        answer = self._health.attempt(lambda: self._seat.sit(self._lock, self._presence.about(), self._store.now()))
        if answer is None:
            return
        if answer.value.is_ours:
            self._sit_down()
            return
        first = self._seat_lease_of_another is None
        self._seat_lease_of_another = answer.value.lease
        words = held_by(answer.value.lease)
        self._presence.phase = f"stands by: seat {self._settings.name} is {words}"
        self._presence.show()
        if first:
            log.info("standing by: seat %s is %s; pass --name to work beside it", self._settings.name, words)

    def _sit_down(self) -> None:
        self._lock.take()
        self._enter(Phase.SEATED)
        log.info("node %s has its seat", self._settings.name)
        for topic, callback in ((WORK, self._on_work), (STOPS, self._renew)):
            self._listen(topic, callback)
        self._send(Arm(url=resolved(self._settings.url), seat=self._holder.seat, incarnation=self._holder.incarnation))
        taken = self._exchange.take_over()
        if taken:
            log.warning("took over %d jobs that the last holder of seat %s left behind", taken, self._settings.name)
        self._renew()

    def _listen(self, topic: str, callback: Callable[[], None]) -> None:
        answer = self._health.attempt(lambda: self._store.bell(topic))
        if answer is None:
            self._loop.at(time.monotonic() + 1.0, lambda: self._listen(topic, callback))
            return
        bell = answer.value
        self._bells[topic] = bell

        def on_ring() -> None:
            bell.clear()
            callback()

        self._loop.watch(bell, on_ring)
        self._every(bell.pause, callback if topic == WORK else self._nothing)

    def _nothing(self) -> None:
        """Do nothing: what this bell tells is looked at with every renewal anyway."""

    # Work

    def _on_work(self) -> None:
        self._exchange.expect()

    def _turn(self) -> None:
        """Settle what ended, claim what there is room for, and send it out: one transaction each."""
        if self._phase is Phase.STANDBY:
            return
        for held, accepted in self._exchange.settle():
            self._confirm(held, accepted)
        if self._phase is Phase.SEATED:
            for record in self._exchange.claim():
                self._send(_run(record))
            self._set_due()
        elif self._phase is Phase.LEAVING and not self._exchange.holdings.unsettled:
            self._loop.stop()
        if self._exchange.holdings.unsettled and self._health.is_degraded:
            self._loop.at(self._health.resume_at, self._nothing)

    def _confirm(self, held: Held, accepted: bool) -> None:
        if not accepted:
            log.warning("the store refused an outcome, the claim was lost: job %s", held.record.id)
        if held.confirm and held.after is not None:
            message = Confirmed(
                id=str(held.record.id), claims=held.fence, accepted=accepted, status=int(held.after.status)
            )
            self._send(message)

    def _set_due(self) -> None:
        """Wake up when the next postponed job becomes due."""
        due = self._exchange.next_at
        if due is None:
            return
        deadline = self._monotonic(due)
        if self._due is not None and self._due.is_pending:
            if self._due.deadline <= deadline:
                return
            self._due.cancel()
        self._due = self._loop.at(deadline, self._on_due)

    def _on_due(self) -> None:
        self._exchange.next_at = None
        self._exchange.expect()

    # Renewal

    def _renew(self) -> None:
        """Extend claims, seat and lead, and act on what comes back."""
        if self._phase in (Phase.STANDBY, Phase.LEAVING):
            return
        asked_at = process.boottime()
        renewal = self._exchange.renew()
        if renewal is None:
            return
        self._send(Trust(until=asked_at + self._settings.lease - TRUST_MARGIN))
        for held in self._exchange.holdings:
            holding = renewal.holdings.get(held.record.id)
            if holding is None or holding.claims != held.fence:
                self._stop(held, "lost")
            elif holding.cancel_reason is not None:
                self._exchange.holdings.asked_to_cancel(held, holding.cancel_reason, self._store.now())
                self._stop(held, "cancel")
        self._exchange.hand_back_unknown(renewal)
        self._watch_others(renewal.others_end_at)
        self._keep_seat()
        self._lead()
        self._check_manager()

    def _stop(self, held: Held, reason: str) -> None:
        if not held.stopping:
            held.stopping = reason
            self._send(Stop(id=str(held.record.id), claims=held.fence, reason=reason))

    def _watch_others(self, end_at: datetime | None) -> None:
        """Look for lost claims when the first lease of another node ends."""
        if self._others is not None:
            self._others.cancel()
            self._others = None
        if end_at is not None:
            self._others = self._loop.at(max(self._monotonic(end_at), time.monotonic()) + 0.1, self._take_back)

    def _take_back(self) -> None:
        self._exchange.take_back_lost()

    def _keep_seat(self) -> None:
        answer = self._health.attempt(lambda: self._seat.renew(self._presence.about(), self._store.now()))
        if answer is not None and not answer.value.is_ours and self._phase is Phase.SEATED:
            log.error("seat %s was taken: %s", self._settings.name, held_by(answer.value.lease))
            self._exit = Exit.LOST
            self._drain("quick")

    def _lead(self) -> None:
        if self._phase is not Phase.SEATED:
            return
        self._health.attempt(lambda: self._election.run(self._store.now()))
        until = self._election.others_until
        if until is not None and until - self._store.now() < self._lease / 3:
            self._loop.at(self._monotonic(until) + 0.1, self._lead)
        self._presence.leads = self._election.leads
        self._presence.show()

    def _mend(self) -> None:
        if self._phase is not Phase.SEATED:
            return
        self._health.attempt(lambda: self._retention.mend(self._election.leads))

    def _check_manager(self) -> None:
        """End a manager that has been silent for half a lease: it may be stopped, and its workers with it."""
        now = time.monotonic()
        if now - self._checked_at > self._settings.lease / 2:  # it is we who were stopped, and could not hear
            self._heard_at = now
        self._checked_at = now
        silent = now - self._heard_at
        if silent > self._settings.lease / 2 and self._phase is Phase.SEATED:
            log.error("the worker manager has been silent for %.0f s and is ended", silent)
            self._exit = Exit.LOST
            self._manager.signal(signal.SIGKILL)

    # Reports of the manager

    def _on_message(self, payload: bytes) -> None:
        self._heard_at = time.monotonic()
        message = decode(payload)
        match message:
            case Started():
                self._intake.started(message)
            case Ended():
                self._intake.ended(message)
            case Noted():
                self._intake.noted(message)
            case Untaken():
                self._intake.untaken(message)
            case Pool():
                self._presence.pool = message
                self._presence.show()
            case Hopeless(reason=reason, bootstrap=bootstrap):
                log.error("%s", reason)
                self._exit = Exit.BOOTSTRAP if bootstrap else Exit.CHILDREN
                self._drain("quick")
            case _:
                log.error("the manager sent what only a node sends: %s", type(message).__name__)

    def _on_manager_gone(self) -> None:
        """Settle what the manager can no longer report, and leave: a supervisor starts the pair anew."""
        exit = self._manager.reap()
        process.reap_strangers(())
        if self._phase is not Phase.DRAINING and self._phase is not Phase.STANDBY:
            log.error("the worker manager is gone (%s)", exit)
        if self._phase is not Phase.DRAINING and self._exit is Exit.OK:
            self._exit = Exit.LOST
        self._intake.abandoned()
        if self._phase is Phase.STANDBY:
            self._loop.stop()
        self._enter(Phase.LEAVING)
        self._loop.at(time.monotonic() + self._settings.lease, self._loop.stop)

    # Stopping

    def _on_stop(self) -> None:
        self._signals += 1
        self._drain("finish" if self._signals == 1 else "quick")

    def _on_drain(self) -> None:
        self._drain("patient")

    def _on_reload(self) -> None:
        if self._phase is Phase.SEATED:
            log.info("replacing every worker after its present run")
            self._send(Recycle())

    def _drain(self, how: str) -> None:
        if self._phase is Phase.LEAVING:
            return
        if self._phase is Phase.STANDBY:
            self._loop.stop()
            return
        self._enter(Phase.DRAINING)
        systemd.stopping(self._presence.status())
        self._send(Drain(how=how))

    def _leave(self) -> None:
        """Give up what was held and let go of everything."""
        held = self._phase is Phase.LEAVING
        self._channel.close()
        if not held:
            self._manager.reap()
            process.reap_strangers(())
        else:
            self._health.attempt(self._election.resign)
            self._health.attempt(self._seat.resign)
        for bell in self._bells.values():
            bell.close()
        self._loop.close()
        self._store.close()
        self._lock.close()
        if self._exchange.holdings.unsettled:
            log.error(
                "leaving with %d outcomes unsettled: their jobs run again", len(self._exchange.holdings.unsettled)
            )

    # Small things

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._presence.phase = phase.value
        self._presence.show()

    def _on_health(self) -> None:
        self._presence.degraded = self._health.reason
        self._presence.show()
        if not self._health.is_degraded:
            self._exchange.expect()
            self._loop.soon(self._renew)

    def _send(self, message: Message) -> None:
        self._channel.send(encode(message))

    def _every(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back again and again, as long as the loop runs."""

        def again() -> None:
            self._loop.at(time.monotonic() + seconds, again)
            callback()

        self._loop.at(time.monotonic() + seconds, again)

    def _monotonic(self, moment: datetime) -> float:
        """Return the monotonic time of a time of the store's clock."""
        return time.monotonic() + (moment - self._store.now()).total_seconds()


def _run(record: Record) -> Run:
    options = record.options
    return Run(
        id=str(record.id),
        claims=record.claims,
        job=record.job,
        data=record.data,
        state=record.state,
        attempt=record.attempt,
        is_last=options.retry.delay(record.failures + 1) is None,
        timeout=options.timeout,
        force_spawn=options.force_spawn,
    )
