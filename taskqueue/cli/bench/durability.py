"""What one acknowledged write costs on this ground, and what it survives: every figure rests on it."""

from __future__ import annotations

import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from taskqueue.cli.bench.figures import Figure, Sample
from taskqueue.cli.bench.ground import Ground
from taskqueue.model.record import Holder
from taskqueue.store import Lease, Store
from taskqueue.store.open import open_store
from taskqueue.store.sqlite.url import filesystem

NAME = "durability"
WRITES = 200
LEVELS = ("full", "normal")

REST = 0.015
"""Seconds between two writes of a process that is not always at it: by then its caches hold what others need."""


def measure(ground: Ground) -> Iterator[Sample]:
    """Yield the median of a single commit of SQLite alone at both levels, or of a single write to a server."""
    if ground.file_store is not None:
        for level in LEVELS:
            at_once, rested = _commit(ground.folder, level)
            yield Sample(name=f"a single commit, synchronous={level}", unit="ms", value=at_once)
            yield Sample(name=f"the same after a pause, synchronous={level}", unit="ms", value=rested)
        return
    with ground.fresh() as url, closing(open_store(url)) as store:
        yield Sample(name="a single write of one document", unit="ms", value=_median(lambda: _take_lease(store)))


def described(ground: Ground, figures: list[Figure]) -> Mapping[str, Any]:
    """Return what is promised, where the data lies, and what ``measure`` found."""
    with ground.fresh() as url, closing(open_store(url)) as store:
        guarantee = store.guarantee
    block: dict[str, Any] = {"guarantee": guarantee}
    if ground.file_store is not None:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        block |= {"synchronous": ground.file_store.synchronous, "filesystem": filesystem(ground.folder, mounts)}
    return block | {"writes": [figure.document() for figure in figures]}


def _commit(folder: Path, level: str) -> tuple[float, float]:
    """Return the median of commits one after the other, and of commits with pauses as between single jobs."""
    with (
        tempfile.TemporaryDirectory(dir=folder) as place,
        closing(sqlite3.connect(f"{place}/commits.db", isolation_level=None)) as raw,
    ):
        raw.execute("PRAGMA journal_mode = WAL")
        raw.execute(f"PRAGMA synchronous = {level}")
        raw.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, text TEXT)")
        insert = partial(raw.execute, "INSERT INTO rows (text) VALUES ('a row')")
        return _median(insert), _median(insert, REST)


def _take_lease(store: Store) -> Lease:
    now = store.now()
    holder = Holder(seat="bench", incarnation="writes")
    return store.acquire(Lease(name="bench", holder=holder, since=now, until=now + timedelta(hours=1)), now)


def _median(write: Callable[[], object], pause: float = 0.0) -> float:
    """Return the median of some writes in milliseconds, each after a pause in seconds."""
    taken = []
    for _ in range(WRITES):
        time.sleep(pause)
        began = time.perf_counter()
        write()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000
