"""Counts jobs: running ones by their index, waiting ones as the rest of a queue, all others by the tally."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from taskqueue.model.ids import WORKFLOW, JobId
from taskqueue.model.lifecycle.claim_end import since_of
from taskqueue.model.lifecycle.recovered_copy import COPY
from taskqueue.model.reading import number, or_none, priority, readable, text
from taskqueue.model.record import Cause, Status
from taskqueue.model.timestamps import EPOCH, milliseconds, moment
from taskqueue.store.relational.columns import LARGEST, in_json
from taskqueue.store.relational.engine import Database, Execute

if TYPE_CHECKING:
    from taskqueue.model.analytics import Due, Postponed, Present
    from taskqueue.model.workflow import MembersAlike, WorkflowSummary

HOUR = timedelta(hours=1)


class First(NamedTuple):
    """The first waiting job of a queue and kind (``forced``), as it is stored, unchecked."""

    queue: str
    forced: int
    rank: Any
    id: str
    priority: Any


# A single statement: with one per queue, 10,000 queues take three times as long. Ranks that are not numbers
# come after all numbers.
_FIRSTS = f"""
WITH RECURSIVE firsts (number, queue, forced) AS (
    SELECT * FROM (
        SELECT rowid, queue, forced FROM jobs WHERE status = 0 ORDER BY queue, forced, rank, id LIMIT 1
    ) AS first
    UNION ALL
    SELECT jobs.rowid, jobs.queue, jobs.forced FROM firsts CROSS JOIN jobs ON jobs.rowid = coalesce(
        (SELECT rowid FROM jobs WHERE status = 0 AND queue = firsts.queue AND forced > firsts.forced
            ORDER BY forced, rank, id LIMIT 1),
        (SELECT rowid FROM jobs WHERE status = 0 AND queue > firsts.queue ORDER BY queue, forced, rank, id LIMIT 1)
    )
)
SELECT jobs.queue, jobs.forced, rank, id, priority FROM firsts CROSS JOIN jobs ON jobs.rowid = number
WHERE rank <= {LARGEST}
"""


def firsts(execute: Execute) -> list[First]:
    """Return the first waiting job of each queue and kind, by queue."""
    return [First(*row) for row in execute(_FIRSTS)]


ALL = -1
"""Stands in ``tally`` for a status: all counted records of a queue."""

_TURNS = "SELECT counts FROM turns WHERE counts IS NOT NULL"
ADD_TO_TALLY = (
    "INSERT INTO tally (queue, status, records) VALUES (?, ?, ?) ON CONFLICT (queue, status) DO UPDATE SET records = "
    "CASE WHEN typeof(tally.records) = 'integer' THEN tally.records + excluded.records "
    "ELSE (SELECT count(*) FROM jobs WHERE jobs.status = tally.status AND jobs.queue = tally.queue) END"
)


def turns(execute: Execute) -> dict[tuple[str, int], int]:
    """Return the changes of turns that are not yet added to the tally, by queue and status."""
    changes: dict[tuple[str, int], int] = {}
    for turn in readable(execute(_TURNS).fetchall(), _changes, "the counts of a turn"):
        for key, records in turn.items():
            changes[key] = changes.get(key, 0) + records
    return changes


def add_up(execute: Execute) -> None:
    """Add the changes of the turns to the tally."""
    for (queue, status), records in turns(execute).items():
        if records:
            execute(ADD_TO_TALLY, (queue, status, records))


def _changes(row: tuple[Any]) -> dict[tuple[str, int], int]:
    [changes] = row
    return {(text(queue), number(status)): number(records) for queue, status, records in json.loads(changes)}


FEW = 1000
"""Up to this many waiting jobs of a queue are counted by their index."""

_KEPT = """
SELECT queue, 2, count(*) FROM jobs WHERE status = 2 GROUP BY queue
UNION ALL SELECT queue, status, records FROM tally WHERE records != 0 AND status > 0 AND typeof(records) = 'integer'
"""
_DAMAGED = """
SELECT queue, status, (SELECT count(*) FROM jobs WHERE jobs.status = tally.status AND jobs.queue = tally.queue)
FROM tally WHERE status > 0 AND typeof(records) != 'integer'
"""
"""A damaged tally is counted again, job by job."""

_WAITING = """
WITH RECURSIVE queues (queue) AS (
    SELECT min(queue) FROM jobs WHERE status = 0
    UNION ALL
    SELECT (SELECT min(queue) FROM jobs WHERE status = 0 AND queue > queues.queue) FROM queues WHERE queue IS NOT NULL
)
SELECT queue, (SELECT count(*) FROM (SELECT 1 FROM jobs WHERE status = 0 AND queue = queues.queue LIMIT ?) AS few)
FROM queues WHERE typeof(queue) = 'text'
"""
_MANY = "SELECT count(*) FROM jobs WHERE status = 0 AND queue = ?"
FORCED = range(4)
"""The values of the column of this name: how a job runs, see ``schema``."""

_PRESENT = """
SELECT
    (SELECT count(*) FROM jobs WHERE status = 1 AND (waiting_for IS NOT NULL) = FALSE AND ready_at <= :now),
    (SELECT count(*) FROM jobs WHERE status = 1 AND (waiting_for IS NOT NULL) = TRUE),
    (SELECT count(*) FROM jobs WHERE status = 2),
    (SELECT count(*) FROM jobs WHERE status = 2 AND ready_at <= :now)
"""


_DUE = """
SELECT cause, failed, hour, count(*) FROM (
    SELECT cause, failures > 0 AS failed, ready_at / 3600000 AS hour FROM jobs
    WHERE status = 1 AND (waiting_for IS NOT NULL) = FALSE ORDER BY ready_at LIMIT ?
) AS due GROUP BY cause, failed, hour
"""
_BLOCKED = """
SELECT count(*) FROM (
    SELECT 1 FROM jobs WHERE status = 1 AND (waiting_for IS NOT NULL) = TRUE LIMIT ?
) AS blocked
"""


@contextmanager
def one_state(database: Database) -> Iterator[None]:
    """Give all reads of the block one state of the store, although others may commit between two statements."""
    if database.in_transaction:
        yield
        return
    database.execute("BEGIN")
    try:
        yield
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")


def tally(database: Database) -> dict[tuple[str, Status], int]:
    with one_state(database):
        return tally_now(database)


def tally_now(database: Database) -> dict[tuple[str, Status], int]:
    """Return the numbers, inside a transaction of the caller."""
    execute = database.execute
    tally = dict(readable(execute(_KEPT), _counted, "jobs of a status"))
    for (queue, status), records in turns(execute).items():
        if status > 0:
            key = (queue, Status(status))
            tally[key] = tally.get(key, 0) + records
    tally.update(readable(execute(_DAMAGED), _counted, "jobs of a status"))
    waiting: dict[str, int] = dict(execute(_WAITING, (FEW + 1,)).fetchall())
    if any(records > FEW for records in waiting.values()):
        waiting.update(_many_waiting(database, waiting, tally))
    tally.update({(queue, Status.WAITING): records for queue, records in waiting.items()})
    return {key: records for key, records in tally.items() if records}


def _many_waiting(
    database: Database, waiting: Mapping[str, int], others: Mapping[tuple[str, Status], int]
) -> Iterator[tuple[str, int]]:
    """Return how many jobs wait in queues with more than ``FEW``: all jobs that have no other status."""
    rest = database.adds.by_queue(database.execute)
    for (queue, _), records in others.items():
        rest[queue] = rest.get(queue, 0) - records
    for queue, records in waiting.items():
        if records > FEW:
            waiting_jobs = rest.get(queue, 0)
            if waiting_jobs <= FEW:  # the tally is damaged
                [waiting_jobs] = database.execute(_MANY, (queue,)).fetchone()
            yield queue, waiting_jobs


def waiting_queues(database: Database) -> list[str]:
    """Return the queues that have waiting jobs, each found by one step in the index."""
    return [queue for queue, _ in database.execute(_WAITING, (1,))]


def waiting_since(database: Database) -> dict[str, datetime]:
    found: dict[str, datetime] = {}
    for queue, since in readable(firsts(database.execute), _since, "a waiting job"):
        found[queue] = min(since, found.get(queue, since))
    return found


def _since(first: First) -> tuple[str, datetime]:
    return text(first.queue), since_of(number(first.rank), priority(first.priority))


def _counted(row: tuple[str, int, int]) -> tuple[tuple[str, Status], int]:
    queue, status, records = row
    return (text(queue), Status(status)), records


def present(database: Database, now: datetime) -> Present:
    from taskqueue.model.analytics import Present  # imported here: few programs count jobs

    with one_state(database):
        due, blocked, running, lost = database.execute(_PRESENT, {"now": milliseconds(now)}).fetchone()
        counted = tally_now(database)
    waiting, postponed = 0, 0
    for (_, status), records in counted.items():
        waiting += records if status is Status.WAITING else 0
        postponed += records if status is Status.POSTPONED else 0
    later = max(0, postponed - due - blocked)
    return Present(queued=waiting + due, running=running, postponed=later, blocked=blocked, lost=lost)


def postponed(database: Database, most: int) -> Postponed:
    """Return how many records are due in which hour, and how many wait for others, up to ``most`` each."""
    from taskqueue.model.analytics import Postponed

    with one_state(database):
        due = dict(readable(database.execute(_DUE, (most,)).fetchall(), _due, "postponed jobs"))
        [blocked] = database.execute(_BLOCKED, (most,)).fetchone()
    return Postponed(due, blocked)


def _due(row: tuple[Any, ...]) -> tuple[Due, int]:
    from taskqueue.model.analytics import Due

    cause, has_failed, hour, records = row
    return Due(Cause(cause), bool(has_failed), EPOCH + number(hour) * HOUR), records


_OF_WORKFLOW, _LAST_ID = in_json("given", WORKFLOW), "f" * 24
_WORKFLOWS = f"""
WITH RECURSIVE listed (workflow, place) AS (
    SELECT * FROM (SELECT {_OF_WORKFLOW}, 1 FROM jobs WHERE {_OF_WORKFLOW} <= ? ORDER BY 1 DESC LIMIT 1) AS newest
    UNION ALL
    SELECT (SELECT {_OF_WORKFLOW} FROM jobs WHERE {_OF_WORKFLOW} < listed.workflow ORDER BY 1 DESC LIMIT 1), place + 1
    FROM listed WHERE workflow IS NOT NULL AND place < ?
)
SELECT workflow, job, {in_json("options", "name")} AS name, status,
    {in_json("given", COPY)} IS NOT NULL AS is_recovered,
    count(*), min(id), min(created_at), min(started_at), max(ended_at)
FROM listed CROSS JOIN jobs ON {_OF_WORKFLOW} = listed.workflow GROUP BY workflow, job, name, status, is_recovered
"""


def workflows(database: Database, upto: JobId | None, limit: int) -> list[WorkflowSummary]:
    """Return the newest workflows: each is found by one step in the index, and its members are counted."""
    from taskqueue.model.workflow import summaries

    counted = database.execute(_WORKFLOWS, (_LAST_ID if upto is None else str(upto), limit)).fetchall()
    return summaries(readable(counted, _members, "members of a workflow"))


def _members(row: tuple[Any, ...]) -> MembersAlike:
    from taskqueue.model.workflow import MembersAlike

    workflow, job, name, status, is_recovered, members, first, created_at, started_at, ended_at = row
    return MembersAlike(
        JobId(workflow),
        text(job),
        or_none(text)(name),
        Status(status),
        bool(is_recovered),
        members,
        JobId(first),
        moment(number(created_at)),
        *(or_none(moment)(at) for at in (started_at, ended_at)),
    )


_BY_QUEUE = "SELECT queue, count(*) FROM jobs WHERE rowid > ? GROUP BY queue"
_ALL = "SELECT queue, records FROM tally WHERE status = ?"
_RECOUNT = "INSERT INTO tally (queue, status, records) SELECT queue, ?, count(*) FROM jobs GROUP BY queue"


class Added(NamedTuple):
    """How many jobs of a class were added to a queue in the minute from ``at`` on; 0 if it cannot be read."""

    at: int
    queue: str
    job: str
    records: int


class RowCounts(ABC):
    """Counts added jobs by the numbers of their rows, so that an add writes nothing for it.

    A row after the last counted one is new, as rows are numbered in the order of commits. Code that removes rows counts
    the new ones before, and notes the last row after it. Each engine defines how it notes that row.
    """

    APART = 2000
    """About how many added jobs may stay uncounted."""

    def __init__(self, minute: str) -> None:
        """``minute`` is the SQL expression for the minute in which a row was added, in milliseconds."""
        self._since = f"SELECT {minute}, queue, job, count(*) FROM jobs WHERE rowid > ? GROUP BY 1, 2, 3"

    @abstractmethod
    def last_counted(self, execute: Execute) -> int | None:
        """Return the number of the last counted row, 0 if there is none; None if another job has the number now."""

    @abstractmethod
    def note_last(self, execute: Execute) -> None:
        """Note that all existing rows are counted."""

    def count(self, execute: Execute) -> list[Added]:
        """Count the new rows and return their numbers."""
        last = self.last_counted(execute)
        if last is None:
            self.recount(execute)
            return []
        new = self._after(execute, last)
        by_queue: Counter[str] = Counter()
        for added in new:
            by_queue[added.queue] += added.records
        for queue, records in by_queue.items():
            execute(ADD_TO_TALLY, (queue, ALL, records))
        self.note_last(execute)
        return new

    def uncounted(self, execute: Execute) -> list[Added]:
        """Return the numbers of new rows that are not counted yet."""
        last = self.last_counted(execute)
        return [] if last is None else self._after(execute, last)

    def by_queue(self, execute: Execute) -> dict[str, int]:
        """Return how many records each queue has, whatever their status."""
        last = self.last_counted(execute)
        counted: Iterable[tuple[Any, Any]] = [] if last is None else execute(_ALL, (ALL,)).fetchall()
        totals = dict(readable(counted, _records, "the jobs of a queue"))
        for (queue, status), records in turns(execute).items() if last is not None else ():
            if status == ALL:
                totals[queue] = totals.get(queue, 0) + records
        for queue, records in readable(execute(_BY_QUEUE, (last or 0,)).fetchall(), _records, "the jobs of a queue"):
            totals[queue] = totals.get(queue, 0) + records
        return totals

    def recount(self, execute: Execute) -> None:
        """Count the records of each queue again."""
        add_up(execute)
        execute("UPDATE turns SET counts = NULL")
        execute("DELETE FROM tally WHERE status = ?", (ALL,))
        execute(_RECOUNT, (ALL,))
        self.note_last(execute)

    def _after(self, execute: Execute, last: int) -> list[Added]:
        return list(readable(execute(self._since, (last,)).fetchall(), _added, "a number of added jobs"))


def _added(row: tuple[Any, ...]) -> Added:
    at, queue, job, records = row
    return Added(number(at), text(queue), text(job), number(records))


def _records(row: tuple[Any, Any]) -> tuple[str, int]:
    queue, records = row
    return text(queue), number(records)
