"""Implements the store on MongoDB: passes each call to its part, within a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, TypeVar

import pymongo
from pymongo.errors import PyMongoError

from taskqueue.model.record import Record, Status
from taskqueue.store import Disagreement, Disagreements
from taskqueue.store.arguments import check_topic
from taskqueue.store.bell import WORK, Bell
from taskqueue.store.fan_out import OpenBells, PollBell
from taskqueue.store.mongodb import analytics, derived_fields, diagnosis, index_repair
from taskqueue.store.mongodb import audit as stored_audit
from taskqueue.store.mongodb import leases as stored_leases
from taskqueue.store.mongodb import log_lines as stored_log_lines
from taskqueue.store.mongodb.background_writer import EventWriter
from taskqueue.store.mongodb.bells import HostBells
from taskqueue.store.mongodb.caller_transaction import SessionInserts
from taskqueue.store.mongodb.change_streams import ChangeStreams
from taskqueue.store.mongodb.claims import EARLY_BY, Claims
from taskqueue.store.mongodb.connection import CLOSE_TIMEOUT, Connection, guarantee, is_cluster
from taskqueue.store.mongodb.controls import StoredControls
from taskqueue.store.mongodb.driver_errors import ADDED_A_SECOND, reaching
from taskqueue.store.mongodb.effects import Effects
from taskqueue.store.mongodb.events import EventLog
from taskqueue.store.mongodb.history import History
from taskqueue.store.mongodb.index_repair import indexed
from taskqueue.store.mongodb.inserts import Inserts
from taskqueue.store.mongodb.limits import LimitUse
from taskqueue.store.mongodb.migration import check_schema
from taskqueue.store.mongodb.queries import Queries
from taskqueue.store.mongodb.renewals import Renewals
from taskqueue.store.mongodb.retention import Retention
from taskqueue.store.mongodb.schedules import Schedules
from taskqueue.store.mongodb.settlements import Settlements
from taskqueue.store.server_clock import ESTIMATE_FOR, ServerClock

Given = ParamSpec("Given")
Returned = TypeVar("Returned")

INDEX_EVERY = 60.0
"""Seconds between two checks by ``repair`` that all indexes exist; a call that misses one creates it at once."""


def _part(
    name: str, method: Callable[Concatenate[Any, Given], Returned], *, is_flushed: bool = False
) -> Callable[Concatenate[MongoStore, Given], Returned]:
    """Return a method of the store that calls the one of its part within the deadline of the store.

    If ``is_flushed``, the events of this process are written first.
    """

    def call(store: MongoStore, /, *args: Given.args, **kwargs: Given.kwargs) -> Returned:
        if is_flushed:
            store._event_writer.flush()  # noqa: SLF001 - of this file
        with store._reached():  # noqa: SLF001
            return method(getattr(store, name), *args, **kwargs)

    return call


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
        self._effects = Effects(connection, self._event_writer, self._limit_use)
        self._settlements = Settlements(connection, self._effects, self._host_bells)
        self._inserts = Inserts(connection, self._settlements, self._event_writer, self.index)
        self._controls = StoredControls(connection)
        self._claims = Claims(connection, self._settlements, self._event_writer, self._limit_use, self._controls)
        self._renewals = Renewals(connection, self._event_writer, self._limit_use)
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

    alike = indexed(_part("_inserts", Inserts.alike))
    replace = _part("_inserts", Inserts.replace)
    find = _part("_queries", Queries.find)
    count = _part("_queries", Queries.count)
    tally = indexed(_part("_queries", Queries.tally))
    time_after = indexed(_part("_queries", Queries.time_after))
    waiting_since = indexed(_part("_queries", Queries.waiting_since))
    waiting_lanes = indexed(_part("_queries", Queries.waiting_lanes))
    history = indexed(_part("_history", History.read, is_flushed=True))
    present = _part("_queries", Queries.present)
    postponed = indexed(_part("_queries", Queries.postponed))
    workflows = indexed(_part("_queries", Queries.workflows))
    samples = indexed(_part("_connection", analytics.samples))
    cancel = indexed(_part("_settlements", Settlements.cancel))
    cancel_many = _part("_settlements", Settlements.cancel_many)
    update = indexed(_part("_settlements", Settlements.update))
    claim = indexed(_part("_claims", Claims.claim))
    claim_one = indexed(_part("_claims", Claims.claim_one))
    renew = indexed(_part("_renewals", Renewals.renew))
    note = _part("_renewals", Renewals.note)
    settle = _part("_settlements", Settlements.settle)
    expired = indexed(_part("_renewals", Renewals.expired))
    orphaned = indexed(_part("_renewals", Renewals.orphaned))
    held = indexed(_part("_renewals", Renewals.held))
    holders = indexed(_part("_renewals", Renewals.holders))
    acquire = _part("_connection", stored_leases.acquire)
    resign = _part("_connection", stored_leases.resign)
    log_lines = _part("_connection", stored_log_lines.of_job)
    limit_usage = indexed(_part("_limit_use", LimitUse.usage))
    rate_ends = indexed(_part("_limit_use", LimitUse.rate_ends))
    leases = _part("_connection", stored_leases.leases)
    schedules = _part("_schedules", Schedules.find)
    due = indexed(_part("_schedules", Schedules.due))
    replace_schedule = _part("_schedules", Schedules.replace)
    controls = _part("_controls", StoredControls.controls)
    set_control = _part("_controls", StoredControls.set)
    clear_control = _part("_controls", StoredControls.clear)
    record_events = _part("_event_log", EventLog.record, is_flushed=True)
    events = _part("_event_log", EventLog.since, is_flushed=True)
    cursor_at = _part("_event_log", EventLog.cursor_at, is_flushed=True)
    events_of = _part("_event_log", EventLog.of_job, is_flushed=True)
    record_action = _part("_connection", stored_audit.record)
    audit = _part("_connection", stored_audit.entries)
    diagnose = _part("_connection", diagnosis.diagnose)
    strains = _part("_connection", diagnosis.strains)

    def add(self, records: Sequence[Record]) -> list[Record]:
        with self._reached(len(records) / ADDED_A_SECOND):
            return self._inserts.add(records)

    def within(self, session: Any) -> SessionInserts:
        """Return an adder for the open transaction of a client session; raises ``InvalidOption`` if it has none."""
        with self._reached():
            return SessionInserts(self._connection, session)

    def repair(self, now: datetime) -> int:
        self._event_writer.flush()
        if time.monotonic() >= self._index_at:
            self._index_at = time.monotonic() + INDEX_EVERY
            self.index()
        with self._reached():
            repaired = self._effects.repair(now) + self._schedules.repair(now)
        self._event_writer.flush()
        return repaired

    @indexed
    def prune(self, before: Mapping[Status, datetime], events_before: datetime, limit: int) -> int:
        self._event_writer.flush()
        with self._reached():
            return self._retention.prune(before, events_before, limit, self._clock.now())

    @indexed
    def tidy_history(self, now: datetime, limit: int) -> bool:
        with self._reached():
            return self._queries.store_count(now) or self._history.tidy(now, limit)

    def flush(self) -> int:
        self._event_writer.flush()
        return self._retention.flush(self._schedules, self._clock.now, self._reached)

    @indexed
    def disagreeing(self, limit: int) -> Disagreements:
        with self._reached(derived_fields.LOOK_FOR):
            return derived_fields.disagreeing(self._connection, limit)

    def write_again(self, found: Sequence[Disagreement]) -> int:
        with self._reached(len(found) / ADDED_A_SECOND):
            return derived_fields.write_again(self._connection, found)

    def bell(self, topic: str) -> Bell:
        check_topic(topic)
        with self._reached():
            return self._bells.keep(self._bell(topic))

    def now(self) -> datetime:
        """Return the time of the server, or of the clock passed to the store, in whole milliseconds."""
        estimate = self._clock.estimate()
        if estimate is not None:
            return estimate
        with self._reached():
            return self._clock.now()

    def close(self) -> None:
        with ExitStack() as parts:  # each is closed, whatever happens to the others
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
