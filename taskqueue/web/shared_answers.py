"""Keeps what a page shows for a moment, so that all who look at the same page share one look at the store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from taskqueue.web.view import Answer

KEPT_FOR = 0.9
"""Seconds: less than those between two times that pages are told of changes."""

MOST = 200


@dataclass(eq=False)
class Kept:
    """One answer, and the lock under which it is made."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    until: float = 0.0
    answer: Answer | None = None


class SharedAnswers:
    """The answers of one dashboard, by what they depend on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Hashable, Kept] = {}

    def answer(self, key: Hashable, make: Callable[[], Answer]) -> Answer:
        """Return the kept answer, or else make it; others who want the same wait for it."""
        with self._lock:
            if len(self._kept) >= MOST:
                now = time.monotonic()
                self._kept = {key: kept for key, kept in self._kept.items() if kept.until > now or kept.lock.locked()}
            kept = self._kept.setdefault(key, Kept())
        with kept.lock:
            if kept.answer is None or kept.until <= time.monotonic():
                kept.answer = make()
                kept.until = time.monotonic() + KEPT_FOR
            return kept.answer
