"""The bounds that a query sets for matching records: their statuses, their queue, and the range of their times."""

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


def compared_fields(query: Query) -> set[str]:
    """Return the fields whose values the query compares; many records may share whether they have a value at all."""
    match query:
        case Compare(operator=Operator.EXISTS):
            return set()
        case Compare(field=field):
            return {field}
        case And(parts=parts) | Or(parts=parts):
            return set().union(*map(compared_fields, parts))
    return assert_never(query)


def holds_for(query: Query, queue: str, status: Status) -> bool:
    """Return whether a query that names no other field matches all records of this queue and status."""
    match query:
        case Compare(field=field):
            return query.holds([queue if field == "queue" else int(status)])
        case And(parts=parts):
            return all(holds_for(part, queue, status) for part in parts)
        case Or(parts=parts):
            return any(holds_for(part, queue, status) for part in parts)
    return assert_never(query)


def statuses_of(query: Query) -> list[int] | None:
    """Return the statuses of records that can match; None if the query does not restrict them."""
    match query:
        case Compare(field="status"):
            return [int(status) for status in Status if query.holds([int(status)])]
        case And(parts=parts):
            restricted = [statuses for statuses in map(statuses_of, parts) if statuses is not None]
            return (
                None
                if not restricted
                else [status for status in restricted[0] if all(status in statuses for statuses in restricted)]
            )
    return None


def bounds_of(field: str, query: Query) -> tuple[int | None, int | None]:
    """Return the earliest and the latest time of this field that a record can have to match; None if it is open."""
    match query:
        case Compare(operator=operator, value=int(at)) if query.field == field:
            earliest = {Operator.GTE: at, Operator.GT: at + 1}.get(operator)
            latest = {Operator.LTE: at, Operator.LT: at - 1}.get(operator)
            return earliest, latest
        case And(parts=parts):
            bounds = [bounds_of(field, part) for part in parts]
            earliest = max((begin for begin, _ in bounds if begin is not None), default=None)
            latest = min((end for _, end in bounds if end is not None), default=None)
            return earliest, latest
    return None, None


def has_field(field: str, query: Query) -> bool:
    """Return whether only records with a value in this field can match."""
    match query:
        case Compare(operator=Operator.EXISTS, value=True):
            return query.field == field
        case And(parts=parts):
            return any(has_field(field, part) for part in parts)
    return False


def queue_of(query: Query) -> str | None:
    """Return the queue of all matching jobs; None if they may belong to several queues."""
    match query:
        case Compare(field="queue", operator=Operator.EQ, value=str(name)):
            return name
        case Compare(field="queue", operator=Operator.IN, value=(str(name),)):
            return name
        case And(parts=parts):
            return next((queue for queue in map(queue_of, parts) if queue is not None), None)
    return None
