"""A folder for one run of the quickstart: kept to look around in, and used again when nobody works in it."""

from __future__ import annotations

import fcntl
import os
import shutil
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO


@dataclass(frozen=True, kw_only=True)
class Place:
    """The folder of this run, and the lock that says so; whoever inherits the lock keeps the folder too."""

    folder: Path
    lock: IO[bytes]

    @property
    def store(self) -> Path:
        """The database with the jobs."""
        return self.folder / "jobs.db"

    @property
    def log(self) -> Path:
        """What the node has said."""
        return self.folder / "node.log"

    @property
    def index(self) -> Path:
        """The file for the whole index."""
        return self.folder / "index" / "files.csv"


def take_place() -> Place:
    """Return the first folder that nobody uses, emptied: a second quickstart at the same time gets the next one."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    for number in count(1):
        folder = state / "taskqueue" / f"quickstart-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        _empty(folder)
        return Place(folder=folder, lock=lock)
    raise AssertionError("count() does not end")


def shown(path: Path) -> str:
    """Return the path as people write it."""
    return str(path).replace(str(Path.home()), "~", 1) if path.is_relative_to(Path.home()) else str(path)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "lock":
            path.unlink()
