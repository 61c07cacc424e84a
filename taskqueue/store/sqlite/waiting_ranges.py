"""Finds the first waiting job of each queue and kind, by one step in the index for each."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, NamedTuple


class First(NamedTuple):
    """The first waiting job of a queue and kind (``forced``), as it is kept: nothing is checked."""

    queue: str
    forced: int
    rank: Any
    id: str
    priority: Any


# One statement: asked for by one statement each, 10,000 queues take three times as long. Ranks that are no numbers come
# behind all that are.
_FIRSTS = """
WITH RECURSIVE firsts (number, queue, forced) AS (
    SELECT * FROM (SELECT rowid, queue, forced FROM jobs WHERE status = 0 ORDER BY queue, forced, rank, id LIMIT 1)
    UNION ALL
    SELECT jobs.rowid, jobs.queue, jobs.forced FROM firsts CROSS JOIN jobs ON jobs.rowid = ifnull(
        (SELECT rowid FROM jobs WHERE status = 0 AND queue = firsts.queue AND forced > firsts.forced
            ORDER BY forced, rank, id LIMIT 1),
        (SELECT rowid FROM jobs WHERE status = 0 AND queue > firsts.queue ORDER BY queue, forced, rank, id LIMIT 1)
    )
)
SELECT jobs.queue, jobs.forced, rank, id, priority FROM firsts CROSS JOIN jobs ON jobs.rowid = number
WHERE rank < ''
"""


def firsts(execute: Callable[..., sqlite3.Cursor]) -> list[First]:
    """Return the first waiting job of each queue and kind, by queue."""
    return [First(*row) for row in execute(_FIRSTS)]
