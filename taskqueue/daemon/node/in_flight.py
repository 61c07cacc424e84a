"""The claims in flight of a node, each until its outcome is settled, and the demand for jobs of concurrent classes."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from taskqueue.daemon.node.clocks import BootTimes
from taskqueue.daemon.protocol.codec import outcome_of
from taskqueue.daemon.protocol.messages import Ended, Key, Logged, Progressed, RunsHandedBack, Started, WaitsFor
from taskqueue.daemon.runtime.prefetch import SHORT_RUN, Prefetch, RunTimes
from taskqueue.daemon.settings import Settings
from taskqueue.model.blocked_run import MOST_BLOCKED, BlockedRun, slots_of
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.continuation import Phase
from taskqueue.model.lifecycle.outcomes import Crashed, HandedBack, Interrupted, Outcome, Run
from taskqueue.model.lifecycle.pending import canceled
from taskqueue.model.lifecycle.settle import ended
from taskqueue.model.record import Failure, Record, changed
from taskqueue.store import Note, Renewal

log = logging.getLogger(__name__)


class ConcurrencyDemand:
    """The classes with ``concurrency`` that the node has met, each with its run slots and its claims in flight."""

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}
        """The run slots of each class that was met."""
        self._in_flight: Counter[str] = Counter()
        self._run_times = RunTimes()

    def add(self, record: Record) -> None:
        """Count a new claim."""
        if record.options.concurrency > 1:
            self.slots[record.job] = record.options.concurrency
            self._in_flight[record.job] += 1

    def remove(self, record: Record) -> None:
        """Stop counting a claim."""
        if record.options.concurrency > 1:
            self._in_flight[record.job] -= 1

    def run_took(self, job: str, seconds: float) -> None:
        """Record how long a run took."""
        self._run_times.add(job, seconds)

    def stop_prefetching(self, job: str) -> None:
        """Prefetch no jobs of the class until a short run has ended, because prefetched ones came back."""
        self._run_times.forget(job)

    def free_slots(self, job: str) -> int:
        """Return how many more jobs of the class could start; 0 for a class that was never claimed."""
        return self.slots.get(job, 0) - self._in_flight[job]

    def rooms(self) -> Mapping[str, int]:
        """Return how many more jobs of each class to claim: none if enough are prefetched, for batches."""
        return {job: self._room(job, slots) for job, slots in self.slots.items()}

    def _room(self, job: str, slots: int) -> int:
        in_flight = self._in_flight[job]
        prefetched = slots if self._run_times.expected(job) <= SHORT_RUN else 0
        if in_flight >= slots + prefetched // 2:
            return 0
        return slots + prefetched - in_flight


MOST_SETTLED = 1000
"""Maximum number of outcomes that one call settles, as one statement holds no more; the next turn settles the rest."""


MOST_UNWRITTEN = 100
"""Maximum number of runs that the store does not know about which the node reports."""


MOST_PIDS = 1000
"""Maximum number of runs whose worker the node reports."""


@dataclass(kw_only=True)
class InFlightRun:
    """One claim and the latest reports of its run."""

    record: Record
    id: str
    """The job's id as text, as in messages."""
    note: Note | None = None
    """Start, progress and checkpoint that are not in the store yet."""
    stop_reason: str = ""
    """Why the manager was asked to end the run; empty if it was not."""
    finished: Record | None = None
    """The record after the outcome, once the run has ended."""
    wants_settlement: bool = False
    took: float | None = None
    """Seconds of the run, once it has ended."""
    began_at: datetime | None = None
    """When the ended run started, on the store's clock."""
    lines: str | None = None
    """Log lines that are not in the store yet, and are written with the outcome."""
    pid: int = 0
    """The pid of the worker, once the run is known to have started."""
    awaited: tuple[str, ...] = ()
    """The jobs that the run waits for in its worker."""
    is_unseen: bool = False
    """The manager died with its workers: the run may have started, and ended, without a report."""

    @property
    def fence(self) -> int:
        """Return the number of the claim, its fence."""
        return self.record.claims


class InFlight:
    """The claims of one node, by job id. Reports about claims that it no longer holds are dropped."""

    def __init__(self, settings: Settings, prefetch: Prefetch, now: Callable[[], datetime]) -> None:
        """``now`` is the clock of the store."""
        self._settings = settings
        self._prefetch = prefetch
        self._now = now
        self._boot_times = BootTimes(now)
        self._claims: dict[str, InFlightRun] = {}
        self.with_notes: set[str] = set()
        """The jobs with notes that are not in the store."""
        self.unsettled: list[InFlightRun] = []
        """The claims that have an outcome and are not settled yet, in order."""
        self.in_write: Sequence[InFlightRun] = ()
        """The claims whose outcomes or notes a call of the store is writing now."""
        self._in_queue: Counter[str] = Counter()
        self.forced = 0
        """How many claims take no slot of the pool: those with ``force_spawn`` or ``concurrency``."""
        self.concurrency = ConcurrencyDemand()
        self.have_waits_changed = False
        """Whether ``waits`` returns other waits than the published ones."""
        self.is_stop_requested = False
        """Whether the node was asked to stop: then nothing else needs to explain an interruption, except suspicion."""
        self.suspects: Mapping[int, Failure] = {}
        """The workers, by pid, whose jobs may have asked for this stop, with what to say of an interruption there."""
        self.data = 0
        """The bytes of data of the claims that take a slot of the pool."""

    def __len__(self) -> int:
        return len(self._claims)

    def __iter__(self) -> Iterator[InFlightRun]:
        return iter(tuple(self._claims.values()))

    @property
    def pooled(self) -> int:
        """Return the number of claims that take a slot of the pool."""
        return len(self._claims) - self.forced

    def add(self, records: Iterable[Record]) -> None:
        """Add new claims."""
        for record in records:
            id = str(record.id)
            before = self._claims.get(id)
            if before is not None:  # removed by a flush, and the same id added and claimed again
                self._forget(before)
            self._claims[id] = InFlightRun(record=record, id=id)
            self._in_queue[record.queue] += 1
            if record.options.is_beside_pool:
                self.forced += 1
                self.concurrency.add(record)
            else:
                self.data += len(record.data)

    def limit(self, workers: int | None) -> None:
        """Claim no more jobs for the pool than it has ``workers``, since no more can be started; None lifts this."""
        self._prefetch.slots = self._settings.slots if workers is None else workers

    def room_by_queue(self, queues: Mapping[str, int | None]) -> dict[str, int | None]:
        """Return how many more jobs of each queue may be claimed; None if there is no bound."""
        return {name: None if bound is None else max(0, bound - self._in_queue[name]) for name, bound in queues.items()}

    def find(self, id: str, claims: int) -> InFlightRun | None:
        """Return the claim if this node holds it and it has no outcome; else None."""
        claim = self._claims.get(id)
        return claim if claim is not None and claim.record.claims == claims else None

    def note(self, claim: InFlightRun, **values: Any) -> None:
        """Note these values of a running job in its record, and for the store."""
        claim.record = changed(claim.record, **values)
        self._note(claim, **values)

    def finish(self, claim: InFlightRun, outcome: Outcome, run: Run, now: datetime) -> None:
        """Note the outcome; the claim is then unsettled."""
        self._forget(claim)
        if claim.note is not None:
            claim.lines = claim.note.lines
        claim.finished = ended(claim.record, outcome, run, now)
        self.unsettled.append(claim)

    def hand_back(self, claim: InFlightRun) -> None:
        """Return the claim, without counting an attempt."""
        self.finish(claim, HandedBack(), Run(node=self._settings.name), self._now())

    # Reports of the manager

    def on_started(self, message: Started) -> None:
        """Note the start of a run."""
        claim = self.find(message.id, message.claims)
        if claim is not None:
            claim.pid = message.pid
            started_at = self._boot_times.moment(message.at)
            self.note(claim, started_at=started_at)
            if message.loaded:
                self._note(claim, loaded_at=started_at)

    def on_progressed(self, message: Progressed) -> None:
        """Note progress, a checkpoint or a position."""
        claim = self.find(message.id, message.claims)
        if claim is None:
            return
        if message.progress is not None:
            at = self._boot_times.moment(message.at)
            self.note(claim, progress=message.progress, progress_message=message.message, progress_at=at)
        if message.state is not None:
            self.note(claim, state=message.state)
        if message.position is not None:
            self.note(claim, cursor=message.position)

    def on_logged(self, message: Logged) -> None:
        """Note the last log lines of a run."""
        claim = self.find(message.id, message.claims)
        if claim is not None:
            self._note(claim, lines=message.lines)

    def on_waits_for(self, message: WaitsFor) -> None:
        """Note which jobs a run waits for."""
        claim = self.find(message.id, message.claims)
        if claim is not None:
            claim.awaited = tuple(message.awaited)
            self.have_waits_changed = True

    def on_ended(self, message: Ended) -> None:
        """Note the outcome of a run, to be settled."""
        claim = self.find(message.id, message.claims)
        if claim is None:
            extra = {"job_id": message.id}
            log.warning("dropped the outcome of a job that this node no longer holds", extra=extra)
            return
        if message.took is not None:
            if claim.record.options.concurrency > 1:
                self.concurrency.run_took(claim.record.job, message.took)
            else:
                self._prefetch.run_took(message.took)
        claim.wants_settlement = message.confirm
        now, since_boot = self._boot_times.present()
        started_at = None if message.started_at is None else now + timedelta(seconds=message.started_at - since_boot)
        run = Run(
            node=self._settings.name,
            pid=message.pid,
            started_at=started_at,
            exit=message.exit,
            peak_memory=message.peak_memory,
            stack=message.stack,
            chance=random.random(),
        )
        claim.took, claim.began_at = message.took, run.started_at
        outcome = outcome_of(message.outcome, message.fields, self._settings.unroutable_after)
        if self.is_stop_requested and isinstance(outcome, Interrupted):  # a supervisor may signal all processes
            outcome = Interrupted(failure=self.suspects.get(message.pid or 0))
        self.finish(claim, outcome, run, now)

    def on_handed_back(self, message: RunsHandedBack) -> None:
        """Hand back claims whose runs no worker has started."""
        for id, claims in message.runs:
            claim = self.find(id, claims)
            if claim is None:
                continue
            if claim.record.options.concurrency > 1:
                self.concurrency.stop_prefetching(claim.record.job)
            else:
                self._prefetch.stop_prefetching()
            self.hand_back(claim)

    def on_manager_exit(self, begun: Mapping[Key, float]) -> None:
        """Finish all claims after the death of manager and workers; ``begun`` is the content of the start log."""
        for claim in self:
            claim.is_unseen = True
            now, started_at, at = self._now(), claim.record.started_at, begun.get((claim.id, claim.fence))
            if started_at is None and at is not None:
                started_at = self._boot_times.moment(at)
            if started_at is None:
                self.hand_back(claim)
                continue
            failure = Failure(type="taskqueue.ManagerLost", message="the worker manager died while the job ran")
            self.finish(claim, Crashed(failure=failure), Run(node=self._settings.name, started_at=started_at), now)

    def waits(self) -> list[Any]:
        """Return the runs that wait for other jobs, as they are published."""
        blocked = [claim for claim in self._claims.values() if claim.awaited]
        return [_blocked_run(claim).document() for claim in blocked[:MOST_BLOCKED]]

    def unwritten(self) -> list[Any]:
        """Return the runs whose start or end the store does not have yet, ``MOST_UNWRITTEN`` at most; for any thread.

        The loop, which changes them, may wait for the store just now.
        """
        with_notes = filter(None, map(self._claims.get, tuple(self.with_notes)))
        claims = {claim.id: claim for claim in (*with_notes, *self.unsettled, *self.in_write)}
        return [_unwritten(claim) for claim in tuple(claims.values())[:MOST_UNWRITTEN]]

    def pids(self) -> dict[str, int]:
        """Return the pid of the worker of each job that runs, ``MOST_PIDS`` at most; for any thread."""
        begun = (claim for claim in tuple(self._claims.values()) if claim.pid and claim.finished is None)
        return {claim.id: claim.pid for claim in islice(begun, MOST_PIDS)}

    # Answers of the store

    def to_stop(self, renewal: Renewal) -> Iterator[tuple[InFlightRun, str]]:
        """Yield the claims that were lost or whose jobs must be canceled, with the reason."""
        for claim in self:
            holding = renewal.claims.get(claim.record.id)
            if holding is None or holding.claims != claim.fence:
                yield claim, "lost"
            elif holding.cancel_reason is not None and claim.record.phase is not Phase.FAILING:
                claim.record = canceled(claim.record, holding.cancel_reason, self._now())
                yield claim, "cancel"

    def take_unsettled(self) -> list[InFlightRun]:
        """Return and remove the first unsettled claims; pass them to ``keep_unsettled`` if they cannot be settled."""
        self.in_write = taken = self.unsettled[:MOST_SETTLED]
        self.unsettled = self.unsettled[MOST_SETTLED:]
        return taken

    def keep_unsettled(self, unsettled: list[InFlightRun]) -> None:
        """Put claims back that could not be settled."""
        self.unsettled = unsettled + self.unsettled

    def take_notes(self) -> dict[JobId, Note]:
        """Return and remove the notes that are not in the store."""
        notes = {}
        self.in_write = [self._claims[id] for id in self.with_notes]
        for claim in self.in_write:
            if claim.note is not None:
                notes[claim.record.id] = claim.note
                claim.note = None
        self.with_notes.clear()
        return notes

    def keep_notes(self, notes: Mapping[JobId, Note]) -> None:
        """Put notes back that could not be written; notes that came since are newer and win."""
        for id, note in notes.items():
            claim = self._claims.get(str(id))
            if claim is not None:
                claim.note = _merged(note, claim.note)
                self.with_notes.add(claim.id)

    def _forget(self, claim: InFlightRun) -> None:
        del self._claims[claim.id]
        self.with_notes.discard(claim.id)
        self.have_waits_changed |= bool(claim.awaited)
        self._in_queue[claim.record.queue] -= 1
        if claim.record.options.is_beside_pool:
            self.forced -= 1
            self.concurrency.remove(claim.record)
        else:
            self.data -= len(claim.record.data)

    def _note(self, claim: InFlightRun, **values: Any) -> None:
        claim.note = replace(claim.note or Note(), **values)
        self.with_notes.add(claim.id)


def _unwritten(claim: InFlightRun) -> Mapping[str, Any]:
    after = claim.finished
    began_at = claim.began_at or claim.record.started_at
    ended_at = after.attempts[-1].ended_at if after is not None and after.attempts else None
    return {
        "job": claim.id,
        "claims": claim.fence,
        "began_at": began_at and began_at.isoformat(),
        "ended_at": ended_at and ended_at.isoformat(),
        "ended_as": "" if after is None else after.status.name,
    }


def _merged(older: Note, newer: Note | None) -> Note:
    if newer is None:
        return older
    newer_values = {name: value for name, value in vars(newer).items() if value is not None and value != ""}
    return replace(older, **newer_values)


def _blocked_run(claim: InFlightRun) -> BlockedRun:
    record = claim.record
    slots = slots_of(record.job, record.options.concurrency, record.options.force_spawn)
    return BlockedRun(claim.id, claim.awaited, record.queue, slots)
