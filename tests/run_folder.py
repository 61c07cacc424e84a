"""The folder of a test run: in memory if it has room; the next run removes that of a failed or killed one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from taskqueue.daemon.runtime.cgroup import memory_use

MEMORY = Path("/dev/shm")
ROOM = 4 << 30
"""Bytes that a run may need: about half of them at its peak."""

PREFIX = "taskqueue-tests-"


def run_folder(environment: Mapping[str, str], room: int = ROOM) -> Path:
    """Make the folder of this run: in memory if all runs there have room, else at the usual place, as ``TMPDIR`` says.

    Each commit waits for the disk, which takes most of the time of a test of a store.
    """
    if "TMPDIR" not in environment and runs_programs(MEMORY):
        with suppress(OSError):
            folder = locked_folder(MEMORY)  # before the count: another run may begin at the same time
            if room * remove_ended(MEMORY) <= room_in_memory():
                return folder
            shutil.rmtree(folder)
    usual = Path(tempfile.gettempdir())
    remove_ended(usual)
    return locked_folder(usual)


def runs_programs(folder: Path) -> bool:
    """Return whether a file system is mounted there whose files may be executed: Docker's memory forbids that."""
    return folder.is_mount() and not os.statvfs(folder).f_flag & os.ST_NOEXEC


def room_in_memory() -> int:
    """Return how many bytes the folder, the host and the control group still have; files there use up all three."""
    rooms = [shutil.disk_usage(MEMORY).free, psutil.virtual_memory().available]
    if use := memory_use():
        used, limit = use
        rooms.append(limit - used)
    return min(rooms)


def locked_folder(parent: Path) -> Path:
    """Make a folder that other runs leave alone until this process and its forks have ended."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    lock = os.open(folder / "lock", os.O_WRONLY | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.write(lock, f"{os.getpid()}\n".encode())
    return folder


def remove_ended(parent: Path) -> int:
    """Remove the folders of runs that have ended, and return how many runs go on."""
    runs = 0
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError), (folder / "lock").open() as lock:  # none: of another user, or its run begins
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                runs += 1
                continue
            if lock.read():  # else its run is about to lock it
                shutil.rmtree(folder, ignore_errors=True)
    return runs
