"""Finds the first jobs of the queues whose turns come next, when more jobs wait than a claim takes.

It knows the first job of each queue, and looks again at queues from which it has read and to which jobs were added.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import cast

from pymongo import ASCENDING

from taskqueue.model.controls import Controls
from taskqueue.model.record import Status
from taskqueue.store import ClaimRequest
from taskqueue.store.mongodb.bells import NewQueues, StreamBell
from taskqueue.store.mongodb.claim_candidates import ANY_SIZE, MERGED, Sized, are_beyond, in_range, place_of, read
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document
from taskqueue.store.mongodb.indexes import RANKED, WAITING, WAITING_IN_QUEUE
from taskqueue.store.queue_shares import First, QueueShares, Turns

KNOWN_FOR = timedelta(seconds=1)
"""How long a job that began to wait again may be overlooked if it is the only one of its queue and many queues wait."""

_IN_ORDER = {"queue": ASCENDING, "forced": ASCENDING, "rank": ASCENDING, "_id": ASCENDING}


class FairCandidates:
    """Finds the first jobs of queues in the order of their turns; those of the pool, and those beside it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._bell: StreamBell | None = None
        self._known: dict[bool, _WaitingQueues] = {}

    def rely_on(self, bell: StreamBell) -> None:
        """Use this bell to learn to which queues jobs are added."""
        self._bell = bell

    def lowest(
        self, forced: bool, limit: int, demand: ClaimRequest, controls: Controls, batches: int, now: datetime
    ) -> list[Sized]:
        """Return so many jobs whose turns come next, those of one queue in order; while others claim, later ones."""
        if limit <= 0:
            return []
        new = None if self._bell is None else self._bell.take_new_queues()
        for queues in self._known.values():
            queues.note(() if new is None else new.queues)
        known = self._known.get(forced)
        if known is None or not known.holds(new, controls, now):
            if not controls.pauses_any and (known is None or known.is_one_queue):
                found = in_range(self._connection, WAITING, {"forced": forced}, limit + 1, demand, batches)
                if len(found) <= limit and not are_beyond(found, demand):
                    return found
            known = self._look(forced, controls, new, now)
        if known.is_one_queue and not controls.pauses_any:
            return in_range(self._connection, WAITING, {"forced": forced}, limit, demand, batches)
        found = known.lowest(limit, demand, batches)
        if len(found) >= limit or known.unnamed == _unnamed(new) or are_beyond(found, demand):
            return found
        return self._look(forced, controls, new, now).lowest(limit, demand, batches)

    def _look(self, forced: bool, controls: Controls, new: NewQueues | None, now: datetime) -> _WaitingQueues:
        known = self._known[forced] = _WaitingQueues(self._connection, forced, controls, _unnamed(new), now)
        return known


def _unnamed(new: NewQueues | None) -> int | None:
    return None if new is None else new.unnamed


class _WaitingQueues:
    """The queues that are not paused and have waiting jobs of one kind, each with its first job."""

    def __init__(
        self, connection: Connection, forced: bool, controls: Controls, unnamed: int | None, at: datetime
    ) -> None:
        self.unnamed = unnamed
        """How many changes of jobs the bell had reported without their queue."""
        self._connection = connection
        self._forced = forced
        self._controls = controls
        self._at = at
        self._unsure: set[str] = set()
        self._turns = Turns()
        self._look({})

    def note(self, queues: Collection[str]) -> None:
        """Look at these queues again before the next claim."""
        self._unsure.update(queues)

    def holds(self, new: NewQueues | None, controls: Controls, now: datetime) -> bool:
        """Return whether no other queue can have waiting jobs, or one of many others has only waited for a moment."""
        if new is None or self.unnamed is None or controls.kept != self._controls.kept:
            return False
        is_recent = timedelta(0) <= now - self._at < KNOWN_FOR
        return new.unnamed == self.unnamed or (is_recent and len(self._turns.queues) > MERGED)

    @property
    def is_one_queue(self) -> bool:
        """Return whether all waiting jobs are of one queue."""
        return len(self._turns.queues | self._unsure) == 1

    def lowest(self, limit: int, demand: ClaimRequest, batches: int) -> list[Sized]:
        """Return so many jobs whose turns come next; there may be some more."""
        if self._unsure:
            unsure, self._unsure = self._unsure, set()
            for queue in unsure:
                self._turns.drop(queue)
            self._look({"queue": {"$in": list(unsure)}})
        shares = demand.shares.trial()
        found: dict[object, Sized] = {}
        behind: Counter[str] = Counter()
        while len(found) < limit and (planned := self._plan(shares, limit - len(found))):
            read_now = self._read(planned, behind, demand, batches)
            found.update({one["_id"]: (one, size) for one, size in read_now})
            if are_beyond(list(found.values()), demand):
                break
            of_queue = Counter(one["queue"] for one, _ in read_now)
            behind += of_queue
            for queue, turns in planned.items():
                if of_queue[queue] < turns:
                    self._turns.drop(queue)
        return list(found.values())

    def _plan(self, shares: QueueShares, limit: int) -> Counter[str]:
        """Return how many of the next turns each queue has, as if each had jobs enough; few queues at once."""
        planned: Counter[str] = Counter()
        left = limit
        while left > 0 and (turn := self._turns.pop(shares)) is not None:
            queue, first = turn
            self._turns.put(queue, first, shares)
            if queue not in planned and len(planned) == MERGED:
                break
            planned[queue] += 1
            left -= 1
            shares.charge(queue, first)
        self._unsure |= planned.keys()
        return planned

    def _look(self, where: Document) -> None:
        """Note the first job of each of these queues that is not paused, by one look into the index for each."""
        names = {name: {"$first": f"${name}"} for name in ("rank", "priority")}
        group = {"_id": "$queue", **names, "first": {"$first": "$_id"}}
        of_kind = {"status": int(Status.WAITING), "forced": self._forced, **RANKED, **where}
        steps: list[Document] = [{"$match": of_kind}, {"$sort": _IN_ORDER}, {"$group": group}]
        shares = QueueShares()
        for one in self._connection.collections.jobs.aggregate(steps, hint=WAITING_IN_QUEUE):
            if type(queue := one["_id"]) is str and self._controls.pause_of(queue) is None:
                rank, id = place_of({"_id": one["first"], "rank": one["rank"]})
                self._turns.put(queue, First(one.get("priority"), rank, id), shares)

    def _read(
        self, planned: Mapping[str, int], behind: Mapping[str, int], demand: ClaimRequest, batches: int
    ) -> list[Sized]:
        """Return the jobs of these turns; while other nodes claim too, those of a random later one of the batches."""
        ahead = random.randrange(batches)
        found = self._of(planned, {queue: behind[queue] + ahead * turns for queue, turns in planned.items()}, demand)
        if not ahead or len(found) == sum(planned.values()) or are_beyond(found, demand):
            return found
        return [*found, *self._of(planned, behind, demand)]

    def _of(self, planned: Mapping[str, int], behind: Mapping[str, int], demand: ClaimRequest) -> list[Sized]:
        """Return jobs of each queue in order, from behind so many, by one command."""
        jobs = self._connection.collections.jobs
        first, *others = (self._steps(queue, behind[queue], turns) for queue, turns in planned.items())
        steps = [*first, *({"$unionWith": {"coll": jobs.name, "pipeline": other}} for other in others)]
        found = jobs.aggregate_raw_batches(steps, hint=WAITING_IN_QUEUE, batchSize=sum(planned.values()))
        return read(cast("Iterable[bytes]", found), ANY_SIZE if self._forced else demand)

    def _steps(self, queue: str, skip: int, limit: int) -> list[Document]:
        where = {"status": int(Status.WAITING), "queue": queue, "forced": self._forced, **RANKED}
        skipped: list[Document] = [{"$skip": skip}] if skip else []
        return [{"$match": where}, {"$sort": {"rank": ASCENDING, "_id": ASCENDING}}, *skipped, {"$limit": limit}]
