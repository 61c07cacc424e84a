"""What follows from a change that is in already: kept in the changed record itself until it has been carried out.

Every step may be done twice and by anybody, so a leftover of a writer that died is completed by the next who sees it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId
from pymongo import UpdateOne
from pymongo.errors import DuplicateKeyError

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.continuation import Phase
from taskqueue.model.lifecycle.copy import origins_of
from taskqueue.model.lifecycle.moves import began
from taskqueue.model.lifecycle.pending import TREE_ENDS, orphaned, relieved
from taskqueue.model.record import Cause, Record, Status
from taskqueue.model.schedules.next_run import NextRun, advance
from taskqueue.model.schedules.next_run import successor as following_occurrence
from taskqueue.store import Event
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document, cancel_request, document, present, record, records, update
from taskqueue.store.mongodb.event_writer import Done, EventWriter
from taskqueue.store.mongodb.events import told
from taskqueue.store.mongodb.indexes import BEHIND, CHILDREN, LEFTOVERS
from taskqueue.store.mongodb.limits import Freed, LimitSlots
from taskqueue.store.mongodb.unique_keys import UniqueKeys, undoubted
from taskqueue.store.mongodb.values import status_in

log = logging.getLogger(__name__)

LEFT_AFTER = timedelta(seconds=5)
"""How long a writer is taken to be at it; its work is harmless but useless if it is done twice."""

STEP = 500
"""How many records one round of releasing or mending looks at."""

_NAMES = {status: status.name.lower() for status in Status}
_RETRIED = (Cause.RETRY, Cause.CRASHED)


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What one change of one record asks for: an event, a successor, a release, or a look at what is waited for."""

    token: ObjectId
    """Which change it was."""
    at: datetime
    job_id: JobId
    event: Event | None = None
    ended: bool = False
    successor: Document | None = None
    advance: NextRun | None = None
    look: bool = False
    freed: Freed | None = None
    copy_of: Sequence[JobId] = ()
    """The jobs of which this one is a copy that has succeeded."""

    def kept(self) -> Document:
        """Return it as it is kept in the list ``after`` of the record."""
        kept: Document = {"token": self.token, "at": self.at, "ended": self.ended}
        if self.event is not None and self.event.status is not None:
            kept["event"] = {"id": self.event.id, "name": self.event.name, "status": int(self.event.status)}
        if self.successor is not None:
            kept["successor"] = self.successor
        if self.advance is not None:
            kept["advance"] = present(vars(self.advance) | {"job": None})
        if self.look:
            kept["look"] = True
        if self.copy_of:
            kept["copy_of"] = list(self.copy_of)
        if self.freed is not None:
            kept["freed"] = self.freed.kept()
        return kept


def of_change(after: Record, token: ObjectId, now: datetime, successor: Record | None = None) -> Effect:
    """Return what follows from a record's coming to this state."""
    if successor is None and after.origin is not None:
        successor = following_occurrence(after, now)
    return Effect(
        token=token,
        at=now,
        job_id=after.id,
        event=transition(after, now),
        ended=after.status.is_final,
        look=bool(after.waiting_for),
        freed=_freed(after, now),
        copy_of=origins_of(after) if after.status is Status.DONE else (),
        successor=None if successor is None else document(successor),
        advance=None if after.origin is None else advance(after, now),
    )


def transition(after: Record, now: datetime) -> Event:
    """Return the event of the record's having come to its present status."""
    retried = after.status < Status.PROCESSING and after.cause in _RETRIED
    name = "retried" if retried else _NAMES[after.status]
    return told(after.id, after.claims, name, now, after.status)


def change(after: Record, follows: Effect, changed: Document | None = None) -> Document:
    """Return the update to a record's new state, or this one, that takes along what follows."""
    changed = changed or update(after)
    changed["$set"]["swapped"] = follows.token
    changed["$push"] = {"after": follows.kept()}
    return changed


class Outbox:
    """Carries out what follows, and has it told and removed from the records."""

    def __init__(self, connection: Connection, telling: EventWriter, slots: LimitSlots) -> None:
        self._connection = connection
        self._slots = slots
        self._telling = telling
        self._keys = UniqueKeys(connection)

    def complete(self, consequences: Sequence[Effect]) -> list[Document]:
        """Carry out all of it and return the successors that came in."""
        now = max(one.at for one in consequences)
        for one in consequences:
            if one.advance is not None:
                self._advance(one.advance)
        lookers = [one.job_id for one in consequences if one.look]
        arrived: list[Document] = []
        for one in consequences:
            if one.successor is None:
                continue
            if self._insert(one.successor):
                arrived.append(one.successor)
            else:
                lookers += self._keys.taken(one.successor["unique"], one.job_id)
        lookers += [new["_id"] for new in arrived if "waiting_for" in new or "parent" in new]
        released = self._relieve(
            {**self._ended_before(lookers), **_ends(consequences), **_originals(consequences)}, now
        )
        self._slots.release([one.freed for one in consequences if one.freed is not None])
        events = [one.event for one in consequences if one.event is not None]
        events += [transition(record(new), now) for new in arrived]
        events += [one.event for one in released if one.event is not None]
        self._telling.hand(events, [_done(one, now) for one in (*consequences, *released)])
        return arrived

    def mend(self, now: datetime) -> int:
        """Complete what was left over and return how many changes that were."""
        old = {"after.at": {"$lte": now - LEFT_AFTER}}
        jobs = self._connection.collections.latest
        left = list(jobs.find(old, {"after": True}).hint(LEFTOVERS).limit(STEP))
        consequences = [
            _left(kept["_id"], one) for kept in left for one in kept["after"] if one["at"] <= now - LEFT_AFTER
        ]
        if consequences:
            self.complete(consequences)
        return len(consequences)

    def _advance(self, advance: NextRun) -> None:
        """Tell the schedule that started the job of its end; nothing changes if that was done."""
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

    def _insert(self, successor: Document) -> bool:
        """Insert the record and tell whether it is in; it is dropped if somebody else has taken its unique key."""
        try:
            self._connection.collections.jobs.insert_one(dict(successor))
        except DuplicateKeyError as error:
            if clashing_field(error.details) == "_id":
                return True
            log.info("job %s was dropped: another holds its unique key %r", successor["_id"], successor["unique"])
            return False
        return True

    def _ended_before(self, lookers: Sequence[JobId]) -> dict[JobId, Status | None]:
        """Return what these records wait for, and their parents, each with its status if it has ended, None if gone."""
        if not lookers:
            return {}
        jobs = self._connection.collections.jobs
        looking = list(jobs.find({"_id": {"$in": lookers}}, {"waiting_for": True, "parent": True, "unique": True}))
        doubtful = {one["unique"]: one["_id"] for one in looking if one["_id"] in one.get("waiting_for", ())}
        awaited = {id for one in looking for id in one.get("waiting_for", ())}
        awaited |= {one["parent"] for one in looking if "parent" in one}
        if doubtful:
            awaited |= self._keys.queue_up(doubtful)
        known = jobs.find({"_id": {"$in": list(awaited)}}, {"status": True}) if awaited else ()
        statuses = {one["_id"]: status_in(one.get("status")) for one in known}
        ends = {id: statuses.get(id) for id in awaited} | dict.fromkeys(doubtful.values())
        return {id: status for id, status in ends.items() if status is None or status.is_final}

    def _relieve(self, ended: Mapping[JobId, Status | None], now: datetime) -> list[Effect]:
        """Do what these ends do to others that wait for them, and what the ends of those do; return what follows."""
        following: list[Effect] = []
        while ended:
            follows = [*self._release(ended, now), *self._cancel_children(ended, now)]
            following += follows
            ended = _ends(follows)
        return following

    def _release(self, ended: Mapping[JobId, Status | None], now: datetime) -> list[Effect]:
        """Release or cancel what waits for ended jobs, and return what follows from it."""
        jobs = self._connection.collections.jobs
        following: list[Effect] = []
        staying: list[JobId] = []
        while True:
            where: Document = {"waiting_for": {"$in": list(ended)}, "_id": {"$nin": staying}}
            waiting = records(jobs.find(where).hint(BEHIND).limit(STEP))
            if not waiting:
                return following
            token = ObjectId()
            changes, follows = [], []
            for one in waiting:
                after = _relieved(one, ended, now)
                if after.waiting_for == one.waiting_for:
                    staying.append(one.id)
                elif after.status is not Status.POSTPONED:
                    follows.append(of_change(after, token, now))
                    changes.append(UpdateOne(_as_read(one), change(after, follows[-1])))
                else:
                    changes.append(UpdateOne(_as_read(one), update(after)))
            following += self._write(changes, follows, token)

    def _cancel_children(self, ended: Mapping[JobId, Status | None], now: datetime) -> list[Effect]:
        """End the children of those whose end is the end of their tree, and return what follows from it."""
        over = {id: status for id, status in ended.items() if status in TREE_ENDS}
        if not over:
            return []
        jobs = self._connection.collections.jobs
        following: list[Effect] = []
        pending = {"$lte": int(Status.PROCESSING)}
        where: Document = {"parent": {"$in": list(over)}, "status": pending, "cancel": {"$exists": False}}
        where["course.phase"] = {"$ne": Phase.FAILING.value}
        while children := records(jobs.find(where).hint(CHILDREN).limit(STEP)):
            token = ObjectId()
            changes, follows = [], []
            for child in children:
                after = _orphaned(child, over, now)
                unmoved = {"_id": child.id, "status": int(child.status), "claims": child.claims}
                if after.cancel is not None:
                    wish = cancel_request(after.cancel.reason, after.cancel.requested_at)
                    changes.append(UpdateOne({**unmoved, "cancel": {"$exists": False}}, {"$set": {"cancel": wish}}))
                else:
                    follows.append(of_change(after, token, now))
                    changes.append(UpdateOne(unmoved, change(after, follows[-1])))
            following += self._write(changes, follows, token)
        return following

    def _write(self, changes: Sequence[UpdateOne], follows: Sequence[Effect], token: ObjectId) -> Sequence[Effect]:
        """Change what is still as it was read, and return what follows from that."""
        jobs = self._connection.collections.jobs
        if not changes or jobs.bulk_write(changes, ordered=False).matched_count == len(changes):
            return follows
        ours = jobs.find({"_id": {"$in": [one.job_id for one in follows]}, "swapped": token}, {"_id": True})
        changed = {one["_id"] for one in ours}
        return [one for one in follows if one.job_id in changed]


def clashing_field(details: Any) -> str:
    """Return the field that the server says is there already: ``_id`` or ``unique``."""
    return str(next(iter(details["keyPattern"])))


def _done(one: Effect, now: datetime) -> Done:
    return Done(id=one.job_id, token=one.token, freed_at=None if one.freed is None else now)


def _freed(after: Record, now: datetime) -> Freed | None:
    """Return the places that a run of the record may have left."""
    if not after.lane or not after.claims:
        return None
    return Freed(id=after.id, claims=after.claims, lane=after.lane, began_at=began(after, now))


def _as_read(waiting: Record) -> Document:
    """Return the filter for a record that waits and that nobody, its owner neither, has changed since."""
    unmoved = {"status": int(waiting.status), "claims": waiting.claims, "rank": waiting.rank, "queue": waiting.queue}
    cancel = {"$exists": waiting.cancel is not None}
    waiting_for = list(waiting.waiting_for)
    return {"_id": waiting.id, **unmoved, "ready_at": waiting.ready_at, "cancel": cancel, "waiting_for": waiting_for}


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


def _ends(consequences: Sequence[Effect]) -> dict[JobId, Status | None]:
    """Return which jobs ended, and how."""
    return {one.job_id: one.event.status for one in consequences if one.ended and one.event is not None}


def _originals(consequences: Sequence[Effect]) -> dict[JobId, Status | None]:
    """Return the jobs whose copies, or copies of copies, have succeeded: for those that wait they have, too."""
    return dict.fromkeys((id for one in consequences for id in one.copy_of), Status.DONE)


def _advance_of(job_id: JobId, kept: Document) -> NextRun | None:
    return NextRun(job=job_id, **kept["advance"]) if "advance" in kept else None


def _left(job_id: JobId, kept: Document) -> Effect:
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
        look="look" in kept,
        freed=Freed(id=job_id, **kept["freed"]) if "freed" in kept else None,
        copy_of=kept.get("copy_of", ()),
    )
