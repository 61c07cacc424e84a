"""Waits for jobs to end: reads them first, then follows new events."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from taskqueue.errors import StoreUnavailable, WaitTimeout
from taskqueue.insight.records import LAST_LOOK, PAGE, present, read
from taskqueue.model.ids import JobId
from taskqueue.model.options import named
from taskqueue.model.query import Compare, Operator
from taskqueue.model.record import Record
from taskqueue.model.schedules.durations import LONGEST, seconds_of
from taskqueue.scheduler.end_listener import Listener, Watch
from taskqueue.scheduler.poll import Steps, patiently
from taskqueue.store import Store

if TYPE_CHECKING:  # few waits are of running jobs
    from taskqueue.scheduler.job_wait import JobWait


LOOKED_AT = 20
"""Maximum number of open jobs whose queues the error of a wait looks at."""


def ends(
    store: Store,
    listener: Listener,
    ids: Collection[JobId],
    timeout: float | None,
    silence: object | None = None,
    job_wait: JobWait | None = None,
) -> Generator[Record, None, None]:
    """Yield the record of each job once it has ended; raise ``WaitTimeout`` after ``timeout`` seconds.

    ``silence`` is that of the listener in which all of them were added, ``job_wait`` watches the wait of a running job.
    Raises ``JobNotFound`` for a job that the store does not, or no longer, have.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    open_ids = dict.fromkeys(ids)  # least recently read first
    watch = Watch(set(open_ids))
    try:
        may_have_ended = listener.patiently(partial(listener.admit, watch, silence), deadline)
        look_at = [*open_ids] if may_have_ended else [*(listener.take(watch, deadline, job_wait) & open_ids.keys())]
        while True:
            if job_wait is not None:
                job_wait.look(open_ids)
            is_over = deadline is not None and time.monotonic() >= deadline
            if is_over:
                look_at = [*open_ids]
            stop_at = time.monotonic() + LAST_LOOK if is_over else deadline
            records = listener.patiently(partial(_known_or_read, store, watch, look_at, stop_at), deadline)
            for record in records:
                del open_ids[record.id]
                if record.status.is_final:
                    yield record
                else:
                    open_ids[record.id] = None
            if not open_ids:
                return
            if is_over and timeout is not None:
                still_open = [id for id in ids if id in open_ids]
                raise timed_out(store, still_open, timeout, len(look_at) - len(records))
            look_at = [*(listener.take(watch, deadline, job_wait) & open_ids.keys())]
    finally:
        listener.dismiss(watch)


def timed_out(store: Store, open_ids: Sequence[JobId], timeout: float, unread: int = 0) -> WaitTimeout:
    """Return the error of a wait that ended before these jobs; it says which nodes take the first of them."""
    nodes = ""
    if timeout:  # who only looks may look often
        from taskqueue.insight import why  # few waits end so

        with suppress(StoreUnavailable):
            nodes = why.nodes_for(store, present(store, open_ids[:LOOKED_AT]))
    return WaitTimeout(open_ids, timeout, unread, store.url, nodes)


def of_running_job(store: Store, ids: Collection[JobId]) -> JobWait | None:
    """Return the watch over a wait for these jobs that starts now, None outside of jobs; raise ``WaitDeadlock``."""
    from taskqueue.scheduler import job_wait  # few waits are of running jobs

    return job_wait.of_running_job(store, ids)


def _known_or_read(store: Store, watch: Watch, ids: Collection[JobId], stop_at: float | None) -> list[Record]:
    """Return the records of these jobs: from rings, and of the others as many as ``read`` reads."""
    if not watch.noticed:
        return read(store, ids, stop_at)
    noticed = [watch.noticed[id] for id in ids if id in watch.noticed]
    if len(noticed) == len(ids):
        return noticed
    return noticed + read(store, [id for id in ids if id not in watch.noticed], stop_at)


def followed(
    store: Store, listener: Listener, changes: deque[tuple[Collection[JobId], bool]]
) -> Steps[Mapping[JobId, Record | None]]:
    """Yield the records of watched jobs whenever they may have ended, None for an unknown one; for an event loop.

    Jobs are watched from ``(ids, True)`` in ``changes`` on to ``(ids, False)``; a change is seen when the poll ends and
    between two pages.
    """
    watch = Watch(set())
    look_at: dict[JobId, None] = {}
    try:
        yield from patiently(partial(listener.admit, watch), None, listener.refuse_if_closed)
        while True:
            added, gone = _drained(changes)
            if added or gone:
                change = partial(listener.change, watch, added, gone)
                yield from patiently(change, None, listener.refuse_if_closed)
                for id in gone:
                    look_at.pop(id, None)
            if watch.fresh or not look_at:
                look_at.update(dict.fromkeys((yield from listener.possible_ends(watch))))
            page = [look_at.popitem()[0] for _ in range(min(len(look_at), PAGE))]  # new waits before the rest of others
            noticed, watch.noticed = watch.noticed, {}
            found: dict[JobId, Record | None] = {id: noticed.get(id) for id in page}
            unread = tuple(str(id) for id in page if id not in noticed)
            if unread:
                of_page = partial(store.find, Compare("id", Operator.IN, unread), limit=PAGE)
                records = yield from patiently(of_page, None, listener.refuse_if_closed)
                found.update((record.id, record) for record in records)
            yield found
    finally:
        listener.dismiss(watch)


def _drained(changes: deque[tuple[Collection[JobId], bool]]) -> tuple[set[JobId], set[JobId]]:
    """Return the jobs to start watching, and the jobs to stop watching."""
    added: set[JobId] = set()
    gone: set[JobId] = set()
    while changes:
        ids, is_watched = changes.popleft()
        now, before = (added, gone) if is_watched else (gone, added)
        now.update(ids)
        before.difference_update(ids)
    return added, gone


def timeout_of(name: str, value: Any) -> float | None:
    """Return the seconds of a number, a timedelta or ``"5m"``, None for no end, which infinity is too.

    Raises ``InvalidOption``, even for -1, which means "no end" elsewhere and "at once" for an interval.
    """
    if value is None or value == math.inf:
        return None
    if type(value) is float and 0 <= value <= LONGEST:
        return value
    seconds: float = named(name, value, seconds_of)
    return seconds
