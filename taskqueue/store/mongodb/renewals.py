"""What nodes hold: leases extended, news of running jobs written down, and claims that nobody renews any more."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pymongo import ASCENDING, UpdateOne

from taskqueue.model.ids import JobId
from taskqueue.model.record import Holder, Record, Status
from taskqueue.model.schedules import LATEST
from taskqueue.model.serializer import clean
from taskqueue.model.timestamps import EPOCH, milliseconds, whole
from taskqueue.store import Event, Holding, Note, Renewal
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document, held_by, records
from taskqueue.store.mongodb.event_writer import EventWriter
from taskqueue.store.mongodb.indexes import HELD
from taskqueue.store.mongodb.limits import LimitSlots
from taskqueue.store.reading import readable

_RUNNING = {"status": int(Status.PROCESSING)}


class Renewals:
    """Renews claims and finds those that were left."""

    def __init__(self, connection: Connection, telling: EventWriter, slots: LimitSlots) -> None:
        self._connection = connection
        self._slots = slots
        self._telling = telling

    def renew(self, holder: Holder, until: datetime, notes: Mapping[JobId, Note]) -> Renewal:
        """Extend every claim of ``holder``, write down the notes, and return what it holds."""
        jobs = self._connection.collections.jobs
        self._slots.renew(holder, until)
        jobs.update_many(held_by(holder), {"$set": {"ready_at": whole(until)}}, hint=HELD)
        self.note(holder, notes)
        mine = jobs.find(held_by(holder), {"claims": True, "cancel": True}).hint(HELD)
        holdings = dict(readable(mine, _holding, "a claim"))
        others: Document = {**_RUNNING, "holder.incarnation": {"$ne": holder.incarnation}}
        others["ready_at"] = {"$gte": EPOCH, "$lt": LATEST}
        first = jobs.find(others, {"ready_at": True}).hint(HELD).sort("ready_at", ASCENDING).limit(1)
        return Renewal(holdings=holdings, others_end_at=next((one["ready_at"] for one in first), None))

    def note(self, holder: Holder, notes: Mapping[JobId, Note]) -> None:
        """Write down the notes on claims that ``holder`` still holds."""
        changed = {id: fields for id, note in notes.items() if (fields := _fields(note))}
        if not changed:
            return
        jobs = self._connection.collections.jobs
        result = jobs.bulk_write(
            [UpdateOne({"_id": id, **held_by(holder)}, {"$set": fields}) for id, fields in changed.items()],
            ordered=False,
        )
        self._slots.started({id: one.started_at for id, one in notes.items() if one.started_at is not None})
        told = [id for id in changed if notes[id].progress is not None]
        if told and result.matched_count:
            held = jobs.find({"_id": {"$in": told}, **held_by(holder)}, {"claims": True})
            self._telling.hand([_progressed(one, notes[one["_id"]]) for one in held])

    def expired(self, now: datetime, limit: int) -> list[Record]:
        """Return PROCESSING records whose lease has ended."""
        over = {**_RUNNING, "ready_at": {"$lte": now}}
        return records(self._connection.collections.jobs.find(over).hint(HELD).limit(limit))

    def abandoned(self, seat: str, incarnation: str, limit: int) -> list[Record]:
        """Return PROCESSING records of this seat held by any other incarnation than this one."""
        left = {**_RUNNING, "holder.seat": seat, "holder.incarnation": {"$ne": incarnation}}
        return records(self._connection.collections.jobs.find(left).hint(HELD).limit(limit))


def _holding(kept: Document) -> tuple[JobId, Holding]:
    return kept["_id"], Holding(claims=kept["claims"], cancel_reason=_reason(kept.get("cancel")))


def _reason(wish: Any) -> str | None:
    """Return the reason of a wish to cancel; of one that cannot be read, that somebody had it."""
    return None if wish is None else str(wish.get("reason", "")) if isinstance(wish, dict) else ""


def _fields(note: Note) -> Document:
    fields: Document = {}
    if note.started_at is not None:
        fields["started_at"] = note.started_at
    if note.progress is not None:
        fields["progress"] = float(note.progress)
        fields["progress_message"] = clean(note.progress_message)
    if note.progress_at is not None:
        fields["progress_at"] = note.progress_at
    if note.state is not None:
        fields["state"] = note.state
    if note.cursor is not None:
        fields["cursor"] = note.cursor
    return fields


def _progressed(kept: Document, note: Note) -> Event:
    at = note.progress_at
    assert at is not None, "progress comes with its time"
    id = f"{kept['_id']}:{kept['claims']}:progress:{milliseconds(at)}"
    return Event(id=id, job_id=kept["_id"], name="progress", at=at, status=Status.PROCESSING)
