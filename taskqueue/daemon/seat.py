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

from taskqueue.errors import ConfigError
from taskqueue.model.record import Holder
from taskqueue.store import Lease, Store

log = logging.getLogger(__name__)


class SeatLock:
    """A lock file that node, manager and workers share by inheriting its open descriptor."""

    def __init__(self, store_url: str, name: str) -> None:
        digest = hashlib.sha256(f"{store_url}\n{name}".encode()).hexdigest()[:24]
        self.path = _folder() / f"{digest}.lock"
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"the lock file {self.path} of seat {name} cannot be opened ({error.strerror})") from None

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

    def __init__(self, store: Store, holder: Holder, ttl: timedelta) -> None:
        self._store = store
        self._ttl = ttl
        self.holder = holder
        self.lease: Lease | None = None
        """Our lease as last renewed; None without."""

    @property
    def name(self) -> str:
        """Return the name of the lease."""
        return f"seat:{self.holder.seat}"

    def sit(self, lock: SeatLock, about: Mapping[str, object], now: datetime) -> Standing:
        """Try to take the seat: free when its lease is over, or when its holder was of this host and is gone."""
        standing = self._ask(about, now)
        if standing.is_ours or not self._is_left(standing.lease, lock):
            return standing
        self._store.resign(self.name, standing.lease.holder)
        return self._ask(about, now)

    def renew(self, about: Mapping[str, object], now: datetime) -> Standing:
        """Extend the lease; it may have gone to another."""
        return self._ask(about, now)

    def resign(self) -> None:
        """Give up the seat."""
        self._store.resign(self.name, self.holder)
        self.lease = None

    def _ask(self, about: Mapping[str, object], now: datetime) -> Standing:
        since = self.lease.since if self.lease is not None else now
        wish = Lease(name=self.name, holder=self.holder, since=since, until=now + self._ttl, about=about)
        lease = self._store.acquire(wish, now)
        is_ours = lease.holder == self.holder
        self.lease = lease if is_ours else None
        return Standing(lease=lease, is_ours=is_ours)

    def _is_left(self, lease: Lease, lock: SeatLock) -> bool:
        """Tell whether the holder ran on this very host and none of its processes is left."""
        return lease.about.get("machine") == machine() and lock.take()


def machine() -> str:
    """Return what tells this host from every other: two containers with one file system are two hosts."""
    return f"{socket.gethostname()}/{_first_line('/etc/machine-id')}/{os.stat('/proc/self/ns/pid').st_ino}"


def held_by(lease: Lease) -> str:
    """Return in words who holds the seat."""
    about = lease.about
    where = f"{about.get('host', 'an unknown host')}, pid {about.get('pid', '?')}"
    return f"held by {where}, since {lease.since:%Y-%m-%d %H:%M:%S} UTC"


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
