"""Reads records in pages: records with given ids, and all records that match a query."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from taskqueue.errors import InvalidQuery, JobNotFound
from taskqueue.model.ids import TEXT_LIMIT, JobId, id_with_class
from taskqueue.model.options.table import HasId
from taskqueue.model.query import EVERYTHING, Compare, Operator, Query, parse
from taskqueue.model.record import Record
from taskqueue.model.shown_text import as_code
from taskqueue.store import Store

_SHORTENED = re.compile(r"(?P<head>[0-9a-f]+)(?:\.\.+|…)(?P<tail>[0-9a-f]+)")

ID_LENGTH = 24
"""The digits of an id."""


Found = TypeVar("Found", bound=HasId)

PAGE = 500
"""The number of records read at once."""

MOST_NAMED = 6
"""Maximum number of jobs that are read if several have the same text as their id."""

LARGEST_PAGE = 1_000_000
"""Maximum number of records that a caller gets in one list."""

LARGEST_OFFSET = 10_000
"""Maximum number of records before a page, since these must be read."""

LAST_LOOK = 1.0
"""Seconds for which a wait still reads after its timeout: a job that ended in time has ended, even before its event
arrives. Jobs that were not read by then count as open, so that a timeout holds for any number of them.
"""


def read(store: Store, ids: Iterable[JobId], stop_at: float | None = None) -> list[Record]:
    """Return the records with these ids, in order and without duplicates; raise ``JobNotFound`` for an unknown id.

    No page but the first is read after ``stop_at`` on the monotonic clock: there may be fewer records than ids.
    """
    all_ids = list(ids)
    records: list[Record] = []
    for start in range(0, len(all_ids), PAGE):
        if start > 0 and stop_at is not None and time.monotonic() >= stop_at:
            break
        page = all_ids[start : start + PAGE]
        records += _all_present(store, page)
    return records


def _all_present(store: Store, ids: Sequence[JobId]) -> list[Record]:
    records = present(store, ids)
    if len(ids) == len(records) == 1:  # a wait for one job, whose id need not be hashed again
        return records
    by_id = {record.id: record for record in records}
    for id in ids:
        if id not in by_id:
            raise JobNotFound(id)
    return [by_id[id] for id in ids]


def present(store: Store, ids: Iterable[JobId]) -> list[Record]:
    """Return the existing records with these ids."""
    unique_ids = list(dict.fromkeys(ids))
    records: list[Record] = []
    for start in range(0, len(unique_ids), PAGE):
        page = tuple(map(str, unique_ids[start : start + PAGE]))
        records += store.find(Compare("id", Operator.IN, page), limit=PAGE)
    return records


def with_id_text(store: Store, written: str) -> Record | None:
    """Return the job whose id the text means, alone or with its class path (``shop:Invoice:invoice-7``).

    None if no job has it; raises ``JobNotFound`` if it is the text of several jobs.
    """
    is_text = len(written) <= TEXT_LIMIT and written.isprintable()
    records = store.find(Compare("id_text", Operator.EQ, written), limit=MOST_NAMED) if is_text else []
    if len(records) > 1:
        named = " or ".join(f"{record.job}:{record.id_text}" for record in records)
        raise JobNotFound(as_code(written), f"it is the id of several jobs, so name the class as well: {named}")
    id = id_with_class(written)
    if not records and id is not None:
        records = present(store, [id])
    return records[0] if records else None


def id_named(store: Store, written: str) -> JobId:
    """Return the id that its digits or its text mean; raise ``JobNotFound``, even if it is the text of several jobs."""
    if JobId.is_valid(written):
        return JobId(written)
    record = with_id_text(store, written)
    if record is None:
        raise JobNotFound(
            as_code(written), "no job has this text as its id, and an id without text has 24 hexadecimal digits"
        )
    return record.id


def ends_of(written: str) -> tuple[str, str] | None:
    """Return the beginning and the end of an id that is written as lists show it; None if it is something else."""
    parts = _SHORTENED.fullmatch(written.strip().lower())
    return (parts["head"], parts["tail"]) if parts and len(parts["head"] + parts["tail"]) <= ID_LENGTH else None


def with_ends(find: Callable[[str, str, int], Sequence[Found]], head: str, tail: str, most: int) -> list[Found]:
    """Return up to ``most`` jobs whose ids start and end like this, and perhaps one more.

    ``find`` returns the first jobs from one id to another. Ids between the two are fixed for one process, so this
    leaps from process to process instead of reading every job.
    """
    jobs: list[Found] = []
    lowest = head
    while len(jobs) <= most:
        first = find(lowest.ljust(ID_LENGTH, "0"), head.ljust(ID_LENGTH, "f"), 1)
        if not first:
            break
        middle = str(first[0].id)[: ID_LENGTH - len(tail)]
        jobs += find(middle + tail, middle + tail, 1)
        if set(middle[len(head) :]) <= {"f"}:
            break
        lowest = f"{int(middle, 16) + 1:0{len(middle)}x}"
    return jobs


def page(
    store: Store, query: Mapping[str, Any] | None, order: str, limit: int, after: object, offset: int
) -> list[Record]:
    """Return up to ``limit`` records that match, in this order, after the job ``after`` and ``offset`` more.

    ``after`` is a handle of a job, or its id.
    """
    if not isinstance(order, str):
        raise InvalidQuery(f"order={as_code(order)}: pass the name of a field, such as 'created_at'")
    if type(limit) is not int or not 0 < limit <= LARGEST_PAGE:
        raise InvalidQuery(f"limit={as_code(limit)}: pass how many jobs to return, from 1 to {LARGEST_PAGE:,}")
    if type(offset) is not int or not 0 <= offset <= LARGEST_OFFSET:
        raise InvalidQuery(
            f"offset={as_code(offset)}: pass how many jobs to leave out, up to {LARGEST_OFFSET:,}; beyond, pass the "
            "last job of the previous page as after=, which is as fast on each page"
        )
    meant = EVERYTHING if query is None else parse(query)
    last = _last(store, after)
    while offset > 0:
        left_out = store.find(meant, order=order, limit=min(offset, PAGE), after=_position(last, order))
        offset -= PAGE
        if not left_out:
            return []
        last = left_out[-1]
    return store.find(meant, order=order, limit=limit, after=_position(last, order))


def _last(store: Store, after: Any) -> Record | None:
    """Return the record of the last job before a page."""
    record: Record | None = getattr(after, "snapshot", None)
    if after is None or record is not None:
        return record
    if not isinstance(after, JobId | str):
        raise InvalidQuery(f"after={as_code(after)}: pass the last job of the previous page, or its id")
    return read(store, [after if isinstance(after, JobId) else id_named(store, after)])[0]


def _position(last: Record | None, order: str) -> tuple[object, JobId] | None:
    return None if last is None else (getattr(last, order.removeprefix("-"), None), last.id)


def matching(store: Store, query: Query, page_size: int = PAGE, order: str = "id") -> Iterator[Record]:
    """Iterate over the matching records in this order, reading as you go."""
    for records in pages(store, query, page_size, order):
        yield from records


def pages(store: Store, query: Query, page_size: int, order: str = "id") -> Iterator[list[Record]]:
    """Iterate over the same records, a page at a time."""
    last: Record | None = None
    while True:
        page = store.find(query, order=order, limit=page_size, after=_position(last, order))
        if page:
            yield page
        if len(page) < page_size:
            return
        last = page[-1]
