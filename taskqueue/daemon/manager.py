"""The manager: forks the workers, gives them their runs, and ends what has to end; it never opens the store."""

from __future__ import annotations

import importlib
import itertools
import logging
import os
import signal
import sys
import time
from collections.abc import Collection
from functools import partial

from taskqueue.daemon import evidence, newborn, process
from taskqueue.daemon.backlog import Backlog, Pace
from taskqueue.daemon.channel import Channel, ChannelClosed, pair
from taskqueue.daemon.crew import Crew, Current, Member, Order, Phase
from taskqueue.daemon.ladder import Ladder
from taskqueue.daemon.loop import Loop, Timer
from taskqueue.daemon.messages import (
    Arm,
    Confirmed,
    Drain,
    Ended,
    Hopeless,
    Noted,
    Pool,
    Ready,
    Recycle,
    Return,
    Run,
    Started,
    Stop,
    Trust,
    Untaken,
    decode,
    encode,
)
from taskqueue.daemon.pool import Backoff, PoolMode, PoolSettings, plan
from taskqueue.daemon.process import Child, ForkUnsafe, fork
from taskqueue.daemon.session import TELL_EVERY
from taskqueue.daemon.settings import Settings

log = logging.getLogger(__name__)

LASTS = 0.2
"""Seconds after which a run counts as long: what waits behind it goes elsewhere."""

HOOKS_LIMIT = 60.0
"""Seconds that the hooks of one run may take."""

EARLY = 5.0
"""A worker that dies within so many seconds, without having begun a run, died early."""

LEAVES_WITHIN = 2.0
"""Seconds that a worker gets at least to leave when it has nothing to do any more."""

ORPHANED_GRACE = 0.5
"""Seconds that running jobs get when the node is gone."""

COUNTS_EVERY = 1.0
"""Seconds between two messages, or titles, that say how many workers there are."""


def fork_manager(settings: Settings, keep: Collection[int] = ()) -> tuple[Child, Channel]:
    """Fork a manager that waits for ``Arm``, and return it with the channel to it.

    It and its workers have the descriptors in ``keep``. To be called before there are a store and threads.
    """
    ours, theirs = pair()

    def live() -> int:
        return Manager(settings, theirs, keep).run()

    child = fork(live, name="manager", keep=(*keep, theirs.fileno()), death_signal=signal.SIGTERM)
    theirs.close()
    return child, ours


class Manager:
    """Obeys one node. All callbacks run one at a time, in the turns of one loop."""

    def __init__(self, settings: Settings, node: Channel, keep: Collection[int]) -> None:
        self._settings = settings
        self._node = node
        self._keep = keep
        self._loop = Loop()
        self._pool = PoolSettings(
            mode=settings.pm,
            min_children=settings.min_children,
            max_children=settings.max_children,
            idle_timeout=settings.idle_timeout,
        )
        self._crew: Crew | None = None
        self._known: list[int] = []
        self._backlog = Backlog()
        self._pace = Pace()
        self._places = itertools.count()
        self._backoff = Backoff()
        self._fault: Hopeless | None = None
        self._is_hopeless = False
        self._grace = settings.grace
        self._draining = ""
        self._has_begun_to_stop = False
        self._trust: Timer | None = None
        self._trusted_until = float("inf")
        self._is_trusted = True
        self._moved_at = 0.0
        self._review: Timer | None = None
        self._check: Timer | None = None
        self._told: list[bytes] = []
        self._starts: dict[tuple[str, int], int] = {}
        self._counts: Pool | None = None
        self._counted_at = float("-inf")
        self._counting: Timer | None = None

    def run(self) -> int:
        """Obey until the node has let everything go; return the exit status."""
        loop = self._loop
        loop.on_signal(signal.SIGTERM, self._on_orphaned)  # also sent by the kernel when the node dies
        loop.on_signal(signal.SIGINT, _ignore)
        loop.on_signal(signal.SIGHUP, _ignore)
        loop.watch_channel(self._node, self._on_node, self._on_orphaned)
        loop.after_turn(self._after_turn)
        process.become_subreaper()
        process.allow_signals()
        loop.run()
        self._node.drain(LEAVES_WITHIN)
        return 0

    # What the node says

    def _on_node(self, payload: bytes) -> None:
        message = decode(payload)
        match message:
            case Run():
                self._on_run(message, payload)
            case Arm():
                self._on_arm(message)
            case Stop():
                self._on_stop(message)
            case Return(count=count):
                self._on_return(count)
            case Trust(until=until):
                self._on_trust(until)
            case Drain(how=how):
                self._on_drain(how)
            case Recycle():
                for member in self._members:
                    member.is_outdated = True
            case Confirmed():
                self._on_confirmed(message, payload)
            case _:
                log.error("the node sent what only a worker sends: %s", type(message).__name__)

    def _on_arm(self, arm: Arm) -> None:
        """Begin: import what is to be shared by all workers, and be ready to fork them."""
        os.chdir(self._settings.chdir)
        if str(self._settings.chdir) not in sys.path:
            sys.path.insert(0, str(self._settings.chdir))
        before = newborn.descriptors()
        for name in self._settings.preload:
            try:
                importlib.import_module(name)
            except (Exception, SystemExit) as error:
                log.exception("module %s cannot be preloaded", name)
                self._despair(Hopeless(reason=f"module {name} cannot be preloaded: {error}", bootstrap=True))
                return
        self._known = process.children()
        opened = newborn.descriptors() - before  # a log file, say
        self._crew = Crew(url=arm.url, bootstrap=self._settings.bootstrap, keep={*self._keep, *opened})

    def _on_run(self, run: Run, payload: bytes) -> None:
        now = time.monotonic()
        order = Order(run, payload, now, next(self._places))
        if self._draining or not self._is_trusted:
            self._hand_back([order])
            return
        if not self._backlog:
            self._moved_at = now
        self._backlog.add(order)

    def _on_stop(self, stop: Stop) -> None:
        """End the run wherever it is by now."""
        key = (stop.id, stop.claims)
        order = self._backlog.remove(key)
        if order is not None:
            self._hand_back([order])
            return
        for member in self._members:
            if any(order.key == key for _, order in member.ahead):
                self._recall(member)
                order = self._backlog.remove(key)
                if order is not None:
                    self._hand_back([order])
                    return
                self._interrupt(member, stop.reason, self._grace)
            elif member.current is not None and member.current.order.key == key:
                self._interrupt(member, stop.reason, self._grace)

    def _on_return(self, count: int) -> None:
        if count > len(self._backlog.general):
            for member in self._members:
                self._recall(member)
        self._hand_back(self._backlog.latest(count))

    def _on_trust(self, until: float) -> None:
        """Be ready to end all runs in time, should this be the last news of the node's lease."""
        self._trusted_until = until
        self._is_trusted = True
        if self._trust is not None:
            self._trust.cancel()
        self._trust = self._loop.at(time.monotonic() + until - process.boottime() - self._lost_grace, self._on_distrust)
        self._count()
        self._tell(encode(self._counts or Pool(idle=0, busy=0, forced=0)))  # the node sees that we are alive

    @property
    def _lost_grace(self) -> float:
        """Seconds for the ladder at the end of a lease: not more than what leaves room for renewals."""
        return min(self._settings.grace, self._settings.lease / 3)

    def _on_distrust(self) -> None:
        log.error("no news of the lease from the node: all its runs are ended")
        self._is_trusted = False
        self._hand_back(self._backlog.everything())
        for member in self._members:
            self._interrupt(member, "lost", self._trusted_until - process.boottime())

    def _on_drain(self, how: str) -> None:
        """Begin nothing more and end what runs, in the given way; what ends sooner than an earlier wish wins."""
        again = self._draining
        self._draining = how
        self._hand_back(self._backlog.everything())
        for member in self._members:
            self._recall(member)
        if how == "patient":
            return
        for member in self._members:
            member.slate.announce_stop()
        if how == "finish" and not again:
            self._loop.at(time.monotonic() + self._settings.finish, self._stop_all)
        elif how == "quick":
            self._stop_all()

    def _stop_all(self) -> None:
        """Begin the ladder for every worker, or skip the rest of its waiting if that was asked for again."""
        now = time.monotonic()
        for member in self._members:
            if self._has_begun_to_stop and member.ladder is not None:
                member.ladder.hasten(now)
            else:
                self._interrupt(member, "shutdown", self._grace)
        self._has_begun_to_stop = True

    def _on_confirmed(self, confirmed: Confirmed, payload: bytes) -> None:
        for member in self._members:
            if member.in_hooks == (confirmed.id, confirmed.claims):
                member.tell(payload)
                limit = time.monotonic() + HOOKS_LIMIT
                member.hooks_limit = self._loop.at(limit, partial(self._on_hooks_limit, member))

    def _on_hooks_limit(self, member: Member) -> None:
        log.warning("the hooks of a job took more than %g s and are ended: pid %d", HOOKS_LIMIT, member.pid)
        self._interrupt(member, "timeout", self._grace)

    def _on_orphaned(self) -> None:
        """End everything at once: the node is gone, and its claims are about to be given to others."""
        log.warning("the node is gone: its manager ends all jobs and leaves")
        self._grace = min(self._grace, ORPHANED_GRACE)
        self._draining = "quick"
        self._hand_back(self._backlog.everything())
        for member in self._members:
            self._interrupt(member, "shutdown", self._grace)

    # What the workers say

    def _on_worker(self, member: Member, payload: bytes) -> None:
        message = decode(payload)
        match message:
            case Started():
                self._on_started(member, message, payload)
            case Ended():
                self._on_ended(member, message, payload)
            case Noted():
                self._on_noted(member, message, payload)
            case Ready():
                self._on_ready(member)
            case Hopeless():
                self._fault = message
            case _:
                log.error("a worker sent what it may not send: %s", type(message).__name__)

    def _on_ready(self, member: Member) -> None:
        now = time.monotonic()
        member.is_silent = False
        if member.in_hooks is not None:
            member.in_hooks = None
            if member.hooks_limit is not None:
                member.hooks_limit.cancel()
        if member.phase is Phase.STARTING:
            member.phase = Phase.READY
        member.idle_since = now

    def _on_started(self, member: Member, started: Started, payload: bytes) -> None:
        now = time.monotonic()
        self._backoff = self._backoff.survived()
        self._moved_at = now
        current = member.begin(started, now)
        if current is None:
            return
        self._starts[current.order.key] = len(self._told)
        self._tell(payload)
        seconds = current.order.run.timeout
        if seconds is not None:
            current.limit = self._loop.at(now + seconds, partial(self._on_limit, member, current))

    def _on_limit(self, member: Member, current: Current) -> None:
        if member.current is current:
            run = current.order.run
            log.warning("a run took longer than its timeout of %g s: job %s", run.timeout, run.id)
            self._interrupt(member, "timeout", self._grace)

    def _on_noted(self, member: Member, noted: Noted, payload: bytes) -> None:
        self._tell(payload)
        current = member.current
        if noted.progress is None or current is None:
            return
        is_first = current.told == 0.0
        current.told, current.progress, current.progress_message = noted.at, noted.progress, noted.message
        if is_first:
            self._look_later(member, current)

    def _look_later(self, member: Member, current: Current) -> None:
        """Look at the slate in a while: the latest progress may have come too soon after the one before to be sent."""
        self._loop.at(time.monotonic() + TELL_EVERY, partial(self._look_at_slate, member, current))

    def _look_at_slate(self, member: Member, current: Current) -> None:
        if member.current is not current:
            return
        if self._read_slate(member, current):
            self._look_later(member, current)
        else:
            current.told = 0.0

    def _read_slate(self, member: Member, current: Current) -> bool:
        """Tell the node of progress that it does not know, and return whether there was any."""
        mark = member.slate.marked()
        if mark is None or mark.number != current.number or mark.at <= current.told:
            return False
        current.told, current.progress, current.progress_message = mark.at, mark.progress, mark.message
        id, claims = current.order.key
        self._tell(
            encode(Noted(id=id, claims=claims, progress=mark.progress, message=mark.message, state=None, at=mark.at))
        )
        return True

    def _on_ended(self, member: Member, ended: Ended, payload: bytes) -> None:
        now = time.monotonic()
        current = member.current
        if current is None:
            return
        member.end()
        member.idle_since = self._moved_at = now
        if member.reason and not evidence.obeys(ended.outcome, member.reason):
            payload = encode(evidence.overruled(ended, member.reason, current.order.run))
        start = self._starts.pop(current.order.key, None)
        if start is not None:
            self._told[start] = b""  # begun and ended in one turn: the end says it all
        self._tell(payload)
        if ended.took is not None:
            self._pace.learn(current.order.run.job, ended.took)
        if ended.confirm:
            member.in_hooks = current.order.key
        if member.ladder is not None:
            member.is_worn = True
            member.ladder.stop()
            member.ladder = None
        if self._settings.max_memory and process.memory_of(member.pid) > self._settings.max_memory:
            member.is_worn = True

    def _on_lookout(self, member: Member) -> None:
        """Take in that a worker was signalled; if it was not by us, somebody wants it to end its run and to leave."""
        signals = os.read(member.lookout, 4096)
        if not signals:  # nobody holds the other end any more
            self._loop.unwatch(member.lookout)
        if signal.SIGTERM not in signals or member.was_signalled:
            return
        self._recall(member)
        member.is_worn = True
        if member.number and member.phase is Phase.READY:
            member.reason = "shutdown"
            member.ladder = Ladder(self._loop, member.child, kills_at=time.monotonic() + self._grace)
            member.ladder.ask_later()

    def _on_worker_gone(self, member: Member) -> None:
        """Take in that a worker closed its channel: it is dying, or it has closed what is not its own."""
        self._loop.at(time.monotonic() + LEAVES_WITHIN, partial(self._kill, member))

    def _kill(self, member: Member) -> None:
        if member in self._members:
            member.child.signal_group(signal.SIGKILL)

    def _on_exit(self, member: Member) -> None:
        """Take in that a worker is dead: report what it left behind, and sweep it up."""
        assert self._crew is not None
        for payload in member.last_words():
            self._on_worker(member, payload)
        self._loop.unwatch(member.child)
        self._loop.unwatch(member.lookout)
        self._loop.unwatch(member.channel)
        exit = member.child.reap()
        process.sweep(member.pid)
        process.reap_strangers({*self._known, *self._crew.pids})
        if member.current is not None:
            self._read_slate(member, member.current)
            self._tell(encode(evidence.of_death(member.current, member.reason, exit, self._settings.grace)))
        orders = [order for _, order in member.ahead]
        if self._draining or not self._is_trusted or member.reason:
            self._hand_back(orders)
        else:
            self._backlog.put_back(orders)
        self._judge(member, exit)
        self._crew.dismiss(member)

    def _judge(self, member: Member, exit: process.Exit) -> None:
        """Note whether a worker died before it was of any use."""
        now = time.monotonic()
        told_to_go = member.phase is Phase.LEAVING or self._draining or member.is_worn
        if member.begun or told_to_go or (member.phase is not Phase.STARTING and now - member.born_at > EARLY):
            return
        log.warning("a worker %s before its first job: pid %d", exit, member.pid)
        self._backoff = self._backoff.died_early(now)
        if self._backoff.exhausted:
            self._despair(self._fault or Hopeless(reason=f"workers die before their first job: {exit}"))

    # What follows

    @property
    def _members(self) -> list[Member]:
        return list(self._crew.members) if self._crew is not None else []

    def _after_turn(self) -> None:
        """Do what follows from all that was heard in this turn."""
        if self._crew is not None:
            self._send_home()
            if not self._draining and self._is_trusted:
                self._share_out()
                if not self._is_hopeless:
                    self._staff()
            self._watch_the_waiting()
            for member in self._crew.members:
                member.flush()
        self._count()
        self._flush()
        if self._draining and not self._members:
            self._loop.stop()

    def _share_out(self) -> None:
        assert self._crew is not None
        now = time.monotonic()
        if not self._backlog.general and any(member.is_idle for member in self._crew.members):
            for member in self._crew.members:
                if member.ahead and member.current is not None and now - member.current.began_at > LASTS / 10:
                    self._recall(member)
        if self._backlog.general:
            self._backlog.deal(self._crew.members, self._pace, now)

    def _send_home(self) -> None:
        """Let those go that have nothing to do and are not wanted any more."""
        for member in self._members:
            if member.phase is Phase.LEAVING or not member.is_free:
                continue
            used_up = member.is_worn or member.is_spent or (member.bound and member.given > 0)
            due = member.is_outdated and all(other.phase is Phase.READY for other in self._members)
            if used_up or due or self._draining:
                self._let_go(member)

    def _staff(self) -> None:
        """Have as many workers as the pool should have."""
        assert self._crew is not None
        now = time.monotonic()
        if self._review is not None:
            self._review.cancel()
            self._review = None
        census = self._crew.census(len(self._backlog.general), len(self._backlog.forced))
        todo = plan(self._pool, census, now=now, backoff=self._backoff)
        for _ in range(todo.spawn):
            self._hire(bound=False)
        for _ in range(todo.forced):
            member = self._hire(bound=True)
            if member is not None:
                member.give(self._backlog.forced.popleft())
        for member in self._members:
            if member.pid in todo.retire:
                self._let_go(member)
        if todo.review_at is not None:
            self._review = self._loop.at(todo.review_at, _ignore)

    def _hire(self, *, bound: bool) -> Member | None:
        assert self._crew is not None
        single = bound or self._settings.pm is PoolMode.ONDEMAND
        try:
            member = self._crew.hire(
                now=time.monotonic(), runs_at_most=1 if single else self._settings.max_jobs_per_child, bound=bound
            )
        except ForkUnsafe as error:
            self._despair(Hopeless(reason=str(error), bootstrap=True))
            return None
        except OSError as error:
            self._fault = Hopeless(reason=f"no worker can be forked: {error}")
            self._backoff = self._backoff.died_early(time.monotonic())
            if self._backoff.exhausted:
                self._despair(self._fault)
            return None
        self._loop.watch(member.child, partial(self._on_exit, member))
        self._loop.watch(member.lookout, partial(self._on_lookout, member))
        self._loop.watch_channel(
            member.channel, partial(self._on_worker, member), partial(self._on_worker_gone, member)
        )
        return member

    def _let_go(self, member: Member) -> None:
        """Let a worker leave that has nothing to do: the end of its channel tells it."""
        member.phase = Phase.LEAVING
        self._loop.unwatch(member.channel)
        member.channel.close()
        if member.ladder is None:
            patience = time.monotonic() + max(self._grace, LEAVES_WITHIN)
            member.ladder = Ladder(self._loop, member.child, kills_at=patience)
        member.ladder.ask_no_more()

    def _recall(self, member: Member) -> None:
        """Take back what a worker was given and has not begun."""
        orders = member.take_back()
        if self._draining or not self._is_trusted:
            self._hand_back(orders)
        elif orders:
            self._backlog.put_back(orders)

    def _interrupt(self, member: Member, reason: str, grace: float) -> None:
        """Begin the ladder for the run of a worker, if it has one and has not been asked to end it already."""
        kills_at = time.monotonic() + grace
        if member.ladder is not None:
            member.ladder.hasten(kills_at)
            return
        if member.phase is Phase.LEAVING:
            return
        self._recall(member)
        if member.number:
            member.slate.stop(member.number, reason)
            member.reason = reason
        elif member.in_hooks is not None:
            member.slate.stop(member.last, reason)
        elif member.phase is Phase.READY:
            return
        member.is_worn = member.was_signalled = True
        member.ladder = Ladder(self._loop, member.child, kills_at=kills_at)
        member.ladder.ask()

    def _watch_the_waiting(self) -> None:
        """Look after a while whether what waits has begun."""
        waits = self._backlog.general or any(member.ahead for member in self._members)
        if waits and (self._check is None or not self._check.is_pending):
            self._check = self._loop.at(time.monotonic() + LASTS / 2, self._look_at_the_waiting)

    def _look_at_the_waiting(self) -> None:
        """Take back what waits behind a long run, and hand back what does not fit into the pool."""
        now = time.monotonic()
        for member in self._members:
            if member.ahead and member.phase is Phase.READY and now - self._busy_since(member) > LASTS:
                self._recall(member)
                member.is_silent = member.current is None and member.in_hooks is None and not member.ahead
        busy = sum(not member.bound and not member.is_free for member in self._members)
        excess = len(self._backlog.general) - max(0, self._pool.slots - busy)
        if excess > 0 and now - self._moved_at > LASTS:
            self._hand_back(self._backlog.latest(excess))

    def _busy_since(self, member: Member) -> float:
        if member.current is not None:
            return member.current.began_at
        return max(member.idle_since, member.ahead[0][1].came_at)

    def _despair(self, hopeless: Hopeless) -> None:
        """Tell the node that there can be no workers; it will say what to do."""
        self._is_hopeless = True
        self._tell(encode(hopeless))
        self._hand_back(self._backlog.everything())

    # What the node hears

    def _hand_back(self, orders: Collection[Order]) -> None:
        if orders:
            self._tell(encode(Untaken(runs=[[order.run.id, order.run.claims] for order in orders])))

    def _tell(self, payload: bytes) -> None:
        """Tell the node, together with all else that is told in this turn."""
        self._told.append(payload)

    def _flush(self) -> None:
        payloads = [payload for payload in self._told if payload]
        self._told.clear()
        self._starts.clear()
        if not payloads:
            return
        try:
            self._node.send(*payloads)
        except ChannelClosed:
            log.debug("nobody hears any more what became of %d runs", len(payloads))

    def _count(self) -> None:
        """Say how many workers there are, now and then."""
        now = time.monotonic()
        if self._counting is not None and self._counting.is_pending:
            return
        counts = self._current_counts()
        if counts == self._counts:
            return
        if now - self._counted_at < COUNTS_EVERY:
            self._counting = self._loop.at(self._counted_at + COUNTS_EVERY, _ignore)
            return
        self._counts, self._counted_at = counts, now
        process.title(f"manager {counts.busy} busy, {counts.idle} idle")
        self._tell(encode(counts))

    def _current_counts(self) -> Pool:
        general = [member for member in self._members if not member.bound]
        idle = sum(member.is_idle for member in general)
        return Pool(idle=idle, busy=len(general) - idle, forced=len(self._members) - len(general))


def _ignore() -> None:
    """Do nothing; the turn that follows does what is due."""
