"""Fans out the rings of one listener to many bells, each with a descriptor; without a listener, bells are polled."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from taskqueue.model.record import Record

log = logging.getLogger(__name__)

LISTEN_PAUSE = 30.0
"""Seconds after which a bell is looked at without a ring while its listener listens: one that breaks rings, too."""

POLL_PAUSE = 1.0
"""Seconds after which a bell that was not rung is looked at."""

OPEN_PAUSES = (0.1, 5.0)
"""The first and the longest pause before a broken listener is opened again, in seconds."""


class PollBell:
    """A descriptor that never becomes readable: the bell is looked at each second."""

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
        """Wait up to ``timeout`` seconds until a closed bell has released everything."""

    @property
    def is_over(self) -> bool:
        """Return whether the bell is closed and has released everything."""
        return self._descriptor < 0


class RungBell(PollBell):
    """A descriptor that the thread of a listener makes readable."""

    keeps_rings = True

    def __init__(self, topic: str) -> None:
        super().__init__()
        self.topic = topic
        self.pause = LISTEN_PAUSE
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._dismiss: Callable[[], None] | None = None

    def belongs_to(self, thread: threading.Thread, dismiss: Callable[[], None]) -> None:
        """Set the ringing thread, and the function to call when the bell is closed."""
        self._thread, self._dismiss = thread, dismiss

    def ring(self) -> None:
        """Become readable, unless the bell is closed."""
        with self._lock:
            if self._descriptor >= 0:
                os.eventfd_write(self._descriptor, 1)

    def close(self) -> None:
        """Stop listening; if this was the last bell of its thread, the thread ends."""
        with self._lock:
            super().close()
        if self._dismiss is not None:
            self._dismiss()

    def leave(self) -> None:
        """Forget the thread, which continues for other bells."""
        self._thread = None

    def join(self, timeout: float) -> None:
        """Wait until the thread of a closed bell has ended, up to ``timeout`` seconds."""
        if self._thread is not None:
            self._thread.join(timeout)

    @property
    def is_over(self) -> bool:
        """Return whether the bell is closed and its own thread, if any, has ended."""
        return super().is_over and (self._thread is None or not self._thread.is_alive())


AnyRungBell = TypeVar("AnyRungBell", bound=RungBell)


class FanOut(Generic[AnyRungBell]):
    """The bells of one listener, and its thread, which rings them until the last one is closed."""

    def __init__(self, listen: Callable[[], None], stop: Callable[[], None]) -> None:
        """``listen`` runs in the thread until ``ended``; ``stop`` ends what it waits for."""
        self.ended = threading.Event()
        self._stop = stop
        self._lock = threading.Lock()
        self._bells: list[AnyRungBell] = []
        self._pause = LISTEN_PAUSE
        self._thread = threading.Thread(target=listen, name="taskqueue-bell", daemon=True)

    def admit(self, bell: AnyRungBell) -> bool:
        """Ring this bell, too, from now on; return False if the last bell was closed."""
        with self._lock:
            if self.ended.is_set():
                return False
            bell.belongs_to(self._thread, lambda: self._dismiss(bell))
            bell.pause = self._pause
            self._bells.append(bell)
            if not self._thread.is_alive():
                self._thread.start()
            return True

    @property
    def bells(self) -> Sequence[AnyRungBell]:
        """Return the bells that are open now."""
        with self._lock:
            return tuple(self._bells)

    def ring_all(self) -> None:
        """Ring every bell: anything may have changed."""
        for bell in self.bells:
            bell.ring()

    def set_pause(self, pause: float) -> None:
        """Set the seconds after which the bells, including later ones, are looked at without a ring."""
        with self._lock:
            self._pause = pause
            for bell in self._bells:
                bell.pause = pause

    def open_again(
        self, what: str, reason: object, open_it: Callable[[], None], failures: tuple[type[Exception], ...]
    ) -> None:
        """Open what broke until that does not fail, and ring for all changes in between.

        It also rings before, so that listeners take the shorter pause.
        """
        log.warning("%s broke; listeners poll every %g s until it is back: %s", what, POLL_PAUSE, reason)
        self.set_pause(POLL_PAUSE)
        self.ring_all()
        for pause in _growing_pauses():
            if self.ended.wait(pause):
                return
            with contextlib.suppress(*failures):
                open_it()
                break
        self.set_pause(LISTEN_PAUSE)
        self.ring_all()
        log.info("%s is back", what)

    def _dismiss(self, bell: AnyRungBell) -> None:
        with self._lock:
            if bell not in self._bells:
                return
            self._bells.remove(bell)
            if self._bells:
                bell.leave()
                return
            self.ended.set()
        if self._thread.is_alive():  # not in a forked child
            self._stop()


def _growing_pauses() -> Iterator[float]:
    """Return growing pauses, jittered so that listeners do not return at once."""
    pause, longest = OPEN_PAUSES
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(pause * 2, longest)


class OpenBells:
    """The bells that this process has made and not closed."""

    def __init__(self) -> None:
        self._open: list[tuple[int, PollBell]] = []

    def keep(self, bell: PollBell) -> PollBell:
        """Keep the bell, to be closed with the store, and return it."""
        self._open = [(pid, other) for pid, other in self._open if pid == os.getpid() and not other.is_over]
        self._open.append((os.getpid(), bell))
        return bell

    def close(self, seconds: float) -> None:
        """Close the bells, and wait for their threads up to ``seconds``."""
        own = [bell for pid, bell in self._open if pid == os.getpid()]
        for bell in own:
            bell.close()
        deadline = time.monotonic() + seconds
        for bell in own:
            bell.join(max(0.0, deadline - time.monotonic()))
        self._open.clear()
