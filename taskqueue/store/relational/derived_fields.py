"""Finds jobs whose derived columns disagree with their sources, and wrong numbers of jobs; writes them again.

Each write of a job also writes these, so only another program, or a fault, makes them disagree. Which columns disagree
is decided by the statements of the engine, as damaged values are of any type in one database and not in another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from bson import ObjectId

from taskqueue.model.reading import readable
from taskqueue.model.record import Status
from taskqueue.store import Disagreement
from taskqueue.store.bell import WORK
from taskqueue.store.relational import counts
from taskqueue.store.relational.engine import Database
from taskqueue.store.relational.transaction import Transaction

LOOK_FOR = 20.0
"""How many seconds the search may take."""

_PRESENT = "SELECT queue, status, count(*) FROM jobs WHERE typeof(queue) = 'text' GROUP BY queue, status"
_FORGET = "DELETE FROM tally WHERE status > 0"
_RECOUNT = """
INSERT INTO tally (queue, status, records)
SELECT queue, status, count(*) FROM jobs WHERE status NOT IN (0, 2) GROUP BY queue, status
"""


def disagreeing(database: Database, statement: str, limit: int) -> Iterator[Disagreement]:
    """Yield up to ``limit`` jobs that the statement finds, and all queues with wrong numbers."""
    with counts.one_state(database):
        for id, is_ranked_wrong, is_forced_wrong in database.execute(statement, (limit,)):
            wrong = {"rank": is_ranked_wrong, "forced": is_forced_wrong}
            fields = tuple(name for name, is_wrong in wrong.items() if is_wrong)
            yield Disagreement(f"job {id}", fields, ObjectId(id))
        yield from (Disagreement(f"queue {queue}", ("counts",)) for queue in _miscounted(database))


def write_again(work: Transaction, statement: str, found: Sequence[Disagreement]) -> int:
    """Write the derived columns of these jobs by the statement, and the numbers of all queues if one is wrong still."""
    jobs = [str(disagreement.job) for disagreement in found if disagreement.job is not None]
    written = sum(work.execute(statement, (id,)).rowcount for id in jobs)
    if written:
        work.topics.add(WORK)
    if any(disagreement.job is None for disagreement in found):
        work.add_up()  # the history counts the turns that are not added up yet
        queues = _miscounted(work)
        if queues:
            work.adds.recount(work.execute)
            work.execute(_FORGET)
            work.execute(_RECOUNT)
            written += len(queues)
    return written


def _miscounted(database: Database) -> list[str]:
    """Return the queues whose stored numbers do not match their jobs."""
    tallied = counts.tally_now(database)
    present = dict(readable(database.execute(_PRESENT), _number, "jobs of a status"))
    totals: Counter[str] = Counter()
    for (queue, _), records in present.items():
        totals[queue] += records
    wrong = {queue for (queue, _), _ in tallied.items() ^ present.items()}
    by_queue = database.adds.by_queue(database.execute)
    return sorted(wrong | {queue for queue in by_queue.keys() | totals if by_queue.get(queue, 0) != totals[queue]})


def _number(found: tuple[str, int, int]) -> tuple[tuple[str, Status], int]:
    queue, status, records = found
    return (queue, Status(status)), records
