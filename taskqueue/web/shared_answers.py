"""Keeps what a page shows for a beat, so that all who look at the same page share one look at the store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from taskqueue.web.beats import Beats
from taskqueue.web.view import Answer

MOST = 200


@dataclass(eq=False)
class Kept:
    """One answer, and the lock under which it is made."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    beat: int = 0
    answer: Answer | None = None


class SharedAnswers:
    """The answers of one dashboard, by what they depend on."""

    def __init__(self, beats: Beats) -> None:
        self._beats = beats
        self._lock = threading.Lock()
        self._kept: dict[Hashable, Kept] = {}

    def answer(self, key: Hashable, make: Callable[[], Answer]) -> Answer:
        """Return the answer of this beat, or else make it; others who want the same wait for it."""
        beat = self._beats.present().number
        with self._lock:
            if len(self._kept) >= MOST:
                self._kept = {key: kept for key, kept in self._kept.items() if kept.beat == beat or kept.lock.locked()}
            kept = self._kept.setdefault(key, Kept())
        with kept.lock:
            if kept.answer is None or kept.beat < beat:
                kept.answer = make()
                kept.beat = beat
            return kept.answer
