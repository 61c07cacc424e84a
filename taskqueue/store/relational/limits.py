"""Counts the use of limits: taken in the transaction of a claim, freed with its outcome, or later under a rate."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from taskqueue.model.controls import Controls
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.claim_end import counted_from
from taskqueue.model.limits import LimitKey, latest_end, limit_keys_of, until
from taskqueue.model.reading import readable, text
from taskqueue.model.record import Record
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.store.relational.columns import LARGEST
from taskqueue.store.relational.engine import Database, Execute
from taskqueue.store.selection import ConcurrencyRoom

_CUT = "UPDATE slots SET until = ? WHERE key = ? AND until > ?"
_IN_USE = """
SELECT key, count(*) FROM slots WHERE key IN (SELECT value FROM json_each(?)) AND (until IS NULL OR until > ?)
GROUP BY key
"""
_ENDS = "SELECT until FROM slots WHERE key = ? AND until > ? AND until <= ? ORDER BY until LIMIT ?"
_WAITING = "SELECT lane FROM jobs WHERE status = 0 AND lane IS NOT NULL LIMIT ?"
_TAKE = """
INSERT INTO slots (key, job, claims, until) VALUES (?, ?, ?, NULL)
ON CONFLICT (key, job, claims) DO UPDATE SET until = NULL
"""
_FREE = "DELETE FROM slots WHERE key = ? AND job = ? AND claims = ?"
_KEEP = "UPDATE slots SET until = ? WHERE key = ? AND job = ? AND claims = ? AND until IS NULL"
# The first and the last end, and how many uses have none yet. An end that is no number sorts after all numbers.
_FIRST_ENDS = f"""
SELECT key, min(until), max(CASE WHEN until IS NULL THEN 0 WHEN until <= {LARGEST} THEN until ELSE {LARGEST} END),
    count(*) - count(until)
FROM slots WHERE key IN (SELECT value FROM json_each(?)) AND (until IS NULL OR until > ?)
GROUP BY key
"""


class LimitRoom:
    """The free room under each limit key, as one claim finds and uses it."""

    def __init__(self, execute: Execute, at: int, controls: Controls, rooms: Mapping[str, int]) -> None:
        """``rooms`` are those of a ``ClaimRequest``."""
        self._workers = ConcurrencyRoom(rooms)
        self._execute = execute
        self._controls = controls
        self._at = at
        self._used: dict[str, int] = {}
        self._rates: set[LimitKey] = set()

    def open(self, lanes: Sequence[str]) -> dict[str, int]:
        """Return how many jobs of each lane could be claimed now, without full lanes; one statement reads all uses."""
        self._read({limit_key.key for lane in lanes for limit_key in self._controls.limit_keys(lane)})
        return {lane: free for lane in lanes if (free := self.free(lane)) > 0}

    def free(self, lane: str) -> int:
        """Return how many jobs of the lane could be claimed now."""
        free = (self._left(limit_key) for limit_key in self._controls.limit_keys(lane))
        return min((self._workers.free(lane), *free))

    def reserve(self, lane: str) -> bool:
        if lane and self.free(lane) <= 0:
            return False
        for limit_key in limit_keys_of(lane):
            self._used[limit_key.key] += 1
        self._workers.reserve(lane)
        return True

    def take(self, claimed: Iterable[Record]) -> None:
        """Record that claimed jobs use their limits."""
        for taken in claimed:
            for limit_key in limit_keys_of(taken.lane):
                self._execute(_TAKE, (limit_key.key, str(taken.id), taken.claims))

    def next_at(self) -> int | None:
        """Estimate when an exhausted rate has room again, in milliseconds."""
        full = [limit_key for limit_key in self._rates if self._used[limit_key.key] >= limit_key.count]
        keys = json.dumps([limit_key.key for limit_key in full])
        ends = {key: ends for key, *ends in self._execute(_FIRST_ENDS, (keys, self._at))} if full else {}
        return min(
            (self._first_end(limit_key, *ends[limit_key.key]) for limit_key in full if limit_key.key in ends),
            default=None,
        )

    def _first_end(self, limit_key: LimitKey, first: int | None, last: int, without_end: int) -> int:
        """Return when the first start stops counting; no start counts longer than one that starts now."""
        latest = self._at + int((limit_key.per or 0) * 1000)
        is_beyond = last > milliseconds(latest_end(limit_key, moment(self._at)))  # or an end is damaged
        if is_beyond:
            self._execute(_CUT, (latest, limit_key.key, latest))
        if isinstance(first, int):
            return min(first, latest) if is_beyond or without_end else first
        return latest

    def _left(self, limit_key: LimitKey) -> int:
        """Return how many more jobs the limit key allows."""
        if limit_key.per is not None:
            self._rates.add(limit_key)
        if limit_key.key not in self._used:
            self._read([limit_key.key])
        return limit_key.count - self._used[limit_key.key]

    def _read(self, keys: Iterable[str]) -> None:
        self._used.update(usage(self._execute, keys, self._at))


def began(execute: Execute, id: JobId, claims: int, lane: str, at: datetime) -> None:
    """Record when the job of a run started: rates count it from then on."""
    _keep(execute, (limit_key for limit_key in limit_keys_of(lane) if limit_key.per is not None), (str(id), claims), at)


def free(execute: Execute, after: Record, now: datetime, *, is_unseen: bool) -> None:
    """Free the limits of the run that led to this record; a rate counts its start until the period ends."""
    run = (str(after.id), after.claims)
    began_at = counted_from(after, now, is_unseen=is_unseen)
    for limit_key in limit_keys_of(after.lane):
        if limit_key.per is None or began_at is None:
            execute(_FREE, (limit_key.key, *run))
        else:
            _keep(execute, [limit_key], run, began_at)


def prune(execute: Execute, at: int) -> None:
    """Remove uses that ended long ago."""
    execute("DELETE FROM slots WHERE until <= ?", (at,))


def usage(execute: Execute, keys: Iterable[str], at: int) -> dict[str, int]:
    """Return how many jobs use each limit key."""
    used = dict.fromkeys(keys, 0)
    used.update(execute(_IN_USE, (json.dumps(list(used)), at)) if used else ())
    return used


def rate_ends(database: Database, key: str, now: datetime, limit: int) -> list[datetime]:
    """Return when the first starts that count under the limit key stop counting."""
    return [moment(int(until)) for (until,) in database.execute(_ENDS, (key, milliseconds(now), LARGEST, limit))]


def waiting_lanes(database: Database, limit: int) -> dict[str, int]:
    """Return how many records wait in each lane, from an index alone."""
    groups = database.execute(f"SELECT lane, count(*) FROM ({_WAITING}) AS waiting GROUP BY lane", (limit,))
    return dict(readable(groups, lambda row: (text(row[0]), int(row[1])), "waiting jobs of a lane"))


def _keep(execute: Execute, limit_keys: Iterable[LimitKey], run: tuple[str, int], began_at: datetime) -> None:
    """Make rates count the start, unless they already do."""
    for limit_key in limit_keys:
        execute(_KEEP, (milliseconds(until(limit_key, began_at)), limit_key.key, *run))
