"""Settles, updates, cancels and expires records by compare-and-set, many in one command."""

from __future__ import annotations

import logging
from collections import defaultdict
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
from taskqueue.model.record import Holder, Record, Status, changed
from taskqueue.model.serializer import as_bson
from taskqueue.store import Settlement
from taskqueue.store.bell import LONGEST_RING
from taskqueue.store.mongodb import log_lines
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
from taskqueue.store.mongodb.effects import Effect, Effects, change, effects_of
from taskqueue.store.mongodb.indexes import BY_ID
from taskqueue.store.mongodb.unique_keys import holds
from taskqueue.store.tries import Tries

log = logging.getLogger(__name__)

WEIGHT_LIMIT = 2 * 1024 * 1024
"""Maximum number of characters in one statement, tracebacks included; the server takes 16 MiB in any encoding."""

COUNT_LIMIT = 1000
"""Maximum number of settlements in one statement."""

LEAST_SHARED = 4
"""The fewest ends that share an entry: with fewer, clearing one entry for each costs no more."""

DOUBTS_KEPT = 10_000
"""Maximum number of outcomes to remember whose writes may have happened although the answer was lost."""

MOST_RUNG = 4
"""Maximum number of ends of one call that ring this host's bells; if there are more, the change stream is as fast."""

CONVERSION_FAILED = 241  # the server's code of ConversionFailure

_OFTEN_SAME = ("status", "cause", "queue", "claims", "failures", "crashes", "ended_at", "progress", "swapped")
"""Fields that usually have one value throughout a batch; all are of plain types."""

_MOVED_BY_OWNER = ("status", "cause", "queue", "ready_at", "rank")


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """One record's new state, and the condition under which it is written."""

    where: Document
    after: Record


class Settlements:
    """Settles, cancels and expires records, each in one write that includes the entry of its effects."""

    def __init__(self, connection: Connection, effects: Effects, host_bells: HostBells) -> None:
        self._connection = connection
        self._host_bells = host_bells
        self._effects = effects
        self.shares_entries = False
        """Whether the ends of a batch share an entry of effects; this needs all jobs of a batch on one server."""
        self._doubts: dict[tuple[JobId, int, str], list[ObjectId]] = {}
        """The tokens of writes whose answer was lost, by the claim that each settles."""

    def settle(self, settlements: Sequence[Settlement], now: datetime) -> set[JobId]:
        if not settlements:
            return set()
        self._keep_lines(settlements)  # first: a caller that waits for the end may read them immediately
        accepted = self._declare_options(settlements, now)
        settlements = [settlement for settlement in settlements if settlement.after.id not in accepted]
        if settlements:
            accepted |= self._apply(settlements, now)
        refused = [settlement for settlement in settlements if settlement.after.id not in accepted]
        if refused:
            accepted |= self._settle_changed(refused, now)
        for settlement in settlements:
            self._doubts.pop(_key(settlement), None)
        return accepted

    def _keep_lines(self, settlements: Sequence[Settlement]) -> None:
        by_holder: defaultdict[Holder, dict[JobId, str]] = defaultdict(dict)
        for settlement in settlements:
            if settlement.lines is not None:
                by_holder[settlement.holder][settlement.after.id] = settlement.lines
        for holder, lines in by_holder.items():
            log_lines.keep(self._connection, holder, lines)

    def cancel(self, id: JobId, reason: str, now: datetime) -> Record | None:
        """Cancel the record, or record a cancel request if it is running, and return it; None if the id is unknown."""
        jobs = self._connection.collections.jobs
        tries = Tries(self._connection.address.shown, f"job {id}")
        while (document := jobs.find_one({"_id": id})) is not None:
            tries.another()
            before = record(document)
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
        """Cancel these records; any that another process changes at the same time is canceled separately."""
        jobs = self._connection.collections.jobs
        records = {document["_id"]: record(document) for document in jobs.find({"_id": {"$in": list(ids)}})}
        after = {id: canceled(before, reason, now) for id, before in records.items()}
        changing = [before for id, before in records.items() if after[id] != before]
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
        states = [again.get(id, after.get(id)) for id in ids]
        return [state for state in states if state is not None]

    def expire(self, late: Iterable[Record], now: datetime) -> None:
        """End records that were not started in time, unless they have changed."""
        replacements = [Replacement(where=unmoved(before), after=expired(before, now)) for before in late]
        if replacements:
            self.apply(replacements, now)

    def apply(self, replacements: Sequence[Replacement], now: datetime) -> set[JobId]:
        """Write the records that have not changed since they were read, with their effects, and return their ids."""
        token = ObjectId()
        effects = {replacement.after.id: effects_of(replacement.after, token, now) for replacement in replacements}
        return self._finish(effects, self._write(replacements, effects), token)

    def follow(self, effects: Sequence[Effect]) -> list[Document]:
        """Count written changes and carry out their effects; ``repair`` completes these after an error."""
        if not effects:
            return []
        self._effects.count(effects)
        try:
            return self._effects.complete(effects)
        except PyMongoError as error:
            log.warning("follow-ups of %d outcomes postponed; a later repair completes them: %s", len(effects), error)
            return []

    def _declare_options(self, settlements: Sequence[Settlement], now: datetime) -> set[JobId]:
        """Write the outcomes of jobs whose classes declare other options, and return the ids of those accepted."""
        return {
            settlement.after.id
            for settlement in settlements
            if settlement.defined and self._declare(settlement, settlement.defined, now)
        }

    def _apply(self, settlements: Sequence[Settlement], now: datetime) -> set[JobId]:
        """Write the outcomes, and remember the token if the answer is lost: the write may have happened."""
        token = ObjectId()
        effects: Mapping[JobId, Effect] = {
            settlement.after.id: effects_of(settlement.after, token, now, claimed=True, is_unseen=settlement.is_unseen)
            for settlement in settlements
        }
        has_rung = self._is_awaited(settlements)
        try:
            if has_rung:
                matched = self._settle_and_ring(settlements[0], effects[settlements[0].after.id])
            elif fits(settlements):
                matched, effects = self._write_together(settlements, effects)
            else:
                matched = self._write([_as_claimed(settlement) for settlement in settlements], effects)
            return self._finish(effects, matched, token, has_rung=has_rung)
        except PyMongoError:
            if len(self._doubts) > DOUBTS_KEPT:
                self._doubts.clear()
            for settlement in settlements:
                self._doubts.setdefault(_key(settlement), []).append(token)
            raise

    def _write_together(
        self, settlements: Sequence[Settlement], effects: Mapping[JobId, Effect]
    ) -> tuple[int, Mapping[JobId, Effect]]:
        """Write the outcomes in one command; return how many were accepted, and the effects as they were stored."""
        jobs = self._connection.collections.jobs
        shared = share(effects) if self.shares_entries else effects
        if shared is not effects:
            try:
                return jobs.bulk_write(statements(settlements, shared), ordered=True).matched_count, shared
            except BulkWriteError as error:
                if not has_lost_carrier(error):
                    raise
        where, update = statement(settlements, effects)
        return jobs.update_many(where, update, hint=BY_ID).matched_count, effects

    def _is_awaited(self, settlements: Sequence[Settlement]) -> bool:
        """Return whether this is the end of one job, small enough for a ring to carry it to waiters on this host."""
        if len(settlements) > 1 or not self._host_bells.has_listeners:
            return False
        after = settlements[0].after
        return after.status.is_final and is_short(after)

    def _settle_and_ring(self, settlement: Settlement, follows: Effect) -> int:
        """Write the outcome and ring with the written document, which gets the result to a waiter 4 ms sooner.

        The driver's own ``find_one_and_update`` is a retryable write, of which the server keeps a copy.
        """
        jobs = self._connection.collections.jobs
        document = find_and_modify(jobs, _as_claimed(settlement).where, change(settlement.after, follows), new=True)
        if document is None:
            return 0
        self._host_bells.ring(end_notice(document))
        return 1

    def _declare(self, settlement: Settlement, defined: Record, now: datetime) -> bool:
        """Write a record whose class declares other options than it was claimed with; return whether it was written.

        If another pending job has its unique key, the record is written as ended.
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
                assert after.unique is not None, "the record has the key of another job"
                keeper = jobs.find_one(holds(after.unique), {"_id": True})
                if keeper is not None:  # otherwise it has just ended, and the key is free
                    settlement = settlement._replace(after=outdone(after, keeper["_id"], now))
                continue
            self.follow([follows])
            return True

    def _write(self, replacements: Sequence[Replacement], effects: Mapping[JobId, Effect]) -> int:
        changes = [
            UpdateOne(replacement.where, change(replacement.after, effects[replacement.after.id]), hint=BY_ID)
            for replacement in replacements
        ]
        return self._connection.collections.jobs.bulk_write(changes, ordered=False).matched_count

    def _finish(
        self, effects: Mapping[JobId, Effect], matched: int, token: ObjectId, *, has_rung: bool = False
    ) -> set[JobId]:
        """Carry out the effects of accepted outcomes, and return their ids."""
        accepted = set(effects)
        if matched < len(effects):
            jobs = self._connection.collections.jobs
            where = {"_id": {"$in": list(effects)}, "swapped": token}
            accepted = {document["_id"] for document in jobs.find(where, {"_id": True})}
        written = [effects[id] for id in effects if id in accepted]
        if len(written) <= MOST_RUNG and any(effect.ended for effect in written) and not has_rung:
            self._host_bells.ring()
        self.follow(written)
        return accepted

    def _settle_changed(self, refused: Sequence[Settlement], now: datetime) -> set[JobId]:
        """Return the refused outcomes that an earlier call wrote, and settle the ones with a new cancel request."""
        jobs = self._connection.collections.jobs
        ids = [settlement.after.id for settlement in refused]
        documents = {document["_id"]: document for document in jobs.find({"_id": {"$in": ids}})}
        written = [settlement for settlement in refused if self._was_ours(settlement, documents)]
        accepted = {settlement.after.id for settlement in written}
        self._effects.count([effects_of(settlement.after, ObjectId(), now, claimed=True) for settlement in written])
        still_held = [settlement for settlement in refused if _holds(settlement, documents)]
        obedient = [_obeying(settlement, record(documents[settlement.after.id]), now) for settlement in still_held]
        return accepted | (self._apply(obedient, now) if obedient else set())

    def _was_ours(self, settlement: Settlement, documents: Mapping[JobId, Document]) -> bool:
        document = documents.get(settlement.after.id, {})
        return document.get("swapped") in self._doubts.get(_key(settlement), ())

    def update(self, before: Record, after: Record, now: datetime) -> bool:
        """Change a pending record if its owner's fields are still as they were read; return whether they were.

        The write changes the fields that differ, and derives ``due``, ``expires``, ``lane`` and the like again.
        """
        if after.status.is_final or after.course != before.course:
            return bool(self.apply([Replacement(where=unmoved(before), after=after)], now))
        old, new = _changed_fields(before), _changed_fields(after)
        differing = {name: value for name, value in new.items() if value != old[name]}
        where = unmoved(before) | {name: old[name] for name in differing}
        change = setting(differing)
        if after.data != before.data:
            where["data"] = as_bson(before.data)
            change.setdefault("$set", {})["data"] = as_bson(after.data)
        if not change.get("$set") and "$unset" not in change:
            return self._connection.collections.jobs.count_documents(where, limit=1) == 1
        for operator, derived in setting(_derived(after)).items():
            change.setdefault(operator, {}).update(derived)
        change["$set"]["revised"] = ObjectId()  # a claim that read the record earlier does not find it unchanged
        follows = None
        if after.status is not before.status:
            token = ObjectId()
            follows = effects_of(after, token, now)
            change["$set"]["swapped"] = token
            change["$push"] = {"after": follows.entry()}
        if not self._connection.collections.jobs.update_one(where, change).matched_count:
            return False
        if follows is not None:
            self.follow([follows])
        return True


def fits(settlements: Sequence[Settlement]) -> bool:
    """Return whether one statement can settle all of these: one holder, no leases to compare, not too much text."""
    if any(settlement.lease_end is not None for settlement in settlements):
        return False
    if len(settlements) > COUNT_LIMIT or len({settlement.holder for settlement in settlements}) > 1:
        return False
    return sum(_weight(settlement.after) for settlement in settlements) <= WEIGHT_LIMIT


def statement(
    settlements: Sequence[Settlement], effects: Mapping[JobId, Effect], *, has_entries: bool = True
) -> tuple[Document, list[Document]]:
    """Return filter and update; a job that is to run again, or recur, must not have been canceled since its claim."""
    ids = [settlement.after.id for settlement in settlements]
    claims = [settlement.claims for settlement in settlements]
    where: Document = {"_id": {"$in": ids}, **held_by(settlements[0].holder)}
    if len(set(claims)) == 1:
        where["claims"] = claims[0]
    else:
        where["$expr"] = {"$eq": ["$claims", _pick(ids, claims)]}
    sure_ids = [settlement.after.id for settlement in settlements if not depends_on_cancel(settlement.after)]
    if len(sure_ids) < len(ids):
        where["$or"] = [{"_id": {"$in": sure_ids}}, {"cancel": {"$exists": False}}]
    documents = [_fields(settlement, effects) for settlement in settlements]
    empty = [name for name in documents[0] if any(document[name] is None for document in documents)]
    shared = {name: documents[0][name] for name in _OFTEN_SAME if len({document[name] for document in documents}) == 1}
    own = [
        {name: document[name] for name in document if name not in shared and document[name] is not None}
        for document in documents
    ]
    values = {"$mergeObjects": ["$$ROOT", {"$literal": present(shared)}, _pick(ids, own)]}
    update: list[Document] = [{"$unset": empty}, {"$replaceWith": values}]
    return where, [_adding(_pick(ids, _entries(ids, effects))), *update] if has_entries else update


def share(effects: Mapping[JobId, Effect]) -> Mapping[JobId, Effect]:
    """Return the effects with one entry for all plain ends, unless there are too few.

    Writing and clearing an entry for each end took a fifth of the server's time in a drain.
    """
    plain_ids = [id for id, effect in effects.items() if effect.is_plain_end]
    if len(plain_ids) < LEAST_SHARED:
        return effects
    carrier, *others = plain_ids
    return {**effects, carrier: effects[carrier]._replace(batch=others)}


def statements(settlements: Sequence[Settlement], shared: Mapping[JobId, Effect]) -> list[UpdateOne | UpdateMany]:
    """Return the changes that share an entry, in order: the first writes the entry; if it fails, no change is made.

    So no end is ever written without an entry.
    """
    carrier = next(settlement for settlement in settlements if shared[settlement.after.id].batch)
    sharing_ids = set(shared[carrier.after.id].batch)
    first = UpdateOne({"_id": carrier.after.id}, _carry(carrier, shared), upsert=True, hint=BY_ID)
    changes: list[UpdateOne | UpdateMany] = [first]  # an upsert, so that it also fails if the record was removed
    plain = [settlement for settlement in settlements if settlement.after.id in sharing_ids]
    entry_ids = sharing_ids | {carrier.after.id}
    others = [settlement for settlement in settlements if settlement.after.id not in entry_ids]
    for group, has_entries in ((plain, False), (others, True)):
        if group:
            changes.append(UpdateMany(*statement(group, shared, has_entries=has_entries), hint=BY_ID))
    return changes


def has_lost_carrier(error: BulkWriteError) -> bool:
    """Return whether nothing was written because the claim on the job with the shared entry is lost."""
    [first, *_] = error.details["writeErrors"] or [{}]
    return (first.get("index"), first.get("code")) == (0, CONVERSION_FAILED)


def depends_on_cancel(after: Record) -> bool:
    """Return whether a cancel request that the caller did not know of would change the outcome."""
    if after.phase is Phase.FAILING:
        return False
    return not after.status.is_final or (after.origin is not None and after.cancel is None)


def is_short(after: Record) -> bool:
    """Return whether the record may fit into a ring."""
    return len(after.data) + _weight(after) < LONGEST_RING


def _as_claimed(settlement: Settlement) -> Replacement:
    """Return the replacement for a claim that still holds; a job to run again must not have been canceled since."""
    where = {"_id": settlement.after.id, "claims": settlement.claims, **held_by(settlement.holder)}
    if settlement.lease_end is not None:
        where["ready_at"] = settlement.lease_end
    if depends_on_cancel(settlement.after):
        where["cancel"] = {"$exists": False}
    return Replacement(where=where, after=settlement.after)


def _obeying(settlement: Settlement, present: Record, now: datetime) -> Settlement:
    after = changed(obeying(settlement.after, present.cancel, now), cancel=present.cancel)
    return settlement._replace(after=after)


def _holds(settlement: Settlement, documents: Mapping[JobId, Document]) -> bool:
    document = documents.get(settlement.after.id)
    if document is None or document["status"] != Status.PROCESSING or document.get("claims") != settlement.claims:
        return False
    holder: Document = document["holder"]
    return holder == {"seat": settlement.holder.seat, "incarnation": settlement.holder.incarnation}


def _key(settlement: Settlement) -> tuple[JobId, int, str]:
    return settlement.after.id, settlement.claims, settlement.holder.incarnation


def _carry(carrier: Settlement, shared: Mapping[JobId, Effect]) -> list[Document]:
    """Return the update of the job with the shared entry; the server raises an error if the claim is lost."""
    id = carrier.after.id
    held = held_by(carrier.holder) | {"claims": carrier.claims}
    is_held = {"$and": [{"$eq": [f"${name}", {"$literal": value}]} for name, value in held.items()]}
    fails = {"$toObjectId": {"$concat": ["not held: ", {"$type": "$status"}]}}
    fields = _fields(carrier, shared)
    return [
        {"$set": {"swapped": {"$cond": [is_held, shared[id].token, fails]}}},
        _adding({"$literal": shared[id].entry()}),
        {"$unset": [name for name, value in fields.items() if value is None]},
        {"$replaceWith": {"$mergeObjects": ["$$ROOT", {"$literal": present(fields)}]}},
    ]


def _fields(settlement: Settlement, effects: Mapping[JobId, Effect]) -> Document:
    fields = moving(settlement.after)
    fields["swapped"] = effects[settlement.after.id].token
    return fields


def _adding(entry: Document) -> Document:
    """Return the step that adds the entry of effects to the record."""
    return {"$set": {"after": {"$concatArrays": [_list_of("$after"), [entry]]}}}


def _pick(ids: Sequence[JobId], values: Sequence[Any]) -> Document:
    """Return the expression for a value of the record that is being updated."""
    return {"$arrayElemAt": [{"$literal": list(values)}, {"$indexOfArray": [{"$literal": list(ids)}, "$_id"]}]}


def _list_of(field: str) -> Document:
    return {"$ifNull": [field, []]}


def _entries(ids: Sequence[JobId], effects: Mapping[JobId, Effect]) -> list[Document]:
    return [effects[id].entry() for id in ids]


def _weight(after: Record) -> int:
    """Return about how many characters of text the new state has."""
    errors = [after.error, *(attempt.error for attempt in after.attempts)]
    texts = [
        after.result,
        after.state,
        after.cursor,
        after.course and after.course.reports,
        *(text for error in errors if error for text in (error.message, error.traceback)),
    ]
    return sum(len(text) for text in texts if text)


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
    """Return the fields that are derived from others; each change writes them, so they are never compared."""
    moved = moving(record)
    return {"due": moved["due"], "expires": moved["expires"], "lane": lane(record)}
