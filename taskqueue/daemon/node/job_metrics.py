"""Adds up the metrics that jobs set with ``prometheus_client``, from the files of its multiprocess mode.

Each process writes its values into files of a folder of the node. They are read as data: no code of jobs runs here.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
import stat
import struct
import threading
from collections.abc import Collection, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from taskqueue.insight import control_socket
from taskqueue.model.environment import METRICS_FOLDER
from taskqueue.model.shown_text import logged

log = logging.getLogger(__name__)

FOLDS_EVERY = 5.0
"""Seconds after which the files of processes that have ended are added up and removed, unless a scrape does it."""

PROCESSES_KEPT = 20
"""Processes that have ended whose gauges with mode ``all``, a series for each process, are still served."""

MOST_SERIES = 10_000
"""Series that are served; further ones are refused, as they would take the node's memory."""

MOST_BYTES = 16 * 1024 * 1024
"""Bytes of one file; it has some hundred thousand series then."""

_MAKES_AT_MOST = 5
_SUFFIX = ".metrics"
_FILE = re.compile(r"(?P<kind>counter|gauge|histogram|summary)(_(?P<mode>(live)?(all|min|max|sum|mostrecent)))?_(?P<pid>[0-9]{1,10})\.db")  # fmt: skip # noqa: E501
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_SUFFIXES: Mapping[str, Collection[str]] = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_count", "_sum"),
    "summary": ("_count", "_sum"),
}
_INTEGER = struct.Struct("i")
_VALUE = struct.Struct("dd")


class Series(NamedTuple):
    """One series: the kind and the name of its metric, its own name, and its labels with their values."""

    kind: str
    family: str
    name: str
    labels: tuple[tuple[str, str], ...]


class Family(NamedTuple):
    """One metric as it is served, with samples of name, labels and value."""

    kind: str
    name: str
    meaning: str
    samples: list[tuple[str, dict[str, str], float]]


class _File(NamedTuple):
    path: Path
    kind: str
    mode: str
    """How the values of several processes are combined; empty except for gauges."""
    pid: int
    is_dead: bool


class _Entry(NamedTuple):
    """One value of a file."""

    series: Series
    meaning: str
    value: float
    at: float
    """The time of a gauge with mode ``mostrecent``, else 0."""


class _Sum(NamedTuple):
    """The value of one series so far."""

    value: float
    at: float


@dataclass
class _Sums:
    """The values of series by the mode of their files, and the texts that explain metrics."""

    values: dict[tuple[str, int, Series], _Sum] = field(default_factory=dict)
    """By mode, process (0 where those of all processes are one) and series."""
    meanings: dict[str, str] = field(default_factory=dict)

    def add(self, file: _File, entry: _Entry) -> bool:
        """Add the value; return False if there are too many series for another."""
        key = (file.mode.removeprefix("live"), file.pid if file.mode.endswith("all") else 0, entry.series)
        so_far = self.values.get(key)
        if so_far is None and len(self.values) >= MOST_SERIES:
            return False
        new = _Sum(entry.value, entry.at)
        self.values[key] = new if so_far is None else _combined(key[0], so_far, new)
        self.meanings.setdefault(entry.series.family, entry.meaning)
        return True

    def drop(self, pid: int) -> None:
        """Drop the series of one process."""
        for key in [key for key in self.values if key[1] == pid]:
            del self.values[key]


def _combined(mode: str, so_far: _Sum, new: _Sum) -> _Sum:
    match mode:
        case "all":
            return new
        case "mostrecent":
            return max(so_far, new, key=lambda each: each.at)
        case "min" | "max":
            return (min if mode == "min" else max)(so_far, new, key=lambda each: each.value)
    return so_far._replace(value=so_far.value + new.value)


class JobMetrics:
    """The metrics of the jobs of one node; of processes that have ended, their sums are in memory."""

    def __init__(self, node: str, incarnation: str, manager: int, reserved: Set[str]) -> None:
        """Create it; ``manager`` is the pid of the manager, ``reserved`` are names of the node's own metrics."""
        self._node = node
        self._incarnation = incarnation
        self._manager = manager
        self._reserved = reserved
        self._descriptor = -1
        self._changing = threading.Lock()
        self._ended = _Sums()
        self._with_gauges: dict[int, None] = {}
        """The last processes that have ended and had gauges with a series for each process."""
        self._named: set[str] = set()
        """What has been logged: each refusal is logged once."""
        self._is_closed = threading.Event()
        self.folder = ""
        """The folder for the files of workers; empty if there is none."""

    def open(self) -> None:
        """Make the folder and start to add up; a node without a folder has none of these metrics."""
        if own := os.environ.get(METRICS_FOLDER):
            log.info(
                "metrics of jobs are written to %s, as %s says; this node does not serve them", own, METRICS_FOLDER
            )
            return
        parent = control_socket.own_folder().absolute()
        folder = control_socket.path_of(parent, self._node, self._incarnation).with_suffix(_SUFFIX)
        try:
            if not control_socket.is_safe(parent):
                raise PermissionError(f"{parent} cannot be written to, or others can write to it")
            _sweep(parent)
            self._descriptor = _made(folder)
        except OSError as error:
            variable = control_socket.VARIABLE
            log.warning("metrics of jobs are not served: %s: name a folder of this user with %s", error, variable)
            return
        self.folder = str(folder)
        threading.Thread(target=self._fold_endlessly, name="taskqueue-job-metrics", daemon=True).start()

    def close(self) -> None:
        """Remove the folder; the workers have ended."""
        self._is_closed.set()
        with self._changing:
            if self.folder:
                shutil.rmtree(self.folder, ignore_errors=True)
                os.close(self._descriptor)
                self.folder = ""

    def families(self) -> list[Family]:
        """Return the metrics with their current values; any thread may call it."""
        with self._changing:
            files = self._fold()
            sums = _Sums({**self._ended.values}, {**self._ended.meanings})
            for file in files:
                self._add(file, sums)
        return self._families(sums)

    def _fold_endlessly(self) -> None:
        while not self._is_closed.wait(FOLDS_EVERY):
            with self._changing:
                self._fold()

    def _fold(self) -> list[_File]:
        """Add up and remove the files of processes that have ended, and return the others."""
        remaining = []
        for file in _files(self.folder) if self.folder else ():
            if not file.is_dead:
                remaining.append(file)
                continue
            if not file.mode.startswith("live"):
                self._add(file, self._ended)
            if file.mode == "all":
                self._note_end(file.pid)
            with suppress(OSError):
                file.path.unlink()
        return remaining

    def _note_end(self, pid: int) -> None:
        """Drop the series of the process that ended first, if there are too many for one more."""
        self._with_gauges.pop(pid, None)
        self._with_gauges[pid] = None
        if len(self._with_gauges) > PROCESSES_KEPT:
            first = next(iter(self._with_gauges))
            del self._with_gauges[first]
            self._ended.drop(first)

    def _add(self, file: _File, sums: _Sums) -> None:
        try:
            entries = list(_entries(file))
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, struct.error, RecursionError) as error:
            self._refuse(f"file {logged(file.path.name)}", f"cannot be read: {error}")
            return
        for entry in entries:
            if file.pid == self._manager and file.kind == "gauge" and entry.value == 0:
                continue  # of a preloaded module, which has only declared it
            if not sums.add(file, entry):
                self._refuse(f"metric {entry.series.family}", f"has too many series: {MOST_SERIES:,} are served")
                return

    def _families(self, sums: _Sums) -> list[Family]:
        families: dict[str, Family] = {}
        owners: dict[str, tuple[str, str]] = {}
        for (mode, pid, series), total in sums.values.items():
            kind, name = series.kind, series.family
            family = families.setdefault(name, Family(kind, name, sums.meanings[name], []))
            owner, owner_mode = owners.setdefault(series.name, (name, mode))
            if name.startswith("taskqueue_") or {name, series.name} & self._reserved:
                self._refuse(f"{kind} {name}", "has a name of the node's own metrics: rename it")
            elif owner != name or family.kind != kind:
                other = families[owner]
                self._refuse(f"{kind} {name}", f"has the name of {other.kind} {other.name} of other jobs: rename one")
            elif owner_mode != mode:
                self._refuse(
                    f"gauge {name}", f"has multiprocess_mode {mode}, and {owner_mode} in other jobs: choose one"
                )
            elif mode == "all" and "pid" in dict(series.labels):
                self._refuse(f"gauge {name}", "has the label pid, as its multiprocess_mode all has: rename the label")
            else:
                labels = dict(series.labels)
                family.samples.append(
                    (series.name, {**labels, "pid": str(pid)} if mode == "all" else labels, total.value)
                )
        shown = (_cumulated(family) if family.kind == "histogram" else family for family in families.values())
        return [family for family in shown if family.samples]

    def _refuse(self, what: str, why: str) -> None:
        if what not in self._named and len(self._named) < MOST_SERIES:
            self._named.add(what)
            log.warning("metrics of jobs: %s %s", what, why)


def _files(folder: str) -> list[_File]:
    """Return the files of the folder, the oldest first."""
    files = []
    with suppress(OSError), os.scandir(folder) as listing:
        for listed in listing:
            match = _FILE.fullmatch(listed.name)
            if match is None or (match["kind"] == "gauge") is not (match["mode"] is not None):
                continue
            with suppress(OSError):
                written_at = listed.stat(follow_symlinks=False).st_mtime_ns
                pid = int(match["pid"])
                file = _File(Path(listed.path), match["kind"], match["mode"] or "", pid, not _is_alive(pid))
                files.append((written_at, file))
    return [file for _, file in sorted(files)]


def _is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def _entries(file: _File) -> Iterator[_Entry]:
    """Yield the values of a file; raise ``ValueError``, ``KeyError`` or ``struct.error`` for one that is no such file.

    It starts with the number of used bytes, and pads it to eight. Each value has the length of its key, the key, spaces
    up to a multiple of eight, the value and its time.
    """
    data = _content(file.path)
    used = _INTEGER.unpack_from(data)[0] if data else 0  # a process may just have made it
    if not 0 <= used <= len(data):
        raise ValueError(f"it claims to use {used} of {len(data)} bytes")
    place = 8
    while place < used:
        (size,) = _INTEGER.unpack_from(data, place)
        if not 0 <= size <= used - place:
            raise ValueError(f"a key at byte {place} has length {size}")
        key = data[place + 4 : place + 4 + size].decode()
        place += 4 + size + 8 - (size + 4) % 8
        value, at = _VALUE.unpack_from(data, place)
        place += _VALUE.size
        series, meaning = _series(file.kind, key)
        yield _Entry(series, meaning, value, at)


def _content(path: Path) -> bytes:
    """Return the content of a regular file; a pipe or a link that a job has put there is none."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is not a regular file")
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
    return data


@lru_cache(MOST_SERIES)
def _series(kind: str, key: str) -> tuple[Series, str]:
    """Return the series that a key stands for, and the meaning of its metric."""
    family, name, labels, meaning = json.loads(key)
    is_named = _is_text(_NAME, family) and isinstance(name, str) and isinstance(meaning, str)
    if not is_named or name.removeprefix(family) not in _SUFFIXES[kind]:
        raise ValueError(f"{logged(str(name))} is not a valid name of a {kind}")
    if not isinstance(labels, dict) or not all(
        _is_text(_LABEL, label) and isinstance(value, str) for label, value in labels.items()
    ):
        raise ValueError(f"{logged(name)} has invalid labels")
    if name.endswith("_bucket") and kind == "histogram":
        float(labels["le"])
    meaning.encode()
    for value in labels.values():
        value.encode()  # a surrogate cannot be served
    return Series(kind, family, name, tuple(labels.items())), meaning


def _is_text(shape: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and shape.fullmatch(value) is not None


def _cumulated(family: Family) -> Family:
    """Return a histogram as Prometheus has it: each bucket counts the smaller ones, too, and the last one all."""
    buckets: dict[tuple[tuple[str, str], ...], list[tuple[float, str, float]]] = {}
    samples = []
    for name, labels, value in family.samples:
        if name.endswith("_bucket"):
            bound = labels.pop("le")
            buckets.setdefault(tuple(labels.items()), []).append((float(bound), bound, value))
        elif name.endswith("_sum"):
            samples.append((name, labels, value))
    for of_bucket, counts in buckets.items():
        so_far = 0.0
        for _, bound, count in sorted(counts):
            so_far += count
            samples.append((f"{family.name}_bucket", {**dict(of_bucket), "le": bound}, so_far))
        samples.append((f"{family.name}_count", dict(of_bucket), so_far))
    return family._replace(samples=samples)


def _made(folder: Path) -> int:
    """Make the folder and return its descriptor, with a lock by which other nodes see that this one lives."""
    for _ in range(_MAKES_AT_MOST):  # another node may just have taken it for one that was left behind
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = _locked(folder)
        if descriptor >= 0 and folder.exists():
            return descriptor
        if descriptor >= 0:
            os.close(descriptor)
    raise OSError(f"{folder} cannot be locked")


def _sweep(parent: Path) -> None:
    """Remove the folders of nodes that were killed."""
    for folder in parent.glob(f"*{_SUFFIX}"):
        descriptor = _locked(folder)
        if descriptor >= 0:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


def _locked(folder: Path) -> int:
    """Return a descriptor of the folder that holds its lock; -1 if another process holds that."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return -1
    return descriptor
