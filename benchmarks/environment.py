"""The environment of measurements: the machine, the level of durability, and the cost of a single write."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, Sample
from taskqueue.cli.bench import ScratchStores
from taskqueue.errors import ConfigError
from taskqueue.model.record import Holder
from taskqueue.model.version import VERSION
from taskqueue.store import Lease, Store
from taskqueue.store.open import MONGODB_SCHEMES, default_url, open_store
from taskqueue.store.sqlite.url import filesystem, location

WRITES = 200
"""Writes that are timed for each median."""

LEVELS = ("full", "normal")

REST = 0.015
"""Seconds of pause before a write, after which the processor caches no longer hold the code of the last one."""


def hardware() -> Mapping[str, Any]:
    """Return the facts of this machine that figures depend on; the load is that of all processes in the last minute."""
    return {
        "processor": _processor(Path("/proc/cpuinfo").read_text()),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "taskqueue": VERSION,
        "load": round(os.getloadavg()[0], 2),
    }


def single_writes(stores: ScratchStores) -> Iterator[Sample]:
    """Yield the median of a single commit of SQLite alone at both levels, or of a single write to a server."""
    if stores.file_store is not None:
        for level in LEVELS:
            at_once, rested = _commit(stores.folder, level)
            yield Sample(name=f"a single commit, synchronous={level}", unit="ms", value=at_once)
            yield Sample(name=f"the same after a pause, synchronous={level}", unit="ms", value=rested)
        return
    with stores.fresh() as url, closing(open_store(url)) as store:
        yield Sample(name="a single write of one document", unit="ms", value=_median(lambda: _take_lease(store)))


def durability(stores: ScratchStores, figures: Sequence[Figure]) -> Mapping[str, Any]:
    """Return the guarantee of the store, its file system, and the figures of single writes."""
    with stores.fresh() as url, closing(open_store(url)) as store:
        guarantee = store.guarantee
    block: dict[str, Any] = {"guarantee": guarantee}
    if stores.file_store is not None:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        block |= {"synchronous": stores.file_store.synchronous, "filesystem": filesystem(stores.folder, mounts)}
    return block | {"writes": [figure.document() for figure in figures]}


def _commit(folder: Path, level: str) -> tuple[float, float]:
    """Return the median of commits one after the other, and of commits with pauses as between single jobs."""
    with (
        tempfile.TemporaryDirectory(dir=folder) as scratch,
        closing(sqlite3.connect(f"{scratch}/commits.db", isolation_level=None)) as raw,
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


def at_level(url: str | None, synchronous: str | None) -> str | None:
    """Return the address with this level of ``synchronous`` in place of its own. Raises ``ConfigError``."""
    if synchronous is None:
        return url
    address = url or default_url()
    if address.startswith(MONGODB_SCHEMES):
        raise ConfigError("--synchronous is for SQLite: MongoDB acknowledges what a majority has on disk")
    if not address.startswith("sqlite:"):
        address = location(address).url
    file, _, query = address.partition("?")  # urlunsplit loses one of the slashes of sqlite:////path
    kept = [option for option in query.split("&") if option and not option.startswith("synchronous=")]
    return f"{file}?{'&'.join([*kept, f'synchronous={synchronous}'])}"


def _processor(cpuinfo: str) -> str:
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
