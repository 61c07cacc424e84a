"""The store in a relational database: every method here is one transaction of its engine, and rings after it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from taskqueue.model.ids import JobId
from taskqueue.model.query import EVERYTHING, Query
from taskqueue.model.record import Holder, Record, Status
from taskqueue.model.timestamps import milliseconds
from taskqueue.store import Claim, ClaimRequest, Note, Renewal
from taskqueue.store.arguments import check_topic
from taskqueue.store.bell import ENDS, NEWS, STOPS, WORK, Bell
from taskqueue.store.relational import (
    claims,
    controls,
    counts,
    events,
    inserts,
    leases,
    limits,
    log_lines,
    queries,
    renewals,
    retention,
    settlements,
)
from taskqueue.store.relational.claim_cache import ClaimCache
from taskqueue.store.relational.engine import Adder, CommitRinger, Database, Engine, Sync
from taskqueue.store.relational.transaction import Transaction

if TYPE_CHECKING:  # few programs count or schedule
    import asyncio

    from taskqueue.model.analytics import Sample
    from taskqueue.model.audit import AuditEntry
    from taskqueue.model.finding import Finding
    from taskqueue.model.history import Parts, Step
    from taskqueue.model.schedules.schedule import NamedSchedule
    from taskqueue.store import Disagreement, Disagreements

Given = ParamSpec("Given")
Result = TypeVar("Result")


def _reads(
    read: Callable[Concatenate[Database, Given], Result],
) -> Callable[Concatenate[RelationalStore, Given], Result]:
    """Return a method of the store that only reads."""

    def call(store: RelationalStore, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        return store._engine.read(lambda database: read(database, *args, **kwargs))  # noqa: SLF001 - of this file

    return call


def _writes(
    level: Sync, write: Callable[Concatenate[Transaction, Given], Result]
) -> Callable[Concatenate[RelationalStore, Given], Result]:
    """Return a method of the store that writes in one transaction."""

    def call(store: RelationalStore, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        return store._write(level, lambda work: write(work, *args, **kwargs))  # noqa: SLF001 - of this file

    return call


class RelationalStore:
    """Keeps jobs in the tables of one database; see ``taskqueue.store.Store`` for what each method promises."""

    def __init__(self, engine: Engine, ringer: CommitRinger, clock: Callable[[], datetime]) -> None:
        self.url = engine.url
        self.guarantee = engine.guarantee
        self.takes_calls_at_once = engine.takes_calls_at_once
        self.early_by = claims.EARLY_BY
        self._engine = engine
        self.now = clock
        """Returns the time of the store's clock."""
        self._rotation = claims.Rotation()
        self._claim_cache = ClaimCache()
        self._ringer = ringer

    def _write(self, level: Sync, body: Callable[[Transaction], Result]) -> Result:
        """Run ``body`` in one transaction and ring after its commit.

        FULL: it survives once the caller has the answer; NORMAL: a power cut may undo it without harm, as its work
        would be repeated.
        """
        has_run = False

        def run(database: Database) -> tuple[Transaction, Result]:
            nonlocal has_run
            if has_run:  # read again: the rollback undid what the claim had read
                self._claim_cache.forget()
            has_run = True
            work = Transaction(database, self._ringer.reaches_ends)
            result = body(work)
            work.finish()
            return work, result

        work, result = self._engine.write(level, run)
        self._ringer.ring(work.topics, work.end_notice)
        return result

    find = _reads(queries.find)
    count = _reads(queries.count)
    tally = _reads(counts.tally)
    time_after = _reads(queries.time_after)
    waiting_since = _reads(counts.waiting_since)
    waiting_lanes = _reads(limits.waiting_lanes)
    present = _reads(counts.present)
    postponed = _reads(counts.postponed)
    workflows = _reads(counts.workflows)
    replace = _writes(Sync.FULL, inserts.replace)
    cancel = _writes(Sync.FULL, settlements.cancel)
    update = _writes(Sync.FULL, inserts.update)
    claim_one = _writes(Sync.NORMAL, claims.claim_one)
    settle = _writes(Sync.FULL, settlements.settle)
    expired = _reads(renewals.expired)
    orphaned = _reads(renewals.orphaned)
    held = _reads(renewals.held)
    holders = _reads(renewals.holders)
    acquire = _writes(Sync.NORMAL, leases.acquire)
    resign = _writes(Sync.NORMAL, leases.resign)
    leases = _reads(leases.leases)
    set_control = _writes(Sync.FULL, controls.set_control)
    clear_control = _writes(Sync.FULL, controls.clear_control)
    controls = _reads(controls.controls)
    log_lines = _reads(log_lines.of_job)
    rate_ends = _reads(limits.rate_ends)
    record_events = _writes(Sync.NORMAL, events.record)
    cursor_at = _reads(events.cursor_at)
    events_of = _reads(events.events_of)
    events = _reads(events.events)

    def add(self, records: Sequence[Record]) -> list[Record]:
        stored = self._write(Sync.NORMAL, partial(inserts.add, records=records))
        self._engine.reach_the_disk()  # while nodes already wake up; the caller still waits
        return stored

    def within(self, session: Any, loop: asyncio.AbstractEventLoop | None) -> Adder:
        """Return an adder for the open transaction of an application's session."""
        return self._engine.within(session, loop)

    def alike(self, new: Record, ignore_data: bool) -> list[Record]:
        return self._engine.alike(new, ignore_data)

    def history(self, step: Step, since: datetime, until: datetime) -> Parts:
        from taskqueue.store.relational import history

        return self._engine.read(lambda database: history.history(database, step, since, until))

    def tidy_history(self, now: datetime, limit: int) -> bool:
        from taskqueue.store.relational import history

        def tidy(work: Transaction) -> bool:
            history.add_up(work)
            return history.prune(work.execute, now, limit)

        return self._write(Sync.NORMAL, tidy)

    def samples(self, since: datetime, until: datetime, limit: int, query: Query = EVERYTHING) -> Sequence[Sample]:
        from taskqueue.store.relational import analytics

        return self._engine.read(lambda database: analytics.samples(database, since, until, limit, query))

    def cancel_many(self, ids: Sequence[JobId], reason: str, now: datetime) -> list[Record]:
        canceled = self._write(Sync.FULL, lambda work: [settlements.cancel(work, id, reason, now) for id in ids])
        return [record for record in canceled if record is not None]

    def claim(self, holder: Holder, demand: ClaimRequest, now: datetime, until: datetime) -> Claim:
        take = partial(
            claims.claim,
            holder=holder,
            demand=demand,
            rotation=self._rotation,
            cache=self._claim_cache,
            now=now,
            until=until,
        )
        try:
            return self._write(Sync.NORMAL, take)
        except BaseException:
            self._claim_cache.forget()
            raise

    def renew(self, holder: Holder, until: datetime, notes: Mapping[JobId, Note]) -> Renewal:
        now = self.now()

        def renew(work: Transaction) -> Renewal:
            renewals.note(work, holder, notes, now)
            return renewals.renew(work, holder, until)

        return self._write(Sync.NORMAL, renew)

    def note(self, holder: Holder, notes: Mapping[JobId, Note]) -> None:
        """Record the notes on claims that ``holder`` still holds; the start of an at-most-once job for good."""
        now = self.now()
        once = self._write(Sync.NORMAL, lambda work: renewals.note(work, holder, notes, now))
        if once:
            self._engine.reach_the_disk()

    def limit_usage(self, keys: Sequence[str], now: datetime) -> Mapping[str, int]:
        return self._engine.read(lambda database: limits.usage(database.execute, keys, milliseconds(now)))

    def repair(self, now: datetime) -> int:  # noqa: ARG002
        """Return 0: the effects of an outcome are in its transaction."""
        return 0

    def schedules(self, names: Collection[str] | None = None) -> list[NamedSchedule]:
        from taskqueue.store.relational import schedules

        return self._engine.read(lambda database: schedules.find(database, names))

    def due(self, now: datetime, limit: int) -> tuple[list[NamedSchedule], datetime | None]:
        from taskqueue.store.relational import schedules

        return self._engine.read(lambda database: schedules.due(database, now, limit))

    def replace_schedule(
        self, before: NamedSchedule | None, after: NamedSchedule | None, jobs: Sequence[Record], now: datetime
    ) -> bool:
        from taskqueue.store.relational import schedules

        return self._write(Sync.FULL, lambda work: schedules.replace(work, before, after, jobs, now))

    def prune(self, before: Mapping[Status, datetime], events_before: datetime, limit: int) -> int:
        candidates = self._engine.read(lambda database: retention.old(database, before, limit))

        def prune(work: Transaction) -> int:
            events.prune(work, milliseconds(events_before), retention.EVENTS_A_RECORD * limit)
            limits.prune(work.execute, milliseconds(events_before))
            return retention.prune(work, before, candidates)

        return self._write(Sync.NORMAL, prune)

    def flush(self) -> int:
        from taskqueue.store.relational import schedules

        def flush(work: Transaction) -> int:
            now = self.now()
            events.forget(work, now)
            work.topics.update((WORK, STOPS, NEWS, ENDS))
            removed = retention.flush(work)
            schedules.resume_waiting(work, now)
            return removed

        return self._write(Sync.FULL, flush)

    def record_action(self, entry: AuditEntry) -> None:
        from taskqueue.store.relational import audit

        self._write(Sync.FULL, lambda work: audit.record(work, entry))

    def audit(self, limit: int, before: str | None = None) -> list[AuditEntry]:
        from taskqueue.store.relational import audit

        return self._engine.read(lambda database: audit.entries(database, limit, before))

    def diagnose(self) -> list[Finding]:
        return self._engine.diagnose()

    def strains(self) -> list[Finding]:
        return self._engine.strains()

    def disagreeing(self, limit: int) -> Disagreements:
        return self._engine.disagreeing(limit)

    def write_again(self, found: Sequence[Disagreement]) -> int:
        return self._write(Sync.FULL, lambda work: self._engine.write_again(work, found))

    def bell(self, topic: str) -> Bell:
        check_topic(topic)
        return self._engine.bell(topic)

    def close(self) -> None:
        self._engine.close()
        self._ringer.close()
