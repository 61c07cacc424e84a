"""The store in one SQLite file: every method is one transaction, and rings after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from taskqueue.model.controls import Control, Controls, Kind
from taskqueue.model.ids import JobId
from taskqueue.model.query import Query
from taskqueue.model.record import Holder, Record, Status
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.store import Claim, ClaimRequest, Event, Lease, Note, Renewal, Settlement
from taskqueue.store.arguments import check_topic
from taskqueue.store.bell import ENDS, NEWS, STOPS, WORK, Doorbell, Ringer
from taskqueue.store.sqlite import (
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
from taskqueue.store.sqlite.alike import Alike
from taskqueue.store.sqlite.caller_transaction import CallerConnection, LateRinger
from taskqueue.store.sqlite.claim_cache import ClaimCache
from taskqueue.store.sqlite.connection import Connection, Sync
from taskqueue.store.sqlite.end_notice import record_of
from taskqueue.store.sqlite.settlements import settle
from taskqueue.store.sqlite.transaction import Transaction
from taskqueue.store.sqlite.url import SqliteUrl

if TYPE_CHECKING:  # few programs count or schedule
    from taskqueue.model.analytics import Present, Sample
    from taskqueue.model.audit import AuditEntry
    from taskqueue.model.finding import Finding
    from taskqueue.model.history import Parts, Step
    from taskqueue.model.schedules.schedule import NamedSchedule
    from taskqueue.store import Disagreement, Disagreements

_GUARANTEES = {
    "full": "an acknowledged job survives a power cut (SQLite, synchronous=full)",
    "normal": "an acknowledged job survives the crash of any process, "
    "a power cut may lose the last ones (SQLite, synchronous=normal)",
}


def host_time() -> datetime:
    """Return the clock of this host, in whole milliseconds."""
    return moment(time.time_ns() // 1_000_000)


class SqliteStore:
    """Keeps jobs in one file on one host; see ``taskqueue.store.Store`` for what each method promises."""

    def __init__(
        self,
        address: SqliteUrl,
        connection: CallerConnection | None = None,
        ringer: LateRinger | None = None,
        clock: Callable[[], datetime] = host_time,
    ) -> None:
        self.url = address.url
        self._address = address
        self.guarantee = _GUARANTEES[address.synchronous]
        self.takes_calls_at_once = False
        self.early_by = claims.EARLY_BY
        self._connection = connection or Connection(address)
        self.now = clock
        """Returns the time of the store's clock, which is that of this host unless another was given."""
        self._bells = address.bells
        self._rotation = claims.Rotation()
        self._claim_cache = ClaimCache()
        self._alike = Alike()
        self._ringer = ringer or Ringer(address.bells)
        self._durably = partial(Transaction, self._connection, self._ringer, Sync.FULL)
        """Returns a transaction that is kept once its caller is told so."""
        self._loosely = partial(Transaction, self._connection, self._ringer, Sync.NORMAL)
        """Returns a transaction that a power cut may undo without harm: its work would be repeated."""

    def add(self, records: Sequence[Record]) -> list[Record]:
        with self._loosely() as work:
            kept = inserts.add(work, records)
        self._connection.reach_the_disk()  # while nodes wake up; the caller has no answer yet
        return kept

    def alike(self, new: Record, ignore_data: bool) -> list[Record]:
        return self._connection.read(lambda raw: self._alike.find(raw, new, ignore_data))

    def replace(self, new: Record, old: Record, cancel_running: str | None, now: datetime) -> Record | None:
        with self._durably() as work:
            return inserts.replace(work, new, old, cancel_running, now)

    def find(
        self, query: Query, *, order: str = "id", limit: int = 100, after: tuple[object, JobId] | None = None
    ) -> list[Record]:
        return self._connection.read(lambda raw: queries.find(raw, query, order, limit, after))

    def count(self, query: Query, most: int | None = None) -> int:
        return self._connection.read(lambda raw: queries.count(raw, query, most))

    def tally(self) -> Mapping[tuple[str, Status], int]:
        return self._connection.read(counts.tally)

    def waiting_since(self) -> Mapping[str, datetime]:
        return self._connection.read(counts.waiting_since)

    def waiting_lanes(self, limit: int) -> Mapping[str, int]:
        return self._connection.read(lambda raw: limits.waiting_lanes(raw, limit))

    def history(self, step: Step, since: datetime, until: datetime) -> Parts:
        from taskqueue.store.sqlite import history

        return self._connection.read(lambda raw: history.history(raw, step, since, until))

    def tidy_history(self, now: datetime, limit: int) -> bool:
        from taskqueue.store.sqlite import history

        with self._loosely() as work:
            history.add_up(work.execute)
            return history.prune(work.execute, now, limit)

    def present(self, now: datetime) -> Present:
        return self._connection.read(lambda raw: counts.present(raw, now))

    def samples(self, since: datetime, until: datetime, limit: int) -> Sequence[Sample]:
        from taskqueue.store.sqlite import analytics

        return self._connection.read(lambda raw: analytics.samples(raw, since, until, limit))

    def cancel(self, id: JobId, reason: str, now: datetime) -> Record | None:
        with self._durably() as work:
            return settlements.cancel(work, id, reason, now)

    def cancel_many(self, ids: Sequence[JobId], reason: str, now: datetime) -> list[Record]:
        with self._durably() as work:
            found = [settlements.cancel(work, id, reason, now) for id in ids]
        return [record for record in found if record is not None]

    def update(self, before: Record, after: Record, now: datetime) -> bool:
        with self._durably() as work:
            return inserts.update(work, before, after, now)

    def claim(self, holder: Holder, demand: ClaimRequest, now: datetime, until: datetime) -> Claim:
        try:
            with self._loosely() as work:
                return claims.claim(work, holder, demand, self._rotation, self._claim_cache, now, until)
        except BaseException:
            self._claim_cache.forget()
            raise

    def claim_one(self, id: JobId, holder: Holder, now: datetime, until: datetime) -> Record | None:
        with self._loosely() as work:
            return claims.claim_one(work, id, holder, now, until)

    def renew(self, holder: Holder, until: datetime, notes: Mapping[JobId, Note]) -> Renewal:
        now = self.now()
        with self._loosely() as work:
            renewals.note(work, holder, notes, now)
            return renewals.renew(work, holder, until)

    def note(self, holder: Holder, notes: Mapping[JobId, Note]) -> None:
        """Record the notes on claims that ``holder`` still holds; the start of an at-most-once job for good."""
        now = self.now()
        with self._loosely() as work:
            once = renewals.note(work, holder, notes, now)
        if once:
            self._connection.reach_the_disk()

    def settle(self, settlements: Sequence[Settlement], now: datetime) -> set[JobId]:
        with self._durably() as work:
            return settle(work, settlements, now)

    def expired(self, now: datetime, limit: int) -> list[Record]:
        return self._connection.read(lambda raw: renewals.expired(raw, now, limit))

    def orphaned(self, seat: str, incarnation: str, limit: int) -> list[Record]:
        return self._connection.read(lambda raw: renewals.orphaned(raw, seat, incarnation, limit))

    def held(self, holder: Holder, limit: int) -> list[Record]:
        return self._connection.read(lambda raw: renewals.held(raw, holder, limit))

    def holders(self, seats: Collection[str]) -> list[Holder]:
        return self._connection.read(lambda raw: renewals.holders(raw, seats))

    def acquire(self, lease: Lease, now: datetime) -> Lease:
        with self._loosely() as work:
            return leases.acquire(work, lease, now)

    def resign(self, name: str, holder: Holder) -> None:
        with self._loosely() as work:
            leases.resign(work, name, holder)

    def log_lines(self, id: JobId) -> Mapping[int, str]:
        return self._connection.read(lambda raw: log_lines.of_job(raw, str(id)))

    def limit_usage(self, keys: Sequence[str], now: datetime) -> Mapping[str, int]:
        return self._connection.read(lambda raw: limits.usage(raw, keys, milliseconds(now)))

    def leases(self) -> list[Lease]:
        return self._connection.read(leases.leases)

    def repair(self, now: datetime) -> int:  # noqa: ARG002
        """Return 0: the effects of an outcome are in its transaction."""
        return 0

    def schedules(self, names: Collection[str] | None = None) -> list[NamedSchedule]:
        from taskqueue.store.sqlite import schedules

        return self._connection.read(lambda raw: schedules.find(raw, names))

    def due(self, now: datetime, limit: int) -> tuple[list[NamedSchedule], datetime | None]:
        from taskqueue.store.sqlite import schedules

        return self._connection.read(lambda raw: schedules.due(raw, now, limit))

    def replace_schedule(
        self, before: NamedSchedule | None, after: NamedSchedule | None, jobs: Sequence[Record], now: datetime
    ) -> bool:
        from taskqueue.store.sqlite import schedules

        with self._durably() as work:
            return schedules.replace(work, before, after, jobs, now)

    def controls(self) -> Controls:
        return self._connection.read(lambda raw: controls.controls(raw.execute))

    def set_control(self, control: Control) -> None:
        with self._durably() as work:
            controls.set_control(work, control)

    def clear_control(self, kind: Kind, name: str) -> bool:
        with self._durably() as work:
            return controls.clear_control(work, kind, name)

    def prune(self, before: Mapping[Status, datetime], events_before: datetime, limit: int) -> int:
        found = self._connection.read(lambda raw: retention.old(raw, before, limit))
        with self._loosely() as work:
            events.prune(work, milliseconds(events_before), retention.EVENTS_A_RECORD * limit)
            limits.prune(work.execute, milliseconds(events_before))
            return retention.prune(work, before, found)

    def flush(self) -> int:
        from taskqueue.store.sqlite import schedules

        with self._durably() as work:
            now = self.now()
            events.forget(work, now)
            work.topics.update((WORK, STOPS, NEWS, ENDS))
            removed = retention.flush(work)
            schedules.resume_waiting(work, now)
            return removed

    def record_events(self, recorded: Sequence[Event]) -> None:
        with self._loosely() as work:
            events.record(work, recorded)

    def events(self, cursor: str | None, limit: int = 1000) -> tuple[list[Event], str]:
        return self._connection.read(lambda raw: events.events(raw, cursor, limit))

    def events_of(self, id: JobId, since: datetime, limit: int) -> list[Event]:
        return self._connection.read(lambda raw: events.events_of(raw, id, milliseconds(since), limit))

    def record_action(self, entry: AuditEntry) -> None:
        from taskqueue.store.sqlite import audit

        with self._durably() as work:
            audit.record(work, entry)

    def audit(self, limit: int, before: str | None = None) -> list[AuditEntry]:
        from taskqueue.store.sqlite import audit

        return self._connection.read(lambda raw: audit.entries(raw, limit, before))

    def diagnose(self) -> list[Finding]:
        from taskqueue.store.sqlite import diagnosis

        return self._connection.read(lambda raw: diagnosis.diagnose(raw, self._address))

    def disagreeing(self, limit: int) -> Disagreements:
        from taskqueue.store.sqlite import derived_fields

        return self._connection.read(lambda raw: derived_fields.disagreeing(raw, limit))

    def write_again(self, found: Sequence[Disagreement]) -> int:
        from taskqueue.store.sqlite import derived_fields

        with self._durably() as work:
            return derived_fields.write_again(work, found)

    def bell(self, topic: str) -> Doorbell:
        check_topic(topic)
        reader = (record_of,) if topic == ENDS else ()
        return Doorbell(self._bells, topic, self._connection.mode, *reader)

    def close(self) -> None:
        self._connection.close()
        self._ringer.close()
