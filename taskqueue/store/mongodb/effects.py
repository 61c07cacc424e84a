"""The effect of one change of a record: an event, a successor, a release; an outbox keeps it as an entry."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from bson import ObjectId

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.claim_end import counted_from
from taskqueue.model.lifecycle.recovered_copy import origins_of
from taskqueue.model.record import Record, Status
from taskqueue.model.schedules.next_run import NextRun, advance
from taskqueue.model.schedules.next_run import successor as following_occurrence
from taskqueue.store import Event
from taskqueue.store.codec import event_name
from taskqueue.store.mongodb.documents import Document, document, present, update
from taskqueue.store.mongodb.events import status_event
from taskqueue.store.mongodb.limits import Freed


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
