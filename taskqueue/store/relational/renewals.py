"""Renews claims, records notes on running jobs, and finds claims whose lease has ended."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime

from taskqueue.model.ids import JobId
from taskqueue.model.reading import readable
from taskqueue.model.record import Holder, OnCrash, Record, Status
from taskqueue.model.serializer import clean
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.store import ClaimState, Note, Renewal
from taskqueue.store.bell import NEWS
from taskqueue.store.relational import limits, log_lines
from taskqueue.store.relational.columns import COLUMNS, Row, cancel_request, instant, options_of
from taskqueue.store.relational.engine import Database
from taskqueue.store.relational.rows import records_of
from taskqueue.store.relational.transaction import Transaction

_RENEW = "UPDATE jobs SET ready_at = ? WHERE status = 2 AND seat = ? AND incarnation = ? RETURNING id, claims, cancel"
_OTHERS_END = "SELECT min(ready_at) FROM jobs WHERE status = 2 AND NOT (seat = ? AND incarnation = ?)"
_NOTE = """
UPDATE jobs SET started_at = coalesce(?, started_at), state = coalesce(?, state), cursor = coalesce(?, cursor)
WHERE id = ? AND status = 2 AND seat = ? AND incarnation = ? RETURNING claims, options, lane
"""
_PROGRESS = "UPDATE jobs SET progress = ?, progress_message = ?, progress_at = ? WHERE id = ?"
_EXPIRED = f"SELECT {COLUMNS} FROM jobs WHERE status = 2 AND ready_at <= ? ORDER BY ready_at, id LIMIT ?"
_ORPHANED = f"SELECT {COLUMNS} FROM jobs WHERE status = 2 AND seat = ? AND incarnation != ? ORDER BY id LIMIT ?"

_HELD = f"SELECT {COLUMNS} FROM jobs WHERE status = 2 AND seat = ? AND incarnation = ? ORDER BY id LIMIT ?"
_HOLDERS = """
SELECT DISTINCT seat, incarnation FROM jobs WHERE status = 2 AND seat IN (SELECT value FROM json_each(?))
"""


def renew(work: Transaction, holder: Holder, until: datetime) -> Renewal:
    """Extend every claim of ``holder`` and return its claims."""
    held = work.execute(_RENEW, (milliseconds(until), holder.seat, holder.incarnation)).fetchall()
    [others_end_at] = work.execute(_OTHERS_END, (holder.seat, holder.incarnation)).fetchone()
    return Renewal(
        claims=dict(readable(held, _claim_state, "a claim")),
        others_end_at=next(readable([others_end_at], moment, "the end of a lease"), None) if others_end_at else None,
    )


def _claim_state(row: tuple[str, int, str | None]) -> tuple[JobId, ClaimState]:
    id, claims, cancel = row
    return JobId(id), ClaimState(claims=claims, cancel_reason=_reason(cancel))


def note(work: Transaction, holder: Holder, notes: Mapping[JobId, Note], now: datetime) -> bool:
    """Record the notes on claims that ``holder`` still holds, and return whether an at-most-once job started."""
    once = False
    written = [(id, noted, work.execute(_NOTE, _noted(id, holder, noted))) for id, noted in notes.items()]
    for id, noted, answer in written:
        held = answer.fetchone()
        if held is None:
            continue
        claims, job_options, lane = held
        if noted.lines is not None:
            log_lines.keep(work, str(id), claims, noted.lines)
        if noted.started_at is not None:
            work.topics.add(NEWS)
        if lane and noted.loaded_at is not None:
            limits.began(work.execute, id, claims, lane, noted.loaded_at)
        if noted.started_at is not None and _runs_once(job_options):
            once = True
        if noted.progress is None:
            continue
        at = milliseconds(noted.progress_at or now)
        work.execute(_PROGRESS, (noted.progress, clean(noted.progress_message), at, str(id)))
        work.silent_events([str(id)], claims, "progress", at, Status.PROCESSING)
        work.topics.add(NEWS)
    return once


def _noted(id: JobId, holder: Holder, noted: Note) -> Row:
    return instant(noted.started_at), noted.state, noted.cursor, str(id), holder.seat, holder.incarnation


def _runs_once(text: str | None) -> bool:
    """Return whether the job must not run again; a job whose options cannot be read does not run at all."""
    return any(options.on_crash is OnCrash.FAIL for options in readable([text], options_of, "options"))


def expired(database: Database, now: datetime, limit: int) -> list[Record]:
    """Return PROCESSING records whose lease has ended."""
    return records_of(database.execute(_EXPIRED, (milliseconds(now), limit)))


def orphaned(database: Database, seat: str, incarnation: str, limit: int) -> list[Record]:
    """Return PROCESSING records of the seat, held by any other incarnation."""
    return records_of(database.execute(_ORPHANED, (seat, incarnation, limit)))


def held(database: Database, holder: Holder, limit: int) -> list[Record]:
    """Return PROCESSING records of exactly this holder."""
    return records_of(database.execute(_HELD, (holder.seat, holder.incarnation, limit)))


def holders(database: Database, seats: Collection[str]) -> list[Holder]:
    """Return the holders of PROCESSING records at these seats, without duplicates."""
    rows = database.execute(_HOLDERS, (json.dumps(list(seats)),))
    return [Holder(seat=str(seat), incarnation=str(incarnation)) for seat, incarnation in rows]


def _reason(cancel: str | None) -> str | None:
    """Return the reason of a cancel request; "" if it cannot be read."""
    try:
        request = cancel_request(cancel)
    except (KeyError, TypeError, ValueError, OverflowError):
        return ""
    return None if request is None else request.reason
