"""Settles, updates, cancels and expires records by compare-and-set on the read values, many in one command."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bson import ObjectId
from pymongo import UpdateMany, UpdateOne
from pymongo.errors import BulkWriteError, DuplicateKeyError, PyMongoError

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.continuation import Phase
from taskqueue.model.lifecycle.pending import canceled, expired
from taskqueue.model.lifecycle.settle import obeying
from taskqueue.model.options.apply_declared import outdone
from taskqueue.model.record import Record, Status, changed
from taskqueue.model.serializer import decode
from taskqueue.store import Settlement
from taskqueue.store.bell import LONGEST_RING
from taskqueue.store.mongodb.bells import HostBells, end_notice
from taskqueue.store.mongodb.connection import Connection, find_and_modify
from taskqueue.store.mongodb.documents import (
    Document,
    cancel_request,
    declared,
    held_by,
    lane,
    moving,
    present,
    record,
    setting,
    unmoved,
)
from taskqueue.store.mongodb.indexes import BY_ID
from taskqueue.store.mongodb.log_lines import LogLines
from taskqueue.store.mongodb.outbox import Effect, Outbox, change, effects_of
from taskqueue.store.tries import Tries

log = logging.getLogger(__name__)

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
    """Return filter and update; a job that would run again, or recur, must not have been canceled since."""
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


DOUBTS_KEPT = 10_000
"""The most outcomes whose write may have happened though its answer was lost that are remembered."""

MOST_RUNG = 4
"""The most ends of one call for which this host's bells ring; of more, the change stream brings the first as soon."""


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """One record's new state, and the condition under which it is written."""

    where: Document
    after: Record


class Settlements:
    """Settles, cancels and expires records, each in one write that includes the outbox entry."""

    def __init__(self, connection: Connection, outbox: Outbox, host_bells: HostBells) -> None:
        self._connection = connection
        self._host_bells = host_bells
        self._outbox = outbox
        self._log_lines = LogLines(connection)
        self.shares_entries = False
        """Whether the ends of a batch share an entry of the outbox: one server has all jobs of a batch."""
        self._doubts: dict[tuple[JobId, int, str], list[ObjectId]] = {}
        """The tokens of writes whose answer was lost, by the claim that they settle."""

    def settle(self, settlements: Sequence[Settlement], now: datetime) -> set[JobId]:
        if not settlements:
            return set()
        self._keep_lines(settlements)  # first: a caller that waits for the end may read them at once
        declared = {one.after.id for one in settlements if one.defined and self._declare(one, one.defined, now)}
        settlements = [one for one in settlements if one.after.id not in declared]
        accepted = declared | (self._apply(settlements, now) if settlements else set())
        refused = [one for one in settlements if one.after.id not in accepted]
        if refused:
            accepted |= self._settle_changed(refused, now)
        for one in settlements:
            self._doubts.pop(_key(one), None)
        return accepted

    def _keep_lines(self, settlements: Sequence[Settlement]) -> None:
        logged = [one for one in settlements if one.lines is not None]
        for holder in {one.holder for one in logged}:
            lines = {one.after.id: one.lines for one in logged if one.holder == holder and one.lines is not None}
            self._log_lines.keep(holder, lines)

    def cancel(self, id: JobId, reason: str, now: datetime) -> Record | None:
        """Cancel the record, or record a cancel request for a running one, and return it; None if unknown."""
        jobs = self._connection.collections.jobs
        tries = Tries(self._connection.address.shown, f"job {id}")
        while (kept := jobs.find_one({"_id": id})) is not None:
            tries.another()
            before = record(kept)
            after = canceled(before, reason, now)
            if after == before:
                return before
            if before.status is Status.PROCESSING:
                request = {"$set": {"cancel": cancel_request(reason, now)}}
                if jobs.update_one(unmoved(before), request).matched_count:
                    return after
            elif self.apply([Replacement(where=unmoved(before), after=after)], now):
                return after
        return None

    def cancel_many(self, ids: Sequence[JobId], reason: str, now: datetime) -> list[Record]:
        """Cancel these records; records that another process moves at the same time are canceled one by one."""
        jobs = self._connection.collections.jobs
        kept = {one["_id"]: record(one) for one in jobs.find({"_id": {"$in": list(ids)}})}
        after = {id: canceled(before, reason, now) for id, before in kept.items()}
        changing = [before for id, before in kept.items() if after[id] != before]
        running = [before for before in changing if before.status is Status.PROCESSING]
        pending = [before for before in changing if before.status is not Status.PROCESSING]
        request = {"$set": {"cancel": cancel_request(reason, now)}}
        replacements = [Replacement(where=unmoved(before), after=after[before.id]) for before in pending]
        done = self.apply(replacements, now) if replacements else set()
        if running:
            requests = [UpdateOne(unmoved(before), request, hint=BY_ID) for before in running]
            if jobs.bulk_write(requests, ordered=False).matched_count == len(running):
                done |= {before.id for before in running}
        moved = [before.id for before in changing if before.id not in done]
        again = {id: self.cancel(id, reason, now) for id in moved}
        found = [again.get(id, after.get(id)) for id in ids]
        return [one for one in found if one is not None]

    def expire(self, late: Iterable[Record], now: datetime) -> None:
        """End records that were not started in time, unless they have moved."""
        replacements = [Replacement(where=unmoved(before), after=expired(before, now)) for before in late]
        if replacements:
            self.apply(replacements, now)

    def apply(self, replacements: Sequence[Replacement], now: datetime) -> set[JobId]:
        """Write the records that are unchanged since they were read, with their effects, and return their ids."""
        token = ObjectId()
        following = {one.after.id: effects_of(one.after, token, now) for one in replacements}
        return self._finish(following, self._write(replacements, following), token)

    def follow(self, effects: Sequence[Effect]) -> list[Document]:
        """Carry out the effects of written changes; ``repair`` completes them after an error."""
        if not effects:
            return []
        try:
            return self._outbox.complete(effects)
        except PyMongoError as error:
            log.warning("follow-ups of %d outcomes postponed; a later repair completes them: %s", len(effects), error)
            return []

    def _apply(self, settlements: Sequence[Settlement], now: datetime) -> set[JobId]:
        """Write the outcomes, and remember the token if the answer is lost: the write may have happened."""
        token = ObjectId()
        following: Mapping[JobId, Effect] = {
            one.after.id: effects_of(one.after, token, now, claimed=True, is_unseen=one.is_unseen)
            for one in settlements
        }
        has_rung = self._is_awaited(settlements)
        try:
            if has_rung:
                matched = self._settle_and_tell(settlements[0], following[settlements[0].after.id])
            elif fits(settlements):
                matched, following = self._write_together(settlements, following)
            else:
                matched = self._write([_as_claimed(one) for one in settlements], following)
            return self._finish(following, matched, token, has_rung=has_rung)
        except PyMongoError:
            if len(self._doubts) > DOUBTS_KEPT:
                self._doubts.clear()
            for one in settlements:
                self._doubts.setdefault(_key(one), []).append(token)
            raise

    def _write_together(
        self, settlements: Sequence[Settlement], following: Mapping[JobId, Effect]
    ) -> tuple[int, Mapping[JobId, Effect]]:
        """Write the outcomes in one command, and return how many were accepted, and the effects as they were kept."""
        jobs = self._connection.collections.jobs
        shared = share(following) if self.shares_entries else following
        if shared is not following:
            try:
                return jobs.bulk_write(statements(settlements, shared), ordered=True).matched_count, shared
            except BulkWriteError as error:
                if not has_lost_carrier(error):
                    raise
        where, update = statement(settlements, following)
        return jobs.update_many(where, update, hint=BY_ID).matched_count, following

    def _is_awaited(self, settlements: Sequence[Settlement]) -> bool:
        """Return whether this is the end of one job that a ring can tell to waiters on this host."""
        if len(settlements) > 1 or not self._host_bells.has_listeners:
            return False
        after = settlements[0].after
        return after.status.is_final and is_short(after)

    def _settle_and_tell(self, settlement: Settlement, follows: Effect) -> int:
        """Write the outcome and ring with the document as it is then; a waiter gets its result 4 ms sooner by that.

        Sent as such: the driver's own is sent twice when the connection breaks, for which the server keeps a copy.
        """
        jobs = self._connection.collections.jobs
        kept = find_and_modify(jobs, _as_claimed(settlement).where, change(settlement.after, follows), new=True)
        if kept is None:
            return 0
        self._host_bells.ring(end_notice(kept))
        return 1

    def _declare(self, settlement: Settlement, defined: Record, now: datetime) -> bool:
        """Write a record whose class declares other options than it was claimed with; return whether that was done.

        One with the unique key of another pending job is written as ended.
        """
        jobs = self._connection.collections.jobs
        tries = Tries(self._connection.address.shown, f"job {settlement.after.id}")
        while True:
            tries.another()
            after, token = settlement.after, ObjectId()
            freed = effects_of(changed(after, lane=defined.lane), token, now, claimed=True).freed
            follows = effects_of(after, token, now, claimed=True)._replace(freed=freed)
            update = change(after, follows, declared(after, defined))
            try:
                if not jobs.update_one(_as_claimed(settlement).where, update, hint=BY_ID).matched_count:
                    return False
            except DuplicateKeyError:
                pending = {"unique": after.unique, "status": {"$lte": int(Status.PROCESSING)}}
                keeper = jobs.find_one(pending, {"_id": True})
                settlement = settlement._replace(after=outdone(after, None if keeper is None else keeper["_id"], now))
                continue
            self.follow([follows])
            return True

    def _write(self, replacements: Sequence[Replacement], following: Mapping[JobId, Effect]) -> int:
        changes = [UpdateOne(one.where, change(one.after, following[one.after.id]), hint=BY_ID) for one in replacements]
        return self._connection.collections.jobs.bulk_write(changes, ordered=False).matched_count

    def _finish(
        self, following: Mapping[JobId, Effect], matched: int, token: ObjectId, *, has_rung: bool = False
    ) -> set[JobId]:
        """Carry out the effects of accepted outcomes, and return their ids."""
        accepted = set(following)
        if matched < len(following):
            jobs = self._connection.collections.jobs
            ours = {"_id": {"$in": list(following)}, "swapped": token}
            accepted = {one["_id"] for one in jobs.find(ours, {"_id": True})}
        effects = [following[id] for id in following if id in accepted]
        if len(effects) <= MOST_RUNG and any(one.ended for one in effects) and not has_rung:
            self._host_bells.ring()
        self.follow(effects)
        return accepted

    def _settle_changed(self, refused: Sequence[Settlement], now: datetime) -> set[JobId]:
        """Return outcomes that an earlier call wrote without an answer, and settle those with a new cancel request."""
        jobs = self._connection.collections.jobs
        found = {kept["_id"]: kept for kept in jobs.find({"_id": {"$in": [one.after.id for one in refused]}})}
        accepted = {one.after.id for one in refused if self._was_ours(one, found)}
        still_held = [one for one in refused if _holds(one, found)]
        obedient = [_obeying(one, record(found[one.after.id]), now) for one in still_held]
        return accepted | (self._apply(obedient, now) if obedient else set())

    def _was_ours(self, settlement: Settlement, found: Mapping[JobId, Document]) -> bool:
        kept = found.get(settlement.after.id, {})
        return kept.get("swapped") in self._doubts.get(_key(settlement), ())


def _as_claimed(settlement: Settlement) -> Replacement:
    """Return the replacement for a claim that holds; a job to run again must not have been canceled since."""
    where = {"_id": settlement.after.id, "claims": settlement.claims, **held_by(settlement.holder)}
    if settlement.lease_end is not None:
        where["ready_at"] = settlement.lease_end
    if depends_on_cancel(settlement.after):
        where["cancel"] = {"$exists": False}
    return Replacement(where=where, after=settlement.after)


def _obeying(settlement: Settlement, present: Record, now: datetime) -> Settlement:
    after = changed(obeying(settlement.after, present.cancel, now), cancel=present.cancel)
    return settlement._replace(after=after)


def _holds(settlement: Settlement, found: Mapping[JobId, Document]) -> bool:
    kept = found.get(settlement.after.id)
    if kept is None or kept["status"] != Status.PROCESSING or kept.get("claims") != settlement.claims:
        return False
    holder: Document = kept["holder"]
    return holder == {"seat": settlement.holder.seat, "incarnation": settlement.holder.incarnation}


def _key(settlement: Settlement) -> tuple[JobId, int, str]:
    return settlement.after.id, settlement.claims, settlement.holder.incarnation


_MOVED_BY_OWNER = ("status", "cause", "queue", "ready_at", "rank")


class Updates:
    """Changes pending records, if their owners' fields are still as they were read.

    Each write changes the differing fields, and derives the repeated ones again (``due``, ``expires``, ``lane``).
    """

    def __init__(self, connection: Connection, settlements: Settlements) -> None:
        self._connection = connection
        self._settlements = settlements

    def update(self, before: Record, after: Record, now: datetime) -> bool:
        old, new = _changed_fields(before), _changed_fields(after)
        differing = {name: value for name, value in new.items() if value != old[name]}
        where = unmoved(before) | {name: old[name] for name in differing}
        change = setting(differing)
        if after.data != before.data:
            where["data"] = decode(before.data)
            change.setdefault("$set", {})["data"] = decode(after.data)
        if not change.get("$set") and "$unset" not in change:
            return self._connection.collections.jobs.count_documents(where, limit=1) == 1
        for operator, derived in setting(_derived(after)).items():
            change.setdefault(operator, {}).update(derived)
        change["$set"]["revised"] = ObjectId()  # a claim that has read the record before does not take it unchanged
        follows = None
        if after.status is not before.status:
            token = ObjectId()
            follows = effects_of(after, token, now)
            change["$set"]["swapped"] = token
            change["$push"] = {"after": follows.kept()}
        if not self._connection.collections.jobs.update_one(where, change).matched_count:
            return False
        if follows is not None:
            self._settlements.follow([follows])
        return True


def _changed_fields(record: Record) -> Document:
    moved = moving(record)
    return {
        **{name: moved[name] for name in _MOVED_BY_OWNER},
        "priority": record.priority,
        "expires_at": record.expires_at,
        "tags": list(record.tags) or None,
        "given": dict(record.given),
    }


def _derived(record: Record) -> Document:
    """Return the fields that repeat others; they are written with each change, and so never compared."""
    moved = moving(record)
    return {"due": moved["due"], "expires": moved["expires"], "lane": lane(record)}
