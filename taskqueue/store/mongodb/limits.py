"""Places under limits: one document for each key, in which a place is taken before its claim, and freed afterwards.

A place expires with the lease of its claim; one under a rate is kept for a while after the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from taskqueue.model.controls import Controls
from taskqueue.model.ids import JobId
from taskqueue.model.limits import COUNT_LIMIT, Slot, slots_of, until
from taskqueue.model.record import Holder
from taskqueue.model.timestamps import whole
from taskqueue.store.mongodb.connection import SEEN, Collections, Connection
from taskqueue.store.mongodb.documents import Document
from taskqueue.store.mongodb.events import DUPLICATE


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A job that a node would claim, and the lane whose places it needs."""

    id: JobId
    claims: int
    """The fence of the claim to come."""
    lane: str

    @property
    def run(self) -> str:
        """Return what names the run in the documents of its places."""
        return _run(self.id, self.claims)


@dataclass(frozen=True, kw_only=True)
class Freed:
    """The places of a run that has ended: which, and when it began, from when on rates count it."""

    id: JobId
    claims: int
    lane: str
    began_at: datetime | None

    def kept(self) -> Document:
        """Return it as it is kept in the list ``after`` of the record."""
        return {"claims": self.claims, "lane": self.lane, "began_at": self.began_at}


class LimitSlots:
    """Takes and frees places. Acknowledged by the primary alone: the claim that follows is durable, and orders both."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._mine: dict[JobId, Wish] = {}
        """The claims of this process whose start rates are to learn of, and whose places are to be renewed."""

    def free(self, lanes: Iterable[str], controls: Controls, now: datetime) -> Free:
        """Return how many places are free now for jobs of these lanes."""
        wanted = {lane: controls.slots(lane) for lane in lanes}
        return Free(wanted, self._held({slot.key for slots in wanted.values() for slot in slots}), now)

    def held(self, keys: Iterable[str], now: datetime) -> dict[str, int]:
        """Return how many places are taken under each key."""
        return {key: sum(place["until"] > now for place in held) for key, held in self._held(keys).items()}

    def take(
        self, wishes: Sequence[Wish], free: Free, holder: Holder, now: datetime, lease_ends: datetime
    ) -> list[Wish]:
        """Take all places of each wish for the time of its lease, and return the wishes that got all of theirs."""
        over = {slot.key for wish in wishes for slot in slots_of(wish.lane)} & free.over
        if over:
            past = {"until": {"$lte": now}}
            self._slots.update_many({"_id": {"$in": sorted(over)}}, {"$pull": {"held": past}})
        places = [(wish, slot) for wish in wishes for slot in free.slots(wish.lane)]
        refused = self._push([_place(wish, slot, holder, lease_ends) for wish, slot in places])
        failed = {places[place][0].id for place in refused}
        self.give_back([wish for wish in wishes if wish.id in failed], holder)
        got = [wish for wish in wishes if wish.id not in failed]
        self._mine.update((wish.id, wish) for wish in got)
        return got

    def give_back(self, wishes: Sequence[Wish], holder: Holder) -> None:
        """Free the places of this holder's claims that did not come about; another may have taken some for the same."""
        changes = [
            UpdateOne({"_id": slot.key}, {"$pull": {"held": {"run": wish.run, "incarnation": holder.incarnation}}})
            for wish in wishes
            for slot in slots_of(wish.lane)
        ]
        for wish in wishes:
            self._mine.pop(wish.id, None)
        if changes:
            self._slots.bulk_write(changes, ordered=False)

    def renew(self, holder: Holder, lease_ends: datetime) -> None:
        """Keep the places of this holder's claims for as long as their leases."""
        if not self._mine:
            return
        mine = {"$eq": ["$$one.incarnation", holder.incarnation]}
        kept = {"$mergeObjects": ["$$one", {"until": {"$add": [whole(lease_ends), "$$one.lasts"]}}]}
        held = {"$map": {"input": "$held", "as": "one", "in": {"$cond": [mine, kept, "$$one"]}}}
        self._slots.update_many({"held.incarnation": holder.incarnation}, [{"$set": {"held": held}}])

    def started(self, starts: Mapping[JobId, datetime]) -> None:
        """Note when runs of this process began, from when on rates count them."""
        known = [(self._mine[id], at) for id, at in starts.items() if id in self._mine]
        changes = [
            _keep(slot, wish.run, at) for wish, at in known for slot in slots_of(wish.lane) if slot.per is not None
        ]
        if changes:
            self._slots.bulk_write(changes, ordered=False)

    def release(self, freed: Sequence[Freed]) -> None:
        """Free the places of runs that have ended; harmless if done twice."""
        changes = []
        for one in freed:
            self._mine.pop(one.id, None)
            for slot in slots_of(one.lane):
                run = _run(one.id, one.claims)
                kept = slot.per is not None and one.began_at is not None
                changes.append(_keep(slot, run, one.began_at) if kept else _pull(slot.key, run))
        if changes:
            self._slots.bulk_write(changes, ordered=False)

    def prune(self, before: datetime) -> None:
        """Remove the documents of keys that nobody has used since."""
        self._slots.update_many({"held.until": {"$lte": before}}, {"$pull": {"held": {"until": {"$lte": before}}}})
        self._slots.delete_many({"held": {"$size": 0}})

    def _held(self, keys: Iterable[str]) -> dict[str, list[Document]]:
        """Return for each key the places taken, those whose time is over included."""
        held: dict[str, list[Document]] = {key: [] for key in keys}
        if held:
            held.update((one["_id"], one["held"]) for one in self._slots.find({"_id": {"$in": list(held)}}))
        return held

    def _push(self, changes: list[UpdateOne]) -> set[int]:
        """Take places and return which were refused: the key is full, or somebody else takes this job."""
        try:
            self._slots.bulk_write(changes, ordered=False)
        except BulkWriteError as error:
            errors = error.details["writeErrors"]
            if any(one["code"] != DUPLICATE for one in errors):
                raise
            return {int(one["index"]) for one in errors}
        return set()

    @property
    def _collections(self) -> Collections:
        return self._connection.collections

    @property
    def _slots(self):  # type: ignore[no-untyped-def]
        return self._collections.slots.with_options(write_concern=SEEN)


class Free:
    """How many places one claim finds free, and counts as taken."""

    def __init__(
        self, lanes: Mapping[str, tuple[Slot, ...]], held: Mapping[str, list[Document]], now: datetime
    ) -> None:
        self._lanes = lanes
        self._now = now
        self._ends = {key: [_end(one) for one in places if one["until"] > now] for key, places in held.items()}
        self._taken = {key: len(ends) for key, ends in self._ends.items()}
        self.over = {key for key, places in held.items() if len(places) > self._taken[key]}
        """The keys under which there are places whose time is over."""

    def slots(self, lane: str) -> tuple[Slot, ...]:
        """Return what jobs of the lane need, with the numbers that hold now."""
        return self._lanes[lane]

    def of(self, lane: str) -> int:
        """Return how many jobs of the lane could be taken."""
        return min((slot.count - self._taken[slot.key] for slot in self._lanes[lane]), default=COUNT_LIMIT)

    def reserve(self, lane: str) -> bool:
        """Count one job of the lane as taken, and tell whether there was room for it."""
        if self.of(lane) <= 0:
            return False
        for slot in self._lanes[lane]:
            self._taken[slot.key] += 1
        return True

    def next_at(self) -> datetime | None:
        """Return when the first place under a rate that is used up becomes free, at a guess."""
        moments = []
        for slot in {slot for slots in self._lanes.values() for slot in slots if slot.per is not None}:
            if self._taken[slot.key] >= slot.count:
                unknown = until(slot, self._now)
                moments.append(min((end or unknown for end in self._ends[slot.key]), default=unknown))
        return min(moments, default=None)


def _end(place: Document) -> datetime | None:
    """Return when the place becomes free, None where that is not known yet: its run has not told its start."""
    return None if "incarnation" in place else place["until"]


def _run(id: JobId, claims: int) -> str:
    return f"{id}:{claims}"


def _place(wish: Wish, slot: Slot, holder: Holder, lease_ends: datetime) -> UpdateOne:
    """Return the write that takes a place if there is one; where there is none, it clashes with the document."""
    lasts = int((slot.per or 0) * 1000)
    place = {
        "run": wish.run,
        "incarnation": holder.incarnation,
        "until": whole(lease_ends) + timedelta(milliseconds=lasts),
        "lasts": lasts,
    }
    room = {"_id": slot.key, f"held.{slot.count - 1}": {"$exists": False}, "held.run": {"$ne": wish.run}}
    return UpdateOne(room, {"$push": {"held": place}}, upsert=True)


def _keep(slot: Slot, run: str, began_at: datetime | None) -> UpdateOne:
    assert began_at is not None
    return UpdateOne(
        {"_id": slot.key, "held.run": run},
        {"$set": {"held.$.until": until(slot, began_at)}, "$unset": {"held.$.incarnation": ""}},
    )


def _pull(key: str, run: str) -> UpdateOne:
    return UpdateOne({"_id": key}, {"$pull": {"held": {"run": run}}})
