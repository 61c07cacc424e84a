"""Wakes listeners: change streams and processes of the same host ring.

The change stream brings the end of a job only when its event is recorded, so the process that settles it rings waiters
on its host first. A ring may hold an end notice, the document of the ended job, so that the waiter need not read it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import stat
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import bson
from bson.errors import BSONError

from taskqueue.errors import StoreUnavailable
from taskqueue.model.ids import JobId
from taskqueue.model.record import Record
from taskqueue.store.bell import ENDS, LONGEST_RING, PLAIN_RING, Doorbell, Ringer
from taskqueue.store.fan_out import LISTEN_PAUSE, RungBell
from taskqueue.store.mongodb.documents import CODEC, Document, record

_NOT_READ = ("after", "swapped", "claimed")
"""The fields of a document that are not part of the record."""


def end_notice(kept: Document) -> bytes:
    """Return the ring that carries this document; a plain ring if that would be too long."""
    notice = bson.encode({name: value for name, value in kept.items() if name not in _NOT_READ}, codec_options=CODEC)
    return notice if len(notice) <= LONGEST_RING else PLAIN_RING


def record_of(notice: bytes) -> Record | None:
    """Return the record of a ring; None if it is incomplete or has not ended."""
    try:
        ended = record(bson.decode(notice, CODEC))
    except (BSONError, TypeError, KeyError, ValueError):  # another program sent it: the waiter reads the store instead
        return None
    return ended if ended.status.is_final and not ended.damage else None


RESTS_FOR = 0.25
"""Seconds for which rings of a saturated listener may be delayed, unless it asks again."""


class NewJobs(NamedTuple):
    """How many changes since the bell was opened have made jobs claimable, or may have."""

    all: int = 0
    plain: int = 0
    """How many of these each added one WAITING job for the pool, without limits."""


class NewQueues(NamedTuple):
    """The queues of new jobs since the last look, and how many other changes did not name their queue."""

    queues: Collection[str]
    unnamed: int
    again: Collection[JobId]
    """The jobs that became WAITING again since the last look."""


MOST_QUEUES = 20_000
"""Maximum number of queues, and of jobs that wait again, that a bell remembers for its listener."""


class StreamBell(RungBell):
    """A descriptor that the thread of a change stream makes readable."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self._changes = NewJobs()
        self._queues: set[str] = set()
        self._again: set[JobId] = set()
        self._unnamed = 0
        self._hurry: Callable[[], None] | None = None
        self._rests_until = 0.0

    @property
    def changes(self) -> NewJobs | None:
        """Return numbers that change when new jobs wait; None while the stream is down.

        Room freed under a limit does not count as a new job.
        """
        return self._changes if self.pause == LISTEN_PAUSE and not self.is_over else None

    def take_new_queues(self) -> NewQueues | None:
        """Return what the bell has learned about queues since the last call; None while the stream is down."""
        with self._lock:
            queues, self._queues = self._queues, set()
            again, self._again = self._again, set()
            return None if self.changes is None else NewQueues(queues, self._unnamed, again)

    @property
    def rests(self) -> bool:
        """Return whether rings are delayed."""
        return self._rests_until > time.monotonic()

    def rest(self) -> None:
        """Delay wake-ups while the listener is saturated; it looks for jobs itself as soon as it has room."""
        self._rests_until = time.monotonic() + RESTS_FOR

    def hurry(self) -> None:
        """End the delay of rings."""
        if self._rests_until:
            self._rests_until = 0.0
            if self._hurry is not None:
                self._hurry()

    def on_hurry(self, hurry: Callable[[], None]) -> None:
        """Set the callback for the end of a delay."""
        self._hurry = hurry

    def ring(
        self,
        new_jobs: int = 1,
        plain: int = 0,
        ended: Sequence[JobId] = (),  # noqa: ARG002
        queue: str | None = None,
        again: JobId | None = None,
    ) -> None:
        """Become readable for ``new_jobs`` new jobs, ``plain`` of them plain, in the queue if it is known.

        ``again`` is a job that waits again and whose queue is not known.
        """
        with self._lock:
            if self._descriptor >= 0:
                if queue is not None and len(self._queues) < MOST_QUEUES:
                    self._queues.add(queue)
                elif again is not None and len(self._again) < MOST_QUEUES:
                    self._again.add(again)
                else:
                    self._unnamed += new_jobs
                self._changes = NewJobs(self._changes.all + new_jobs, self._changes.plain + plain)
                os.eventfd_write(self._descriptor, 1)


VARIABLE = "TASKQUEUE_RUNTIME_DIR"
"""The variable that names the runtime folder; if it is set, the bells are there."""

MOST_NOTICED = 1000
"""Maximum number of jobs whose notice a bell remembers until the change stream rings for them."""

_MODE = 0o600  # only this user's processes may ring


class HostBells:
    """The doorbells of one store on this host."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._ringer: Ringer | None = None

    def place(self, hello: Document, database: str, prefix: str) -> None:
        """Find the folder of the replica set of this description; without a set or a safe folder, nothing rings."""
        own = _own_folder() if "hosts" in hello else None
        if own is not None:
            named = "\n".join([hello["setName"], *sorted(hello["hosts"]), database, prefix])
            self._folder = own / f"{hashlib.sha256(named.encode()).hexdigest()[:16]}.bells"
            self._ringer = Ringer(self._folder)

    def hang(self) -> Doorbell | None:
        """Return a doorbell for the ends of jobs; None if none can be created."""
        if self._folder is None:
            return None
        try:
            return Doorbell(self._folder, ENDS, _MODE, record_of)
        except StoreUnavailable:
            return None

    @property
    def has_listeners(self) -> bool:
        """Return whether a process on this host may be listening for the ends of jobs."""
        return self._ringer is not None and self._ringer.reaches_ends

    def ring(self, end: bytes = PLAIN_RING) -> None:
        """Ring for the end of jobs, or with the notice of one."""
        if self._ringer is not None:
            self._ringer.ring((ENDS,), end)

    def close(self) -> None:
        """Stop ringing."""
        if self._ringer is not None:
            self._ringer.close()


class EndsBell(StreamBell):
    """Readable when a change stream or a doorbell rings.

    The stream's thread rings and the listener's thread clears; both change their shared state under the lock.
    """

    def __init__(self, doorbell: Doorbell) -> None:
        super().__init__(ENDS)
        self._doorbell = doorbell
        self._noticed: set[JobId] = set()
        """Jobs whose notice the doorbell has brought, but for which the change stream has not rung yet."""
        self._unnoticed: set[JobId] = set()
        """Jobs for which the change stream has rung, but of which the doorbell has brought no notice so far."""
        self._has_unknown = False
        """Whether the change stream has rung without naming the jobs."""
        self._epoll = select.epoll()
        for descriptor in (self._descriptor, doorbell.fileno()):
            self._epoll.register(descriptor, select.EPOLLIN)

    def fileno(self) -> int:
        return -1 if self._epoll.closed else self._epoll.fileno()

    def ring(
        self,
        new_jobs: int = 1,
        plain: int = 0,
        ended: Sequence[JobId] = (),
        queue: str | None = None,
        again: JobId | None = None,
    ) -> None:
        """Become readable; ``ended`` are all jobs for which it rings, if they are few."""
        with self._lock:
            self._unnoticed.update(id for id in ended if id not in self._noticed)
            self._noticed.difference_update(ended)
            if not ended or len(self._unnoticed) > MOST_NOTICED:
                self._has_unknown = True
                self._unnoticed.clear()
        super().ring(new_jobs, plain, queue=queue, again=again)

    def clear(self) -> Sequence[Record | None]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)
        notices = self._doorbell.clear()
        noticed = {ended.id for ended in notices if ended is not None}
        with self._lock:
            has_unknown = self._has_unknown or not self._unnoticed <= noticed
            if len(self._noticed) > MOST_NOTICED:
                self._noticed.clear()
            self._noticed |= noticed - self._unnoticed
            self._has_unknown = False
            self._unnoticed.clear()
        return [*notices, None] if has_unknown else notices

    def renew(self) -> bool:
        """Create the doorbell again if it was removed; the descriptor that both share never changes."""
        if self._doorbell.renew():
            self._epoll.register(self._doorbell.fileno(), select.EPOLLIN)
        return False

    def close(self) -> None:
        super().close()
        self._doorbell.close()
        self._epoll.close()


def _own_folder() -> Path | None:
    """Return a folder to which only this user can write; None if there is none."""
    given = os.environ.get(VARIABLE)
    folder = Path(given, "bells") if given else Path(f"/dev/shm/taskqueue-{os.geteuid()}")  # noqa: S108 - checked below
    try:
        folder.mkdir(mode=0o700, parents=bool(given), exist_ok=True)
        status = os.lstat(folder)
    except OSError:
        return None
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
    return folder if is_own else None
