"""Counts the tries of a change that other processes may overtake, so that no call repeats it endlessly."""

from __future__ import annotations

from taskqueue.errors import StoreContended

MOST_TRIES = 200
"""The tries of one call; each failure means that another process has made a change, so few calls need ten."""


class Tries:
    """The tries of one change of one job, schedule or lease."""

    def __init__(self, store: str, what: str) -> None:
        self._store = store
        self._what = what
        self._number = 0

    def another(self) -> None:
        """Count another try; raise ``StoreContended`` if there were ``MOST_TRIES`` before."""
        if self._number == MOST_TRIES:
            raise StoreContended(self._store, self._what, self._number)
        self._number += 1
