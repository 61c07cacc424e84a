"""Wakes listeners: a change stream makes a descriptor readable; without streams, listeners poll."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from taskqueue.model.ids import JobId
from taskqueue.model.record import Record

STREAM_PAUSE = 30.0
"""Seconds after which a listener looks without a ring while a change stream is open: one that breaks rings, too."""

POLL_PAUSE = 1.0
"""Seconds after which a listener looks when nothing rings."""

RESTS_FOR = 0.25
"""Seconds for which rings of a saturated listener may be delayed, unless it asks again."""


class NewJobs(NamedTuple):
    """How many changes have made jobs claimable, or may have, since the bell was opened."""

    all: int = 0
    plain: int = 0
    """Of these, how many were additions of one WAITING job without limits for the pool."""


class PollBell:
    """A descriptor that never becomes readable: its listener looks each second."""

    keeps_rings = False

    def __init__(self) -> None:
        self.pause = POLL_PAUSE
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._descriptor

    def clear(self) -> Sequence[Record | None]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)
        return (None,)

    def renew(self) -> bool:
        """Return False: the descriptor never changes."""
        return False

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def join(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds until a closed bell has released everything."""

    @property
    def is_over(self) -> bool:
        """Return whether the bell is closed and has released everything."""
        return self._descriptor < 0


class StreamBell(PollBell):
    """A descriptor that the thread of a change stream makes readable."""

    keeps_rings = True

    def __init__(self, topic: str) -> None:
        super().__init__()
        self.topic = topic
        self.pause = STREAM_PAUSE
        self._changes = NewJobs()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._dismiss: Callable[[StreamBell], None] | None = None
        self._hurry: Callable[[], None] | None = None
        self._rests_until = 0.0

    @property
    def changes(self) -> NewJobs | None:
        """Return numbers that change when new jobs wait; None while the stream is down.

        Freed room under a limit is no new job.
        """
        return self._changes if self.pause == STREAM_PAUSE and not self.is_over else None

    @property
    def rests(self) -> bool:
        """Return whether rings are delayed."""
        return self._rests_until > time.monotonic()

    def rest(self) -> None:
        """Delay wake-ups while the listener is saturated; it looks by itself when it has room."""
        self._rests_until = time.monotonic() + RESTS_FOR

    def hurry(self) -> None:
        """End the delay of rings."""
        if self._rests_until:
            self._rests_until = 0.0
            if self._hurry is not None:
                self._hurry()

    def belongs_to(
        self, thread: threading.Thread, dismiss: Callable[[StreamBell], None], hurry: Callable[[], None]
    ) -> None:
        """Set the ringing thread, and the callbacks for a closed bell and for the end of a delay."""
        self._thread, self._dismiss, self._hurry = thread, dismiss, hurry

    def ring(self, new_jobs: int, plain: int = 0, ended: Sequence[JobId] = ()) -> None:  # noqa: ARG002
        """Become readable for that many new jobs, of which so many are plain ones."""
        with self._lock:
            if not super().is_over:
                self._changes = NewJobs(self._changes.all + new_jobs, self._changes.plain + plain)
                os.eventfd_write(self._descriptor, 1)

    def close(self) -> None:
        """Listen no more; the thread ends with the fetch under way, if this was the last bell it rings."""
        with self._lock:
            super().close()
        if self._dismiss is not None:
            self._dismiss(self)

    def leave(self) -> None:
        """Forget the thread, which goes on for other bells."""
        self._thread = None

    def join(self, timeout: float) -> None:
        """Wait until the thread of a closed bell has ended, so many seconds at most."""
        if self._thread is not None:
            self._thread.join(timeout)

    @property
    def is_over(self) -> bool:
        """Return whether the bell is closed and its own thread, if any, has ended."""
        return super().is_over and (self._thread is None or not self._thread.is_alive())


class OpenBells:
    """The bells that this process has made and not closed."""

    def __init__(self) -> None:
        self._open: list[tuple[int, PollBell]] = []

    def keep(self, bell: PollBell) -> PollBell:
        """Keep the bell, to be closed with the store, and return it."""
        self._open = [(pid, known) for pid, known in self._open if pid == os.getpid() and not known.is_over]
        self._open.append((os.getpid(), bell))
        return bell

    def close(self, seconds: float) -> None:
        """Close the bells, and wait for their threads so many seconds at most."""
        own = [bell for pid, bell in self._open if pid == os.getpid()]
        for bell in own:
            bell.close()
        deadline = time.monotonic() + seconds
        for bell in own:
            bell.join(max(0.0, deadline - time.monotonic()))
        self._open.clear()
