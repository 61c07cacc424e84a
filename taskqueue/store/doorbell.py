"""Rings between processes of one host: a datagram socket for each listener, in a folder beside the database."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import socket
import stat
import time
from collections.abc import Callable, Collection
from pathlib import Path

from taskqueue.errors import StoreUnavailable

log = logging.getLogger(__name__)

LONGEST_PATH = 107
"""Bytes that the address of a socket may have (``sun_path`` without its null byte)."""

FRESH = 50_000_000
"""Nanoseconds for which a change of a folder may hide another one: the clock of files ticks every few milliseconds."""


class Doorbell:
    """Listens to one topic; readable when rung. Close it in the process that opened it."""

    pause = 1.0

    def __init__(self, folder: Path, topic: str, mode: int) -> None:
        """Listen from now on, with the permissions ``mode`` of the database."""
        self._pid = os.getpid()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._path = folder / f"{topic}-{self._pid}-{secrets.token_hex(6)}"
        try:
            _make_folder(folder, mode)
            _through_short_path(str(self._path), self._socket.bind)
            self._path.chmod(mode)
        except OSError as error:
            self._socket.close()
            raise StoreUnavailable(
                str(folder), f"no bell can be hung there ({error.strerror})", "make the folder writable for this user"
            ) from error

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._socket.fileno()

    def clear(self) -> None:
        """Take all rings that have come."""
        try:
            while True:
                self._socket.recv(1)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Listen no more."""
        if self._socket.fileno() < 0:
            return
        self._socket.close()
        if os.getpid() == self._pid:
            self._path.unlink(missing_ok=True)


class Ringer:
    """Rings all listeners of a topic; never waits. A ring that is lost delays its listener by ``pause``, no more."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._known: tuple[int, tuple[tuple[str, str], ...]] = (-1, ())

    def ring(self, topics: Collection[str]) -> None:
        """Send one byte to each listener of the topics, and remove the sockets of those that died."""
        if not topics:
            return
        for topic, path in self._listeners():
            if topic in topics:
                self._ring(path)

    def close(self) -> None:
        """Ring no more."""
        self._socket.close()

    def _ring(self, path: str) -> None:
        try:
            _through_short_path(path, lambda address: self._socket.sendto(b"!", address))
        except FileNotFoundError:
            return
        except ConnectionRefusedError:  # also from what is no socket
            with contextlib.suppress(OSError):
                Path(path).unlink()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
                log.debug("the bell %s cannot be rung: %s", path, error)

    def _listeners(self) -> tuple[tuple[str, str], ...]:
        """Return topic and path of the sockets; the folder is read only after it has changed."""
        try:
            changed = os.stat(self._folder).st_mtime_ns
            if self._known[0] == changed:
                return self._known[1]
            names = os.listdir(self._folder)
        except OSError:
            return ()
        listeners = tuple((name.partition("-")[0], f"{self._folder}/{name}") for name in names)
        if abs(time.time_ns() - changed) > FRESH:
            self._known = (changed, listeners)
        return listeners


def _through_short_path(path: str, use: Callable[[str], object]) -> None:
    """Call ``use`` with an address for the path that is short enough for a socket."""
    if len(os.fsencode(path)) <= LONGEST_PATH:
        use(path)
        return
    folder, name = os.path.split(path)
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        use(f"/proc/self/fd/{descriptor}/{name}")
    finally:
        os.close(descriptor)


def _make_folder(folder: Path, mode: int) -> None:
    """Make the folder, open to those who may read a file of this mode; a parent that hands its group on is followed."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        folder.chmod(mode | (mode & 0o444) >> 2 | folder.stat().st_mode & stat.S_ISGID)
