"""How many jobs there are: those that wait or run by their indexes, all others as counted along the way."""

from __future__ import annotations

import sqlite3

from taskqueue.model.record import Status

_TALLY = """
SELECT queue, 0, count(*) FROM jobs WHERE status = 0 GROUP BY queue
UNION ALL SELECT queue, 2, count(*) FROM jobs WHERE status = 2 GROUP BY queue
UNION ALL SELECT queue, status, records FROM tally WHERE records != 0
"""


def tally(raw: sqlite3.Connection) -> dict[tuple[str, Status], int]:
    """Return how many records there are for each queue and status."""
    return {(queue, Status(status)): records for queue, status, records in raw.execute(_TALLY)}
