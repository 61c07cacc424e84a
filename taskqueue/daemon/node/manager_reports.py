"""Applies the manager's reports to the claims in flight."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from taskqueue.daemon.node.in_flight import InFlight
from taskqueue.daemon.node.prefetch import Prefetch
from taskqueue.daemon.protocol.encoding import outcome_of
from taskqueue.daemon.protocol.messages import Ended, Key, Progressed, RunsHandedBack, Started
from taskqueue.daemon.settings import Settings
from taskqueue.model.lifecycle import outcomes
from taskqueue.model.record import Failure

log = logging.getLogger(__name__)


class ManagerReports:
    """The reports of one manager. Reports on lost claims are dropped."""

    def __init__(
        self, in_flight: InFlight, settings: Settings, prefetch: Prefetch, now: Callable[[], datetime]
    ) -> None:
        self._in_flight = in_flight
        self._settings = settings
        self._prefetch = prefetch
        self._now = now

    def on_started(self, message: Started) -> None:
        """Note the start of a run."""
        claim = self._in_flight.find(message.id, message.claims)
        if claim is not None:
            self._in_flight.note_started(claim, _moment(message.at, self._now()))

    def on_progressed(self, message: Progressed) -> None:
        """Note progress, a checkpoint or a position."""
        claim = self._in_flight.find(message.id, message.claims)
        if claim is None:
            return
        if message.progress is not None:
            self._in_flight.note_progress(claim, message.progress, message.message, _moment(message.at, self._now()))
        if message.state is not None:
            self._in_flight.note_state(claim, message.state)
        if message.position is not None:
            self._in_flight.note_position(claim, message.position)

    def on_ended(self, message: Ended) -> None:
        """Note the outcome of a run, to be settled."""
        claim = self._in_flight.find(message.id, message.claims)
        if claim is None:
            log.warning("dropped an outcome of a claim that this node no longer holds: job %s", message.id)
            return
        if message.took is not None:
            self._prefetch.run_took(message.took)
        claim.wants_settlement = message.confirm
        outcome = outcome_of(message.outcome, message.fields, self._settings.unroutable_after)
        now = self._now()
        run = outcomes.Run(
            node=self._settings.name,
            pid=message.pid,
            started_at=None if message.started_at is None else _moment(message.started_at, now),
            exit=message.exit,
            peak_memory=message.peak_memory,
            chance=random.random(),
        )
        self._in_flight.finish(claim, outcome, run, now)

    def on_handed_back(self, message: RunsHandedBack) -> None:
        """Hand back claims whose runs no worker has started."""
        self._prefetch.stop_prefetching()
        for id, claims in message.runs:
            claim = self._in_flight.find(id, claims)
            if claim is not None:
                self._in_flight.hand_back(claim, self._settings.name, self._now())

    def on_manager_exit(self, begun: Mapping[Key, float]) -> None:
        """Settle all claims after the death of manager and workers; ``begun`` is the content of the start log."""
        for claim in self._in_flight:
            now, started_at, at = self._now(), claim.record.started_at, begun.get((claim.id, claim.fence))
            if started_at is None and at is not None:
                started_at = _moment(at, now)
            if started_at is None:
                self._in_flight.hand_back(claim, self._settings.name, now)
                continue
            failure = Failure(type="ManagerLost", message="the worker manager died while the job ran")
            run = outcomes.Run(node=self._settings.name, started_at=started_at)
            self._in_flight.finish(claim, outcomes.Crashed(failure=failure), run, now)


def _moment(at: float, now: datetime) -> datetime:
    """Convert a time of this host's clock to the store's clock, whose present time is ``now``."""
    return now + timedelta(seconds=at - time.time_ns() // 1_000_000 / 1000)
