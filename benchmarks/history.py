"""What analytics, stats and the history take in a file of many jobs, and how large its history is.

``python -m benchmarks.history FOLDER [--jobs 1000000]`` makes a file there with so many jobs that ended in the
last week and as many that wait, counts them, measures, prints JSON and removes the file.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median

from taskqueue import Scheduler
from taskqueue.model.history import Parts, Step, ended_part, gather
from taskqueue.model.timestamps import milliseconds
from taskqueue.store.open import open_store
from taskqueue.store.relational import history
from taskqueue.store.relational.columns import COLUMNS
from taskqueue.store.relational.rows import records_of
from taskqueue.store.sqlite.database import SqliteDatabase

WEEK = 7 * 86_400_000
_FILL = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :jobs)
INSERT INTO jobs (
    id, status, cause, queue, forced, rank, ready_at, priority, created_at, started_at, ended_at, job, data
)
SELECT printf('%024x', i * 2 + :waits), iif(:waits, 0, iif(i % 50, 3, 4)), iif(:waits, 'added', 'returned'),
    substr('mailsendread', 1 + i % 3 * 4, 4), 0, :now - :age * i / :jobs, iif(:waits, :now, NULL), 0,
    :now - :age * i / :jobs, iif(:waits, NULL, :now - :age * i / :jobs + i % 5000),
    iif(:waits, NULL, :now - :age * i / :jobs + i % 7000 + 5000), 'app:Job' || (i % 20), 'null'
FROM n
"""
_BATCH = 1000
_ENDED = f"SELECT {COLUMNS} FROM jobs WHERE status > 2 ORDER BY ended_at"
_TALLY = """
INSERT INTO tally (queue, status, records)
SELECT queue, status, count(*) FROM jobs WHERE status NOT IN (0, 2) GROUP BY queue, status
"""
_PAGES = "SELECT sum(pgsize) FROM dbstat WHERE name IN ('history', 'turns', 'counted', 'tally')"


def fill(path: Path, jobs: int, now: int) -> float:
    """Add the jobs, begin the history, and return the seconds that the latter took."""
    with closing(sqlite3.connect(path, isolation_level=None, factory=SqliteDatabase)) as raw:
        raw.execute("PRAGMA synchronous = OFF")
        for waits in (0, 1):
            raw.execute(_FILL, {"jobs": jobs, "waits": waits, "now": now, "age": WEEK})
        began = time.perf_counter()
        raw.execute("BEGIN IMMEDIATE")
        count(raw)
        raw.execute("COMMIT")
        return round(time.perf_counter() - began, 1)


def count(raw: SqliteDatabase) -> None:
    """Count the jobs that were filled in, as if they had been added and had ended one by one."""
    raw.execute(_TALLY)
    history.add_up(raw)
    ended = raw.execute(_ENDED)
    while rows := ended.fetchmany(_BATCH):
        parts: Parts = {}
        for record in records_of(rows):
            if record.ended_at is not None:
                gather(parts, Step.MINUTE.begin(milliseconds(record.ended_at)), ended_part((), (record,)))
        history._add(raw.execute, parts)


def took(call: Callable[[], object]) -> float:
    """Return how many milliseconds of the processor the call takes, the median of seven."""
    times = []
    for _ in range(7):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return round(median(times) * 1000, 1)


def size(path: Path) -> int | str:
    """Return the bytes of the history."""
    with closing(sqlite3.connect(path)) as raw:
        try:
            return int(raw.execute(_PAGES).fetchone()[0])
        except sqlite3.OperationalError as error:
            return str(error)


def main() -> None:
    """Fill a file, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        path = Path(folder) / "jobs.db"
        with closing(open_store(f"sqlite://{path}?synchronous=normal")) as store:
            counted = fill(path, given.jobs, milliseconds(store.now()))
            scheduler = Scheduler(f"sqlite://{path}?synchronous=normal")
            figures = {
                "jobs": 2 * given.jobs,
                "seconds to count them": counted,
                "bytes of the history": size(path),
                "ms of processor": {
                    "analytics of a week": took(lambda: scheduler.analytics(since="7d")),
                    "analytics of an hour": took(scheduler.analytics),
                    "history of an hour": took(scheduler.history),
                    "history of a week by hour": took(lambda: scheduler.history("7d", step="hour")),
                    "stats": took(scheduler.stats),
                    "tally": took(store.tally),
                    "waiting since": took(store.waiting_since),
                },
            }
    sys.stdout.write(f"{json.dumps(figures, indent=2)}\n")


if __name__ == "__main__":
    main()
