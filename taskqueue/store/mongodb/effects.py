"""Keeps the effects of a change in the changed record, and carries them out: events, successors and releases.

Any process may do or repeat any step, so another process can complete the entries of a dead writer.
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
from taskqueue.model.schedules.series import NextRun, advance
from taskqueue.model.schedules.series import successor as following_occurrence
from taskqueue.store import Event
from taskqueue.store.codec import event_name
from taskqueue.store.mongodb import unique_keys
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
from taskqueue.store.mongodb.indexes import BEHIND, CHILDREN, LEFTOVERS
from taskqueue.store.mongodb.limits import Freed, LimitUse
from taskqueue.store.mongodb.unique_keys import undoubted
from taskqueue.store.tries import MOST_TRIES

log = logging.getLogger(__name__)

LEFT_AFTER = timedelta(seconds=5)
"""The age at which an entry, or a job that a schedule started, counts as abandoned by a dead writer."""

STEP = 500
"""Maximum number of records that one round of release or repair reads."""


class Effect(NamedTuple):
    """The effects of one change: an event, a successor, a release or a recheck."""

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
    """Whether jobs that it waits for may have ended before the change was written (stored as ``look``)."""
    freed: Freed | None = None
    """The limits under which its run frees room."""
    copy_of: Sequence[JobId] = ()
    """The jobs whose copy this one is, now that it has succeeded."""
    after: Record | None = None
    """The changed record, if the history counts the change."""
    claimed: bool = False
    """Whether the change settled a claim."""
    batch: Sequence[JobId] = ()
    """The other jobs whose plain ends were written with this one and share this entry."""

    @property
    def is_plain_end(self) -> bool:
        """Return whether the change ends a claim and all its effects can be derived from the record."""
        if not self.ended or not self.claimed or self.event is None or self.needs_recheck or self.copy_of:
            return False
        return self.successor is None and self.advance is None and self.freed is None

    def entry(self) -> Document:
        """Return the entry for the list ``after`` of the record."""
        entry: Document = {"token": self.token, "at": self.at, "ended": self.ended}
        if self.event is not None and self.event.status is not None:
            entry["event"] = {"id": self.event.id, "name": self.event.name, "status": int(self.event.status)}
        if self.successor is not None:
            entry["successor"] = self.successor
        if self.advance is not None:
            entry["advance"] = present(vars(self.advance) | {"job": None})
        if self.needs_recheck:
            entry["look"] = True
        if self.copy_of:
            entry["copy_of"] = list(self.copy_of)
        if self.freed is not None:
            entry["freed"] = self.freed.entry()
        if self.batch:
            entry["batch"] = list(self.batch)
        return entry


class Effects:
    """Carries out effects, records their events and clears their entries."""

    def __init__(self, connection: Connection, event_writer: EventWriter, limit_use: LimitUse) -> None:
        self._connection = connection
        self._limit_use = limit_use
        self._event_writer = event_writer

    def count(self, effects: Sequence[Effect]) -> None:
        """Count the written changes of one call in the history."""
        settled = [effect.after for effect in effects if effect.after is not None and effect.claimed]
        ended = [effect.after for effect in effects if effect.after is not None and not effect.claimed]
        if effects:
            self._event_writer.count(effects[0].at, settled, ended)

    def complete(self, effects: Sequence[Effect]) -> list[Document]:
        """Carry out all effects and return the inserted successors."""
        now = max(effect.at for effect in effects)
        for effect in effects:
            if effect.advance is not None:
                self._advance_schedule(effect.advance)
        rechecked = [effect.job_id for effect in effects if effect.needs_recheck]
        successors: list[Document] = []
        for effect in effects:
            if effect.successor is None:
                continue
            if self._insert(effect.successor, effect.job_id):
                successors.append(effect.successor)
            else:
                rechecked += unique_keys.taken(self._connection, effect.successor["unique"], effect.job_id)
        rechecked += [
            successor["_id"] for successor in successors if "waiting_for" in successor or "parent" in successor
        ]
        released = self._relieve({**self._ended_before(rechecked), **_ends(effects), **_originals(effects)}, now)
        self._limit_use.release([effect.freed for effect in effects if effect.freed is not None])
        events = [effect.event for effect in effects if effect.event is not None]
        events += [transition(record(successor), now) for successor in successors]
        events += [effect.event for effect in released if effect.event is not None]
        carried_out = [*effects, *released]
        without_entry = {id for effect in effects for id in effect.batch}
        done = [_done(effect, now) for effect in carried_out if effect.job_id not in without_entry]
        self._event_writer.submit(events, done)
        return successors

    def repair(self, now: datetime) -> int:
        """Complete abandoned entries, and return how many changes they belonged to."""
        where = {"after.at": {"$lte": now - LEFT_AFTER}}
        jobs = self._connection.collections.latest
        left_jobs = list(jobs.find(where, {"after": True}).hint(LEFTOVERS).limit(STEP))
        effects = [
            left_effect(job["_id"], entry)
            for job in left_jobs
            for entry in job["after"]
            if entry["at"] <= now - LEFT_AFTER
        ]
        effects += [shared for effect in effects if effect.batch for shared in self._batch_of(effect)]
        if effects:
            self.complete(effects)
        return len(effects)

    def _batch_of(self, carrier: Effect) -> list[Effect]:
        """Return the effects of the written ends that share this entry."""
        where = {"_id": {"$in": list(carrier.batch)}, "swapped": carrier.token}  # nothing changes them any more
        documents = self._connection.collections.latest.find(where)
        return [effects_of(after, carrier.token, carrier.at, claimed=True) for after in records(documents)]

    def _advance_schedule(self, advance: NextRun) -> None:
        """Advance the schedule that started the ended job; nothing changes if that was done."""
        plans = self._connection.collections.plans
        if advance.next_run_at is not None:
            plans.update_one(
                {"_id": advance.schedule, "awaits": advance.job},
                {"$set": {"next_run_at": advance.next_run_at}, "$unset": {"awaits": ""}, "$inc": {"version": 1}},
            )
        if advance.failed is not None:
            outcome_field = f"about.ended.{advance.job}"
            plans.update_one(
                {"_id": advance.schedule, "about.recent": str(advance.job), outcome_field: {"$ne": advance.failed}},
                {"$set": {outcome_field: advance.failed}, "$inc": {"version": 1}},
            )

    def _insert(self, successor: Document, ended: JobId) -> bool:
        """Insert the record and return whether it exists now; it is dropped if another job has its unique key."""
        try:
            self._connection.collections.jobs.insert_one(dict(successor))
        except DuplicateKeyError as error:
            if clashing_field(error.details) == "_id":
                return True
            if "origin" in successor:
                log.warning("the series ends: another job has the unique key %r of job %s", successor["unique"], ended)
            else:
                log.info("job %s was dropped: another job has its unique key %r", successor["_id"], successor["unique"])
            return False
        return True

    def _ended_before(self, rechecked: Sequence[JobId]) -> dict[JobId, Status | None]:
        """Return the ended dependencies and parents of these records: the status of each, or None if it was removed."""
        if not rechecked:
            return {}
        jobs = self._connection.collections.jobs
        rechecked_jobs = list(
            jobs.find({"_id": {"$in": rechecked}}, {"waiting_for": True, "parent": True, "unique": True})
        )
        doubtful = {job["unique"]: job["_id"] for job in rechecked_jobs if job["_id"] in job.get("waiting_for", ())}
        awaited = {id for job in rechecked_jobs for id in job.get("waiting_for", ())}
        awaited |= {job["parent"] for job in rechecked_jobs if "parent" in job}
        if doubtful:
            awaited |= unique_keys.wait_behind(self._connection, doubtful)
        documents = jobs.find({"_id": {"$in": list(awaited)}}, {"status": True}) if awaited else ()
        statuses = {document["_id"]: status_in(document.get("status")) for document in documents}
        ends = {id: statuses.get(id) for id in awaited} | dict.fromkeys(doubtful.values())
        return {id: status for id, status in ends.items() if status is None or status.is_final}

    def _relieve(self, ended: Mapping[JobId, Status | None], now: datetime) -> list[Effect]:
        """Apply these ends to waiting jobs, then the ends that this causes; return the effects."""
        effects: list[Effect] = []
        while ended:
            caused = [*self._release(ended, now), *self._cancel_children(ended, now)]
            effects += caused
            ended = _ends(caused)
        return effects

    def _release(self, ended: Mapping[JobId, Status | None], now: datetime) -> list[Effect]:
        """Release or cancel the jobs that wait for ended jobs, and return the effects."""
        jobs = self._connection.collections.jobs
        all_effects: list[Effect] = []
        staying: list[JobId] = []
        tried: Counter[JobId] = Counter()
        while True:
            where: Document = {"waiting_for": {"$in": list(ended)}, "_id": {"$nin": staying}}
            waiting = records(jobs.find(where).hint(BEHIND).limit(STEP))
            if not waiting:
                return all_effects
            _count_tries(tried, waiting)
            token = ObjectId()
            changes, effects = [], []
            for before in waiting:
                after = _relieved(before, ended, now)
                if after.waiting_for == before.waiting_for:
                    staying.append(before.id)
                elif after.status is not Status.POSTPONED:
                    effects.append(effects_of(after, token, now))
                    changes.append(UpdateOne(unmoved(before), change(after, effects[-1])))
                else:
                    changes.append(UpdateOne(unmoved(before), update(after)))
            all_effects += self._write(changes, effects, token)

    def _cancel_children(self, ended: Mapping[JobId, Status | None], now: datetime) -> list[Effect]:
        """If the end of a job ends its whole tree, end its children; return the effects."""
        tree_ends = {id: status for id, status in ended.items() if status in TREE_ENDS}
        if not tree_ends:
            return []
        jobs = self._connection.collections.jobs
        all_effects: list[Effect] = []
        pending = {"$lte": int(Status.PROCESSING)}
        where: Document = {"parent": {"$in": list(tree_ends)}, "status": pending, "cancel": {"$exists": False}}
        where["course.phase"] = {"$ne": Phase.FAILING.value}
        tried: Counter[JobId] = Counter()
        while children := records(jobs.find(where).hint(CHILDREN).limit(STEP)):
            _count_tries(tried, children)
            token = ObjectId()
            changes, effects = [], []
            for child in children:
                after = _orphaned(child, tree_ends, now)
                if after.cancel is not None:
                    request = cancel_request(after.cancel.reason, after.cancel.requested_at)
                    changes.append(
                        UpdateOne({**unmoved(child), "cancel": {"$exists": False}}, {"$set": {"cancel": request}})
                    )
                else:
                    effects.append(effects_of(after, token, now))
                    changes.append(UpdateOne(unmoved(child), change(after, effects[-1])))
            all_effects += self._write(changes, effects, token)
        return all_effects

    def _write(self, changes: Sequence[UpdateOne], effects: Sequence[Effect], token: ObjectId) -> Sequence[Effect]:
        """Write the records that have not changed since they were read, and return the effects."""
        jobs = self._connection.collections.jobs
        if changes and jobs.bulk_write(changes, ordered=False).matched_count < len(changes):
            where = {"_id": {"$in": [effect.job_id for effect in effects]}, "swapped": token}
            changed = {document["_id"] for document in jobs.find(where, {"_id": True})}
            effects = [effect for effect in effects if effect.job_id in changed]
        self.count(effects)
        return effects


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

    ``claimed`` means that the change settles a claim; ``is_unseen`` is the field of the settlement.
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
    """Return the event of the record's current status."""
    return status_event(after.id, after.claims, event_name(after), now, after.status)


def change(after: Record, effect: Effect, changed: Document | None = None) -> Document:
    """Return the update to a record's new state with the entry of its effects."""
    changed = changed or update(after)
    changed["$set"]["swapped"] = effect.token
    changed["$push"] = {"after": effect.entry()}
    return changed


def left_effect(job_id: JobId, entry: Document) -> Effect:
    """Return the effect of an entry that a dead writer left."""
    event = entry.get("event")
    return Effect(
        token=entry["token"],
        at=entry["at"],
        job_id=job_id,
        event=event
        and Event(id=event["id"], job_id=job_id, name=event["name"], at=entry["at"], status=Status(event["status"])),
        ended=entry["ended"],
        successor=entry.get("successor"),
        advance=NextRun(job=job_id, **entry["advance"]) if "advance" in entry else None,
        needs_recheck="look" in entry,
        freed=Freed(id=job_id, **entry["freed"]) if "freed" in entry else None,
        copy_of=entry.get("copy_of", ()),
        batch=entry.get("batch", ()),
    )


def clashing_field(details: Any) -> str:
    """Return the field that the server reports as duplicate: ``_id`` or ``unique``."""
    return str(next(iter(details["keyPattern"])))


def _freed(after: Record, now: datetime, *, is_unseen: bool) -> Freed:
    """Return the limits that the run of a settled claim has used."""
    began_at = counted_from(after, now, is_unseen=is_unseen)
    return Freed(id=after.id, claims=after.claims, lane=after.lane, began_at=began_at)


def _done(effect: Effect, now: datetime) -> Done:
    return Done(id=effect.job_id, token=effect.token, freed_at=None if effect.freed is None else now)


def _count_tries(tried: Counter[JobId], changing: Sequence[Record]) -> None:
    """Count a try for each record, and raise an error if one changes on every try; ``repair`` continues after that."""
    tried.update(job.id for job in changing)
    for job in changing:
        if tried[job.id] > MOST_TRIES:
            raise PyMongoError(f"job {job.id} was changed by other processes during each of {MOST_TRIES} tries")


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
    return {effect.job_id: effect.event.status for effect in effects if effect.ended and effect.event is not None}


def _originals(effects: Sequence[Effect]) -> dict[JobId, Status | None]:
    """Return the jobs that succeeded as a copy, or as a copy of a copy: their dependents may run."""
    return dict.fromkeys((id for effect in effects for id in effect.copy_of), Status.DONE)
