"""Computes analytics from a bounded number of rows."""

from __future__ import annotations

from typing import Any

from taskqueue.errors import InvalidOption
from taskqueue.model.analytics import Analytics, Grouping, analytics
from taskqueue.model.schedules import ago
from taskqueue.store import Store

MOST = 10_000_000
"""The most jobs that may be looked at; each takes some memory."""


def figures(store: Store, by: str, since: Any, until: Any, at_most: int) -> Analytics:
    """Return the figures; raise ``InvalidOption`` for a grouping, time or bound that makes no sense."""
    grouping = _grouping(by)
    now = store.now()
    end = now if until is None else ago(until, now)
    begin = ago(since, end)
    if begin >= end:
        raise InvalidOption(f"since={since!r}, until={until!r}: the time that figures are for ends before it begins")
    if isinstance(at_most, bool) or not isinstance(at_most, int) or not 1 <= at_most <= MOST:
        raise InvalidOption(f"at_most={at_most!r}: pass how many jobs may be looked at, from 1 to {MOST:,}")
    samples = store.samples(begin, end, at_most + 1)
    return analytics(samples, grouping, begin, end, at_most, store.present(now))


def _grouping(by: object) -> Grouping:
    try:
        return Grouping(by)
    except ValueError:
        raise InvalidOption(f"by={by!r}: figures are by {', '.join(one.value for one in Grouping)}") from None
