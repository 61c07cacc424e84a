"""Waits for jobs to end: reads them first, then follows new events."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from taskqueue.errors import WaitTimeout
from taskqueue.model.ids import JobId
from taskqueue.model.options import named
from taskqueue.model.query import Compare, Operator
from taskqueue.model.record import Record
from taskqueue.model.schedules.durations import LONGEST, seconds_of
from taskqueue.scheduler.end_listener import Listener, Watch
from taskqueue.scheduler.poll import Steps, patiently
from taskqueue.scheduler.records import PAGE, read
from taskqueue.store import Store


def ends(
    store: Store, listener: Listener, ids: Collection[JobId], timeout: float | None, silence: object | None = None
) -> Generator[Record, None, None]:
    """Yield the record of each job once it has ended; raise ``WaitTimeout`` after ``timeout`` seconds.

    ``silence`` is that of the listener in which all of them were added.
    Raises ``JobNotFound`` for a job that the store does not, or no longer, have.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    watch = Watch(set(ids))
    try:
        open_ids = set(ids)
        may_have_ended = listener.patiently(partial(listener.admit, watch, silence), deadline)
        look_at: Collection[JobId] = ids if may_have_ended else listener.take(watch, deadline) & open_ids
        while True:
            is_over = deadline is not None and time.monotonic() >= deadline
            if is_over:  # a job that ended in time has ended, even before its event arrives
                look_at = [id for id in ids if id in open_ids]
            for record in listener.patiently(partial(_known_or_read, store, watch, look_at), deadline):
                if record.status.is_final:
                    open_ids.discard(record.id)
                    yield record
            if not open_ids:
                return
            if is_over and timeout is not None:
                raise WaitTimeout([id for id in ids if id in open_ids], timeout)
            look_at = listener.take(watch, deadline) & open_ids
    finally:
        listener.dismiss(watch)


def _known_or_read(store: Store, watch: Watch, ids: Collection[JobId]) -> list[Record]:
    """Return the records of these jobs: what rings have told, and the others as they are now."""
    noticed = [watch.noticed[id] for id in ids if id in watch.noticed]
    return noticed if len(noticed) == len(ids) else noticed + read(store, [id for id in ids if id not in watch.noticed])


def followed(
    store: Store, listener: Listener, changes: deque[tuple[JobId, bool]]
) -> Steps[Mapping[JobId, Record | None]]:
    """Yield the records of watched jobs whenever they may have ended, None for an unknown one; for an event loop.

    A job is watched from ``(id, True)`` in ``changes`` on to ``(id, False)``; a change is seen when the poll ends.
    """
    watch = Watch(set())
    try:
        yield from patiently(partial(listener.admit, watch), None, listener.refuse_if_closed)
        while True:
            added, gone = _drained(changes)
            if added or gone:
                change = partial(listener.change, watch, added, gone)
                yield from patiently(change, None, listener.refuse_if_closed)
            look_at = yield from listener.possible_ends(watch)
            found: dict[JobId, Record | None] = dict.fromkeys(look_at)
            noticed, watch.noticed = watch.noticed, {}
            found.update((id, noticed[id]) for id in look_at & noticed.keys())
            for page in _pages(look_at - noticed.keys()):
                of_page = partial(store.find, Compare("id", Operator.IN, tuple(map(str, page))), limit=PAGE)
                records = yield from patiently(of_page, None, listener.refuse_if_closed)
                found.update((record.id, record) for record in records)
            yield found
    finally:
        listener.dismiss(watch)


def _drained(changes: deque[tuple[JobId, bool]]) -> tuple[set[JobId], set[JobId]]:
    """Return the jobs to watch from now on, and those to watch no more."""
    last: dict[JobId, bool] = {}
    while changes:
        id, is_watched = changes.popleft()
        last[id] = is_watched
    added = {id for id, is_watched in last.items() if is_watched}
    return added, last.keys() - added


def _pages(ids: Iterable[JobId]) -> Iterator[list[JobId]]:
    wanted = list(dict.fromkeys(ids))
    return (wanted[start : start + PAGE] for start in range(0, len(wanted), PAGE))


def timeout_of(name: str, value: Any) -> float | None:
    """Return the seconds of a number, a timedelta or ``"5m"``, None for no end, which infinity is too.

    Raises ``InvalidOption``, also for -1: what means "no end" elsewhere, and "at once" for an interval, is a slip here.
    """
    if value is None or value == math.inf:
        return None
    if type(value) is float and 0 <= value <= LONGEST:
        return value
    seconds: float = named(name, value, seconds_of)
    return seconds
