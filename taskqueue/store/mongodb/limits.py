"""Counts the use of limits, one document per limit key: a use is stored before the claim and freed when the run ends.

A use expires with the lease of its claim; for a rate, the use is kept for a while after the start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from pymongo import UpdateOne
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError

from taskqueue.model.controls import Controls
from taskqueue.model.ids import JobId
from taskqueue.model.limits import LimitKey, latest_end, limit_keys_of, until
from taskqueue.model.record import Holder
from taskqueue.model.timestamps import whole
from taskqueue.store.mongodb.connection import ACKNOWLEDGED, Connection
from taskqueue.store.mongodb.documents import Document
from taskqueue.store.mongodb.events import DUPLICATE
from taskqueue.store.selection import ConcurrencyRoom

NO_ROOMS: Mapping[str, int] = {}

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class UseRequest:
    """A job that a node would claim, and the lane whose limits it uses."""

    id: JobId
    claims: int
    """The fence that the claim will have."""
    lane: str

    @property
    def run(self) -> str:
        """Return the name of the run in the documents of its limits."""
        return _run(self.id, self.claims)


@dataclass(frozen=True, kw_only=True)
class Freed:
    """The limits of an ended run, and its start, from which rates count."""

    id: JobId
    claims: int
    lane: str
    began_at: datetime | None

    def entry(self) -> Document:
        """Return its part of the entry of effects."""
        return {"claims": self.claims, "lane": self.lane, "began_at": self.began_at}


class LimitUse:
    """Takes and frees room under limits. Only the primary acknowledges this, since the durable claim follows."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._mine: dict[JobId, UseRequest] = {}
        """The claims of this process whose starts count for rates, and whose uses are renewed."""
        self._failed: list[tuple[Sequence[UseRequest], Holder]] = []
        """The requests of failed claims, whose uses may be in the store."""

    @contextmanager
    def freed_on_failure(self, requests: Sequence[UseRequest], holder: Holder) -> Iterator[None]:
        """Have ``free_failed`` free the uses of these requests if the block, which claims their jobs, fails.

        A failed claim starts no run: if the server made the claim anyway, it is handed back.
        """
        try:
            yield
        except BaseException:
            self._failed.append((requests, holder))
            raise

    def free_failed(self) -> None:
        """Free the uses of failed claims; otherwise they would be renewed with all others, and block their own jobs."""
        for failed in tuple(self._failed):
            self.hand_back(*failed)
            with suppress(ValueError):  # another thread was faster
                self._failed.remove(failed)

    def room(
        self, lanes: Iterable[str], controls: Controls, now: datetime, rooms: Mapping[str, int] = NO_ROOMS
    ) -> LimitRoom:
        """Return the free room for jobs of these lanes; ``rooms`` are those of a ``ClaimRequest``."""
        keys_of = {lane: controls.limit_keys(lane) for lane in lanes}
        every = {limit_key.key: limit_key for limit_keys in keys_of.values() for limit_key in limit_keys}
        held = self._held(every)
        for key, limit_key in every.items():
            if limit_key.per is not None:
                latest = latest_end(limit_key, now)
                self._cut(limit_key, [use for use in held[key] if _is_start(use) and use["until"] > latest], now)
        return LimitRoom(keys_of, held, now, ConcurrencyRoom(rooms))

    def usage(self, keys: Sequence[str], now: datetime) -> dict[str, int]:
        return {key: sum(use["until"] > now for use in held) for key, held in self._held(keys).items()}

    def rate_ends(self, key: str, now: datetime, limit: int) -> list[datetime]:
        starts = [use["until"] for use in self._held([key])[key] if _is_start(use) and use["until"] > now]
        return sorted(starts)[:limit]

    def take(
        self, requests: Sequence[UseRequest], room: LimitRoom, holder: Holder, now: datetime, lease_ends: datetime
    ) -> list[UseRequest]:
        """Take room under all limits of each request until its lease ends, and return the granted requests."""
        over = {limit_key.key for request in requests for limit_key in limit_keys_of(request.lane)} & room.over
        if over:
            past = {"until": {"$lte": now}}
            self._slots.update_many({"_id": {"$in": sorted(over)}}, {"$pull": {"held": past}})
        uses = [(request, limit_key) for request in requests for limit_key in room.limit_keys(request.lane)]
        refused = self._push([_use(request, limit_key, holder, lease_ends) for request, limit_key in uses])
        failed = {uses[index][0].id for index in refused}
        self.hand_back([request for request in requests if request.id in failed], holder)
        granted = [request for request in requests if request.id not in failed]
        self._mine.update((request.id, request) for request in granted)
        return granted

    def hand_back(self, requests: Sequence[UseRequest], holder: Holder) -> None:
        """Free the uses of claims that this holder did not make; another holder may have some for the same job."""
        changes = [
            UpdateOne(
                {"_id": limit_key.key}, {"$pull": {"held": {"run": request.run, "incarnation": holder.incarnation}}}
            )
            for request in requests
            for limit_key in limit_keys_of(request.lane)
        ]
        for request in requests:
            if self._mine.get(request.id) is request:
                del self._mine[request.id]
        if changes:
            self._slots.bulk_write(changes, ordered=False)

    def renew(self, holder: Holder, lease_ends: datetime) -> None:
        """Extend the uses of this holder's claims to the end of their leases."""
        self.free_failed()
        if not self._mine:
            return
        mine = {"$eq": ["$$use.incarnation", holder.incarnation]}
        renewed = {"$mergeObjects": ["$$use", {"until": {"$add": [whole(lease_ends), "$$use.lasts"]}}]}
        held = {"$map": {"input": "$held", "as": "use", "in": {"$cond": [mine, renewed, "$$use"]}}}
        self._slots.update_many({"held.incarnation": holder.incarnation}, [{"$set": {"held": held}}])

    def began(self, starts: Mapping[JobId, datetime]) -> None:
        """Record when runs of this process started; rates count from then on."""
        requests = [(self._mine[id], at) for id, at in starts.items() if id in self._mine]
        changes = [
            _keep(limit_key, request.run, at)
            for request, at in requests
            for limit_key in limit_keys_of(request.lane)
            if limit_key.per is not None
        ]
        if changes:
            self._slots.bulk_write(changes, ordered=False)

    def release(self, ended_runs: Sequence[Freed]) -> None:
        """Free the limits of ended runs; harmless if done twice."""
        changes = []
        for freed in ended_runs:
            mine = self._mine.get(freed.id)
            if mine is not None and mine.claims == freed.claims:  # it may be from a newer claim of the same job
                del self._mine[freed.id]
            for limit_key in limit_keys_of(freed.lane):
                run = _run(freed.id, freed.claims)
                counts_on = limit_key.per is not None and freed.began_at is not None
                changes.append(_keep(limit_key, run, freed.began_at) if counts_on else _pull(limit_key.key, run))
        if changes:
            self._slots.bulk_write(changes, ordered=False)

    def prune(self, before: datetime) -> None:
        """Remove the documents of unused keys."""
        self._slots.update_many({"held.until": {"$lte": before}}, {"$pull": {"held": {"until": {"$lte": before}}}})
        self._slots.delete_many({"held": {"$size": 0}})

    def _cut(self, limit_key: LimitKey, late: Iterable[Document], now: datetime) -> None:
        """Shorten starts that were counted before the clock was set back: none counts longer than a start would now."""
        end = until(limit_key, now)
        for use in late:
            where = {"_id": limit_key.key, "held": {"$elemMatch": {"run": use["run"], "until": use["until"]}}}
            self._slots.update_one(where, {"$set": {"held.$.until": end}})
            use["until"] = end

    def _held(self, keys: Iterable[str]) -> dict[str, list[Document]]:
        """Return the uses of each key, including expired ones."""
        held: dict[str, list[Document]] = {key: [] for key in keys}
        if held:
            slots = self._slots.find({"_id": {"$in": list(held)}})
            held.update((slot["_id"], self._readable_uses(slot)) for slot in slots)
        return held

    def _readable_uses(self, slot: Document) -> list[Document]:
        """Return the readable uses of a key, and remove all others: a damaged one would stop every claim."""
        held = slot.get("held")
        uses = held if isinstance(held, list) else []
        readable = [use for use in uses if isinstance(use, dict) and isinstance(use.get("until"), datetime)]
        if readable != held:
            log.error("removed unreadable uses of limit %s", slot["_id"])
            self._slots.update_one({"_id": slot["_id"], "held": held}, {"$set": {"held": readable}})
        return readable

    def _push(self, changes: list[UpdateOne]) -> set[int]:
        """Take the uses, and return the refused ones: their key is full, or another node is taking the job."""
        if not changes:  # the lanes of damaged records have no keys
            return set()
        try:
            self._slots.bulk_write(changes, ordered=False)
        except BulkWriteError as error:
            refusals = error.details["writeErrors"]
            if any(refusal["code"] != DUPLICATE for refusal in refusals):
                raise
            return {int(refusal["index"]) for refusal in refusals}
        return set()

    @property
    def _slots(self) -> Collection[Document]:
        return self._connection.collections.slots.with_options(write_concern=ACKNOWLEDGED)


class LimitRoom:
    """The free room that one claim finds, and the uses of each limit."""

    def __init__(
        self,
        lanes: Mapping[str, tuple[LimitKey, ...]],
        held: Mapping[str, list[Document]],
        now: datetime,
        workers: ConcurrencyRoom,
    ) -> None:
        self._workers = workers
        self._lanes = lanes
        self._now = now
        self._ends = {key: [_end(use) for use in uses if use["until"] > now] for key, uses in held.items()}
        self._taken = {key: len(ends) for key, ends in self._ends.items()}
        self.over = {key for key, uses in held.items() if len(uses) > self._taken[key]}
        """The keys with expired uses."""

    def limit_keys(self, lane: str) -> tuple[LimitKey, ...]:
        """Return the limit keys of the lane, with the numbers that now apply."""
        return self._lanes[lane]

    def free(self, lane: str) -> int:
        """Return how many jobs of the lane could be claimed."""
        free = (limit_key.count - self._taken[limit_key.key] for limit_key in self._lanes[lane])
        return min((self._workers.free(lane), *free))

    def reserve(self, lane: str) -> bool:
        if self.free(lane) <= 0:
            return False
        for limit_key in self._lanes[lane]:
            self._taken[limit_key.key] += 1
        self._workers.reserve(lane)
        return True

    def next_at(self) -> datetime | None:
        """Estimate when an exhausted rate has room again."""
        moments = []
        for limit_key in {
            limit_key for limit_keys in self._lanes.values() for limit_key in limit_keys if limit_key.per is not None
        }:
            if self._taken[limit_key.key] >= limit_key.count:
                unknown = until(limit_key, self._now)
                moments.append(min((end or unknown for end in self._ends[limit_key.key]), default=unknown))
        return min(moments, default=None)


def _end(use: Document) -> datetime | None:
    """Return when the use ends; None if that is unknown because its run has not reported its start."""
    return use["until"] if _is_start(use) else None


def _is_start(use: Document) -> bool:
    """Return whether the use is the start of a run, which a rate counts even if the claim is lost."""
    return "incarnation" not in use


def _run(id: JobId, claims: int) -> str:
    return f"{id}:{claims}"


def _use(request: UseRequest, limit_key: LimitKey, holder: Holder, lease_ends: datetime) -> UpdateOne:
    """Return the write that takes a use if there is room; if there is none, the write clashes with the document."""
    lasts = int((limit_key.per or 0) * 1000)
    use = {
        "run": request.run,
        "incarnation": holder.incarnation,
        "until": whole(lease_ends) + timedelta(milliseconds=lasts),
        "lasts": lasts,
    }
    room = {"_id": limit_key.key, f"held.{limit_key.count - 1}": {"$exists": False}, "held.run": {"$ne": request.run}}
    return UpdateOne(room, {"$push": {"held": use}}, upsert=True)


def _keep(limit_key: LimitKey, run: str, began_at: datetime | None) -> UpdateOne:
    """Return the write that makes a rate count the start, unless it already does."""
    assert began_at is not None
    return UpdateOne(
        {"_id": limit_key.key, "held": {"$elemMatch": {"run": run, "incarnation": {"$exists": True}}}},
        {"$set": {"held.$.until": until(limit_key, began_at)}, "$unset": {"held.$.incarnation": ""}},
    )


def _pull(key: str, run: str) -> UpdateOne:
    return UpdateOne({"_id": key}, {"$pull": {"held": {"run": run}}})
