"""The bounds that a query sets to matching records: their statuses, their queue, and the earliest of their ends."""

from __future__ import annotations

from taskqueue.errors import assert_never
from taskqueue.model.query import And, Compare, Operator, Or, Query
from taskqueue.model.record import Status


def fields_of(query: Query) -> set[str]:
    """Return the fields that the query names."""
    match query:
        case Compare(field=field):
            return {field}
        case And(parts=parts) | Or(parts=parts):
            return set().union(*map(fields_of, parts))
    return assert_never(query)


def holds_for(query: Query, queue: str, status: Status) -> bool:
    """Return whether a query that names nothing else holds for all records of this queue and status."""
    match query:
        case Compare(field=field):
            return query.holds([queue if field == "queue" else int(status)])
        case And(parts=parts):
            return all(holds_for(part, queue, status) for part in parts)
        case Or(parts=parts):
            return any(holds_for(part, queue, status) for part in parts)
    return assert_never(query)


def statuses_of(query: Query) -> list[int] | None:
    """Return the statuses that a record must have one of to match; None if the query does not restrict them."""
    match query:
        case Compare(field="status"):
            return [int(status) for status in Status if query.holds([int(status)])]
        case And(parts=parts):
            restricted = [found for found in map(statuses_of, parts) if found is not None]
            return None if not restricted else [one for one in restricted[0] if all(one in each for each in restricted)]
    return None


def ended_from(query: Query) -> int | None:
    """Return the earliest end that a record can have to match; None if the query says nothing of it."""
    match query:
        case Compare(field="ended_at", operator=Operator.GTE, value=int(earliest)):
            return earliest
        case Compare(field="ended_at", operator=Operator.GT, value=int(before)):
            return before + 1
        case And(parts=parts):
            return max((found for found in map(ended_from, parts) if found is not None), default=None)
    return None


def names_queue(query: Query) -> bool:
    """Return whether only jobs of one queue match."""
    match query:
        case Compare(field="queue", operator=Operator.EQ, value=str()):
            return True
        case And(parts=parts):
            return any(map(names_queue, parts))
    return False
