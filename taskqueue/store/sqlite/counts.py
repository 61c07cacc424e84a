"""Counts jobs: waiting and running ones by their indexes, all others by a tally kept on every change."""

from __future__ import annotations

import sqlite3
from datetime import datetime
from typing import TYPE_CHECKING

from taskqueue.model.reading import text
from taskqueue.model.record import Status
from taskqueue.model.timestamps import milliseconds
from taskqueue.store.reading import readable

if TYPE_CHECKING:
    from taskqueue.model.analytics import Present

_TALLY = """
SELECT queue, 0, count(*) FROM jobs WHERE status = 0 GROUP BY queue
UNION ALL SELECT queue, 2, count(*) FROM jobs WHERE status = 2 GROUP BY queue
UNION ALL SELECT queue, status, iif(typeof(records) = 'integer', records, (
    SELECT count(*) FROM jobs WHERE jobs.status = tally.status AND jobs.queue = tally.queue
)) FROM tally WHERE records != 0
"""
"""A damaged tally is counted anew, job by job."""

_PRESENT = """
SELECT
    (SELECT count(*) FROM jobs WHERE status = 0),
    (SELECT count(*) FROM jobs WHERE status = 1 AND (waiting_for IS NOT NULL) = 0 AND ready_at <= :now),
    (SELECT count(*) FROM jobs WHERE status = 1 AND (waiting_for IS NOT NULL) = 0 AND ready_at > :now),
    (SELECT count(*) FROM jobs WHERE status = 1 AND (waiting_for IS NOT NULL) = 1),
    (SELECT count(*) FROM jobs WHERE status = 2),
    (SELECT count(*) FROM jobs WHERE status = 2 AND ready_at <= :now)
"""


def tally(raw: sqlite3.Connection) -> dict[tuple[str, Status], int]:
    return dict(readable(raw.execute(_TALLY), _counted, "jobs of a status"))


def _counted(row: tuple[str, int, int]) -> tuple[tuple[str, Status], int]:
    queue, status, records = row
    return (text(queue), Status(status)), records


def present(raw: sqlite3.Connection, now: datetime) -> Present:
    from taskqueue.model.analytics import Present  # few programs count

    waiting, due, postponed, blocked, running, lost = raw.execute(_PRESENT, {"now": milliseconds(now)}).fetchone()
    return Present(queued=waiting + due, running=running, postponed=postponed, blocked=blocked, lost=lost)
