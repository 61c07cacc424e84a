"""The columns of a job: how each is written and read back. Rows and statements are built from this table."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar

from bson import ObjectId

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle import continuation
from taskqueue.model.lifecycle.recovered_copy import origins_of
from taskqueue.model.limits import lane_of
from taskqueue.model.reading import figure, number, or_none, priority, rank, text
from taskqueue.model.record import (
    Attempt,
    CancelRequest,
    Cause,
    Dependency,
    OnCrash,
    OnFailure,
    Options,
    Record,
    Status,
)
from taskqueue.model.retry import FixedRetry
from taskqueue.model.schedules import origin
from taskqueue.model.serializer import clean, dumps
from taskqueue.model.timestamps import EPOCH, milliseconds, moment
from taskqueue.model.unique_period import key_of
from taskqueue.store import codec

Row: TypeAlias = tuple[Any, ...]
GROUPS = (50, 10, 3, 1)
"""How many rows one statement writes, the largest groups first: to run one takes longer than what it does for a row.

An insert takes 3.8 us in a group of 50 and 5.8 alone, an outcome 4.5 and 4.9.
"""

Read = TypeVar("Read")


class Column(NamedTuple):
    """One column of the table ``jobs``."""

    name: str
    write: Callable[[Record], Any]
    read: Callable[[Any], Any] | None = None
    """Checks the value, and returns the field of the record; None for a column that is not a field by itself."""
    changes: bool = False
    """Whether an outcome changes it. The fence, the unique key and a cancel request are the store's own."""
    field: str = ""
    """The name of the field, if it differs from the column's."""


LARGEST = 2**63 - 1
"""The largest whole number of a column: whatever is greater in an index is damaged, not a number."""

USUAL_OPTIONS = Options(
    retry=FixedRetry(times=0, interval=300.0),
    timeout=None,
    stall_timeout=None,
    retry_on_timeout=True,
    crash_retries=3,
    on_crash=OnCrash.RETRY,
    force_spawn=False,
)
"""The options of a row without text. This is part of the schema: it stays when defaults change."""


def in_json(column: str, path: str) -> str:
    """Return a value in the JSON of a column as SQL; nothing if that is damaged."""
    return f"(CASE WHEN json_valid({column}) THEN json_extract({column}, '$.{path}') END)"


def options_text(options: Options) -> str | None:
    """Return the options as text, None for the usual ones, which most jobs have."""
    global _last_options
    last, text = _last_options
    if options is not last:
        text = _options_text(options)
        _last_options = (options, text)
    return text


_last_options: tuple[Options, str | None] = (USUAL_OPTIONS, None)
"""Those whose text was asked for last: jobs of a class have the same ones, and comparing them takes 0.4 us."""


def _options_text(options: Options) -> str | None:
    if options == USUAL_OPTIONS:
        return None
    # Conditions whose settings are 1 and True are equal, but not the same.
    return _known_text(options) if options.ready is None else dumps(codec.options_fields(options))


@functools.lru_cache(maxsize=512)
def _known_text(options: Options) -> str:
    """Return the text, once for all jobs that have the same options."""
    return dumps(codec.options_fields(options))


@functools.lru_cache(maxsize=512)
def options_of(text: str | None) -> Options:
    """Return the options in the text."""
    return USUAL_OPTIONS if text is None else codec.options_of(json.loads(text))


def instant(time: datetime | None) -> int | None:
    """Return the time as it is stored, in milliseconds since 1970."""
    return None if time is None else milliseconds(time)


def cancel_text(cancel: CancelRequest | None) -> str | None:
    """Return the cancel request as text."""
    if cancel is None:
        return None
    return dumps({"requested_at": milliseconds(cancel.requested_at), "reason": clean(cancel.reason)})


def cancel_request(text: str | None) -> CancelRequest | None:
    """Return the cancel request in the text."""
    if text is None:
        return None
    fields = json.loads(text)
    return CancelRequest(requested_at=moment(fields["requested_at"]), reason=fields["reason"])


def attempts_text(attempts: Sequence[Attempt]) -> str | None:
    """Return the attempts as text."""
    if len(attempts) == 1 and attempts[0].outcome == "Done":
        return _done_text(attempts[0])
    return dumps([codec.attempt_fields(attempt, milliseconds) for attempt in attempts]) if attempts else None


def _done_text(attempt: Attempt) -> str:
    """Return the text of the only attempt of most jobs, as ``attempts_text`` does, in a third of the time (3.0 us)."""
    if attempt.exit or attempt.peak_memory is not None or attempt.stack or attempt.error is not None:
        return dumps([codec.attempt_fields(attempt, milliseconds)])
    pid = "null" if attempt.pid is None else attempt.pid
    started_at = "null" if attempt.started_at is None else milliseconds(attempt.started_at)
    return (
        f'[{{"number":{attempt.number},"claims":{attempt.claims},"node":{_quoted(attempt.node)},"pid":{pid},'
        f'"started_at":{started_at},"ended_at":{milliseconds(attempt.ended_at)},"outcome":"Done"}}]'
    )


_quoted = functools.lru_cache(maxsize=64)(dumps)


def _attempts(value: Any) -> tuple[Attempt, ...]:
    """Return the attempts in the text."""
    return () if value is None else tuple([codec.attempt_of(fields, moment) for fields in json.loads(text(value))])


def given_of(text: str | None) -> Mapping[str, Any]:
    """Return the options as the caller gave them, from their text."""
    given = {} if text is None else json.loads(text)
    if type(given) is not dict:
        raise TypeError("what was given is not a mapping")
    return given


def tags_of(text: str | None) -> tuple[str, ...]:
    """Return the tags in the text."""
    tags = () if text is None else tuple(json.loads(text))
    if any(type(tag) is not str for tag in tags):
        raise TypeError("a tag is not text")
    return tags


def _as_it_is(name: str, read: Callable[[Any], Any], *, changes: bool = False, field: str = "") -> Column:
    return Column(name, attrgetter(field or name), read, changes, field)


def _time(name: str, *, changes: bool = False) -> Column:
    find = attrgetter(name)
    return Column(
        name,
        lambda record: instant(find(record)),
        lambda value: None if value is None else moment(number(value)),
        changes,
    )


def _json(
    name: str, write: Callable[[Any], Any], read: Callable[[Any], Any], empty: Any = None, *, changes: bool = False
) -> Column:
    """Return a column of JSON text, without any for ``empty``."""
    find = attrgetter(name)
    return Column(
        name,
        lambda record: None if (value := find(record)) == empty else dumps(write(value)),
        lambda value: empty if value is None else read(json.loads(text(value))),
        changes,
    )


def _each(read: Callable[[Any], Read]) -> Callable[[Any], tuple[Read, ...]]:
    return lambda values: tuple(map(read, values))


def _forced(record: Record) -> int:
    return int(record.options.is_beside_pool) + (2 if record.lane else 0)


def _pair(dependency: Dependency) -> list[str]:
    return [str(dependency.id), dependency.on_failure.value]


def _dependency(pair: Any) -> Dependency:
    id, on_failure = pair
    return Dependency(id=ObjectId(id), on_failure=OnFailure(on_failure))


@functools.lru_cache(maxsize=64)
def _dependencies(text: str) -> tuple[Dependency, ...]:
    """Return the dependencies in the text; if a record has a thousand, it is read when each of them ends."""
    return tuple(map(_dependency, json.loads(text)))


def _data(value: Any) -> str:
    json.loads(text(value))
    return text(value)


# First the columns of every job, then of most claimed jobs.
JOBS = (
    Column("id", lambda record: str(record.id), lambda value: ObjectId(text(value))),
    Column("status", lambda record: int(record.status), lambda value: Status(number(value)), changes=True),
    Column("cause", lambda record: record.cause.value, Cause, changes=True),
    _as_it_is("queue", text, changes=True),
    Column("forced", _forced),
    _as_it_is("rank", rank, changes=True),
    _time("ready_at", changes=True),
    Column("seat", lambda record: record.holder and record.holder.seat, changes=True, field="holder"),
    Column("incarnation", lambda record: record.holder and record.holder.incarnation, changes=True, field="holder"),
    _as_it_is("claims", number),
    _as_it_is("failures", number, changes=True),
    _as_it_is("crashes", number, changes=True),
    _as_it_is("priority", priority),
    _time("created_at"),
    _as_it_is("job", text),
    Column("options", lambda record: options_text(record.options), options_of),
    Column("given", lambda record: dumps(record.given) if record.given else None, given_of),
    _as_it_is("data", _data),
    # What may have happened to a job, belong to it, or have come of it.
    _time("started_at", changes=True),
    _time("ended_at", changes=True),
    _time("expires_at"),
    _as_it_is("unique_key", or_none(text), field="unique"),
    _json("waiting_for", lambda ids: list(map(str, ids)), _each(ObjectId), (), changes=True),
    Column("cancel", lambda record: cancel_text(record.cancel), cancel_request),
    _time("unloadable_since", changes=True),
    _as_it_is("unloadable_times", number, changes=True),
    _as_it_is("progress", figure, changes=True),
    Column("progress_message", lambda record: clean(record.progress_message), text, changes=True),
    _time("progress_at", changes=True),
    Column("tags", lambda record: dumps(record.tags) if record.tags else None, tags_of),
    _json("error", codec.failure_fields, codec.failure_of, changes=True),
    Column("attempts", lambda record: attempts_text(record.attempts), _attempts, changes=True),
    _as_it_is("state", or_none(text), changes=True),
    _as_it_is("result", or_none(text), changes=True),
    Column("lane", lambda record: record.lane or None, lambda value: "" if value is None else lane_of(text(value))),
    Column("parent", lambda record: record.parent and str(record.parent), or_none(ObjectId)),
    Column(
        "depends_on",
        lambda record: dumps(list(map(_pair, record.depends_on))) if record.depends_on else None,
        lambda value: () if value is None else _dependencies(text(value)),
    ),
    _json("origin", origin.document, origin.origin),
    _as_it_is("cursor", or_none(text), changes=True),
    _json("course", continuation.document, continuation.continuation_of, changes=True),
)
"""The columns in the order of ``COLUMNS``."""

DERIVED = (
    Column("period", key_of),
    Column("origins", lambda record: dumps(list(map(str, origins))) if (origins := origins_of(record)) else None),
)
"""What SQL looks for in ``given``: the key of a period, and the jobs that a copy is a copy of. They are never read."""

NAMES = tuple(column.name for column in JOBS)
COLUMNS = ", ".join(NAMES)
"""The columns of a whole row, as SQL."""

ALL_NAMES = tuple(column.name for column in (*JOBS, *DERIVED))
ALL_COLUMNS = ", ".join(ALL_NAMES)
"""The columns that are written for a whole row, as SQL."""

_CHANGED = tuple(column for column in JOBS if column.changes)
CHANGING = ", ".join(f"{column.name} = ?" for column in _CHANGED)
"""The assignments of the columns that an outcome changes, as SQL."""


def _writer(columns: Sequence[Column]) -> Callable[[Record], Row]:
    """Return the function that gives the values of these columns; those of a new record are known already."""
    fresh = Record(id=JobId(), job="", created_at=EPOCH, ready_at=None)
    fields = [column.field or column.name for column in columns]
    find = itemgetter(*(field if hasattr(fresh, field) else "id" for field in fields))
    usual = [
        (getattr(fresh, field, None), column.write(fresh), column.write)
        for field, column in zip(fields, columns, strict=True)
    ]

    def values(record: Record) -> Row:
        pairs = zip(find(record.__dict__), usual, strict=True)
        return tuple([known if value is default else write(record) for value, (default, known, write) in pairs])

    return values


row = _writer(JOBS)
"""Returns the values of ``COLUMNS`` for a record."""

whole_row = _writer((*JOBS, *DERIVED))
"""Returns the values of ``ALL_COLUMNS``."""

changes = _writer(_CHANGED)
"""Returns the values of ``CHANGING``."""


def assignments(*names: str) -> tuple[str, Callable[[Record], Row]]:
    """Return the assignments of these columns as SQL, and the function that gives their values."""
    columns = dict(zip(ALL_NAMES, (*JOBS, *DERIVED), strict=True))
    return ", ".join(f"{name} = ?" for name in names), _writer([columns[name] for name in names])
