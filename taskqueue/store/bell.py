"""The bell: a descriptor on which a listener waits for changes of a topic, and the doorbells of one host.

A doorbell is a datagram socket for each listener, in a folder beside the database; a process that changes the
store rings them.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

from taskqueue.errors import StoreUnavailable
from taskqueue.model.record import Record
from taskqueue.store.permissions import set_mode

log = logging.getLogger(__name__)

WORK = "work"
"""The topic of the bell that rings when a job may have become claimable, even through a settle of this connection."""

STOPS = "stops"
"""The topic of the bell that rings when a running job was asked to stop."""

PLANS = "plans"
"""The topic of the bell that rings when a schedule may have another next time."""

CONTROLS = "controls"
"""The topic of the bell that rings when a control is set or cleared, and when a lease changes its holder."""

NEWS = "news"
"""The topic of the bell that rings when an event was recorded."""

ENDS = "ends"
"""The topic of the bell that rings when a job has ended, which is all that most listeners wait for."""


class Bell(Protocol):
    """A file descriptor that is readable after changes of its topic by another connection; rings are hints."""

    pause: float
    """After this many seconds without a ring, a listener reads the store anyway."""
    keeps_rings: bool
    """Whether all rings since the bell was hung, including rings of this process, wait for ``clear``."""

    def fileno(self) -> int:
        """Return the descriptor to wait on."""

    def clear(self) -> Sequence[Record | None]:
        """Take all rings received so far, and return what each one reports.

        That is the record of a job of whose end alone it tells, or None: anything of its topic may have changed. A ring
        of what was told before may be left out.
        """

    def renew(self) -> bool:
        """Listen again if the bell can no longer ring, and return whether the descriptor has changed.

        Listeners call this after each pause without a ring.
        """

    def close(self) -> None:
        """Stop listening."""


LONGEST_PATH = 107
"""Bytes that the address of a socket may have (``sun_path`` without its null byte)."""

FRESH = 50_000_000
"""Nanoseconds for which a change of a folder may hide another one: the clock of files ticks every few milliseconds."""

LONGEST_RING = 4096
"""Maximum number of bytes of a ring; the rows of most ended jobs are shorter than 500."""

PLAIN_RING = b"!"

_AS_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _no_record(ring: bytes) -> Record | None:  # noqa: ARG001
    """Return None: a ring of this topic brings no record."""
    return None


class Doorbell:
    """Listens to one topic; readable when rung. Close it in the process that opened it."""

    pause = 1.0
    keeps_rings = True

    def __init__(
        self, folder: Path, topic: str, mode: int, record_of: Callable[[bytes], Record | None] = _no_record
    ) -> None:
        """Listen from now on, with the permissions ``mode`` of the database.

        ``record_of`` returns the record that a ring brings, if it does.
        """
        self._pid = os.getpid()
        self._folder = folder
        self._topic = topic
        self._mode = mode
        self._record_of = record_of
        self._is_reported = False
        self._socket, self._path = self._hung()

    def renew(self) -> bool:
        """Create the socket again if it was removed, and return whether the descriptor has changed."""
        if self._socket.fileno() < 0 or os.path.exists(self._path):
            return False
        try:
            hung = self._hung()
        except StoreUnavailable as error:
            if not self._is_reported:
                log.warning("new jobs are noticed only after %g s: %s", self.pause, error)
            self._is_reported = True
            return False
        log.warning("the bell %s was removed; created it again", self._path)
        self._is_reported = False
        self._socket.close()
        self._socket, self._path = hung
        return True

    def fileno(self) -> int:
        return self._socket.fileno()

    def clear(self) -> Sequence[Record | None]:
        notices = []
        try:
            while True:
                ring = self._socket.recv(LONGEST_RING + 1)
                notices.append(None if ring == PLAIN_RING else self._record_of(ring))
        except BlockingIOError:
            return notices

    def close(self) -> None:
        if self._socket.fileno() < 0:
            return
        self._socket.close()
        if os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _hung(self) -> tuple[socket.socket, Path]:
        path = self._folder / f"{self._topic}-{self._pid}-{os.urandom(6).hex()}"
        try:
            hung = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            raise _not_hung(self._folder, error) from error
        try:
            _make_folder(self._folder, self._mode)
            _refuse_foreign(self._folder)
            os.fchmod(hung.fileno(), self._mode)  # Linux makes the file with this mode, less the umask
            _through_short_path(str(path), hung.bind)
            set_mode(path, self._mode, stat.S_IFSOCK)
            _sweep(self._folder)
        except OSError as error:
            hung.close()
            raise _not_hung(self._folder, error) from error
        return hung, path


class Ringer:
    """Rings all listeners of a topic; never waits. A ring that is lost delays its listener by ``pause``, no more."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._longest = LONGEST_PATH - len(os.fsencode(folder)) + len(self._folder)
        """Characters that the path of a socket in the folder may have: the names of sockets are ASCII."""
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            raise _not_hung(folder, error) from error
        self._opened: list[int] = []  # a list, because threads can append to it and pop from it without a lock
        self._known: tuple[int, tuple[tuple[str, str], ...]] = (-1, ())
        self.reaches_ends = False
        """Whether there was a socket for the ends of jobs when the folder was last read."""

    def ring(self, topics: Collection[str], end: bytes = PLAIN_RING) -> None:
        """Ring each listener of the topics, and remove the sockets of dead ones.

        ``end`` is sent to the listeners to ends, and says which job has ended, or is a plain ring.
        """
        if not topics:
            return
        for topic, path in self._listeners():
            if topic in topics:
                self._ring(path, end if topic == ENDS else PLAIN_RING)

    def close(self) -> None:
        """Stop ringing."""
        self._socket.close()
        self._look_anew()

    def _ring(self, path: str, ring: bytes) -> None:
        try:
            if len(path) <= self._longest:
                self._socket.sendto(ring, path)
            else:
                _through_short_path(path, lambda address: self._socket.sendto(ring, address))
        except FileNotFoundError:  # perhaps the folder has lost its name
            self._look_anew()
        except ConnectionRefusedError:  # also from what is not a socket
            _remove_socket(path)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
                log.debug("the bell %s cannot be rung: %s", path, error)

    def _listeners(self) -> tuple[tuple[str, str], ...]:
        """Return topic and path of the sockets; the folder is read only after it has changed.

        It is kept open, since to look at an open folder takes half the time (0.8 us, not 1.7).
        """
        opened = self._opened
        if not opened and not os.access(self._folder, os.F_OK):  # no listener yet: adds need not pay for an exception
            return ()
        try:
            status = os.fstat(opened[-1] if opened else self._open_folder())
            changed = status.st_mtime_ns
            if self._known[0] == changed and status.st_nlink:
                return self._known[1]
            _refuse_foreign(Path(self._folder))
            names = os.listdir(self._folder)
        except (IndexError, OSError):  # the former where another thread has just closed it
            if opened:
                self._look_anew()
            return ()
        listeners = tuple((name.partition("-")[0], f"{self._folder}/{name}") for name in names)
        if not status.st_nlink:  # another folder has its name
            self._look_anew()
        elif abs(time.time_ns() - changed) > FRESH:
            self._known = (changed, listeners)
            self.reaches_ends = any(topic == ENDS for topic, _ in listeners)
        return listeners

    def _open_folder(self) -> int:
        opened = os.open(self._folder, _AS_FOLDER)
        self._opened.append(opened)
        return opened

    def _look_anew(self) -> None:
        """Open the folder of this name again for the next ring."""
        self._known = (-1, ())
        with contextlib.suppress(IndexError, OSError):
            while True:
                os.close(self._opened.pop())


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
        set_mode(folder, mode | (mode & 0o444) >> 2, stat.S_IFDIR)


def _refuse_foreign(folder: Path) -> None:
    """Raise ``OSError`` for a folder of another user: a link, or a folder in a place where every user may make one.

    Folders of this user, of root, and of the owners of database and place are accepted. In a place that is not sticky,
    a user who may make the folder may also replace the database.
    """
    status, place = os.lstat(folder), os.stat(folder.parent)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "it is a link or a file")
    trusted = {0, os.geteuid(), place.st_uid}
    with contextlib.suppress(OSError):
        trusted.add(os.stat(folder.with_suffix("")).st_uid)
    if place.st_mode & stat.S_ISVTX and status.st_uid not in trusted:
        raise PermissionError(errno.EPERM, f"it belongs to user {status.st_uid}")


def _sweep(folder: Path) -> None:
    """Remove the sockets of dead listeners of every topic: they refuse connections."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as asking:
        for path in folder.iterdir():
            try:
                _through_short_path(str(path), asking.connect)
            except ConnectionRefusedError:  # also from what is not a socket
                _remove_socket(str(path))
            except OSError:
                continue


def _remove_socket(path: str) -> None:
    """Remove a socket; nothing else is removed if the folder is exchanged at this moment."""
    place, name = os.path.split(path)
    with contextlib.suppress(OSError):
        folder = os.open(place, _AS_FOLDER)
        try:
            if stat.S_ISSOCK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=folder)
        finally:
            os.close(folder)


def _not_hung(folder: Path, error: OSError) -> StoreUnavailable:
    way_out = "make it a folder that this user can write, or remove it"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        way_out = "raise the limit: LimitNOFILE=16384 in the unit, or ulimit -n"
    return StoreUnavailable(str(folder), f"no bell can be created there ({error.strerror})", way_out)
