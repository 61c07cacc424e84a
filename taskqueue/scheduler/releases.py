"""Marks releases, and removes their marks."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from taskqueue.errors import InvalidOption
from taskqueue.insight.releases import KEPT_FOR, PREFIX, Release, releases_of
from taskqueue.model.options import named
from taskqueue.model.schedules import ago
from taskqueue.model.serializer import clipped
from taskqueue.scheduler.controls import user_and_host
from taskqueue.scheduler.failure_states import KEPT_BY
from taskqueue.store import Lease, Store

MOST = 100
"""Maximum number of marks that a store keeps; with one more, the oldest is removed."""

LONGEST_NAME = 64
"""Maximum number of characters of a name."""


def mark(store: Store, name: Any, at: Any, by: str | None) -> Release:
    """Mark a release now, or ``at`` a time before, and return it; if the one before has this name, that one."""
    checked, now = named("release", name, _name), store.now()
    marked_at = now if at is None else named("at", at, lambda given: _passed(given, now))
    before = [release for release in releases_of(store.leases()) if release.at <= marked_at]
    if before and before[-1].name == checked:
        return before[-1]
    release = Release(name=checked, at=marked_at, by=clipped(str(by or user_and_host())))
    store.acquire(Lease(name=release.key, holder=KEPT_BY, since=marked_at, until=marked_at, about=release.about), now)
    marks = sorted((lease for lease in store.leases() if lease.name.startswith(PREFIX)), key=lambda lease: lease.since)
    for number, lease in enumerate(reversed(marks)):
        if number >= MOST or now - lease.since > KEPT_FOR:
            store.resign(lease.name, KEPT_BY)
    return release


def unmark(store: Store, name: Any) -> bool:
    """Remove all marks with this name, and return whether there was one."""
    checked, removed = named("release", name, _name), False
    for lease in store.leases():
        if lease.name.startswith(PREFIX) and lease.about.get("name") == checked:
            store.resign(lease.name, KEPT_BY)
            removed = True
    return removed


def _passed(value: Any, now: datetime) -> datetime:
    """Return a time that a mark can have."""
    is_later = isinstance(value, str) and value.lstrip().startswith("+")
    at = ago(value, now)
    if is_later or not now - KEPT_FOR < at <= now:
        raise InvalidOption(f"pass a time of the last {KEPT_FOR.days} days, or how long ago: '20m'")
    return at


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > LONGEST_NAME or not value.isprintable():
        raise InvalidOption(f"pass the name of a release, 1 to {LONGEST_NAME} printable characters: 'v42'")
    return value.strip()
