"""The store in a relational database: every method is one transaction of its engine, and rings after it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from taskqueue.model.controls import Control, Controls, Kind
from taskqueue.model.ids import JobId
from taskqueue.model.query import Query
from taskqueue.model.record import Holder, Record, Status
from taskqueue.model.timestamps import milliseconds
from taskqueue.store import Claim, ClaimRequest, Event, Lease, Note, Renewal, Settlement
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
from taskqueue.store.relational.settlements import settle
from taskqueue.store.relational.transaction import Transaction

if TYPE_CHECKING:  # few programs count or schedule
    import asyncio

    from taskqueue.model.analytics import Present, Sample
    from taskqueue.model.audit import AuditEntry
    from taskqueue.model.finding import Finding
    from taskqueue.model.history import Parts, Step
    from taskqueue.model.schedules.schedule import NamedSchedule
    from taskqueue.store import Disagreement, Disagreements

Result = TypeVar("Result")


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

        FULL: it is kept once the caller is told so; NORMAL: a power cut may undo it without harm, as its work would be
        repeated.
        """
        has_run = False

        def run(database: Database) -> tuple[Transaction, Result]:
            nonlocal has_run
            if has_run:  # again: what a claim has read was undone with it
                self._claim_cache.forget()
            has_run = True
            work = Transaction(database, self._ringer.reaches_ends)
            result = body(work)
            work.finish()
            return work, result

        work, result = self._engine.write(level, run)
        self._ringer.ring(work.topics, work.end_notice)
        return result

    def add(self, records: Sequence[Record]) -> list[Record]:
        kept = self._write(Sync.NORMAL, partial(inserts.add, records=records))
        self._engine.reach_the_disk()  # while nodes wake up; the caller has no answer yet
        return kept

    def within(self, session: Any, loop: asyncio.AbstractEventLoop | None) -> Adder:
        """Return an adder for the open transaction of an application's session."""
        return self._engine.within(session, loop)

    def alike(self, new: Record, ignore_data: bool) -> list[Record]:
        return self._engine.alike(new, ignore_data)

    def replace(self, new: Record, old: Record, cancel_running: str | None, now: datetime) -> Record | None:
        return self._write(Sync.FULL, lambda work: inserts.replace(work, new, old, cancel_running, now))

    def find(
        self, query: Query, *, order: str = "id", limit: int = 100, after: tuple[object, JobId] | None = None
    ) -> list[Record]:
        return self._engine.read(lambda database: queries.find(database, query, order, limit, after))

    def count(self, query: Query, most: int | None = None) -> int:
        return self._engine.read(lambda database: queries.count(database, query, most))

    def tally(self) -> Mapping[tuple[str, Status], int]:
        return self._engine.read(counts.tally)

    def waiting_since(self) -> Mapping[str, datetime]:
        return self._engine.read(counts.waiting_since)

    def waiting_lanes(self, limit: int) -> Mapping[str, int]:
        return self._engine.read(lambda database: limits.waiting_lanes(database, limit))

    def history(self, step: Step, since: datetime, until: datetime) -> Parts:
        from taskqueue.store.relational import history

        return self._engine.read(lambda database: history.history(database, step, since, until))

    def tidy_history(self, now: datetime, limit: int) -> bool:
        from taskqueue.store.relational import history

        def tidy(work: Transaction) -> bool:
            history.add_up(work)
            return history.prune(work.execute, now, limit)

        return self._write(Sync.NORMAL, tidy)

    def present(self, now: datetime) -> Present:
        return self._engine.read(lambda database: counts.present(database, now))

    def samples(self, since: datetime, until: datetime, limit: int) -> Sequence[Sample]:
        from taskqueue.store.relational import analytics

        return self._engine.read(lambda database: analytics.samples(database, since, until, limit))

    def cancel(self, id: JobId, reason: str, now: datetime) -> Record | None:
        return self._write(Sync.FULL, lambda work: settlements.cancel(work, id, reason, now))

    def cancel_many(self, ids: Sequence[JobId], reason: str, now: datetime) -> list[Record]:
        found = self._write(Sync.FULL, lambda work: [settlements.cancel(work, id, reason, now) for id in ids])
        return [record for record in found if record is not None]

    def update(self, before: Record, after: Record, now: datetime) -> bool:
        return self._write(Sync.FULL, lambda work: inserts.update(work, before, after, now))

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

    def claim_one(self, id: JobId, holder: Holder, now: datetime, until: datetime) -> Record | None:
        return self._write(Sync.NORMAL, lambda work: claims.claim_one(work, id, holder, now, until))

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

    def settle(self, settlements: Sequence[Settlement], now: datetime) -> set[JobId]:
        return self._write(Sync.FULL, partial(settle, settlements=settlements, now=now))

    def expired(self, now: datetime, limit: int) -> list[Record]:
        return self._engine.read(lambda database: renewals.expired(database, now, limit))

    def orphaned(self, seat: str, incarnation: str, limit: int) -> list[Record]:
        return self._engine.read(lambda database: renewals.orphaned(database, seat, incarnation, limit))

    def held(self, holder: Holder, limit: int) -> list[Record]:
        return self._engine.read(lambda database: renewals.held(database, holder, limit))

    def holders(self, seats: Collection[str]) -> list[Holder]:
        return self._engine.read(lambda database: renewals.holders(database, seats))

    def acquire(self, lease: Lease, now: datetime) -> Lease:
        return self._write(Sync.NORMAL, lambda work: leases.acquire(work, lease, now))

    def resign(self, name: str, holder: Holder) -> None:
        self._write(Sync.NORMAL, lambda work: leases.resign(work, name, holder))

    def log_lines(self, id: JobId) -> Mapping[int, str]:
        return self._engine.read(lambda database: log_lines.of_job(database, str(id)))

    def limit_usage(self, keys: Sequence[str], now: datetime) -> Mapping[str, int]:
        return self._engine.read(lambda database: limits.usage(database, keys, milliseconds(now)))

    def rate_ends(self, key: str, now: datetime, limit: int) -> list[datetime]:
        return self._engine.read(lambda database: limits.rate_ends(database, key, milliseconds(now), limit))

    def leases(self) -> list[Lease]:
        return self._engine.read(leases.leases)

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

    def controls(self) -> Controls:
        return self._engine.read(lambda database: controls.controls(database.execute))

    def set_control(self, control: Control) -> None:
        self._write(Sync.FULL, lambda work: controls.set_control(work, control))

    def clear_control(self, kind: Kind, name: str) -> bool:
        return self._write(Sync.FULL, lambda work: controls.clear_control(work, kind, name))

    def prune(self, before: Mapping[Status, datetime], events_before: datetime, limit: int) -> int:
        found = self._engine.read(lambda database: retention.old(database, before, limit))

        def prune(work: Transaction) -> int:
            events.prune(work, milliseconds(events_before), retention.EVENTS_A_RECORD * limit)
            limits.prune(work.execute, milliseconds(events_before))
            return retention.prune(work, before, found)

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

    def record_events(self, recorded: Sequence[Event]) -> None:
        self._write(Sync.NORMAL, lambda work: events.record(work, recorded))

    def events(self, cursor: str | None, limit: int = 1000) -> tuple[list[Event], str]:
        return self._engine.read(lambda database: events.events(database, cursor, limit))

    def events_of(self, id: JobId, since: datetime, limit: int) -> list[Event]:
        return self._engine.read(lambda database: events.events_of(database, id, milliseconds(since), limit))

    def record_action(self, entry: AuditEntry) -> None:
        from taskqueue.store.relational import audit

        self._write(Sync.FULL, lambda work: audit.record(work, entry))

    def audit(self, limit: int, before: str | None = None) -> list[AuditEntry]:
        from taskqueue.store.relational import audit

        return self._engine.read(lambda database: audit.entries(database, limit, before))

    def diagnose(self) -> list[Finding]:
        return self._engine.diagnose()

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
