"""Writes many settlements in one command, at a third of the cost of one write each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pymongo import UpdateMany, UpdateOne
from pymongo.errors import BulkWriteError

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.continuation import Phase
from taskqueue.model.record import Record
from taskqueue.store import Settlement
from taskqueue.store.doorbell import LONGEST_RING
from taskqueue.store.mongodb.documents import Document, held_by, moving, present
from taskqueue.store.mongodb.effects import Effect
from taskqueue.store.mongodb.indexes import BY_ID

WEIGHT_LIMIT = 2 * 1024 * 1024
"""The most text in one statement, in characters; the server takes 16 MiB, of any encoding, tracebacks included."""

COUNT_LIMIT = 1000
"""The most settlements in one statement."""

LEAST_SHARED = 4
"""The fewest ends that share an entry: for fewer, to clear one each costs no more."""

CONVERSION_FAILED = 241  # the server's code of ConversionFailure

_OFTEN_SAME = ("status", "cause", "queue", "claims", "failures", "crashes", "ended_at", "progress", "swapped")
"""Fields of which most batches have one value; all are of plain types."""


def fits(settlements: Sequence[Settlement]) -> bool:
    """Return whether one statement can hold these: one holder, no leases to compare, and not too much text."""
    if any(one.lease_end is not None for one in settlements):
        return False
    if len(settlements) > COUNT_LIMIT or len({one.holder for one in settlements}) > 1:
        return False
    return sum(_weight(one.after) for one in settlements) <= WEIGHT_LIMIT


def statement(
    settlements: Sequence[Settlement], following: Mapping[JobId, Effect], *, has_entries: bool = True
) -> tuple[Document, list[Document]]:
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
    fields = [_fields(one, following) for one in settlements]
    empty = [name for name in fields[0] if any(one[name] is None for one in fields)]
    shared = {name: fields[0][name] for name in _OFTEN_SAME if len({one[name] for one in fields}) == 1}
    own = [{name: one[name] for name in one if name not in shared and one[name] is not None} for one in fields]
    values = {"$mergeObjects": ["$$ROOT", {"$literal": present(shared)}, _pick(ids, own)]}
    update: list[Document] = [{"$unset": empty}, {"$replaceWith": values}]
    return where, [_adding(_pick(ids, _kept(ids, following))), *update] if has_entries else update


def share(following: Mapping[JobId, Effect]) -> Mapping[JobId, Effect]:
    """Return the effects, of which one has the entry of all plain ends, if they are not too few.

    To keep and clear an entry for each took a fifth of the server's time in a drain.
    """
    plain = [id for id, one in following.items() if one.is_plain_end]
    if len(plain) < LEAST_SHARED:
        return following
    carrier, *others = plain
    return {**following, carrier: following[carrier]._replace(batch=others)}


def statements(settlements: Sequence[Settlement], shared: Mapping[JobId, Effect]) -> list[UpdateOne | UpdateMany]:
    """Return the changes that share an entry, in order: the first has it, or fails, and then none is made.

    So no end is ever written without its entry.
    """
    carrier = next(one for one in settlements if shared[one.after.id].batch)
    sharing = set(shared[carrier.after.id].batch)
    first = UpdateOne({"_id": carrier.after.id}, _carry(carrier, shared), upsert=True, hint=BY_ID)
    changes: list[UpdateOne | UpdateMany] = [first]  # the upsert of a removed record fails, too
    plain = [one for one in settlements if one.after.id in sharing]
    others = [one for one in settlements if one.after.id not in sharing and one is not carrier]
    for some, has_entries in ((plain, False), (others, True)):
        if some:
            changes.append(UpdateMany(*statement(some, shared, has_entries=has_entries), hint=BY_ID))
    return changes


def has_lost_carrier(error: BulkWriteError) -> bool:
    """Return whether nothing was written, as the claim of the job with the shared entry is lost."""
    [first, *_] = error.details["writeErrors"] or [{}]
    return (first.get("index"), first.get("code")) == (0, CONVERSION_FAILED)


def _carry(carrier: Settlement, shared: Mapping[JobId, Effect]) -> list[Document]:
    """Return the update of the job with the shared entry; the server raises an error if the claim is lost."""
    id = carrier.after.id
    held = held_by(carrier.holder) | {"claims": carrier.claims}
    is_held = {"$and": [{"$eq": [f"${name}", {"$literal": value}]} for name, value in held.items()]}
    fails = {"$toObjectId": {"$concat": ["not held: ", {"$type": "$status"}]}}
    fields = _fields(carrier, shared)
    return [
        {"$set": {"swapped": {"$cond": [is_held, shared[id].token, fails]}}},
        _adding({"$literal": shared[id].kept()}),
        {"$unset": [name for name, value in fields.items() if value is None]},
        {"$replaceWith": {"$mergeObjects": ["$$ROOT", {"$literal": present(fields)}]}},
    ]


def _fields(settlement: Settlement, following: Mapping[JobId, Effect]) -> Document:
    fields = moving(settlement.after)
    fields["swapped"] = following[settlement.after.id].token
    return fields


def _adding(entry: Document) -> Document:
    """Return the step that adds the entry to the outbox of the record."""
    return {"$set": {"after": {"$concatArrays": [_list_of("$after"), [entry]]}}}


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
