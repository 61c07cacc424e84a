"""Decides in SQL for PostgreSQL whether derived columns disagree with their sources."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import errors

from taskqueue.model.record import RANK_A_PRIORITY
from taskqueue.store import Disagreement, Disagreements
from taskqueue.store.postgresql.database import PostgreSQLDatabase
from taskqueue.store.relational import derived_fields
from taskqueue.store.relational.derived_fields import LOOK_FOR
from taskqueue.store.relational.transaction import Transaction

_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = {}"
# Options are valid JSON here, but of any shape, so they are compared as text, which never fails.
_IS_BESIDE = (
    "(coalesce(options #>> '{force_spawn}', 'false') NOT IN ('false', '0') "
    "OR coalesce(options #>> '{concurrency}', '1') ~ '^([2-9]|[1-9][0-9]+)$')"
)
_FORCED = f"(CASE WHEN {_IS_BESIDE} THEN 1 ELSE 0 END + CASE WHEN coalesce(lane, '') != '' THEN 2 ELSE 0 END)"
_EXACT = f"ready_at::numeric + priority::numeric * {RANK_A_PRIORITY}"
_RANK = f"(CASE WHEN abs({_EXACT}) < 9e18 THEN ({_EXACT})::bigint ELSE rank END)"
_WRONG_RANK, _WRONG_FORCED = f"rank IS DISTINCT FROM {_RANK}", f"forced IS DISTINCT FROM {_FORCED}"
_DISAGREE = f"status IN (0, 1) AND ({_WRONG_RANK} OR {_WRONG_FORCED})"
_FIND = f"SELECT id, {_WRONG_RANK}, {_WRONG_FORCED} FROM jobs WHERE {_DISAGREE} LIMIT ?"
_WRITE = f"UPDATE jobs SET rank = {_RANK}, forced = {_FORCED} WHERE id = ? AND {_DISAGREE}"


def disagreeing(database: PostgreSQLDatabase, limit: int, seconds: float = LOOK_FOR) -> Disagreements:
    """Return up to ``limit`` jobs, and all queues with wrong numbers."""
    found: list[Disagreement] = []
    database.raw.execute(_BEGIN.format(max(1, int(seconds * 1000))))  # a pooler keeps no session settings
    try:
        found.extend(derived_fields.disagreeing(database, _FIND, limit))
    except errors.QueryCanceled:
        return Disagreements(found, is_complete=False)
    finally:
        database.undo()
    return Disagreements(found, is_complete=True)


def write_again(work: Transaction, found: Sequence[Disagreement]) -> int:
    """Write the derived columns of these jobs, and the numbers of all queues if one is wrong still."""
    return derived_fields.write_again(work, _WRITE, found)
