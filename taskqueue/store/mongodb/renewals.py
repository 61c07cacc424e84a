"""Renews claims, records notes on running jobs, and finds claims whose lease has ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from pymongo import ASCENDING, UpdateOne

from taskqueue.model.ids import JobId
from taskqueue.model.reading import readable
from taskqueue.model.record import Holder, Record, Status
from taskqueue.model.schedules import LATEST
from taskqueue.model.serializer import clean
from taskqueue.model.timestamps import EPOCH, milliseconds, whole
from taskqueue.store import ClaimState, Event, Note, Renewal
from taskqueue.store.codec import event_id
from taskqueue.store.mongodb import log_lines
from taskqueue.store.mongodb.background_writer import EventWriter
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document, held_by, records
from taskqueue.store.mongodb.indexes import HELD
from taskqueue.store.mongodb.limits import LimitUse

_RUNNING = {"status": int(Status.PROCESSING)}


class Renewals:
    """Renews claims, and finds lost and orphaned ones."""

    def __init__(self, connection: Connection, event_writer: EventWriter, limit_use: LimitUse) -> None:
        self._connection = connection
        self._limit_use = limit_use
        self._event_writer = event_writer

    def renew(self, holder: Holder, until: datetime, notes: Mapping[JobId, Note]) -> Renewal:
        """Extend every claim of ``holder``, record the notes, and return its claims."""
        jobs = self._connection.collections.jobs
        self._limit_use.renew(holder, until)
        held = jobs.update_many(held_by(holder), {"$set": {"ready_at": whole(until)}}, hint=HELD).matched_count
        claims: dict[JobId, ClaimState] = {}
        if held:
            self.note(holder, notes)
            held = jobs.find(held_by(holder), {"claims": True, "cancel": True}).hint(HELD)
            claims.update(readable(held, _claim_state, "a claim"))
        of_others: Document = {**_RUNNING, "holder.incarnation": {"$ne": holder.incarnation}}
        of_others["ready_at"] = {"$gte": EPOCH, "$lt": LATEST}
        first = jobs.find(of_others, {"ready_at": True}).hint(HELD).sort("ready_at", ASCENDING).limit(1)
        return Renewal(claims=claims, others_end_at=next((document["ready_at"] for document in first), None))

    def note(self, holder: Holder, notes: Mapping[JobId, Note]) -> None:
        """Record the notes on claims that ``holder`` still holds."""
        log_lines.keep(
            self._connection, holder, {id: note.lines for id, note in notes.items() if note.lines is not None}
        )
        changed = {id: fields for id, note in notes.items() if (fields := _fields(note))}
        if not changed:
            return
        jobs = self._connection.collections.jobs
        result = jobs.bulk_write(
            [UpdateOne({"_id": id, **held_by(holder)}, {"$set": fields}) for id, fields in changed.items()],
            ordered=False,
        )
        self._limit_use.began({id: note.loaded_at for id, note in notes.items() if note.loaded_at is not None})
        status_event = [id for id in changed if notes[id].progress is not None]
        if status_event and result.matched_count:
            held = jobs.find({"_id": {"$in": status_event}, **held_by(holder)}, {"claims": True})
            self._event_writer.submit([_progressed(document, notes[document["_id"]]) for document in held])

    def expired(self, now: datetime, limit: int) -> list[Record]:
        over = {**_RUNNING, "ready_at": {"$lte": now}}
        return records(self._connection.collections.jobs.find(over).hint(HELD).limit(limit))

    def orphaned(self, seat: str, incarnation: str, limit: int) -> list[Record]:
        orphans = {**_RUNNING, "holder.seat": seat, "holder.incarnation": {"$ne": incarnation}}
        return records(self._connection.collections.jobs.find(orphans).hint(HELD).limit(limit))

    def held(self, holder: Holder, limit: int) -> list[Record]:
        return records(self._connection.collections.jobs.find(held_by(holder)).hint(HELD).limit(limit))

    def holders(self, seats: Collection[str]) -> list[Holder]:
        """Return each holder of PROCESSING records at these seats, once."""
        at_seats = {"$match": {**_RUNNING, "holder.seat": {"$in": list(seats)}}}
        by_holder = {"$group": {"_id": {"seat": "$holder.seat", "incarnation": "$holder.incarnation"}}}
        groups = self._connection.collections.jobs.aggregate([at_seats, by_holder], hint=HELD)
        return list(readable(groups, _holder, "the holder of a claim"))


def _holder(group: Document) -> Holder:
    return Holder(seat=str(group["_id"]["seat"]), incarnation=str(group["_id"]["incarnation"]))


def _claim_state(document: Document) -> tuple[JobId, ClaimState]:
    return document["_id"], ClaimState(claims=document["claims"], cancel_reason=_reason(document.get("cancel")))


def _reason(request: Any) -> str | None:
    """Return the reason of a cancel request; "" if it cannot be read."""
    return None if request is None else str(request.get("reason", "")) if isinstance(request, dict) else ""


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


def _progressed(document: Document, note: Note) -> Event:
    at = note.progress_at
    assert at is not None, "progress comes with its time"
    id = event_id(document["_id"], document["claims"], "progress", milliseconds(at))
    return Event(id=id, job_id=document["_id"], name="progress", at=at, status=Status.PROCESSING)
