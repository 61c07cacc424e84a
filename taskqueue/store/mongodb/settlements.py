"""Settles, cancels and expires records by compare-and-set on the claim or status that was read."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from bson import ObjectId
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError, DuplicateKeyError, PyMongoError

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.pending import canceled, expired
from taskqueue.model.lifecycle.settle import obeying
from taskqueue.model.options.apply_declared import outdone
from taskqueue.model.record import Record, Status, changed
from taskqueue.store import Settlement
from taskqueue.store.mongodb.batches import (
    depends_on_cancel,
    fits,
    has_lost_carrier,
    is_short,
    share,
    statement,
    statements,
)
from taskqueue.store.mongodb.connection import Connection, find_and_modify
from taskqueue.store.mongodb.documents import Document, cancel_request, declared, held_by, record, unmoved
from taskqueue.store.mongodb.effects import Effect, change, effects_of
from taskqueue.store.mongodb.end_notice import end_notice
from taskqueue.store.mongodb.host_bells import HostBells
from taskqueue.store.mongodb.indexes import BY_ID
from taskqueue.store.mongodb.log_lines import LogLines
from taskqueue.store.mongodb.outbox import Outbox
from taskqueue.store.tries import Tries

log = logging.getLogger(__name__)

DOUBTS_KEPT = 10_000
"""The most outcomes whose write may have happened though its answer was lost that are remembered."""

MOST_RUNG = 4
"""The most ends of one call for which this host's bells ring; of more, the change stream brings the first as soon."""


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """One record's new state and where it applies."""

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
        """Whether all nodes know entries that the ends of a batch share, and one server has the jobs of a batch."""
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
        """Cancel these records; those that another process moves meanwhile one by one."""
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
    """Return the replacement for a claim that holds; a job to run again must not have been canceled meanwhile."""
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
