"""What wakes a listener: a descriptor that a change stream makes readable, or, where there is none, the clock."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

SURE = 30.0
"""Seconds after which a listener looks without a ring while a change stream is open: one that breaks rings, too."""

POLL = 1.0
"""Seconds after which a listener looks when nothing rings."""

RESTS_FOR = 0.25
"""Seconds for which rings may come late to a listener with its hands full, unless it says so again."""


class PollBell:
    """A descriptor that never becomes readable: its listener looks each second."""

    def __init__(self) -> None:
        self.pause = POLL
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._descriptor

    def clear(self) -> None:
        """Take all rings that have come."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def renew(self) -> bool:
        """Return False: nobody can take the descriptor away."""
        return False

    def close(self) -> None:
        """Listen no more."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def join(self, timeout: float) -> None:
        """Wait until nothing is left of a closed bell, so many seconds at most."""

    @property
    def is_over(self) -> bool:
        """Tell whether the bell was closed and nothing is left of it."""
        return self._descriptor < 0


class StreamBell(PollBell):
    """A descriptor that the thread of a change stream makes readable."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self.topic = topic
        self.pause = SURE
        self._changes = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._dismiss: Callable[[StreamBell], None] | None = None
        self._hurry: Callable[[], None] | None = None
        self._rests_until = 0.0

    @property
    def changes(self) -> int | None:
        """Return a number that stays the same while nothing new waits; None where nobody listens just now.

        A place under a limit that has become free is no job that is new.
        """
        return self._changes if self.pause == SURE and not self.is_over else None

    @property
    def rests(self) -> bool:
        """Tell whether rings may come late."""
        return self._rests_until > time.monotonic()

    def rest(self) -> None:
        """Let rings come late for a while: the listener has its hands full, and looks by itself when it is done."""
        self._rests_until = time.monotonic() + RESTS_FOR

    def hurry(self) -> None:
        """Have rings come at once again."""
        if self._rests_until:
            self._rests_until = 0.0
            if self._hurry is not None:
                self._hurry()

    def belongs_to(
        self, thread: threading.Thread, dismiss: Callable[[StreamBell], None], hurry: Callable[[], None]
    ) -> None:
        """Take in who rings, and who wants to know when the bell is closed, and when it does not rest any more."""
        self._thread, self._dismiss, self._hurry = thread, dismiss, hurry

    def ring(self, news: int) -> None:
        """Become readable, for so much that is new."""
        with self._lock:
            if not super().is_over:
                self._changes += news
                os.eventfd_write(self._descriptor, 1)

    def close(self) -> None:
        """Listen no more; the thread ends with the fetch under way, if this was the last bell it rings."""
        with self._lock:
            super().close()
        if self._dismiss is not None:
            self._dismiss(self)

    def leave(self) -> None:
        """Take in that the thread goes on for other bells."""
        self._thread = None

    def join(self, timeout: float) -> None:
        """Wait until the thread of a closed bell has ended, so many seconds at most."""
        if self._thread is not None:
            self._thread.join(timeout)

    @property
    def is_over(self) -> bool:
        """Tell whether the bell was closed and no thread is left that it alone has begun."""
        return super().is_over and (self._thread is None or not self._thread.is_alive())
