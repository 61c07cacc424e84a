"""Decides in SQL for SQLite whether derived columns disagree with their sources; a damaged source decides nothing."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

from taskqueue.model.record import RANK_A_PRIORITY
from taskqueue.store import Disagreement, Disagreements
from taskqueue.store.relational import derived_fields
from taskqueue.store.relational.derived_fields import LOOK_FOR
from taskqueue.store.relational.transaction import Transaction
from taskqueue.store.sqlite.database import SqliteDatabase

_STEPS = 10_000
"""How many instructions SQLite runs between two looks at the clock."""

_RANK = f"ready_at + priority * {RANK_A_PRIORITY}"
_IS_BESIDE = (
    "(ifnull(json_extract(options, '$.force_spawn'), 0) OR ifnull(json_extract(options, '$.concurrency'), 1) > 1)"
)
_FORCED = f"{_IS_BESIDE} + 2 * (ifnull(lane, '') != '')"
_HAS_RANK = "typeof(ready_at) = 'integer' AND typeof(priority) = 'integer'"
_RIGHT_RANK = f"iif({_HAS_RANK}, {_RANK}, rank)"
_RIGHT_FORCED = f"iif(options IS NULL OR json_valid(options), {_FORCED}, forced)"
_DISAGREE = f"status IN (0, 1) AND (rank IS NOT {_RIGHT_RANK} OR forced IS NOT {_RIGHT_FORCED})"
_FIND = f"SELECT id, rank IS NOT {_RIGHT_RANK}, forced IS NOT {_RIGHT_FORCED} FROM jobs WHERE {_DISAGREE} LIMIT ?"
_WRITE = f"UPDATE jobs SET rank = {_RIGHT_RANK}, forced = {_RIGHT_FORCED} WHERE id = ? AND {_DISAGREE}"


def disagreeing(raw: SqliteDatabase, limit: int, seconds: float = LOOK_FOR) -> Disagreements:
    """Return up to ``limit`` jobs, and all queues with wrong numbers."""
    ends_at = time.monotonic() + seconds
    raw.set_progress_handler(lambda: time.monotonic() > ends_at, _STEPS)
    found: list[Disagreement] = []
    try:
        found.extend(derived_fields.disagreeing(raw, _FIND, limit))
    except sqlite3.OperationalError as error:
        if "interrupted" not in str(error):
            raise
        return Disagreements(found, is_complete=False)
    finally:
        raw.set_progress_handler(None, 0)
    return Disagreements(found, is_complete=True)


def write_again(work: Transaction, found: Sequence[Disagreement]) -> int:
    """Write the derived columns of these jobs, and the numbers of all queues if one is wrong still."""
    return derived_fields.write_again(work, _WRITE, found)
