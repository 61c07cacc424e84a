"""Implements the store on MongoDB: hands each call to its part, within a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime
from typing import Any

import pymongo
from pymongo.errors import PyMongoError

from taskqueue.model.analytics import Present, Sample
from taskqueue.model.audit import AuditEntry
from taskqueue.model.controls import Control, Controls, Kind
from taskqueue.model.finding import Finding
from taskqueue.model.history import Parts, Step
from taskqueue.model.ids import JobId
from taskqueue.model.query import Query
from taskqueue.model.record import Holder, Record, Status
from taskqueue.model.schedules.schedule import NamedSchedule
from taskqueue.store import (
    Claim,
    ClaimRequest,
    Disagreement,
    Disagreements,
    Event,
    Lease,
    Note,
    Renewal,
    Settlement,
)
from taskqueue.store.arguments import check_topic
from taskqueue.store.bell import WORK, Bell
from taskqueue.store.fan_out import OpenBells, PollBell
from taskqueue.store.mongodb import analytics, diagnosis, index_repair
from taskqueue.store.mongodb.audit import Audit
from taskqueue.store.mongodb.background_writer import EventWriter
from taskqueue.store.mongodb.bells import HostBells
from taskqueue.store.mongodb.caller_transaction import SessionInserts
from taskqueue.store.mongodb.change_streams import ChangeStreams
from taskqueue.store.mongodb.claims import EARLY_BY, Claims
from taskqueue.store.mongodb.connection import CLOSE_TIMEOUT, Connection, guarantee, is_cluster
from taskqueue.store.mongodb.controls import StoredControls
from taskqueue.store.mongodb.derived_fields import LOOK_FOR, DerivedFields
from taskqueue.store.mongodb.driver_errors import ADDED_A_SECOND, reaching
from taskqueue.store.mongodb.events import EventLog
from taskqueue.store.mongodb.history import History
from taskqueue.store.mongodb.index_repair import indexed
from taskqueue.store.mongodb.inserts import Inserts
from taskqueue.store.mongodb.leases import Leases
from taskqueue.store.mongodb.limits import LimitUse
from taskqueue.store.mongodb.log_lines import LogLines
from taskqueue.store.mongodb.migration import check_schema
from taskqueue.store.mongodb.outbox import Outbox
from taskqueue.store.mongodb.queries import Queries
from taskqueue.store.mongodb.renewals import Renewals
from taskqueue.store.mongodb.retention import Retention
from taskqueue.store.mongodb.schedules import Schedules
from taskqueue.store.mongodb.settlements import Settlements, Updates
from taskqueue.store.server_clock import ESTIMATE_FOR, ServerClock

INDEX_EVERY = 60.0
"""Seconds between two looks of ``repair`` whether all indexes exist: a call that misses one creates it at once."""


class MongoStore:
    """A replica set, or a single server, as a store; safe in several threads, and after a fork in its child.

    See ``taskqueue.store.Store`` for what each method promises.
    """

    def __init__(self, connection: Connection, clock: Callable[[], datetime] | None = None) -> None:
        self.url = connection.address.shown
        self.takes_calls_at_once = True
        self.early_by = EARLY_BY
        self._connection = connection
        self._bells = OpenBells()
        self._host_bells = HostBells()
        self._streams = ChangeStreams(connection, self._host_bells)
        estimate_for = ESTIMATE_FOR if clock is None else 0.0
        self._clock = ServerClock(clock or connection.time, PyMongoError, pymongo.timeout, estimate_for=estimate_for)
        self._index_at = 0.0
        self._event_log = EventLog(connection)
        self._event_writer = EventWriter(connection, self._event_log)
        self._limit_use = LimitUse(connection)
        self._outbox = Outbox(connection, self._event_writer, self._limit_use)
        self._settlements = Settlements(connection, self._outbox, self._host_bells)
        self._updates = Updates(connection, self._settlements)
        self._inserts = Inserts(connection, self._settlements, self._event_writer, self.index)
        self._controls = StoredControls(connection)
        self._claims = Claims(connection, self._settlements, self._event_writer, self._limit_use, self._controls)
        self._renewals = Renewals(connection, self._event_writer, self._limit_use)
        self._leases = Leases(connection)
        self._log_lines = LogLines(connection)
        self._queries = Queries(connection)
        self._schedules = Schedules(connection, self._inserts)
        self._history = History(connection)
        self._retention = Retention(connection, self._event_log, self._limit_use, self._history, self._queries.counts)
        try:
            self._rings, self.guarantee = self._prepare()
        except BaseException:
            self._host_bells.close()
            connection.close()
            raise

    def add(self, records: Sequence[Record]) -> list[Record]:
        with self._reached(len(records) / ADDED_A_SECOND):
            return self._inserts.add(records)

    def within(self, session: Any) -> SessionInserts:
        """Return an adder for the open transaction of a client session; raises ``InvalidOption`` if it has none."""
        with self._reached():
            return SessionInserts(self._connection, session)

    @indexed
    def alike(self, new: Record, ignore_data: bool) -> list[Record]:
        with self._reached():
            return self._inserts.alike(new, ignore_data)

    def replace(self, new: Record, old: Record, cancel_running: str | None, now: datetime) -> Record | None:
        with self._reached():
            return self._inserts.replace(new, old, cancel_running, now)

    def find(
        self, query: Query, *, order: str = "id", limit: int = 100, after: tuple[object, JobId] | None = None
    ) -> list[Record]:
        with self._reached():
            return self._queries.find(query, order, limit, after)

    def count(self, query: Query, most: int | None = None) -> int:
        with self._reached():
            return self._queries.count(query, most)

    @indexed
    def tally(self) -> Mapping[tuple[str, Status], int]:
        with self._reached():
            return self._queries.tally()

    @indexed
    def waiting_since(self) -> Mapping[str, datetime]:
        with self._reached():
            return self._queries.waiting_since()

    @indexed
    def waiting_lanes(self, limit: int) -> Mapping[str, int]:
        with self._reached():
            return self._queries.waiting_lanes(limit)

    @indexed
    def history(self, step: Step, since: datetime, until: datetime) -> Parts:
        self._event_writer.flush()
        with self._reached():
            return self._history.read(step, since, until)

    @indexed
    def tidy_history(self, now: datetime, limit: int) -> bool:
        with self._reached():
            return self._history.tidy(now, limit)

    def present(self, now: datetime) -> Present:
        with self._reached():
            return self._queries.present(now)

    @indexed
    def samples(self, since: datetime, until: datetime, limit: int) -> Sequence[Sample]:
        with self._reached():
            return analytics.samples(self._connection, since, until, limit)

    @indexed
    def cancel(self, id: JobId, reason: str, now: datetime) -> Record | None:
        with self._reached():
            return self._settlements.cancel(id, reason, now)

    def cancel_many(self, ids: Sequence[JobId], reason: str, now: datetime) -> list[Record]:
        with self._reached():
            return self._settlements.cancel_many(ids, reason, now)

    @indexed
    def update(self, before: Record, after: Record, now: datetime) -> bool:
        with self._reached():
            return self._updates.update(before, after, now)

    @indexed
    def claim(self, holder: Holder, demand: ClaimRequest, now: datetime, until: datetime) -> Claim:
        with self._reached():
            return self._claims.claim(holder, demand, now, until)

    @indexed
    def claim_one(self, id: JobId, holder: Holder, now: datetime, until: datetime) -> Record | None:
        with self._reached():
            return self._claims.claim_one(id, holder, now, until)

    @indexed
    def renew(self, holder: Holder, until: datetime, notes: Mapping[JobId, Note]) -> Renewal:
        with self._reached():
            return self._renewals.renew(holder, until, notes)

    def note(self, holder: Holder, notes: Mapping[JobId, Note]) -> None:
        with self._reached():
            self._renewals.note(holder, notes)

    def settle(self, settlements: Sequence[Settlement], now: datetime) -> set[JobId]:
        with self._reached():
            return self._settlements.settle(settlements, now)

    @indexed
    def expired(self, now: datetime, limit: int) -> list[Record]:
        with self._reached():
            return self._renewals.expired(now, limit)

    @indexed
    def orphaned(self, seat: str, incarnation: str, limit: int) -> list[Record]:
        with self._reached():
            return self._renewals.orphaned(seat, incarnation, limit)

    @indexed
    def held(self, holder: Holder, limit: int) -> list[Record]:
        with self._reached():
            return self._renewals.held(holder, limit)

    @indexed
    def holders(self, seats: Collection[str]) -> list[Holder]:
        with self._reached():
            return self._renewals.holders(seats)

    def acquire(self, lease: Lease, now: datetime) -> Lease:
        with self._reached():
            return self._leases.acquire(lease, now)

    def resign(self, name: str, holder: Holder) -> None:
        with self._reached():
            self._leases.resign(name, holder)

    def log_lines(self, id: JobId) -> Mapping[int, str]:
        with self._reached():
            return self._log_lines.of_job(id)

    @indexed
    def limit_usage(self, keys: Sequence[str], now: datetime) -> Mapping[str, int]:
        with self._reached():
            return self._limit_use.usage(keys, now)

    @indexed
    def rate_ends(self, key: str, now: datetime, limit: int) -> list[datetime]:
        with self._reached():
            return self._limit_use.rate_ends(key, now, limit)

    def leases(self) -> list[Lease]:
        with self._reached():
            return self._leases.all()

    def repair(self, now: datetime) -> int:
        self._event_writer.flush()
        if time.monotonic() >= self._index_at:
            self._index_at = time.monotonic() + INDEX_EVERY
            self.index()
        with self._reached():
            repaired = self._outbox.repair(now) + self._schedules.repair(now)
        self._event_writer.flush()
        return repaired

    def schedules(self, names: Collection[str] | None = None) -> list[NamedSchedule]:
        with self._reached():
            return self._schedules.find(names)

    @indexed
    def due(self, now: datetime, limit: int) -> tuple[list[NamedSchedule], datetime | None]:
        with self._reached():
            return self._schedules.due(now, limit)

    def replace_schedule(
        self, before: NamedSchedule | None, after: NamedSchedule | None, jobs: Sequence[Record], now: datetime
    ) -> bool:
        with self._reached():
            return self._schedules.replace(before, after, jobs, now)

    def controls(self) -> Controls:
        with self._reached():
            return self._controls.controls()

    def set_control(self, control: Control) -> None:
        with self._reached():
            self._controls.set(control)

    def clear_control(self, kind: Kind, name: str) -> bool:
        with self._reached():
            return self._controls.clear(kind, name)

    @indexed
    def prune(self, before: Mapping[Status, datetime], events_before: datetime, limit: int) -> int:
        self._event_writer.flush()
        with self._reached():
            return self._retention.prune(before, events_before, limit, self._clock.now())

    def flush(self) -> int:
        self._event_writer.flush()
        return self._retention.flush(self._schedules, self._clock.now, self._reached)

    def record_events(self, events: Sequence[Event]) -> None:
        self._event_writer.flush()
        with self._reached():
            self._event_log.record(events)

    def events(self, cursor: str | None, limit: int = 1000) -> tuple[list[Event], str]:
        self._event_writer.flush()
        with self._reached():
            return self._event_log.since(cursor, limit)

    def events_of(self, id: JobId, since: datetime, limit: int) -> list[Event]:
        self._event_writer.flush()
        with self._reached():
            return self._event_log.of_job(id, since, limit)

    def record_action(self, entry: AuditEntry) -> None:
        with self._reached():
            Audit(self._connection).record(entry)

    def audit(self, limit: int, before: str | None = None) -> list[AuditEntry]:
        with self._reached():
            return Audit(self._connection).entries(limit, before)

    def diagnose(self) -> list[Finding]:
        with self._reached():
            return diagnosis.diagnose(self._connection)

    @indexed
    def disagreeing(self, limit: int) -> Disagreements:
        with self._reached(LOOK_FOR):
            return DerivedFields(self._connection).disagreeing(limit)

    def write_again(self, found: Sequence[Disagreement]) -> int:
        with self._reached(len(found) / ADDED_A_SECOND):
            return DerivedFields(self._connection).write_again(found)

    def bell(self, topic: str) -> Bell:
        check_topic(topic)
        with self._reached():
            return self._bells.keep(self._bell(topic))

    def now(self) -> datetime:
        """Return the time of the server, or of the clock that was given, in whole milliseconds."""
        estimate = self._clock.estimate()
        if estimate is not None:
            return estimate
        with self._reached():
            return self._clock.now()

    def close(self) -> None:
        with ExitStack() as parts:  # each is closed whatever becomes of the others
            parts.callback(self._connection.close)
            parts.callback(self._event_writer.close)
            parts.callback(self._host_bells.close)
            parts.callback(self._bells.close, CLOSE_TIMEOUT)

    def index(self) -> None:
        """Create missing indexes, and end jobs that block the unique one."""
        index_repair.ensure(self._connection.collections, self.url, self.now(), index_repair.UNDER_WAY)

    def _bell(self, topic: str) -> PollBell:
        if not self._rings:
            return PollBell()
        bell = self._streams.bell(topic)
        if topic == WORK:
            self._claims.rely_on(bell)
        return bell

    def _reached(self, longer: float = 0.0) -> AbstractContextManager[None]:
        return reaching(self.url, self._connection.address.timeout + longer, self._connection.log_in_again)

    def _prepare(self) -> tuple[bool, str]:
        """Check the server, create missing indexes, and return whether it has change streams, and its guarantee."""
        with self._reached():
            hello = self._connection.check()
            self._host_bells.place(hello, self._connection.database.name, self._connection.address.prefix)
            self._queries.state_reader.rely_on(hello)
            check_schema(self._connection.collections, self.url)
            self._settlements.shares_entries = hello.get("msg") != "isdbgrid"
        index_repair.ensure_if_allowed(self._connection.collections, self.url, hello["localTime"])
        return is_cluster(hello), guarantee(hello)
