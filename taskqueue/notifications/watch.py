"""Checks a store repeatedly, and sends its findings: the run that the leader has in a worker of its own.

One node at a time does so, by a lease. What it will send is in the store before it is sent, with its id; so after
the death of a worker or a node the next one sends the same message under the same id.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import islice
from typing import Any

from taskqueue.errors import ConfigError, StoreUnavailable
from taskqueue.insight.limit_states import LimitUse
from taskqueue.insight.notifications import (
    STATE,
    TURN,
    State,
    attempted,
    delivered,
    document,
    looked,
    refused,
    state_of,
)
from taskqueue.insight.overview import RATES_OVER
from taskqueue.insight.overview_reader import Overview, OverviewReader
from taskqueue.model.finding import Level
from taskqueue.model.history import MOST_CLASSES, Step
from taskqueue.model.job import Job
from taskqueue.model.record import Holder
from taskqueue.model.timestamps import milliseconds
from taskqueue.notifications import id_of, receiver_of
from taskqueue.notifications.receiver import WITHIN, NotDelivered, Receiver
from taskqueue.store import Lease, Store

log = logging.getLogger(__name__)

LOOKS_EVERY = 15.0
"""Seconds between two checks."""

SHARE, SELDOM = 20, 30.0
"""A slow check is not repeated for this many times its duration, but for ``SELDOM`` seconds at most."""

ENDS_AFTER = 600.0
"""Seconds after which the run ends, and the leader starts the next: with new code, and with no more memory."""

TURN_LASTS = timedelta(seconds=SELDOM + WITHIN)
"""How long a node that was killed keeps others from sending."""

KEPT_BY = Holder(seat="notifications", incarnation="state")
"""The holder of the lease of the state: always the same, so that a change of it rings no bell."""


class Watch(Job):
    """Watches the store for some minutes, for a node and its receivers as ``--notify`` names them.

    After each check and each delivery it reports to its node what it has found, sent and failed to send since.
    """

    def start(self) -> None:
        """Check and send until ``ENDS_AFTER`` has passed."""
        store: Store = self.scheduler._connections.store  # noqa: SLF001 - no public call changes a lease
        reader = OverviewReader(store)
        start = self._running.uninterrupted
        receivers = {id_of(text): receiver_of(text, start) for text in self.data["receivers"]}
        sender = Sender(store, receivers, Holder(seat=self.data["node"], incarnation=self.data["incarnation"]))
        until, is_done = time.monotonic() + ENDS_AFTER, threading.Event()
        with sender.turns():
            while time.monotonic() < until:
                self.progress(0)
                began = time.monotonic()
                overview, limits = reader.read(), reader.limit_uses() if self.data.get("metrics") else {}
                took = time.monotonic() - began
                for failed in sender.deliveries(overview):
                    self.checkpoint(_report(overview, limits, sender, failed))
                is_done.wait(min(max(LOOKS_EVERY, SHARE * took), SELDOM))


def _report(
    overview: Overview, limits: Mapping[str, LimitUse], sender: Sender, failed: bool | None
) -> Mapping[str, Any]:
    """Return the report to the node; ``failed`` is about a delivery, None after a check."""
    levels = Counter(need.level for need in overview.needs)
    return {
        "findings": {level.value: levels[level] for level in (Level.ERROR, Level.WARNING)},
        "budgets": {job: record.budget_left for job, record in islice(overview.promises.items(), MOST_CLASSES)},
        "schedules": {
            word: {name: at.timestamp() for name, at in times.items()}
            for word, times in overview.schedule_times._asdict().items()
        },
        "limits": limits,
        "of_queues": _of_queues(overview),
        "waiting": sender.waiting,
        "sent": int(failed is False),
        "failed": int(failed is True),
    }


def _of_queues(overview: Overview) -> list[tuple[int, str, str, int]]:
    """Return how many jobs were added and have expired lately, as minute, figure, queue and number."""
    numbers: Counter[tuple[int, str, str]] = Counter()
    begin = Step.MINUTE.begin(milliseconds(overview.at - RATES_OVER))
    for at, part in overview.minutes.items():
        for (queue, _), figures in part.items() if at >= begin else ():
            numbers.update({(at, name, queue): figures[name] for name in ("added", "expired") if name in figures})
    return [(*key, number) for key, number in numbers.items()]


class Sender:
    """Sends what the receivers have not received yet, for the node that holds the turn: it has one run at a time."""

    def __init__(self, store: Store, receivers: Mapping[str, Receiver], holder: Holder) -> None:
        self._store = store
        self._receivers = receivers
        self._holder = holder
        self._has_turn = False
        self.waiting = 0
        """How many messages wait for a receiver to take them."""

    @contextmanager
    def turns(self) -> Iterator[None]:
        """Give the turn to another node at the end."""
        try:
            yield
        finally:
            if self._has_turn:
                with suppress(StoreUnavailable):
                    self._take_turn(timedelta(0))

    def deliveries(self, overview: Overview) -> Iterator[bool | None]:
        """Note the findings and send what is due; yield None at first, then whether each delivery has failed."""
        if not self._receivers or not self._take_turn(TURN_LASTS):
            yield None
            return
        before = state_of(self._store.leases())
        names = {id: receiver.name for id, receiver in self._receivers.items()}
        state = looked(before, overview.needs, names, overview.at)
        self.waiting = state.waiting
        if state != before:
            self._save(state)
        yield None
        for id in state.due(overview.at):
            if not self._take_turn(TURN_LASTS) or state_of(self._store.leases()) != state:
                return  # another node has sent messages while this process was suspended
            state = attempted(state, id, self._store.now())
            self._save(state)
            state = self._delivered(state, id)
            self._save(state)
            yield bool(state.receivers[id].error)

    def _delivered(self, state: State, id: str) -> State:
        """Send a message, and return the state after that."""
        message, receiver = state.receivers[id].message, self._receivers[id]
        assert message is not None
        try:
            receiver.send(message, os.environ)
        except (NotDelivered, ConfigError) as error:
            log.warning("%s did not accept notification %s: %s", receiver.name, message.id, error)
            return refused(state, id, str(error), self._store.now())
        log.info("%s accepted notification %s", receiver.name, message.id)
        return delivered(state, id)

    def _take_turn(self, lasts: timedelta) -> bool:
        """Take the turn for this time unless another node has it; return whether this node has it."""
        now = self._store.now()
        turn = self._store.acquire(Lease(name=TURN, holder=self._holder, since=now, until=now + lasts), now)
        self._has_turn = turn.holder == self._holder
        return self._has_turn

    def _save(self, state: State) -> None:
        now = self._store.now()
        self._store.acquire(Lease(name=STATE, holder=KEPT_BY, since=now, until=now, about=document(state)), now)
        self.waiting = state.waiting
