"""The rows of the event log: one event, or like events of many jobs together, so that a batch writes one row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from taskqueue.model.ids import JobId
from taskqueue.model.reading import text
from taskqueue.model.record import Status
from taskqueue.model.timestamps import moment
from taskqueue.store import Event
from taskqueue.store.codec import event_id
from taskqueue.store.relational.engine import Execute

AT_ONCE = 500
"""Maximum number of events of one row."""

_ID = 25
"""Characters of an id and the following space."""

COLUMNS = "number, job, claims, name, at, status, about"
_IS_OF_MANY = f"job IS NULL AND status IS NOT NULL AND length(about) > {_ID}"
_LENGTH = f"CASE WHEN {_IS_OF_MANY} THEN (length(about) + 1) / {_ID} ELSE 1 END"
FIRST = f"(number - {_LENGTH} + 1)"
"""The number of the first event of a row, as SQL: a row of many has that of the last, and ids in ``about``."""

# One step each; if one statement asks for both, min and max make SQLite walk the whole table.
ENDS = (
    f"SELECT coalesce((SELECT {FIRST} FROM events ORDER BY number LIMIT 1), 1), "
    "coalesce((SELECT max(number) FROM events), 0)"
)
"""The numbers of the first and of the last event that are kept, as SQL."""

NEXT_AND_LAST = (
    f"SELECT (SELECT {FIRST} FROM events WHERE number > ? ORDER BY number LIMIT 1), (SELECT max(number) FROM events)"
)
"""The number of the first event after this one that is kept, None if it is the last, and that of the last, as SQL.

Whoever has read all events up to one has missed none if the next is the following one. The first that is kept would
tell the same, but rows that were just removed before it are slow to pass.
"""

_INSERT = "INSERT INTO events (job, claims, name, at, status) VALUES (?, ?, ?, ?, ?)"
_INSERT_MANY = """
INSERT INTO events (number, claims, name, at, status, about)
VALUES ((SELECT coalesce(max(number), 0) FROM events) + ?, ?, ?, ?, ?, ?)
"""


def write(execute: Execute, ids: Sequence[str], claims: int, name: str, at: int, status: int) -> None:
    """Write the event of this name for each of the jobs, in order: as rows of many, if there are several."""
    if len(ids) == 1:
        execute(_INSERT, (ids[0], claims, name, at, status))
        return
    for first in range(0, len(ids), AT_ONCE):
        some = ids[first : first + AT_ONCE]
        execute(_INSERT_MANY, (len(some), claims, name, at, status, " ".join(some)))


def length(row: Sequence[Any]) -> int:
    """Return how many events a row has."""
    _, job, _, _, _, status, about = row
    return 1 if job is not None or status is None else max(1, (len(about or "") + 1) // _ID)


def events_of(row: Sequence[Any]) -> list[Event]:
    """Return the events of a row with ``COLUMNS``."""
    last, job, claims, kept_name, at, status, about = row
    name = text(kept_name)
    if status is None:
        fields: dict[str, Any] = json.loads(about or "{}")
        id, node = text(fields.pop("id")), text(fields.pop("node"))
        return [Event(id=id, name=name, at=moment(at), node=node, about=fields, cursor=str(last))]
    ids = text(about).split() if job is None else [job]
    first = last - len(ids) + 1
    return [
        Event(
            id=event_id(id, claims, name, at),
            name=name,
            at=moment(at),
            job_id=JobId(id),
            status=Status(status),
            cursor=str(number),
        )
        for number, id in enumerate(ids, first)
    ]
