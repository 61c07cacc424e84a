"""A node's seat: a lease in the store, and a lock file on this host that is free when its last process is gone."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

from taskqueue.errors import ConfigError
from taskqueue.model.record import Holder
from taskqueue.store import Lease, Store

log = logging.getLogger(__name__)


class SeatLock:
    """A lock file that node, manager and workers share by inheriting its open descriptor.

    That this file is free says nothing of a process that holds another one: its folder differs by service and session,
    and a removed file is made anew. So a lease says which file its holder has.
    """

    def __init__(self, store_url: str, name: str) -> None:
        digest = hashlib.sha256(f"{_place_of(store_url)}\n{name}".encode()).hexdigest()[:24]
        self.path = _folder() / f"{digest}.lock"
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"the lock file {self.path} of seat {name} cannot be opened ({error.strerror})") from None
        status = os.fstat(self._descriptor)
        self.identity = f"{status.st_dev}:{status.st_ino}"
        """Which file this is, whatever its name leads to by now."""

    def fileno(self) -> int:
        """Return the descriptor, to be kept by forked children."""
        return self._descriptor

    def take(self) -> bool:
        """Take the lock if no process on this host has it, and tell whether it is ours."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Leave the lock to others."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of the descriptor; the lock is free when no child has it either."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The answer to a wish for the seat: the lease as it is now, and whether it is ours."""

    lease: Lease
    is_ours: bool


class Seat:
    """The place that one incarnation of a node holds, or waits for."""

    def __init__(self, store: Store, holder: Holder, ttl: timedelta, lock: SeatLock) -> None:
        self._store = store
        self._ttl = ttl
        self._lock = lock
        self.holder = holder
        self.lease: Lease | None = None
        """Our lease as last renewed; None without."""

    @property
    def name(self) -> str:
        """Return the name of the lease."""
        return f"seat:{self.holder.seat}"

    def sit(self, about: Mapping[str, object], now: datetime) -> Standing:
        """Try to take the seat: free when its lease is over, or when its holder was of this host and is gone."""
        standing = self._ask(about, now)
        if not standing.is_ours and self._is_left(standing.lease):
            self._store.resign(self.name, standing.lease.holder)
            standing = self._ask(about, now)
        if not standing.is_ours:
            self._lock.release()
        return standing

    def renew(self, about: Mapping[str, object], now: datetime) -> Standing:
        """Extend the lease; it may have gone to another."""
        return self._ask(about, now)

    def resign(self) -> None:
        """Give up the seat."""
        self._store.resign(self.name, self.holder)
        self.lease = None

    def _ask(self, about: Mapping[str, object], now: datetime) -> Standing:
        """Wish for the lease, with the lock that tells others when we are gone: only one that we hold does."""
        since = self.lease.since if self.lease is not None else now
        about = {**about, "lock": self._lock.identity if self._lock.take() else ""}
        wish = Lease(name=self.name, holder=self.holder, since=since, until=now + self._ttl, about=about)
        lease = self._store.acquire(wish, now)
        is_ours = lease.holder == self.holder
        self.lease = lease if is_ours else None
        return Standing(lease=lease, is_ours=is_ours)

    def _is_left(self, lease: Lease) -> bool:
        """Tell whether the holder ran on this very host, held this very lock, and none of its processes is left."""
        about = lease.about
        is_same = about.get("machine") == machine() and about.get("lock") == self._lock.identity
        return is_same and self._lock.take()


def machine() -> str:
    """Return what tells this host, in its present boot, from every other.

    Two containers with one file system are two hosts; two machines made from one image differ in their boot alone.
    """
    space = os.stat("/proc/self/ns/pid").st_ino
    ids = (_first_line("/etc/machine-id"), _first_line("/proc/sys/kernel/random/boot_id"))
    return "/".join((socket.gethostname(), *ids, str(space)))


def held_by(lease: Lease) -> str:
    """Return in words who holds the seat."""
    about = lease.about
    where = f"{about.get('host', 'an unknown host')}, pid {about.get('pid', '?')}"
    return f"held by {where}, since {lease.since:%Y-%m-%d %H:%M:%S} UTC"


def _place_of(url: str) -> str:
    """Return which store the address means: without password, order of hosts, and options but those of our own."""
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2].lower().split(",")
    ours = [option for option in parts.query.split("&") if option.startswith("taskqueue.")]
    return f"{parts.scheme}://{','.join(sorted(hosts))}{parts.path}?{'&'.join(ours)}"


def _folder() -> Path:
    """Return the folder for lock files: the service's, the session's, or one of this user's below /tmp."""
    for variable in ("RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"):
        given = os.environ.get(variable, "").split(":")[0]
        if given and os.access(given, os.W_OK):
            return _made(Path(given) / "taskqueue")
    return _made(Path(tempfile.gettempdir()) / f"taskqueue-{os.getuid()}")


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the folder {folder} for lock files cannot be made ({error.strerror})") from None
    if folder.stat().st_uid != os.getuid():
        raise ConfigError(
            f"the folder {folder} for lock files belongs to another user: set XDG_RUNTIME_DIR to one of yours"
        )
    return folder


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().partition("\n")[0]
    except OSError:
        return ""
