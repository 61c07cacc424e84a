"""The steps of a node, played through its own connection to the store."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.outcomes import Done, Outcome, Run
from taskqueue.model.lifecycle.settle import ended
from taskqueue.model.record import Holder, Record
from taskqueue.store import ClaimRequest, Lease, Note, Settlement, Store

WEB_1 = Holder(seat="web-1", incarnation="a1")
LEASE = timedelta(seconds=30)
LIMIT = 30.0
"""Seconds that a test waits for a fact."""


def take(store: Store, holder: Holder = WEB_1, most: int = 100) -> list[Record]:
    """Claim what is WAITING."""
    now = store.now()
    return list(store.claim(holder, ClaimRequest(pooled=most, forced=most), now, now + LEASE).records)


def begin(store: Store, record: Record, **note: object) -> Record:
    """Note the start of a claimed record, and return it as it runs."""
    assert record.holder is not None
    started_at = store.now()
    store.note(record.holder, {record.id: replace(Note(started_at=started_at), **note)})  # type: ignore[arg-type]
    return replace(record, started_at=started_at)


def end(store: Store, record: Record, outcome: Outcome | None = None) -> set[JobId]:
    """Settle a claimed record with the outcome, DONE without one."""
    assert record.holder is not None
    now = store.now()
    how = "was killed by SIGKILL"
    run = Run(node=record.holder.seat, pid=4711, started_at=record.started_at, exit=how, peak_memory=12 * 2**20)
    after = ended(record, outcome or Done(result='"played"'), run, now)
    return store.settle([Settlement(claims=record.claims, holder=record.holder, after=after)], now)


def play(store: Store, outcome: Outcome | None = None) -> list[JobId]:
    """Take everything that waits to the outcome, and return the ids."""
    return [record.id for record in take(store) if end(store, begin(store, record), outcome)]


def seat(store: Store, name: str, **about: object) -> Lease:
    """Have a node of this name."""
    now = store.now()
    holder = Holder(seat=name, incarnation="a1")
    lease = Lease(name=f"seat:{name}", holder=holder, since=now, until=now + LEASE, about=about)
    return store.acquire(lease, now)
