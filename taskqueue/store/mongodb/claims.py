"""How a node takes records: what is due becomes WAITING, what has expired ends, and the lowest (rank, id) are taken."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from pymongo import ASCENDING

from taskqueue.model.controls import Controls
from taskqueue.model.ids import JobId
from taskqueue.model.record import Holder, Record, Status
from taskqueue.model.schedules import LATEST
from taskqueue.model.timestamps import EPOCH
from taskqueue.store import Claim, ClaimRequest
from taskqueue.store.mongodb.bells import StreamBell
from taskqueue.store.mongodb.claim_cache import LOOK_WITHIN, ClaimCache
from taskqueue.store.mongodb.claim_candidates import Candidate, LimitedCandidates, candidate
from taskqueue.store.mongodb.claim_choice import Chosen, bound_of, within
from taskqueue.store.mongodb.claim_sizes import ANY_SIZE, Sized, is_beyond, read
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.controls import StoredControls
from taskqueue.store.mongodb.documents import Document, records
from taskqueue.store.mongodb.event_writer import EventWriter
from taskqueue.store.mongodb.events import told
from taskqueue.store.mongodb.indexes import DUE, EXPIRES, RANKED, WAITING, WAITING_IN_QUEUE
from taskqueue.store.mongodb.limits import LimitSlots
from taskqueue.store.mongodb.settlements import Settlements
from taskqueue.store.mongodb.taking import Taking

STEP = 500
"""How many records one claim promotes, and how many it ends as expired, at most; then it asks to come back at once."""

FORESIGHT = timedelta(milliseconds=15)
"""How long ahead of its time a job may be taken: a write that a majority has on disk, and its way into a worker."""

AHEAD_AT_ONCE = 64
"""Among how many jobs that are about to be due one claim chooses."""

ENOUGH = 1 << 30
"""More records than anybody claims at once."""

TRIES = 4
WIDEST = 32
"""Among how many batches a node picks its own when others claim too, at most."""


class Claims:
    """Takes records in batches: find candidates, take with one write what is still there, read what has the token.

    Nodes that meet at the same candidates spread out: after a collision each takes a random one of the next batches.
    """

    def __init__(
        self,
        connection: Connection,
        swaps: Settlements,
        telling: EventWriter,
        slots: LimitSlots,
        controlling: StoredControls,
    ) -> None:
        self._connection = connection
        self._controlling = controlling
        self._slots = slots
        self._limited = LimitedCandidates(connection, slots)
        self._swaps = swaps
        self._telling = telling
        self._taking = Taking(connection, telling)
        self._batches = 1
        self._most = ENOUGH
        self._looked: ClaimCache | None = None
        self._bell: StreamBell | None = None

    def heed(self, bell: StreamBell) -> None:
        """Rely on this bell for whether something new waits."""
        self._bell = bell

    def claim(self, holder: Holder, wanted: ClaimRequest, now: datetime, until: datetime) -> Claim:
        """Take WAITING records for ``holder``, and tell when to come back.

        After a claim that ended with its bytes the next ones read about as many records, and twice as many each time.
        """
        most = max(self._most, wanted.free)
        if wanted.data is None or wanted.pooled <= most:
            found = self._claim_all(holder, wanted, now, until)
        else:
            found = self._claim_all(holder, replace(wanted, pooled=most), now, until)
            if len(found.records) >= most and not found.has_more:
                self._most *= 2
                return replace(found, has_more=True)
        if found.has_more:
            self._most = len(found.records) + 1
        return found

    def _claim_all(self, holder: Holder, wanted: ClaimRequest, now: datetime, until: datetime) -> Claim:
        changes = None if self._bell is None else self._bell.changes
        found = self._claim_before_looking(holder, wanted, changes, now, until)
        if found is None:
            self._looked = self._look(now, changes)
            found = self._claim(self._looked, holder, wanted, now, until)
        by = wanted.due_by
        nothing_waits = not found.records and self._looked is not None and not self._looked.lanes
        if nothing_waits and by is not None and found.next_at is not None and now < found.next_at <= by:
            found = self._claim_ahead(holder, wanted, by, now, until) or found
        self._say_how_busy(found.has_more or 0 < wanted.pooled <= len(found.records))
        return found

    def claim_one(self, id: JobId, holder: Holder, now: datetime, until: datetime) -> Record | None:
        """Take this record if it is WAITING and its limits have room."""
        found = self._connection.collections.jobs.find_one({"_id": id, "status": int(Status.WAITING)})
        if found is None:
            return None
        *_, lane = (found.get("lane") or "").partition(" ")
        one = candidate(found, forced=bool(found["forced"] % 2), queue=found["queue"], lane=lane)
        if lane:
            free = self._slots.free([lane], self._controlling.in_force(), now)
            if free.of(lane) <= 0 or not self._slots.take([one.wish], free, holder, now, until):
                return None
        taken = self._taking.take([one], holder, now, until)
        if lane and not taken:
            self._slots.give_back([one.wish], holder)
        return taken[0] if taken else None

    def _claim_before_looking(
        self, holder: Holder, wanted: ClaimRequest, changes: int | None, now: datetime, until: datetime
    ) -> Claim | None:
        """Take what waits where the last look holds, or where a bell rang for it; None if it takes a new look."""
        looked = self._looked
        if looked is None:
            return None
        holds = looked.holds(now, changes)
        if not holds and not looked.may_go_before(now, changes):
            return None
        is_sure = looked.is_sure(changes)
        if not is_sure:
            looked.forget_empty()
        if not holds and wanted.pooled:
            wanted = replace(wanted, forced=0)  # those come after the look, which comes soon
        found = self._claim(looked, holder, wanted, now, until)
        if is_sure or (holds and looked.brought_all):
            return found
        if not found.records:
            return None
        look_at = now + LOOK_WITHIN
        looked.is_owed(look_at)
        return replace(found, next_at=min(found.next_at or look_at, look_at))

    def _say_how_busy(self, has_all: bool) -> None:
        """Let the bell ring late while this node finds all it can take, and at once when it does not."""
        if self._bell is None:
            return
        if has_all:
            self._bell.rest()
        else:
            self._bell.hurry()

    def _claim(self, looked: ClaimCache, holder: Holder, wanted: ClaimRequest, now: datetime, until: datetime) -> Claim:
        """Take what waits where the node has looked."""
        moments = [looked.next_at]
        controls = self._controlling.in_force()
        if controls.is_closed_to(holder.seat):
            return Claim(records=[], next_at=looked.next_at)
        for _ in range(TRIES):
            if looked.lanes:
                chosen, taken, room_at = self._take_limited(looked, wanted, controls, holder, now, until)
                moments = [looked.next_at, room_at]
            else:
                chosen = within(self._candidates(wanted, controls, looked), wanted, None)
                taken = self._taking.take(chosen.candidates, holder, now, until)
            candidates = len(chosen.candidates)
            self._spread(candidates, len(taken))
            if taken or not candidates:
                break
        else:  # others were faster, or it has expired: then a look ends it
            self._looked = None
            return Claim(records=[], next_at=now)
        looked.brought_all = chosen.has_more or len(taken) >= wanted.pooled + wanted.forced
        if len(taken) < candidates:  # others took them; more may wait behind what they left
            moments.append(now)
        next_at = min((moment for moment in moments if moment is not None), default=None)
        return Claim(records=taken, next_at=next_at, has_more=chosen.has_more)

    def _claim_ahead(
        self, holder: Holder, wanted: ClaimRequest, due_by: datetime, now: datetime, until: datetime
    ) -> Claim | None:
        """Take what is about to be due, for its time; None if there is nothing for this node.

        It never becomes WAITING, so that nobody can begin it before that.
        """
        controls = self._controlling.in_force()
        if controls.is_closed_to(holder.seat):
            return None
        jobs = self._connection.collections.jobs
        about_due = (
            jobs.find_raw_batches({"due": {"$exists": True, "$gte": EPOCH, "$lte": due_by}, **RANKED})
            .hint(DUE)
            .sort("due", ASCENDING)
        )
        candidates = [
            candidate(one, size, forced=bool(one.get("forced")), queue=one["queue"])
            for one, size in read(about_due.limit(AHEAD_AT_ONCE), wanted)
            if not one.get("lane")
            and isinstance(one.get("queue"), str)
            and one["queue"] in (wanted.queues or (one["queue"],))
        ]
        open_to_all = (one for one in sorted(candidates) if controls.pause_of(one.queue) is None)
        chosen = within(open_to_all, wanted, None)
        taken = self._taking.take(chosen.candidates, holder, now, until, was=Status.POSTPONED)
        if not taken:
            return None
        next_at = next(self._soonest(), None)
        if self._looked is not None:
            self._looked.took_ahead(next_at)
            next_at = self._looked.next_at
        return Claim(records=taken, next_at=next_at, begins_at=due_by, has_more=chosen.has_more)

    def _take_limited(
        self,
        looked: ClaimCache,
        wanted: ClaimRequest,
        controls: Controls,
        holder: Holder,
        now: datetime,
        until: datetime,
    ) -> tuple[Chosen, list[Record], datetime | None]:
        """Take also jobs with limits: their places first.

        Return which there were to be had, what was taken, and when a rate has room again.
        """
        offered, free = self._limited.offer(looked, wanted, controls, self._batches, now)
        chosen = within(sorted([*self._candidates(wanted, controls, looked), *offered]), wanted, free)
        wishes = [one.wish for one in chosen.candidates if one.lane]
        got = self._slots.take(wishes, free, holder, now, until) if wishes else []
        granted = {wish.id for wish in got}
        chosen = chosen._replace(candidates=[one for one in chosen.candidates if not one.lane or one.id in granted])
        taken = self._taking.take(chosen.candidates, holder, now, until)
        missed = granted.difference(record.id for record in taken)
        self._slots.give_back([wish for wish in got if wish.id in missed], holder)
        return chosen, taken, free.next_at()

    def _look(self, now: datetime, changes: int | None) -> ClaimCache:
        """Promote what is due and end what has expired, and return when that will be needed again."""
        jobs = self._connection.collections.jobs
        late = records(jobs.find({"expires": {"$lte": now}}).hint(EXPIRES).limit(STEP))
        self._swaps.expire(late, now)
        next_at = next(self._soonest(), None)  # one tells all; to read 500 more takes as long as everything else
        due: list[Document] = []
        if next_at is not None and next_at <= now:
            behind = {"$unionWith": {"coll": jobs.name, "pipeline": _first({"$gt": now, "$lt": LATEST}, 1)}}
            found = list(jobs.aggregate([*_first({"$gte": EPOCH, "$lte": now}, STEP + 1), behind], hint=DUE))
            due = [one for one in found if one["due"] <= now]
            self._promote(due, now)
            next_at = min((one["due"] for one in found if one["due"] > now), default=None)
        if len(late) == STEP or len(due) > STEP:
            next_at = now
        return ClaimCache(at=now, changes=changes, next_at=next_at, lanes=self._limited.lanes())

    def _soonest(self) -> Iterator[datetime]:
        """Return when the next postponed job is due, if there is one."""
        postponed = self._connection.collections.jobs.find(
            {"due": {"$exists": True, "$gte": EPOCH, "$lt": LATEST}}, {"due": True}
        )
        return (one["due"] for one in postponed.hint(DUE).sort("due", ASCENDING).limit(1))

    def _promote(self, due: list[Document], now: datetime) -> None:
        """Make WAITING what is still due: ``lifecycle.promoted`` changes nothing but the status."""
        where = {"_id": {"$in": [one["_id"] for one in due]}, "status": int(Status.POSTPONED), "due": {"$lte": now}}
        change = {"$set": {"status": int(Status.WAITING)}, "$unset": {"due": ""}}
        self._connection.collections.jobs.update_many(where, change)
        self._telling.hand([told(one["_id"], one.get("claims", 0), "waiting", now, Status.WAITING) for one in due])

    def _candidates(self, wanted: ClaimRequest, controls: Controls, looked: ClaimCache) -> list[Candidate]:
        """Return the lowest (rank, id) of each range that are WAITING now."""
        if not wanted.queues:
            index, where = self._open(controls) if controls.pauses_any else (WAITING, {})
            return [
                candidate(one, size, forced=forced)
                for forced, limit in ((False, wanted.pooled), (True, wanted.forced))
                if not looked.is_empty(forced)
                for one, size in self._all(index, {**where, "forced": forced}, limit, wanted, looked)
            ]
        limits = {False: wanted.pooled, True: wanted.forced}
        found = [
            candidate(one, size, forced=forced, queue=queue)
            for queue, bound in wanted.queues.items()
            if controls.pause_of(queue) is None
            for forced, limit in limits.items()
            for one, size in self._range(
                WAITING_IN_QUEUE, {"queue": queue, "forced": forced}, min(limit, bound_of(wanted, bound)), wanted
            )
        ]
        return sorted(found)

    def _open(self, controls: Controls) -> tuple[str, Document]:
        """Return where to look while a queue is paused: the server merges the ranges of the others, job by job."""
        queues = self._connection.collections.latest.distinct("queue", {"status": int(Status.WAITING)})
        return WAITING_IN_QUEUE, {"queue": {"$in": controls.open(queues)}}

    def _all(self, index: str, where: Document, limit: int, wanted: ClaimRequest, looked: ClaimCache) -> list[Sized]:
        """Return the first of all queues that are not paused, and note if there are none at all."""
        found = self._range(index, where, limit, wanted)
        if not found and limit > 0 and index == WAITING:
            looked.note_empty(where["forced"])
        return found

    def _range(self, index: str, where: Document, limit: int, wanted: ClaimRequest) -> list[Sized]:
        """Return the first of one index range, or those of a random batch behind them while others claim too.

        Where that batch is short, the first fill it: a node that has room takes all there is for it.
        """
        if limit <= 0:
            return []
        query = {"status": int(Status.WAITING), **where, **RANKED}
        wanted = ANY_SIZE if where["forced"] else wanted
        lowest = self._connection.collections.jobs.find_raw_batches(query).hint(index).limit(limit).batch_size(limit)
        lowest.sort([("rank", ASCENDING), ("_id", ASCENDING)])
        skip = random.randrange(self._batches) * limit
        found = read(lowest.clone().skip(skip), wanted)
        if not skip or len(found) == limit or is_beyond(sum(size for _, size in found), len(found), wanted):
            return found
        return list({one["_id"]: (one, size) for one, size in [*found, *read(lowest, wanted)]}.values())[:limit]

    def _spread(self, wanted: int, got: int) -> None:
        """Look further ahead after a collision, closer to the front again after an undisturbed claim."""
        self._batches = min(self._batches * 2, WIDEST) if got < wanted else max(self._batches - 1, 1)


def _first(due: Document, most: int) -> list[Document]:
    """Return the steps that find up to so many postponed jobs within these bounds."""
    return [
        {"$match": {"due": due}},
        {"$sort": {"due": ASCENDING}},
        {"$limit": most},
        {"$project": {"due": True, "claims": True}},
    ]
