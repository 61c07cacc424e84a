"""Builds the row of a new job, and reads rows back: plain ones at once, damaged ones field by field."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable
from dataclasses import fields
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from bson import ObjectId

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.recovered_copy import ORIGIN
from taskqueue.model.reading import damaged_record, readable, text
from taskqueue.model.record import Cause, Holder, Record, Status, is_rank
from taskqueue.model.serializer import dumps
from taskqueue.model.timestamps import EPOCH, milliseconds, moment
from taskqueue.model.unique_period import PERIOD
from taskqueue.store.relational.columns import (
    ALL_COLUMNS,
    ALL_NAMES,
    GROUPS,
    JOBS,
    NAMES,
    Row,
    given_of,
    instant,
    options_of,
    options_text,
    row,
)

INSERT = f"INSERT INTO jobs ({ALL_COLUMNS}) VALUES ({', '.join('?' * len(ALL_NAMES))}) ON CONFLICT DO NOTHING"

_SHARED = (
    "status", "cause", "queue", "forced", "rank", "ready_at", "priority", "created_at", "expires_at", "unique_key",
    "job", "options", "given", "tags",
)  # fmt: skip
_CREATED_AT = _SHARED.index("created_at")
_SHORT = (*_SHARED, "id", "data")
_ONE = f"({', '.join('?' * len(_SHORT))})"
INSERT_SHORTS = {
    size: f"INSERT INTO jobs ({', '.join(_SHORT)}) VALUES {', '.join([_ONE] * size)} ON CONFLICT DO NOTHING"
    for size in GROUPS
}
INSERT_SHORT = INSERT_SHORTS[1]
"""Inserts a plain new job: only sixteen of forty columns, since every bound value costs time."""

INSERT_ALIKE = {
    size: INSERT_SHORT
    if size == 1
    else f"INSERT INTO jobs ({', '.join(_SHORT)}) SELECT {', '.join('?' * len(_SHARED))}, column1, column2 "
    f"FROM (VALUES {', '.join(['(?, ?)'] * size)}) AS new WHERE true ON CONFLICT DO NOTHING"
    for size in GROUPS
}
"""Inserts plain new jobs that differ in id and data alone: 1.9 us for each in a group of 50, instead of 3.2."""

_SAID = {column.field or column.name for column in JOBS if column.name in _SHORT}
_others = itemgetter(*(field.name for field in fields(Record) if field.name not in _SAID))
_AS_NEW = {**vars(Record(id=JobId(), job="", created_at=EPOCH, ready_at=None))}
_UNTOUCHED = _others(_AS_NEW)
_but_own = itemgetter(*(field.name for field in fields(Record) if field.name not in ("id", "data")))

_FIRST = NAMES.index("data") + 1
"""How many columns every job fills; the others are empty for most claimed jobs."""
_MORE = [(column.field or column.name, column.read) for column in JOBS[_FIRST:] if column.read is not None]
_EMPTY = row(Record(id=JobId(), job="", created_at=EPOCH, ready_at=None))[_FIRST:]

_plain = itemgetter(*map(NAMES.index, ("queue", "rank", "claims", "failures", "crashes", "priority", "job", "data")))
_PLAIN = (str, int, int, int, int, int, str, str)
_STATUSES = tuple(Status)
_CAUSES = {cause.value: cause for cause in Cause}


class AlikeRows(NamedTuple):
    """Rows of plain new jobs that differ in id and data alone."""

    shared: Row
    """The values of the other columns of ``INSERT_SHORT``."""
    own: list[tuple[str, str]]
    """The id and the data of each job."""
    status: Status
    queue: str
    created_at: int
    """The time when they were added, in milliseconds since 1970."""


def short_rows(records: Iterable[Record]) -> list[AlikeRows] | None:
    """Return the rows of these records in their order, like ones together; None if one needs other columns."""
    groups: list[AlikeRows] = []
    own: list[tuple[str, str]] = []
    first, shown = _AS_NEW, None
    for record in records:
        fields = record.__dict__
        # Equal options and what was given may still differ in their texts: 1 and True are equal.
        is_alike = fields["options"] is first["options"] and fields["given"] is first["given"]
        if is_alike:
            shown = shown or _but_own(first)
            is_alike = _but_own(fields) == shown
        if not is_alike:
            shared = _shared(record)
            if shared is None:
                return None
            first, shown, own = fields, None, []
            groups.append(AlikeRows(shared, own, record.status, record.queue, shared[_CREATED_AT]))
        own.append((str(fields["id"]), fields["data"]))
    return groups


def short_row(record: Record) -> Row | None:
    """Return the values for ``INSERT_SHORT``; None if the record needs other columns."""
    shared = _shared(record)
    return None if shared is None else (*shared, str(record.id), record.data)


def _shared(record: Record) -> Row | None:
    """Return the values of a short row but for id and data, at a cost that every add pays; None if it has others."""
    given = record.given
    if _others(record.__dict__) != _UNTOUCHED or (given and (PERIOD in given or ORIGIN in given)):
        return None
    created_at = milliseconds(record.created_at)
    options = record.options
    return (
        int(record.status),
        str.__str__(record.cause),  # the value of a text enumeration, saving two calls
        record.queue,
        int(options.force_spawn),
        record.rank,
        created_at if record.ready_at is record.created_at else instant(record.ready_at),
        record.priority,
        created_at,
        None if record.expires_at is None else milliseconds(record.expires_at),
        record.unique,
        record.job,
        options_text(options),
        dumps(given) if given else None,
        dumps(record.tags) if record.tags else None,
    )


def record(row: Row) -> Record:
    """Return the record of a row with ``COLUMNS``; a damaged row gives its readable fields and ``damage``.

    A frozen dataclass sets its fields one by one; a claim of many records is built at once instead.
    """
    try:
        return _record(row)
    except Exception:
        return _damaged(row)


def records_of(rows: Iterable[Row]) -> list[Record]:
    """Return the records of these rows, in order, without those whose id cannot be read."""
    rows = list(rows)
    try:
        return list(map(_record, rows))
    except Exception:
        return list(readable(rows, record, "a job with the row"))


def _record(row: Row) -> Record:
    (id, status, cause, queue, _, rank, ready_at, seat, incarnation, claims, failures, crashes, priority, created_at,
     job, options, given, data) = row[:_FIRST]  # fmt: skip
    if tuple(map(type, _plain(row))) != _PLAIN or not is_rank(rank, priority):
        raise TypeError("a field is not of the type that it was written with")
    more = row[_FIRST:]
    fields = _AS_NEW.copy()  # and one by one: a display with ** takes three times as long
    if more != _EMPTY:
        fields.update(_more(more))
    fields["id"] = ObjectId(id)
    fields["status"] = _STATUSES[status]
    fields["cause"] = _CAUSES[cause]
    fields["queue"] = queue
    fields["rank"] = rank
    fields["ready_at"] = None if ready_at is None else moment(ready_at)
    fields["holder"] = None if seat is None else _holder(seat, incarnation)
    fields["claims"] = claims
    fields["failures"] = failures
    fields["crashes"] = crashes
    fields["priority"] = priority
    fields["created_at"] = moment(created_at)
    fields["job"] = job
    fields["options"] = options_of(options)
    fields["given"] = {} if given is None else given_of(given)
    fields["data"] = data
    made = Record.__new__(Record)
    object.__setattr__(made, "__dict__", fields)
    return made


def _more(values: Row) -> dict[str, Any]:
    """Return the fields of the columns that are not empty."""
    filled = map(operator.ne, values, _EMPTY)
    return {name: read(value) for (name, read), value in itertools.compress(zip(_MORE, values, strict=True), filled)}


@functools.lru_cache(maxsize=16)
def _holder(seat: str, incarnation: str) -> Holder:
    """Return the holder, one object for all records of a claim."""
    return Holder(seat=seat, incarnation=incarnation)


def _damaged(row: Row) -> Record:
    """Return the readable fields of a row and name the others; raise if not even its id is readable."""
    values = dict(zip(NAMES, row, strict=True))
    readers = {column.field or column.name: partial(column.read, values[column.name]) for column in JOBS if column.read}
    if values["seat"] is not None:
        readers["holder"] = partial(_read_holder, values["seat"], values["incarnation"])
    return damaged_record(readers.pop("id")(), readers)


def _read_holder(seat: Any, incarnation: Any) -> Holder:
    return Holder(seat=text(seat), incarnation=text(incarnation))
