"""Writes many settlements in one statement, at half the cost of one write each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.continuation import Phase
from taskqueue.model.record import Record
from taskqueue.store import Settlement
from taskqueue.store.doorbell import LONGEST_RING
from taskqueue.store.mongodb.documents import Document, held_by, moving, present
from taskqueue.store.mongodb.outbox import Effect

WEIGHT_LIMIT = 2 * 1024 * 1024
"""The most text in one statement, in characters; the server takes 16 MiB, of any encoding, tracebacks included."""

COUNT_LIMIT = 1000


def fits(settlements: Sequence[Settlement]) -> bool:
    """Return whether one statement can hold these: one holder, no leases to compare, and not too much text."""
    if any(one.lease_end is not None for one in settlements):
        return False
    if len(settlements) > COUNT_LIMIT or len({one.holder for one in settlements}) > 1:
        return False
    return sum(_weight(one.after) for one in settlements) <= WEIGHT_LIMIT


def statement(settlements: Sequence[Settlement], following: Mapping[JobId, Effect]) -> tuple[Document, list[Document]]:
    """Return filter and update; a job that would run again, or recur, must not have been canceled meanwhile."""
    ids = [one.after.id for one in settlements]
    claims = [one.claims for one in settlements]
    where: Document = {"_id": {"$in": ids}, **held_by(settlements[0].holder)}
    if len(set(claims)) == 1:
        where["claims"] = claims[0]
    else:
        where["$expr"] = {"$eq": ["$claims", _pick(ids, claims)]}
    sure = [one.after.id for one in settlements if not depends_on_cancel(one.after)]
    if len(sure) < len(ids):
        where["$or"] = [{"_id": {"$in": sure}}, {"cancel": {"$exists": False}}]
    fields = [moving(one.after) | {"swapped": following[one.after.id].token} for one in settlements]
    empty = [name for name in fields[0] if any(one[name] is None for one in fields)]
    update: list[Document] = [
        {"$set": {"after": {"$concatArrays": [_list_of("$after"), [_pick(ids, _kept(ids, following))]]}}},
        {"$unset": empty},
        {"$replaceWith": {"$mergeObjects": ["$$ROOT", _pick(ids, [present(one) for one in fields])]}},
    ]
    return where, update


def depends_on_cancel(after: Record) -> bool:
    """Return whether a cancel request that the settler does not know of would change the outcome."""
    if after.phase is Phase.FAILING:
        return False
    return not after.status.is_final or (after.origin is not None and after.cancel is None)


def _pick(ids: Sequence[JobId], values: Sequence[Any]) -> Document:
    """Return the expression for the value that belongs to the record at hand."""
    return {"$arrayElemAt": [{"$literal": list(values)}, {"$indexOfArray": [{"$literal": list(ids)}, "$_id"]}]}


def _list_of(field: str) -> Document:
    return {"$ifNull": [field, []]}


def _kept(ids: Sequence[JobId], following: Mapping[JobId, Effect]) -> list[Document]:
    return [following[id].kept() for id in ids]


def is_short(after: Record) -> bool:
    """Return whether the record may find room in a ring."""
    return len(after.data) + _weight(after) < LONGEST_RING


def _weight(after: Record) -> int:
    """Return how many characters of text the new state has, about."""
    errors = [after.error, *(attempt.error for attempt in after.attempts)]
    texts = [
        after.result,
        after.state,
        after.cursor,
        after.course and after.course.reports,
        *(text for error in errors if error for text in (error.message, error.traceback)),
    ]
    return sum(len(text) for text in texts if text)
