"""The store on MongoDB: every promise of the boundary, handed to the part that keeps it, within a deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

from pymongo.database import Database

from taskqueue.model.analytics import Present, Sample
from taskqueue.model.controls import Control, Controls, Kind
from taskqueue.model.ids import JobId
from taskqueue.model.query import Query
from taskqueue.model.record import Holder, Record, Status
from taskqueue.model.schedules.schedule import NamedSchedule
from taskqueue.store import (
    CONTROLS,
    ENDS,
    NEWS,
    PLANS,
    STOPS,
    WORK,
    Bell,
    Claim,
    ClaimRequest,
    Event,
    Lease,
    Note,
    Renewal,
    Settlement,
    Store,
)
from taskqueue.store.mongodb import analytics, index_repair
from taskqueue.store.mongodb.bells import PollBell
from taskqueue.store.mongodb.caller_transaction import Enlisted
from taskqueue.store.mongodb.change_streams import ChangeStreams
from taskqueue.store.mongodb.claims import FORESIGHT, Claims
from taskqueue.store.mongodb.clock import Clock
from taskqueue.store.mongodb.connection import FAREWELL, Connection, guarantee, is_cluster
from taskqueue.store.mongodb.controls import StoredControls
from taskqueue.store.mongodb.driver_errors import deadline_of, reaching
from taskqueue.store.mongodb.event_writer import EventWriter
from taskqueue.store.mongodb.events import EventLog
from taskqueue.store.mongodb.index_repair import indexed
from taskqueue.store.mongodb.inserts import Inserts
from taskqueue.store.mongodb.leases import Leases
from taskqueue.store.mongodb.limits import LimitSlots
from taskqueue.store.mongodb.migration import check_schema
from taskqueue.store.mongodb.outbox import Outbox
from taskqueue.store.mongodb.queries import Queries
from taskqueue.store.mongodb.renewals import Renewals
from taskqueue.store.mongodb.retention import Retention
from taskqueue.store.mongodb.schedules import Schedules
from taskqueue.store.mongodb.settlements import Settlements
from taskqueue.store.mongodb.updates import Updates
from taskqueue.store.mongodb.url import PREFIX, MongoUrl, checked_prefix, parse

TOPICS = (WORK, STOPS, PLANS, CONTROLS, NEWS, ENDS)


def open_mongodb(where: str | Database[Any], prefix: str = PREFIX) -> Store:
    """Return the store at a URL, or in a database of the caller's client, which stays the caller's to close.

    Collections are named ``prefix`` and a noun; in a URL it is the option ``taskqueue.prefix=NAME_``. Raises
    ``ConfigError`` for a URL that cannot be read, ``StoreUnavailable`` without an answer, and ``SchemaMismatch``.
    """
    if isinstance(where, str):
        return MongoStore(Connection(parse(where)))
    return MongoStore(Connection(MongoUrl.of_database(where, checked_prefix(prefix)), where))


class MongoStore:
    """A replica set, or a single server, as a store; safe in several threads, and after a fork in its child.

    See ``taskqueue.store.Store`` for what each method promises.
    """

    def __init__(self, connection: Connection) -> None:
        self.url = connection.address.shown
        self.foresight = FORESIGHT
        self._connection = connection
        self._bells: list[tuple[int, PollBell]] = []
        self._streams = ChangeStreams(connection)
        self._clock = Clock(connection.time)
        self._news = EventLog(connection)
        self._telling = EventWriter(connection, self._news)
        self._slots = LimitSlots(connection)
        self._consequences = Outbox(connection, self._telling, self._slots)
        self._swaps = Settlements(connection, self._consequences)
        self._updates = Updates(connection, self._swaps)
        self._additions = Inserts(connection, self._swaps, self._telling, self.index)
        self._controlling = StoredControls(connection)
        self._claims = Claims(connection, self._swaps, self._telling, self._slots, self._controlling)
        self._holdings = Renewals(connection, self._telling, self._slots)
        self._leases = Leases(connection)
        self._pages = Queries(connection)
        self._planning = Schedules(connection, self._additions)
        self._retention = Retention(connection, self._news, self._slots)
        try:
            self._rings, self.guarantee = self._prepare()
        except BaseException:
            connection.close()
            raise

    def add(self, records: Sequence[Record]) -> list[Record]:
        if not records:
            return []
        with reaching(self.url, deadline_of(len(records))):
            return self._additions.add(records)

    def within(self, session: Any) -> Enlisted:
        """Return what adds within the open transaction of a client session; raises ``InvalidOption`` for any other."""
        with self._reached():
            return Enlisted(self._connection, session)

    @indexed
    def alike(self, new: Record, ignore_data: bool) -> list[Record]:
        with self._reached():
            return self._additions.alike(new, ignore_data)

    def replace(self, new: Record, old: Record, cancel_running: str | None, now: datetime) -> Record | None:
        with self._reached():
            return self._additions.replace(new, old, cancel_running, now)

    def find(
        self, query: Query, *, order: str = "id", limit: int = 100, after: tuple[object, JobId] | None = None
    ) -> list[Record]:
        with self._reached():
            return self._pages.find(query, order, limit, after)

    def count(self, query: Query) -> int:
        with self._reached():
            return self._pages.count(query)

    @indexed
    def tally(self) -> Mapping[tuple[str, Status], int]:
        with self._reached():
            return self._pages.tally()

    def present(self, now: datetime) -> Present:
        with self._reached():
            return self._pages.present(now)

    @indexed
    def samples(self, since: datetime, until: datetime, limit: int) -> Sequence[Sample]:
        with self._reached():
            return analytics.samples(self._connection, since, until, limit)

    @indexed
    def cancel(self, id: JobId, reason: str, now: datetime) -> Record | None:
        with self._reached():
            return self._swaps.cancel(id, reason, now)

    @indexed
    def update(self, before: Record, after: Record, now: datetime) -> bool:
        with self._reached():
            return self._updates.update(before, after, now)

    @indexed
    def claim(self, holder: Holder, wanted: ClaimRequest, now: datetime, until: datetime) -> Claim:
        with self._reached():
            return self._claims.claim(holder, wanted, now, until)

    @indexed
    def claim_one(self, id: JobId, holder: Holder, now: datetime, until: datetime) -> Record | None:
        with self._reached():
            return self._claims.claim_one(id, holder, now, until)

    @indexed
    def renew(self, holder: Holder, until: datetime, notes: Mapping[JobId, Note]) -> Renewal:
        with self._reached():
            return self._holdings.renew(holder, until, notes)

    def note(self, holder: Holder, notes: Mapping[JobId, Note]) -> None:
        with self._reached():
            self._holdings.note(holder, notes)

    def settle(self, settlements: Sequence[Settlement], now: datetime) -> set[JobId]:
        if not settlements:
            return set()
        with self._reached():
            return self._swaps.settle(settlements, now)

    @indexed
    def expired(self, now: datetime, limit: int) -> list[Record]:
        with self._reached():
            return self._holdings.expired(now, limit)

    @indexed
    def abandoned(self, seat: str, incarnation: str, limit: int) -> list[Record]:
        with self._reached():
            return self._holdings.abandoned(seat, incarnation, limit)

    def acquire(self, lease: Lease, now: datetime) -> Lease:
        with self._reached():
            return self._leases.acquire(lease, now)

    def resign(self, name: str, holder: Holder) -> None:
        with self._reached():
            self._leases.resign(name, holder)

    @indexed
    def held(self, keys: Sequence[str], now: datetime) -> Mapping[str, int]:
        with self._reached():
            return self._slots.held(keys, now)

    def leases(self) -> list[Lease]:
        with self._reached():
            return self._leases.all()

    def mend(self, now: datetime) -> int:
        self._telling.finish()
        self.index()
        with self._reached():
            repaired = self._consequences.mend(now) + self._planning.mend(now)
        self._telling.finish()
        return repaired

    def plans(self, names: Collection[str] | None = None) -> list[NamedSchedule]:
        with self._reached():
            return self._planning.plans(names)

    @indexed
    def due(self, now: datetime, limit: int) -> tuple[list[NamedSchedule], datetime | None]:
        with self._reached():
            return self._planning.due(now, limit)

    def plan(
        self, before: NamedSchedule | None, after: NamedSchedule | None, jobs: Sequence[Record], now: datetime
    ) -> bool:
        with self._reached():
            return self._planning.plan(before, after, jobs, now)

    def controls(self) -> Controls:
        with self._reached():
            return self._controlling.controls()

    def impose(self, control: Control) -> None:
        with self._reached():
            self._controlling.impose(control)

    def lift(self, kind: Kind, name: str) -> bool:
        with self._reached():
            return self._controlling.lift(kind, name)

    @indexed
    def prune(self, before: Mapping[Status, datetime], events_before: datetime, limit: int) -> int:
        self._telling.finish()
        with self._reached():
            return self._retention.prune(before, events_before, limit)

    def flush(self) -> int:
        self._telling.finish()
        removed, last = self._flush_some(None)
        while last is not None:
            gone, last = self._flush_some(last)
            removed += gone
        with self._reached():
            now = self._clock.now()
            self._retention.forget(now)
            self._planning.go_on(now)
        return removed

    def _flush_some(self, behind: JobId | None) -> tuple[int, JobId | None]:
        with self._reached():
            return self._retention.flush_some(behind)

    def tell(self, events: Sequence[Event]) -> None:
        self._telling.finish()
        with self._reached():
            self._news.tell(events)

    def events(self, cursor: str | None, limit: int = 1000) -> tuple[list[Event], str]:
        self._telling.finish()
        with self._reached():
            return self._news.since(cursor, limit)

    def bell(self, topic: str) -> Bell:
        if topic not in TOPICS:
            raise ValueError(f"there is no topic {topic!r}: use {', '.join(map(repr, TOPICS))}")
        with self._reached():
            bell = self._bell(topic)
        self._bells = [(pid, known) for pid, known in self._bells if pid == os.getpid() and not known.is_over]
        self._bells.append((os.getpid(), bell))
        return bell

    def now(self) -> datetime:
        """Return the server's time, in whole milliseconds."""
        estimate = self._clock.estimate()
        if estimate is not None:
            return estimate
        with self._reached():
            return self._clock.now()

    def close(self) -> None:
        own = [bell for pid, bell in self._bells if pid == os.getpid()]
        for bell in own:
            bell.close()
        patience = time.monotonic() + FAREWELL
        for bell in own:
            bell.join(max(0.0, patience - time.monotonic()))
        self._bells.clear()
        try:
            self._telling.close()
        finally:
            self._connection.close()

    def index(self) -> None:
        """Make the indexes that are missing, and end what stands in the way of the unique one."""
        index_repair.ensure(self._connection.collections, self.url, self.now(), index_repair.UNDER_WAY)

    def _bell(self, topic: str) -> PollBell:
        if not self._rings:
            return PollBell()
        bell = self._streams.bell(topic)
        if topic == WORK:
            self._claims.heed(bell)
        return bell

    def _reached(self) -> AbstractContextManager[None]:
        return reaching(self.url)

    def _prepare(self) -> tuple[bool, str]:
        """Check the server, create what is missing, and return whether it rings and what it guarantees."""
        with self._reached():
            hello = self._connection.check()
            collections = self._connection.collections
            check_schema(collections, self.url)
        index_repair.ensure(collections, self.url, hello["localTime"])
        return is_cluster(hello), guarantee(hello)
