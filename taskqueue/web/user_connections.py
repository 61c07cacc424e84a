"""Gives each active user a separate connection to the store, so that a long query delays only its user."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial

from taskqueue.scheduler.scheduler import Scheduler

MOST = 8
"""Maximum number of separate connections; further users share the connection of the dashboard."""


@dataclass
class _Lent:
    """The connection of a user, and how many calls use it."""

    scheduler: Scheduler
    calls: int = 0


class UserConnections:
    """Schedulers on the store of one dashboard; threads may share it."""

    def __init__(self, scheduler: Scheduler) -> None:
        """``scheduler`` belongs to the dashboard and is never closed here."""
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._lent: dict[str, _Lent] = {}
        self._idle: list[Scheduler] = []
        self._is_ended = False
        self._at_exit = partial(_end, weakref.ref(self))
        atexit.register(self._at_exit)

    @contextmanager
    def of(self, user: str) -> Iterator[Scheduler]:
        """Yield the scheduler of a user; concurrent calls of a user have the same one."""
        with self._lock:
            lent = self._lent.get(user)
            if lent is None:
                lent = self._lent[user] = _Lent(self._next())
            lent.calls += 1
        try:
            yield lent.scheduler
        finally:
            with self._lock:
                lent.calls -= 1
                if not lent.calls:
                    del self._lent[user]
                    self._give_back(lent.scheduler)

    def end(self) -> None:
        """Close idle connections now, and each other one after its last call."""
        with self._lock:
            self._is_ended = True
            idle, self._idle = self._idle, []
        for scheduler in idle:
            scheduler.close()
        atexit.unregister(self._at_exit)

    def _next(self) -> Scheduler:
        """Return an idle or new connection, or the dashboard's if too many are open."""
        if self._idle:
            return self._idle.pop()
        used = sum(lent.scheduler is not self._scheduler for lent in self._lent.values())
        return self._scheduler if used >= MOST else copy(self._scheduler)

    def _give_back(self, scheduler: Scheduler) -> None:
        if scheduler is self._scheduler:
            return
        if self._is_ended:
            scheduler.close()
        else:
            self._idle.append(scheduler)


def _end(reference: weakref.ReferenceType[UserConnections]) -> None:
    """Close the connections of a dashboard that is still running when the process exits, as it is within a site."""
    if connections := reference():
        connections.end()
