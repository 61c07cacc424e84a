"""The environment of measurements: empty stores, removed afterwards, the machine, and the cost of a single write.

The jobs of the store beside which they are made are never touched.
"""

from __future__ import annotations

import os
import platform
import secrets
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from taskqueue.cli.bench.figures import Figure, Sample
from taskqueue.daemon.node.status import version
from taskqueue.errors import ConfigError, StoreUnavailable
from taskqueue.model.record import Holder
from taskqueue.store import Lease, Store
from taskqueue.store.open import MONGODB_SCHEMES, default_url, open_store
from taskqueue.store.sqlite.url import SqliteUrl, filesystem, location

_PREFIX = "taskqueue-bench-"

WRITES = 200
"""Writes that are timed for each median."""

LEVELS = ("full", "normal")

REST = 0.015
"""Seconds of pause before a write, after which the processor caches no longer hold the code of the last one."""


class ScratchStores:
    """Makes empty stores of one kind; a measurement writes only into ``folder`` and into these stores."""

    def __init__(self, folder: Path, beside: SqliteUrl | str) -> None:
        self.folder = folder
        self._beside = beside

    @property
    def file_store(self) -> SqliteUrl | None:
        """The address of the SQLite store beside which files are made; None for MongoDB."""
        return self._beside if isinstance(self._beside, SqliteUrl) else None

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """Yield the address of an empty store, and remove it afterwards."""
        token = secrets.token_hex(4)
        if isinstance(self._beside, SqliteUrl):
            folder = Path(tempfile.mkdtemp(dir=self.folder))
            try:
                yield f"sqlite://{quote(str(folder / 'jobs.db'))}?synchronous={self._beside.synchronous}"
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return
        url = _with_prefix(self._beside, f"bench_{token}_")
        from taskqueue.store.mongodb.existing_store import remove

        try:
            yield url
        finally:
            remove(url)


@contextmanager
def scratch_stores(url: str | None, synchronous: str | None) -> Iterator[ScratchStores]:
    """Yield a maker of stores beside the one that ``url`` names, on the same disk or in the same database.

    ``synchronous`` wins over that of the address. Raises ``ConfigError`` and ``StoreUnavailable``.
    """
    address = url or default_url()
    if address.startswith(MONGODB_SCHEMES):
        if synchronous is not None:
            raise ConfigError("--synchronous is for SQLite: MongoDB acknowledges what a majority has on disk")
        with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
            yield ScratchStores(Path(folder), address)
        return
    beside = location(address if synchronous is None else _with_level(address, synchronous))
    parent = beside.path.parent
    try:
        if url is None:
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent)
    except OSError as error:
        raise StoreUnavailable(
            str(parent), f"no folder can be made there ({error.strerror})", "name a file in another one with --url"
        ) from None
    with made as folder:
        yield ScratchStores(Path(folder), beside)


def hardware() -> Mapping[str, Any]:
    """Return the facts of this machine that figures depend on; the load is that of all processes in the last minute."""
    return {
        "processor": _processor(Path("/proc/cpuinfo").read_text()),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "taskqueue": version(),
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


def _with_level(address: str, synchronous: str) -> str:
    if not address.startswith("sqlite:"):
        address = location(address).url
    file, _, query = address.partition("?")  # urlunsplit loses one of the slashes of sqlite:////path
    kept = [option for option in query.split("&") if option and not option.startswith("synchronous=")]
    return f"{file}?{'&'.join([*kept, f'synchronous={synchronous}'])}"


def _with_prefix(url: str, prefix: str) -> str:
    parts = urlsplit(url)
    kept = [option for option in parts.query.split("&") if option and not option.startswith("taskqueue.prefix=")]
    return urlunsplit(parts._replace(path=parts.path or "/", query="&".join([*kept, f"taskqueue.prefix={prefix}"])))


def _processor(cpuinfo: str) -> str:
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
