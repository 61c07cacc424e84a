"""persist-queue, which only keeps items: on SQLite, synced at each put, or in files, synced once in a hundred puts."""

from __future__ import annotations

import os

import persistqueue

from benchmarks.peers.client import Client

PATH = f"{os.environ['PEERS_FOLDER']}/queue"


class System(Client):
    """One queue; on SQLite it has a write-ahead log and SQLite's own level of syncing, which is full."""

    def __init__(self) -> None:
        in_files = os.environ["PEER"].endswith("-files")
        self._queue = persistqueue.Queue(PATH) if in_files else persistqueue.SQLiteQueue(PATH, auto_commit=True)

    def add(self, key: int, seconds: float = 0.0) -> object:
        return self._queue.put((key, seconds))
