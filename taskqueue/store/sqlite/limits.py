"""Places under limits: taken in the transaction of a claim, freed in that of its outcome, or later under a rate."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TypeAlias

from taskqueue.model.controls import Controls
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.moves import began
from taskqueue.model.limits import COUNT_LIMIT, Slot, slots_of, until
from taskqueue.model.record import Record
from taskqueue.model.timestamps import milliseconds

Execute: TypeAlias = Callable[..., sqlite3.Cursor]

_HELD = "SELECT count(*) FROM slots WHERE key = ? AND (until IS NULL OR until > ?)"
_TAKE = "INSERT OR REPLACE INTO slots (key, job, claims, until) VALUES (?, ?, ?, NULL)"
_FREE = "DELETE FROM slots WHERE key = ? AND job = ? AND claims = ?"
_STARTED = "UPDATE slots SET until = ? WHERE key = ? AND job = ? AND claims = ?"
_FIRST = "SELECT min(ifnull(until, ?)) FROM slots WHERE key = ?"


class FreeSlots:
    """How many places are free, as one claim finds and takes them."""

    def __init__(self, execute: Execute, at: int, controls: Controls) -> None:
        self._execute = execute
        self._controls = controls
        self._at = at
        self._held: dict[str, int] = {}
        self._rates: set[Slot] = set()

    def free(self, lane: str) -> int:
        """Return how many jobs of the lane could be taken now."""
        return min((self._left(slot) for slot in self._controls.slots(lane)), default=COUNT_LIMIT)

    def reserve(self, lane: str) -> bool:
        """Count one job of the lane as taken, and tell whether there was room for it."""
        if lane and self.free(lane) <= 0:
            return False
        for slot in slots_of(lane):
            self._held[slot.key] += 1
        return True

    def take(self, taken: Record) -> None:
        """Take the places of a record that was claimed."""
        for slot in slots_of(taken.lane):
            self._execute(_TAKE, (slot.key, str(taken.id), taken.claims))

    def next_at(self) -> int | None:
        """Return when the first place under a rate that is used up becomes free, in milliseconds, at a guess."""
        full = [slot for slot in self._rates if self._held[slot.key] >= slot.count]
        firsts = [self._execute(_FIRST, (self._at + _lasts(slot), slot.key)).fetchone()[0] for slot in full]
        return min((first for first in firsts if first is not None), default=None)

    def _left(self, slot: Slot) -> int:
        """Return how many places are free under the key."""
        if slot.per is not None:
            self._rates.add(slot)
        if slot.key not in self._held:
            [held] = self._execute(_HELD, (slot.key, self._at)).fetchone()
            self._held[slot.key] = int(held)
        return slot.count - self._held[slot.key]


def started(execute: Execute, id: JobId, claims: int, lane: str, at: datetime) -> None:
    """Note when a run began, from when on rates count it."""
    _keep(execute, (slot for slot in slots_of(lane) if slot.per is not None), (str(id), claims), at)


def free(execute: Execute, after: Record, now: datetime) -> None:
    """Free the places of a run that led to this record; a start that a rate counts keeps its place until it is over."""
    run = (str(after.id), after.claims)
    began_at = began(after, now)
    for slot in slots_of(after.lane):
        if slot.per is None or began_at is None:
            execute(_FREE, (slot.key, *run))
        else:
            _keep(execute, [slot], run, began_at)


def prune(execute: Execute, at: int) -> None:
    """Remove places that were over long ago."""
    execute("DELETE FROM slots WHERE until <= ?", (at,))


def held(raw: sqlite3.Connection, keys: Iterable[str], at: int) -> dict[str, int]:
    """Return how many places are taken under each key."""
    return {key: int(raw.execute(_HELD, (key, at)).fetchone()[0]) for key in keys}


def _keep(execute: Execute, slots: Iterable[Slot], run: tuple[str, int], began_at: datetime) -> None:
    for slot in slots:
        execute(_STARTED, (milliseconds(until(slot, began_at)), slot.key, *run))


def _lasts(slot: Slot) -> int:
    return int((slot.per or 0) * 1000)
