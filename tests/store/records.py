"""What tests of stores begin with: records, holders, and the steps of a job's life at given times."""

from __future__ import annotations

import select
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from bson import ObjectId

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.outcomes import Done, Outcome, Run
from taskqueue.model.lifecycle.settle import ended
from taskqueue.model.query import parse
from taskqueue.model.record import Failure, Holder, Options, Record, Status
from taskqueue.store import Claim, ClaimRequest, Settlement, Store
from taskqueue.store.bell import Bell
from taskqueue.store.queue_shares import STRICT, QueueShares

NOON = datetime(2026, 7, 1, 12, tzinfo=timezone.utc)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
LEASE = timedelta(seconds=30)

WEB_1 = Holder(seat="web-1", incarnation="a1")
WEB_1_AGAIN = Holder(seat="web-1", incarnation="a2")
WEB_2 = Holder(seat="web-2", incarnation="b1")

BROKEN = Failure(type="builtins.ValueError", message="no such address", traceback="…", bases=("builtins.Exception",))

PATIENCE = 30.0
"""Seconds that a test waits for a fact."""


def a_record(**fields: Any) -> Record:
    """Return a WAITING record, ready since noon, with the fields given."""
    given: dict[str, Any] = {"id": ObjectId(), "job": "app:Mail", "created_at": NOON, "ready_at": NOON, **fields}
    return Record(**given).at_rank()


def postponed(until: datetime, **fields: Any) -> Record:
    """Return a record that becomes WAITING at a time."""
    return a_record(status=Status.POSTPONED, ready_at=until, **fields)


def behind(*awaited: JobId, **fields: Any) -> Record:
    """Return a record that waits for other jobs."""
    return a_record(**{"status": Status.POSTPONED, "ready_at": None, "waiting_for": awaited, **fields})


def forced(**fields: Any) -> Record:
    """Return a record that wants a child of its own."""
    return a_record(options=Options(force_spawn=True), **fields)


def claim(
    store: Store,
    count: int = 1,
    *,
    holder: Holder = WEB_1,
    now: datetime = NOON,
    forced: int = 0,
    queues: Mapping[str, int | None] | None = None,
    shares: QueueShares = STRICT,
) -> Claim:
    """Claim up to ``count`` pooled records for a lease from ``now`` on."""
    demand = ClaimRequest(pooled=count, forced=forced, queues=queues or {}, shares=shares)
    return store.claim(holder, demand, now, now + LEASE)


def running(store: Store, record: Record, holder: Holder = WEB_1, now: datetime = NOON) -> Record:
    """Add the record, claim it alone, note its start, and return it as it runs."""
    store.add([record])
    [taken] = claim(store, holder=holder, now=now).records
    assert taken.id == record.id
    return replace(taken, started_at=now)


def settlement(record: Record, outcome: Outcome | None = None, now: datetime = NOON + SECOND) -> Settlement:
    """Return what settles a claimed record with the outcome, DONE without one."""
    assert record.holder is not None
    run = Run(node=record.holder.seat, pid=4711, started_at=record.started_at)
    after = ended(record, outcome or Done(), run, now)
    return Settlement(claims=record.claims, holder=record.holder, after=after)


def settle(store: Store, record: Record, outcome: Outcome | None = None, now: datetime = NOON + SECOND) -> set[JobId]:
    """Settle one claimed record."""
    return store.settle([settlement(record, outcome, now)], now)


def finished(store: Store, record: Record, outcome: Outcome | None = None, now: datetime = NOON + SECOND) -> Record:
    """Add the record, run it to the outcome, and return what is kept of it."""
    settle(store, running(store, record), outcome, now)
    return kept(store, record.id)


def kept(store: Store, id: JobId) -> Record:
    """Return the record of this id."""
    [found] = store.find(parse({"id": id}))
    return found


def all_kept(store: Store) -> list[Record]:
    """Return every record, by id."""
    return store.find(parse({}), limit=100_000)


def ids(records: Sequence[Record]) -> list[JobId]:
    """Return the ids in order."""
    return [record.id for record in records]


def told(store: Store, cursor: str) -> list[str]:
    """Return the names of the events since the cursor."""
    return [event.name for event in store.events(cursor)[0]]


def now_cursor(store: Store) -> str:
    """Return the cursor behind everything that has happened."""
    events, cursor = store.events(None)
    assert events == []
    return cursor


def rings(bell: Bell) -> bool:
    """Wait until the bell rings, and take the ring."""
    readable, _, _ = select.select([bell], [], [], PATIENCE)
    bell.clear()
    return readable == [bell]
