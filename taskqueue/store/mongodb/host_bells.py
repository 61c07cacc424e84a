"""Rings waiters on the same host when a job has ended: the change stream brings an end only when its event is recorded.

Any process of this user on this host can ring; the change stream rings for all ends anyway.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import stat
from collections.abc import Sequence
from pathlib import Path

from taskqueue.errors import StoreUnavailable
from taskqueue.model.ids import JobId
from taskqueue.model.record import Record
from taskqueue.store.bell import ENDS
from taskqueue.store.doorbell import PLAIN_RING, Doorbell, Ringer
from taskqueue.store.mongodb.bells import StreamBell
from taskqueue.store.mongodb.documents import Document
from taskqueue.store.mongodb.end_notice import record_of

VARIABLE = "TASKQUEUE_RUNTIME_DIR"
"""The variable that names the runtime folder, in which the bells are then."""

MOST_NOTICED = 1000
"""The most jobs whose notice a bell remembers until the change stream rings for them."""

_MODE = 0o600  # only processes of this user ring


class HostBells:
    """The doorbells of one store on this host."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._ringer: Ringer | None = None

    def place(self, hello: Document, database: str, prefix: str) -> None:
        """Find the folder of the replica set with this description; without a set, or a safe folder, nothing rings."""
        own = _own_folder() if "hosts" in hello else None
        if own is not None:
            named = "\n".join([hello["setName"], *sorted(hello["hosts"]), database, prefix])
            self._folder = own / f"{hashlib.sha256(named.encode()).hexdigest()[:16]}.bells"
            self._ringer = Ringer(self._folder)

    def hang(self) -> Doorbell | None:
        """Return a doorbell for the ends of jobs; None where none can be hung."""
        if self._folder is None:
            return None
        try:
            return Doorbell(self._folder, ENDS, _MODE, record_of)
        except StoreUnavailable:
            return None

    @property
    def has_listeners(self) -> bool:
        """Return whether a process of this host may listen to the ends of jobs."""
        return self._ringer is not None and self._ringer.reaches_ends

    def ring(self, end: bytes = PLAIN_RING) -> None:
        """Ring for the end of jobs, or with the notice of one."""
        if self._ringer is not None:
            self._ringer.ring((ENDS,), end)

    def close(self) -> None:
        """Ring no more."""
        if self._ringer is not None:
            self._ringer.close()


class EndsBell(StreamBell):
    """Readable when a change stream or a doorbell rings.

    The thread of the stream rings and that of the listener clears: both change their common state under the lock.
    """

    def __init__(self, doorbell: Doorbell) -> None:
        super().__init__(ENDS)
        self._doorbell = doorbell
        self._noticed: set[JobId] = set()
        """The jobs with a notice of the doorbell for which the change stream has not rung yet."""
        self._unnoticed: set[JobId] = set()
        """The jobs for which the change stream has rung, without a notice of the doorbell so far."""
        self._has_unknown = False
        """Whether the change stream has rung without saying for which jobs."""
        self._epoll = select.epoll()
        for descriptor in (self._descriptor, doorbell.fileno()):
            self._epoll.register(descriptor, select.EPOLLIN)

    def fileno(self) -> int:
        return -1 if self._epoll.closed else self._epoll.fileno()

    def ring(self, new_jobs: int, plain: int = 0, ended: Sequence[JobId] = ()) -> None:
        """Become readable; ``ended`` are all jobs for which it rings, if they are few."""
        with self._lock:
            self._unnoticed.update(id for id in ended if id not in self._noticed)
            self._noticed.difference_update(ended)
            if not ended or len(self._unnoticed) > MOST_NOTICED:
                self._has_unknown = True
                self._unnoticed.clear()
        super().ring(new_jobs, plain)

    def clear(self) -> Sequence[Record | None]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)
        notices = self._doorbell.clear()
        noticed = {one.id for one in notices if one is not None}
        with self._lock:
            has_unknown = self._has_unknown or not self._unnoticed <= noticed
            if len(self._noticed) > MOST_NOTICED:
                self._noticed.clear()
            self._noticed |= noticed - self._unnoticed
            self._has_unknown = False
            self._unnoticed.clear()
        return [*notices, None] if has_unknown else notices

    def renew(self) -> bool:
        """Hang the doorbell again if it was removed; the descriptor of both never changes."""
        if self._doorbell.renew():
            self._epoll.register(self._doorbell.fileno(), select.EPOLLIN)
        return False

    def close(self) -> None:
        super().close()
        self._doorbell.close()
        self._epoll.close()


def _own_folder() -> Path | None:
    """Return a folder into which only this user can put something; None where there is none."""
    given = os.environ.get(VARIABLE)
    folder = Path(given, "bells") if given else Path(f"/dev/shm/taskqueue-{os.geteuid()}")  # noqa: S108 - checked below
    try:
        folder.mkdir(mode=0o700, parents=bool(given), exist_ok=True)
        found = os.lstat(folder)
    except OSError:
        return None
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    return folder if is_own else None
