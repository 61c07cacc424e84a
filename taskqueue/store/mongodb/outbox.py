"""Keeps an outbox in each changed record, and carries out its entries: the events, successors and releases of a change.

Every step may be done twice and by any process, so the next one completes the entries of a dead writer.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from bson import ObjectId
from pymongo import UpdateOne
from pymongo.errors import DuplicateKeyError, PyMongoError

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.claim_end import counted_from
from taskqueue.model.lifecycle.continuation import Phase
from taskqueue.model.lifecycle.pending import TREE_ENDS, orphaned, relieved
from taskqueue.model.lifecycle.recovered_copy import origins_of
from taskqueue.model.record import Record, Status
from taskqueue.model.schedules.next_run import NextRun, advance
from taskqueue.model.schedules.next_run import successor as following_occurrence
from taskqueue.store import Event
from taskqueue.store.codec import event_name
from taskqueue.store.mongodb.background_writer import Done, EventWriter
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import (
    Document,
    cancel_request,
    document,
    present,
    record,
    records,
    status_in,
    unmoved,
    update,
)
from taskqueue.store.mongodb.events import status_event
from taskqueue.store.mongodb.history import Turn, left_turns, sharing, turns_of
from taskqueue.store.mongodb.indexes import BEHIND, CHILDREN, LEFTOVERS
from taskqueue.store.mongodb.limits import Freed, LimitUse
from taskqueue.store.mongodb.unique_keys import UniqueKeys, undoubted
from taskqueue.store.tries import MOST_TRIES

log = logging.getLogger(__name__)


class Effect(NamedTuple):
    """The outbox entry of one change: an event, a successor, a release, or a recheck; one is made for each outcome."""

    token: ObjectId
    """Identifies the change."""
    at: datetime
    job_id: JobId
    event: Event | None = None
    ended: bool = False
    successor: Document | None = None
    """The next occurrence of a series, to be inserted."""
    advance: NextRun | None = None
    """The change that the job's end makes to the schedule that started it."""
    needs_recheck: bool = False
    """Whether the jobs that it waits for may have ended before the change was written (kept as ``look``)."""
    freed: Freed | None = None
    """The limits whose places its run gives back."""
    copy_of: Sequence[JobId] = ()
    """The jobs of which this one is a copy that has succeeded."""
    after: Record | None = None
    """The record, where the history counts its change."""
    claimed: bool = False
    """Whether the change settled a claim."""
    batch: Sequence[JobId] = ()
    """The other jobs whose plain ends were written with this one, and have no entry but this."""

    @property
    def is_plain_end(self) -> bool:
        """Return whether it is the end of a claim, all of whose effects can be derived from the record."""
        if not self.ended or not self.claimed or self.event is None or self.needs_recheck or self.copy_of:
            return False
        return self.successor is None and self.advance is None and self.freed is None

    def kept(self) -> Document:
        """Return it as it is kept in the list ``after`` of the record."""
        kept: Document = {"token": self.token, "at": self.at, "ended": self.ended}
        if self.event is not None and self.event.status is not None:
            kept["event"] = {"id": self.event.id, "name": self.event.name, "status": int(self.event.status)}
        if self.successor is not None:
            kept["successor"] = self.successor
        if self.advance is not None:
            kept["advance"] = present(vars(self.advance) | {"job": None})
        if self.needs_recheck:
            kept["look"] = True
        if self.copy_of:
            kept["copy_of"] = list(self.copy_of)
        if self.freed is not None:
            kept["freed"] = self.freed.kept()
        if self.claimed:
            kept["claimed"] = True
        if self.batch:
            kept["batch"] = list(self.batch)
        return kept


def effects_of(
    after: Record,
    token: ObjectId,
    now: datetime,
    successor: Record | None = None,
    *,
    claimed: bool = False,
    is_unseen: bool = False,
) -> Effect:
    """Return the effects of a record's change to this state.

    ``claimed`` says that it settles a claim, and ``is_unseen`` is that of the settlement.
    """
    if successor is None and after.origin is not None:
        successor = following_occurrence(after, now)
    return Effect(
        token=token,
        at=now,
        job_id=after.id,
        event=transition(after, now),
        ended=after.status.is_final,
        needs_recheck=bool(after.waiting_for),
        freed=_freed(after, now, is_unseen=is_unseen) if claimed and after.lane else None,
        copy_of=origins_of(after) if after.status is Status.DONE else (),
        successor=None if successor is None else document(successor),
        advance=None if after.origin is None else advance(after, now),
        after=after if claimed or after.status.is_final else None,
        claimed=claimed,
    )


def transition(after: Record, now: datetime) -> Event:
    """Return the event of the record's present status."""
    return status_event(after.id, after.claims, event_name(after), now, after.status)


def change(after: Record, follows: Effect, changed: Document | None = None) -> Document:
    """Return the update to a record's new state with its outbox entry."""
    changed = changed or update(after)
    changed["$set"]["swapped"] = follows.token
    changed["$push"] = {"after": follows.kept()}
    return changed


def left_effect(job_id: JobId, kept: Document) -> Effect:
    """Return the effect of an entry that a dead writer left."""
    event = kept.get("event")
    return Effect(
        token=kept["token"],
        at=kept["at"],
        job_id=job_id,
        event=event
        and Event(id=event["id"], job_id=job_id, name=event["name"], at=kept["at"], status=Status(event["status"])),
        ended=kept["ended"],
        successor=kept.get("successor"),
        advance=_advance_of(job_id, kept),
        needs_recheck="look" in kept,
        freed=Freed(id=job_id, **kept["freed"]) if "freed" in kept else None,
        copy_of=kept.get("copy_of", ()),
        claimed="claimed" in kept,
        batch=kept.get("batch", ()),
    )


def _freed(after: Record, now: datetime, *, is_unseen: bool) -> Freed:
    """Return the limits that the run of a settled claim has used."""
    began_at = counted_from(after, now, is_unseen=is_unseen)
    return Freed(id=after.id, claims=after.claims, lane=after.lane, began_at=began_at)


def _advance_of(job_id: JobId, kept: Document) -> NextRun | None:
    return NextRun(job=job_id, **kept["advance"]) if "advance" in kept else None


LEFT_AFTER = timedelta(seconds=5)
"""The age at which an entry, or a job that a schedule started, counts as left by a dead writer."""

STEP = 500
"""The most records that one round of release or repair reads."""


class Outbox:
    """Carries out outbox entries, records their events and clears them."""

    def __init__(self, connection: Connection, event_writer: EventWriter, limit_use: LimitUse) -> None:
        self._connection = connection
        self._limit_use = limit_use
        self._event_writer = event_writer
        self._keys = UniqueKeys(connection)

    def complete(self, effects: Sequence[Effect], turns: Sequence[Turn] = ()) -> list[Document]:
        """Carry out all effects, count them in the history, and return the inserted successors."""
        now = max(one.at for one in effects)
        for one in effects:
            if one.advance is not None:
                self._advance_schedule(one.advance)
        rechecked = [one.job_id for one in effects if one.needs_recheck]
        arrived: list[Document] = []
        for one in effects:
            if one.successor is None:
                continue
            if self._insert(one.successor, one.job_id):
                arrived.append(one.successor)
            else:
                rechecked += self._keys.taken(one.successor["unique"], one.job_id)
        rechecked += [new["_id"] for new in arrived if "waiting_for" in new or "parent" in new]
        released = self._relieve({**self._ended_before(rechecked), **_ends(effects), **_originals(effects)}, now)
        self._limit_use.release([one.freed for one in effects if one.freed is not None])
        events = [one.event for one in effects if one.event is not None]
        events += [transition(record(new), now) for new in arrived]
        events += [one.event for one in released if one.event is not None]
        counted = [(one.token, one.at, one.claimed, one.after) for one in (*effects, *released) if one.after]
        entryless = {id for one in effects for id in one.batch}
        done = [_done(one, now) for one in (*effects, *released) if one.job_id not in entryless]
        self._event_writer.submit(events, done, [*turns, *turns_of(counted)])
        return arrived

    def repair(self, now: datetime) -> int:
        """Complete abandoned entries and return how many changes those were."""
        old = {"after.at": {"$lte": now - LEFT_AFTER}}
        jobs = self._connection.collections.latest
        left = list(jobs.find(old, {"after": True}).hint(LEFTOVERS).limit(STEP))
        effects = [
            left_effect(kept["_id"], one) for kept in left for one in kept["after"] if one["at"] <= now - LEFT_AFTER
        ]
        effects += [each for one in effects if one.batch for each in self._batch_of(one)]
        if effects:
            counted = {one.token: one.at for one in effects if one.ended or one.claimed}
            self.complete(effects, left_turns(self._connection, counted))
        return len(effects)

    def _batch_of(self, carrier: Effect) -> list[Effect]:
        """Return the effects of the ends that share this entry, and were written."""
        kept = self._connection.collections.latest.find(sharing(carrier.token, carrier.batch))
        found = [effects_of(after, carrier.token, carrier.at, claimed=True) for after in records(kept)]
        return [one._replace(after=None) for one in found]  # the turn of their entry counts them

    def _advance_schedule(self, advance: NextRun) -> None:
        """Advance the schedule that started the ended job; nothing changes if that was done."""
        plans = self._connection.collections.plans
        if advance.next_run_at is not None:
            plans.update_one(
                {"_id": advance.schedule, "awaits": advance.job},
                {"$set": {"next_run_at": advance.next_run_at}, "$unset": {"awaits": ""}, "$inc": {"version": 1}},
            )
        if advance.failed is not None:
            known = f"about.ended.{advance.job}"
            plans.update_one(
                {"_id": advance.schedule, "about.recent": str(advance.job), known: {"$ne": advance.failed}},
                {"$set": {known: advance.failed}, "$inc": {"version": 1}},
            )

    def _insert(self, successor: Document, ended: JobId) -> bool:
        """Insert the record and return whether it exists; it is dropped if another job has its unique key."""
        try:
            self._connection.collections.jobs.insert_one(dict(successor))
        except DuplicateKeyError as error:
            if clashing_field(error.details) == "_id":
                return True
            if "origin" in successor:
                log.warning("the series ends: another job has the unique key %r of job %s", successor["unique"], ended)
            else:
                log.info("job %s was dropped: another holds its unique key %r", successor["_id"], successor["unique"])
            return False
        return True

    def _ended_before(self, rechecked: Sequence[JobId]) -> dict[JobId, Status | None]:
        """Return the dependencies and parents of these records that ended, with their status, None if gone."""
        if not rechecked:
            return {}
        jobs = self._connection.collections.jobs
        looking = list(jobs.find({"_id": {"$in": rechecked}}, {"waiting_for": True, "parent": True, "unique": True}))
        doubtful = {one["unique"]: one["_id"] for one in looking if one["_id"] in one.get("waiting_for", ())}
        awaited = {id for one in looking for id in one.get("waiting_for", ())}
        awaited |= {one["parent"] for one in looking if "parent" in one}
        if doubtful:
            awaited |= self._keys.wait_behind(doubtful)
        known = jobs.find({"_id": {"$in": list(awaited)}}, {"status": True}) if awaited else ()
        statuses = {one["_id"]: status_in(one.get("status")) for one in known}
        ends = {id: statuses.get(id) for id in awaited} | dict.fromkeys(doubtful.values())
        return {id: status for id, status in ends.items() if status is None or status.is_final}

    def _relieve(self, ended: Mapping[JobId, Status | None], now: datetime) -> list[Effect]:
        """Apply these ends to waiting jobs, and the ends that this causes; return the effects."""
        following: list[Effect] = []
        while ended:
            follows = [*self._release(ended, now), *self._cancel_children(ended, now)]
            following += follows
            ended = _ends(follows)
        return following

    def _release(self, ended: Mapping[JobId, Status | None], now: datetime) -> list[Effect]:
        """Release or cancel the jobs that wait for ended ones, and return the effects."""
        jobs = self._connection.collections.jobs
        following: list[Effect] = []
        staying: list[JobId] = []
        tried: Counter[JobId] = Counter()
        while True:
            where: Document = {"waiting_for": {"$in": list(ended)}, "_id": {"$nin": staying}}
            waiting = records(jobs.find(where).hint(BEHIND).limit(STEP))
            if not waiting:
                return following
            _count_tries(tried, waiting)
            token = ObjectId()
            changes, follows = [], []
            for one in waiting:
                after = _relieved(one, ended, now)
                if after.waiting_for == one.waiting_for:
                    staying.append(one.id)
                elif after.status is not Status.POSTPONED:
                    follows.append(effects_of(after, token, now))
                    changes.append(UpdateOne(unmoved(one), change(after, follows[-1])))
                else:
                    changes.append(UpdateOne(unmoved(one), update(after)))
            following += self._write(changes, follows, token)

    def _cancel_children(self, ended: Mapping[JobId, Status | None], now: datetime) -> list[Effect]:
        """End the children of jobs whose end is the end of their tree, and return the effects."""
        over = {id: status for id, status in ended.items() if status in TREE_ENDS}
        if not over:
            return []
        jobs = self._connection.collections.jobs
        following: list[Effect] = []
        pending = {"$lte": int(Status.PROCESSING)}
        where: Document = {"parent": {"$in": list(over)}, "status": pending, "cancel": {"$exists": False}}
        where["course.phase"] = {"$ne": Phase.FAILING.value}
        tried: Counter[JobId] = Counter()
        while children := records(jobs.find(where).hint(CHILDREN).limit(STEP)):
            _count_tries(tried, children)
            token = ObjectId()
            changes, follows = [], []
            for child in children:
                after = _orphaned(child, over, now)
                if after.cancel is not None:
                    request = cancel_request(after.cancel.reason, after.cancel.requested_at)
                    changes.append(
                        UpdateOne({**unmoved(child), "cancel": {"$exists": False}}, {"$set": {"cancel": request}})
                    )
                else:
                    follows.append(effects_of(after, token, now))
                    changes.append(UpdateOne(unmoved(child), change(after, follows[-1])))
            following += self._write(changes, follows, token)
        return following

    def _write(self, changes: Sequence[UpdateOne], follows: Sequence[Effect], token: ObjectId) -> Sequence[Effect]:
        """Write the records that are unchanged since they were read, and return the effects."""
        jobs = self._connection.collections.jobs
        if not changes or jobs.bulk_write(changes, ordered=False).matched_count == len(changes):
            return follows
        ours = jobs.find({"_id": {"$in": [one.job_id for one in follows]}, "swapped": token}, {"_id": True})
        changed = {one["_id"] for one in ours}
        return [one for one in follows if one.job_id in changed]


def clashing_field(details: Any) -> str:
    """Return the field that the server reports as a duplicate: ``_id`` or ``unique``."""
    return str(next(iter(details["keyPattern"])))


def _done(one: Effect, now: datetime) -> Done:
    return Done(id=one.job_id, token=one.token, freed_at=None if one.freed is None else now)


def _count_tries(tried: Counter[JobId], changing: Sequence[Record]) -> None:
    """Count a try for each; raise an error, after which ``repair`` continues, if one has moved each time."""
    tried.update(one.id for one in changing)
    for one in changing:
        if tried[one.id] > MOST_TRIES:
            raise PyMongoError(f"job {one.id} was changed by other processes before each of {MOST_TRIES} tries")


def _relieved(waiting: Record, ended: Mapping[JobId, Status | None], now: datetime) -> Record:
    for id in waiting.waiting_for:
        if id == waiting.id and id in ended:
            waiting = undoubted(waiting, now)
        elif id in ended:
            waiting = relieved(waiting, id, ended[id], now)
    return waiting


def _orphaned(child: Record, ended: Mapping[JobId, Status | None], now: datetime) -> Record:
    assert child.parent is not None
    status = ended[child.parent]
    assert status is not None
    return orphaned(child, child.parent, status, now)


def _ends(effects: Sequence[Effect]) -> dict[JobId, Status | None]:
    """Return the ended jobs with their status."""
    return {one.job_id: one.event.status for one in effects if one.ended and one.event is not None}


def _originals(effects: Sequence[Effect]) -> dict[JobId, Status | None]:
    """Return the jobs whose copies, or copies of copies, have succeeded: their dependents may run."""
    return dict.fromkeys((id for one in effects for id in one.copy_of), Status.DONE)
