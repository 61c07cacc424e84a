"""Stores leases as rows."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from taskqueue.model.reading import readable
from taskqueue.model.record import Holder
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.store import Lease
from taskqueue.store.bell import CONTROLS
from taskqueue.store.relational.engine import Database
from taskqueue.store.relational.transaction import Transaction

_ALL = "SELECT name, seat, incarnation, since, until, about FROM leases ORDER BY name"
_ONE = "SELECT name, seat, incarnation, since, until, about FROM leases WHERE name = ?"
_PUT = """
INSERT INTO leases (name, seat, incarnation, since, until, about) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE
SET seat = excluded.seat, incarnation = excluded.incarnation, since = excluded.since, until = excluded.until,
    about = excluded.about
"""


def acquire(work: Transaction, lease: Lease, now: datetime) -> Lease:
    """Take or renew the lease if it is free, expired, or this holder's; return the resulting lease."""
    row = work.execute(_ONE, (lease.name,)).fetchone()
    present = None if row is None else next(readable([row], lease_of, "a lease"), None)
    if present is not None and present.holder != lease.holder and present.until > now:
        return present
    since = present.since if present is not None and present.holder == lease.holder else lease.since
    if present is None or present.holder != lease.holder:
        work.topics.add(CONTROLS)
    taken = Lease(name=lease.name, holder=lease.holder, since=since, until=lease.until, about=lease.about)
    work.execute(
        _PUT,
        (
            taken.name,
            taken.holder.seat,
            taken.holder.incarnation,
            milliseconds(taken.since),
            milliseconds(taken.until),
            json.dumps(dict(taken.about), ensure_ascii=False),
        ),
    )
    return taken


def resign(work: Transaction, name: str, holder: Holder) -> None:
    work.execute(
        "DELETE FROM leases WHERE name = ? AND seat = ? AND incarnation = ?", (name, holder.seat, holder.incarnation)
    )


def leases(database: Database) -> list[Lease]:
    """Return all leases that were taken and not resigned."""
    return list(readable(database.execute(_ALL), lease_of, "a lease"))


def lease_of(row: tuple[Any, ...]) -> Lease:
    """Return the lease of a row; raise if it cannot be read."""
    name, seat, incarnation, since, until, text = row
    about = json.loads(text)
    if not isinstance(about, dict):
        raise TypeError("the facts about its holder are not a mapping")
    return Lease(
        name=name,
        holder=Holder(seat=seat, incarnation=incarnation),
        since=moment(since),
        until=moment(until),
        about=about,
    )
