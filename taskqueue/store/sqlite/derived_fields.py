"""Finds rows whose derived columns disagree with their sources, and wrong numbers of jobs; writes them again.

Each write of a job also writes these, so only another program, or a fault, makes them disagree.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Sequence

from bson import ObjectId

from taskqueue.model.record import PRIORITY_STEP, Status
from taskqueue.model.timestamps import MILLISECOND
from taskqueue.store import Disagreement, Disagreements
from taskqueue.store.bell import WORK
from taskqueue.store.reading import readable
from taskqueue.store.relational import counts
from taskqueue.store.relational.engine import Database, Work
from taskqueue.store.sqlite import add_counts
from taskqueue.store.sqlite.database import SqliteDatabase

LOOK_FOR = 20.0
"""Seconds that the store may look for them."""

_STEPS = 10_000
"""Instructions of SQLite between two looks at the clock."""

_RANK = f"ready_at + priority * {PRIORITY_STEP // MILLISECOND}"
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
_PRESENT = "SELECT queue, status, count(*) FROM jobs WHERE typeof(queue) = 'text' GROUP BY queue, status"
_FORGET = "DELETE FROM tally WHERE status > 0"
_RECOUNT = """
INSERT INTO tally (queue, status, records)
SELECT queue, status, count(*) FROM jobs WHERE status NOT IN (0, 2) GROUP BY queue, status
"""


def disagreeing(raw: SqliteDatabase, limit: int, seconds: float = LOOK_FOR) -> Disagreements:
    """Return up to ``limit`` jobs, and all queues with wrong numbers."""
    ends_at = time.monotonic() + seconds
    raw.set_progress_handler(lambda: time.monotonic() > ends_at, _STEPS)
    found: list[Disagreement] = []
    try:
        with counts.one_state(raw):
            for id, is_ranked_wrong, is_forced_wrong in raw.execute(_FIND, (limit,)):
                wrong = {"rank": is_ranked_wrong, "forced": is_forced_wrong}
                fields = tuple(name for name, is_wrong in wrong.items() if is_wrong)
                found.append(Disagreement(f"job {id}", fields, ObjectId(id)))
            found += [Disagreement(f"queue {queue}", ("counts",)) for queue in _miscounted(raw)]
    except sqlite3.OperationalError as error:
        if "interrupted" not in str(error):
            raise
        return Disagreements(found, is_complete=False)
    finally:
        raw.set_progress_handler(None, 0)
    return Disagreements(found, is_complete=True)


def write_again(work: Work, found: Sequence[Disagreement]) -> int:
    """Write the derived columns of these jobs, and the numbers of all queues if one is wrong still."""
    jobs = [str(one.job) for one in found if one.job is not None]
    written = sum(work.execute(_WRITE, (id,)).rowcount for id in jobs)
    if written:
        work.topics.add(WORK)
    if any(one.job is None for one in found):
        work.add_up()  # the history counts the turns that are still apart
        queues = _miscounted(work)
        if queues:
            add_counts.recount(work.execute)
            work.execute(_FORGET)
            work.execute(_RECOUNT)
            written += len(queues)
    return written


def _miscounted(database: Database) -> list[str]:
    """Return the queues whose kept numbers are not those of their jobs."""
    kept = counts.tally_now(database)
    present = dict(readable(database.execute(_PRESENT), _number, "jobs of a status"))
    totals: Counter[str] = Counter()
    for (queue, _), records in present.items():
        totals[queue] += records
    wrong = {queue for (queue, _), _ in kept.items() ^ present.items()}
    by_queue = add_counts.by_queue(database.execute)
    return sorted(wrong | {queue for queue in by_queue.keys() | totals if by_queue.get(queue, 0) != totals[queue]})


def _number(found: tuple[str, int, int]) -> tuple[tuple[str, Status], int]:
    queue, status, records = found
    return (queue, Status(status)), records
