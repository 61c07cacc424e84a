"""A bare queue on PostgreSQL: one table and claims with SKIP LOCKED, and nothing else of what a job system does."""

from __future__ import annotations

import os
import sys
import time

import psycopg

from benchmarks.peers.client import Client
from benchmarks.peers.record import work

ADDRESS = os.environ["PEERS_SERVER"]
BATCH = 128
"""Jobs of a claim: as many as a node of taskqueue claims for one worker."""
PAUSE = 0.01
TABLE = """
CREATE TABLE queue (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, status SMALLINT NOT NULL DEFAULT 0, key INT, seconds REAL
)
"""
INDEX = "CREATE INDEX ON queue (id) WHERE status = 0"
ADD = "INSERT INTO queue (key, seconds) VALUES (%s, %s)"
ADD_MANY = "INSERT INTO queue (key, seconds) SELECT unnest(%s::int[]), 0"
CLAIM = """
UPDATE queue SET status = 1 FROM (
    SELECT id FROM queue WHERE status = 0 ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
) AS chosen WHERE queue.id = chosen.id RETURNING queue.id, key, seconds
"""
SETTLE = "UPDATE queue SET status = 2 WHERE id = ANY(%s) AND status = 1"


class System(Client):
    """One connection that adds, and a process for each worker."""

    def __init__(self) -> None:
        self._connection = psycopg.connect(ADDRESS, autocommit=True)
        for statement in (TABLE, INDEX):
            self._connection.execute(statement)

    def commands(self, workers: int) -> list[list[str]]:
        return [[sys.executable, "-m", __name__]] * workers

    def add(self, key: int, seconds: float = 0.0) -> object:
        return self._connection.execute(ADD, (key, seconds))

    def add_many(self, keys: range) -> None:
        for first in range(keys.start, keys.stop, 1000):
            self._connection.execute(ADD_MANY, (list(range(first, min(first + 1000, keys.stop))),))

    def close(self) -> None:
        self._connection.close()


def run() -> None:
    """Be a worker: claim some jobs, run them, and store that they have ended."""
    with psycopg.connect(ADDRESS, autocommit=True) as connection:
        while True:
            claimed = connection.execute(CLAIM, (BATCH,)).fetchall()
            for _, key, seconds in claimed:
                work(key, seconds)
            if claimed:
                connection.execute(SETTLE, ([id for id, *_ in claimed],))
            else:
                time.sleep(PAUSE)


if __name__ == "__main__":
    run()
