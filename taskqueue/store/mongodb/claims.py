"""Claims records for a node: scans the store unless the last scan is valid, and takes the records that are next.

A scan promotes due jobs, ends expired ones and finds the lanes in which jobs with limits wait.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from bson import ObjectId
from pymongo import ASCENDING

from taskqueue.model.controls import Controls
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.pending import claimed
from taskqueue.model.record import Cause, Holder, Record, Status
from taskqueue.model.schedules import LATEST
from taskqueue.model.timestamps import EPOCH, whole
from taskqueue.store import Claim, ClaimRequest
from taskqueue.store.mongodb.background_writer import EventWriter
from taskqueue.store.mongodb.bells import NewJobs, StreamBell
from taskqueue.store.mongodb.claim_candidates import (
    SCAN_WITHIN,
    Candidate,
    Chosen,
    ClaimCache,
    LimitedCandidates,
    SizedJob,
    candidate_of,
    in_range,
    queue_of,
    read,
    within,
)
from taskqueue.store.mongodb.connection import Connection, find_and_modify
from taskqueue.store.mongodb.controls import StoredControls
from taskqueue.store.mongodb.documents import Document, record, records, setting
from taskqueue.store.mongodb.effects import transition
from taskqueue.store.mongodb.events import status_event
from taskqueue.store.mongodb.indexes import BY_ID, DUE, EXPIRES, RANKED, WAITING, WAITING_IN_QUEUE
from taskqueue.store.mongodb.limits import LimitRoom, LimitUse
from taskqueue.store.mongodb.queue_candidates import FairCandidates, OpenQueues, Search
from taskqueue.store.mongodb.settlements import Settlements
from taskqueue.store.selection import bounds, other_lanes_at

log = logging.getLogger(__name__)

STEP = 500
"""Maximum number of records that one claim promotes, and that it expires; after that many it runs again at once."""

EARLY_BY = timedelta(milliseconds=15)
"""The early-claim window: the time of one majority write and of sending a job to a worker."""

EARLY_CANDIDATES = 64
"""The number of soon-due jobs that one claim considers."""

ENOUGH = 1 << 30
"""A number larger than any claim takes."""

TRIES = 4
"""How often one call looks for candidates when other nodes have taken the ones it found."""

WIDEST = 32
"""Maximum number of batches from which a node picks one while other nodes claim too."""


class ClaimTerms(NamedTuple):
    """The holder, the time and the lease end of the claims of one call."""

    holder: Holder
    now: datetime
    until: datetime


class Claims:
    """Claims records in batches: finds candidates, claims the unchanged ones in one write, and reads which it got.

    Nodes that collide on the same candidates spread out: each then picks a random one of the next batches.
    """

    def __init__(
        self,
        connection: Connection,
        settlements: Settlements,
        event_writer: EventWriter,
        limit_use: LimitUse,
        controls: StoredControls,
    ) -> None:
        self._connection = connection
        self._controls = controls
        self._limit_use = limit_use
        self._limited = LimitedCandidates(connection, limit_use)
        self._claim_write = ClaimWrite(connection, event_writer)
        self._scan = ClaimScan(connection, settlements, event_writer, self._limited)
        self._batches = 1
        self._most = ENOUGH
        self._claim_cache: ClaimCache | None = None
        self._open_queues = OpenQueues(connection)
        self._fair_candidates = FairCandidates(connection)
        self._bell: StreamBell | None = None
        self._takes_first = False

    def rely_on(self, bell: StreamBell) -> None:
        """Use this bell to learn of new jobs."""
        self._bell = bell
        self._open_queues.rely_on(bell)
        self._fair_candidates.rely_on(bell)
        self._takes_first = not self._connection.database.client.is_mongos  # that would need the key of the shards

    def claim(self, holder: Holder, demand: ClaimRequest, now: datetime, until: datetime) -> Claim:
        """Take WAITING records for ``holder``, and return when to claim again.

        After a claim that was cut by its bytes, the next one reads about as many records, and later ones twice as many
        each time.
        """
        self._limit_use.free_failed()
        most, terms = max(self._most, demand.free), ClaimTerms(holder, now, until)
        if demand.data is None or demand.pooled <= most:
            claim = self._claim_all(demand, terms)
        else:
            claim = self._claim_all(replace(demand, pooled=most), terms)
            if len(claim.records) >= most and not claim.has_more:
                self._most *= 2
                return replace(claim, has_more=True)
        if claim.has_more:
            self._most = len(claim.records) + 1
        return claim

    def _claim_all(self, demand: ClaimRequest, terms: ClaimTerms) -> Claim:
        changes = None if self._bell is None else self._bell.changes
        claim = self._claim_without_scan(demand, terms, changes)
        if claim is None:
            self._claim_cache = self._scan.run(terms.now, changes)
            claim = self._claim(self._claim_cache, demand, terms)
        due_by = demand.due_by
        nothing_waits = not claim.records and self._claim_cache is not None and not self._claim_cache.lanes
        if nothing_waits and due_by is not None and claim.next_at is not None and terms.now < claim.next_at <= due_by:
            claim = self._claim_early(demand, due_by, terms) or claim
        self._adjust_bell(claim.has_more or 0 < demand.pooled <= len(claim.records))
        return claim

    def claim_one(self, id: JobId, holder: Holder, now: datetime, until: datetime) -> Record | None:
        document = self._connection.collections.jobs.find_one({"_id": id, "status": int(Status.WAITING)})
        if document is None:
            return None
        terms = ClaimTerms(holder, now, until)
        *_, lane = (document.get("lane") or "").partition(" ")
        job = candidate_of(document, forced=bool(document["forced"] % 2), queue=document["queue"], lane=lane)
        if not lane:
            taken = self._claim_write.take([job], terms)
        else:
            self._limit_use.free_failed()
            room = self._limit_use.room([lane], self._controls.in_force(), now)
            if room.free(lane) <= 0:
                return None
            _, taken = self._take_with_uses([job], room, terms)
        return taken[0] if taken else None

    def _claim_without_scan(self, demand: ClaimRequest, terms: ClaimTerms, changes: NewJobs | None) -> Claim | None:
        """Claim by the last scan if it is valid, and by later rings; None if a scan must come first.

        Jobs that rang are claimed before the next scan, which finds all others; plain jobs need no scan.
        """
        cache, now = self._claim_cache, terms.now
        if cache is None:
            return None
        if self._takes_first and cache.has_one_new(demand, now, changes):
            controls = self._controls.in_force()
            if not controls.pauses_any and not controls.is_closed_to(terms.holder.seat):
                return self._claim_first(cache, terms, changes)
        is_sure, holds = cache.is_sure(changes), cache.holds(now, changes)
        if not holds and not cache.may_claim_before_scan(now, changes):
            return None
        needs_no_scan = cache.has_only_plain(demand, changes)
        if not is_sure:
            cache.forget_empty(only_pool=needs_no_scan)
        if not holds and demand.pooled:
            demand = replace(demand, forced=0)  # jobs beside the pool follow after the next scan, which is soon
        claim = self._claim(cache, demand, terms)
        if is_sure or (holds and cache.was_full):
            return claim
        if needs_no_scan and self._claim_cache is cache:
            scan_at = cache.claimed_plain(now, changes)
        elif not claim.records:
            return None
        else:
            scan_at = now + SCAN_WITHIN
            cache.refresh_by(scan_at)
        return replace(claim, next_at=min(claim.next_at or scan_at, scan_at))

    def _claim_first(self, cache: ClaimCache, terms: ClaimTerms, changes: NewJobs | None) -> Claim:
        """Take the one new job with one command, which is a millisecond faster than two."""
        taken = self._claim_write.take_first(terms)
        cache.claimed_plain(terms.now, changes)
        cache.was_full = False
        return Claim(records=[] if taken is None else [taken], next_at=cache.next_at)

    def _adjust_bell(self, has_all: bool) -> None:
        """Delay the bell while this node finds as many jobs as it can take."""
        if self._bell is None:
            return
        if has_all:
            self._bell.rest()
        else:
            self._bell.hurry()

    def _claim(self, cache: ClaimCache, demand: ClaimRequest, terms: ClaimTerms) -> Claim:
        """Claim within the ranges of the last scan."""
        moments = [cache.next_at]
        controls = self._controls.in_force()
        if controls.is_closed_to(terms.holder.seat):
            return Claim(records=[], next_at=cache.next_at)
        for _ in range(TRIES):
            if cache.lanes:
                chosen, taken, lanes_at = self._take_limited(cache, demand, controls, terms)
                moments = [cache.next_at, *lanes_at]
            else:
                chosen = within(self._candidates(demand, controls, cache, terms.now), demand, None)
                taken = self._claim_write.take(chosen.candidates, terms)
            candidates = len(chosen.candidates)
            self._spread(candidates, len(taken))
            if taken or not candidates:
                break
        else:  # other nodes were faster, or the jobs have expired, in which case a scan ends them
            self._claim_cache = None
            return Claim(records=[], next_at=terms.now)
        cache.was_full = chosen.has_more or len(taken) >= demand.pooled + demand.forced
        if len(taken) < candidates:  # other nodes took some, and more jobs may wait after these
            moments.append(terms.now)
        elif not (chosen.has_more or cache.lanes or demand.queues or controls.pauses_any):
            for forced, limit in ((False, demand.pooled), (True, demand.forced)):
                if sum(candidate.forced is forced for candidate in chosen.candidates) < limit:
                    cache.note_empty(forced)
        next_at = min((moment for moment in moments if moment is not None), default=None)
        return Claim(records=taken, next_at=next_at, has_more=chosen.has_more)

    def _claim_early(self, demand: ClaimRequest, due_by: datetime, terms: ClaimTerms) -> Claim | None:
        """Claim jobs shortly before they are due; None if there is none for this node.

        They do not become WAITING first, so no node starts them early.
        """
        controls = self._controls.in_force()
        if controls.is_closed_to(terms.holder.seat):
            return None
        jobs = self._connection.collections.jobs
        about_due = (
            jobs.find_raw_batches({"due": {"$exists": True, "$gte": EPOCH, "$lte": due_by}, **RANKED})
            .hint(DUE)
            .sort("due", ASCENDING)
        )
        candidates = [
            candidate_of(document, size, forced=bool(document.get("forced")), queue=document["queue"])
            for document, size in read(about_due.limit(EARLY_CANDIDATES), demand)
            if not document.get("lane")
            and isinstance(document.get("queue"), str)
            and document["queue"] in (demand.queues or (document["queue"],))
        ]
        open_to_all = (candidate for candidate in sorted(candidates) if controls.pause_of(candidate.queue) is None)
        chosen = within(open_to_all, demand, None)
        taken = self._claim_write.take(chosen.candidates, terms, was=Status.POSTPONED)
        if not taken:
            return None
        next_at = self._scan.soonest()
        if self._claim_cache is not None:
            self._claim_cache.note_early_claim(next_at)
            next_at = self._claim_cache.next_at
        return Claim(records=taken, next_at=next_at, begins_at=due_by, has_more=chosen.has_more)

    def _take_limited(
        self, cache: ClaimCache, demand: ClaimRequest, controls: Controls, terms: ClaimTerms
    ) -> tuple[Chosen, list[Record], list[datetime | None]]:
        """Take jobs with limits as well, after taking room for them.

        Return the candidates that fit, the taken records, and when a rate has room again or to try other lanes.
        """
        offered, room, is_cut = self._limited.offer(cache, demand, controls, self._batches, terms.now)
        chosen = within(sorted([*self._candidates(demand, controls, cache, terms.now), *offered]), demand, room)
        fitting, taken = self._take_with_uses(chosen.candidates, room, terms)
        chosen = chosen._replace(candidates=fitting)
        return chosen, taken, [room.next_at(), other_lanes_at(taken, demand, terms.now) if is_cut else None]

    def _take_with_uses(
        self, candidates: list[Candidate], room: LimitRoom, terms: ClaimTerms
    ) -> tuple[list[Candidate], list[Record]]:
        """Return the candidates that got room under their limits, and the records of the claimed ones."""
        requests = [candidate.use_request for candidate in candidates if candidate.lane]
        with self._limit_use.freed_on_failure(requests, terms.holder):
            granted = self._limit_use.take(requests, room, *terms) if requests else []
            granted_ids = {request.id for request in granted}
            fitting = [candidate for candidate in candidates if not candidate.lane or candidate.id in granted_ids]
            taken = self._claim_write.take(fitting, terms)
            missed = granted_ids.difference(record.id for record in taken)
            self._limit_use.hand_back([request for request in granted if request.id in missed], terms.holder)
        return fitting, taken

    def _candidates(
        self, demand: ClaimRequest, controls: Controls, cache: ClaimCache, now: datetime
    ) -> list[Candidate]:
        """Return the lowest waiting (rank, id) of each range."""
        limits = {False: demand.pooled, True: demand.forced}
        if not demand.queues:
            is_fair = demand.shares.is_fair
            candidates = [
                candidate_of(document, size, forced=forced, queue=queue_of(document) if is_fair else "")
                for forced, limit in limits.items()
                if not cache.is_empty(forced)
                for document, size in self._all(Search(forced, limit, demand, controls, self._batches, now), cache)
            ]
            return sorted(candidates) if is_fair else candidates
        candidates = [
            candidate_of(document, size, forced=forced, queue=queue)
            for queue, bound in bounds(demand).items()
            if controls.pause_of(queue) is None
            for forced, limit in limits.items()
            for document, size in in_range(
                self._connection,
                WAITING_IN_QUEUE,
                {"queue": queue, "forced": forced},
                min(limit, bound),
                demand,
                self._batches,
            )
        ]
        return sorted(candidates)

    def _all(self, search: Search, cache: ClaimCache) -> list[SizedJob]:
        """Return the first jobs of all queues that are not paused; note if there are none."""
        if search.demand.shares.is_fair:
            return self._fair_candidates.lowest(search)
        if search.controls.pauses_any:
            return self._open_queues.lowest(search)
        where = {"forced": search.forced}
        jobs = in_range(self._connection, WAITING, where, search.limit, search.demand, search.batches)
        if not jobs and search.limit > 0:
            cache.note_empty(search.forced)
        return jobs

    def _spread(self, demand: int, got: int) -> None:
        """Search further ahead after a collision, and closer to the front after an undisturbed claim."""
        self._batches = min(self._batches * 2, WIDEST) if got < demand else max(self._batches - 1, 1)


class ClaimScan:
    """The scan of one store."""

    def __init__(
        self, connection: Connection, settlements: Settlements, event_writer: EventWriter, limited: LimitedCandidates
    ) -> None:
        self._connection = connection
        self._settlements = settlements
        self._event_writer = event_writer
        self._limited = limited

    def run(self, now: datetime, changes: NewJobs | None) -> ClaimCache:
        """Promote due records, end expired ones, and return the facts that claims use until the next scan."""
        jobs = self._connection.collections.jobs
        late_records = records(jobs.find({"expires": {"$lte": now}}).hint(EXPIRES).limit(STEP))
        self._settlements.expire(late_records, now)
        next_at = self.soonest()  # usually no job is due, and reading up to 500 takes as long as the rest of the scan
        due_jobs: list[Document] = []
        if next_at is not None and next_at <= now:
            next_job = {"$unionWith": {"coll": jobs.name, "pipeline": _postponed({"$gt": now, "$lt": LATEST}, 1)}}
            soon = list(jobs.aggregate([*_postponed({"$gte": EPOCH, "$lte": now}, STEP + 1), next_job], hint=DUE))
            due_jobs = [document for document in soon if document["due"] <= now]
            self._promote(due_jobs, now)
            next_at = min((document["due"] for document in soon if document["due"] > now), default=None)
        if len(late_records) == STEP or len(due_jobs) > STEP:
            next_at = now
        return ClaimCache(at=now, changes=changes, next_at=next_at, lanes=self._limited.lanes())

    def soonest(self) -> datetime | None:
        """Return when the next postponed job is due; None if there is none."""
        postponed = self._connection.collections.jobs.find(
            {"due": {"$exists": True, "$gte": EPOCH, "$lt": LATEST}}, {"due": True}
        )
        return next((document["due"] for document in postponed.hint(DUE).sort("due", ASCENDING).limit(1)), None)

    def _promote(self, documents: list[Document], now: datetime) -> None:
        """Make due records WAITING: ``pending.promoted`` changes nothing but the status."""
        where = {
            "_id": {"$in": [document["_id"] for document in documents]},
            "status": int(Status.POSTPONED),
            "due": {"$lte": now},
        }
        change = {"$set": {"status": int(Status.WAITING)}, "$unset": {"due": ""}}
        self._connection.collections.jobs.update_many(where, change)
        self._event_writer.submit(
            [
                status_event(document["_id"], document.get("claims", 0), "waiting", now, Status.WAITING)
                for document in documents
            ]
        )


class ClaimWrite:
    """Writes claims to one store."""

    def __init__(self, connection: Connection, event_writer: EventWriter) -> None:
        self._connection = connection
        self._event_writer = event_writer

    def take(self, candidates: Sequence[Candidate], terms: ClaimTerms, *, was: Status = Status.WAITING) -> list[Record]:
        """Claim the candidates that are unchanged since they were read, as ``pending.claimed`` does."""
        holder, now, until = terms
        candidates = _without_unclaimable(self._connection, candidates, was, now)
        if not candidates:
            return []
        token = ObjectId()
        change = _claiming(terms, token)
        where = {**_unmoved(candidates, was), "expires": {"$not": {"$lte": now}}}
        jobs = self._connection.collections.jobs
        matched = jobs.update_many(where, change, hint=BY_ID).matched_count
        if matched < len(candidates):
            where = {"_id": {"$in": [candidate.id for candidate in candidates]}, "claimed": token}
            ids = (
                {document["_id"] for document in jobs.find(where, {"_id": True}).hint([("_id", ASCENDING)])}
                if matched
                else ()
            )
            candidates = [candidate for candidate in candidates if candidate.id in ids]
        taken = [claimed(record(candidate.document), holder, until) for candidate in sorted(candidates)]
        self._event_writer.submit([transition(after, now) for after in taken])
        return taken

    def take_first(self, terms: ClaimTerms) -> Record | None:
        """Claim the lowest (rank, id) that waits for the pool, in one command; None if no readable job waits.

        A claim whose answer is lost is handed back.
        """
        holder, now, until = terms
        first = {"status": int(Status.WAITING), "forced": False, **RANKED, "expires": {"$not": {"$lte": now}}}
        readable = {"_id": {"$type": "objectId"}, "claims": {"$type": ["int", "long"]}}
        document = find_and_modify(
            self._connection.collections.jobs,
            {**first, **readable},
            _claiming(terms, ObjectId()),
            sort={"rank": ASCENDING, "_id": ASCENDING},
            hint=WAITING,
        )
        if document is None:
            return None
        taken = claimed(record(document), holder, until)
        self._event_writer.submit([transition(taken, now)])
        return taken


def _postponed(due: Document, most: int) -> list[Document]:
    """Return the pipeline stages that find up to ``most`` postponed jobs within these bounds."""
    return [
        {"$match": {"due": due}},
        {"$sort": {"due": ASCENDING}},
        {"$limit": most},
        {"$project": {"due": True, "claims": True}},
    ]


def _claiming(terms: ClaimTerms, token: ObjectId) -> Document:
    """Return the update of a claim."""
    return {
        "$set": {
            "status": int(Status.PROCESSING),
            "cause": Cause.CLAIMED.value,
            "ready_at": whole(terms.until),
            "holder": {"seat": terms.holder.seat, "incarnation": terms.holder.incarnation},
            "claimed": token,
        },
        "$inc": {"claims": 1},
        "$unset": {"started_at": "", "expires": "", "due": ""},
    }


def _without_unclaimable(
    connection: Connection, candidates: Sequence[Candidate], was: Status, now: datetime
) -> Sequence[Candidate]:
    """Return the candidates that have an id and a fence; end all others as FAILED."""
    damaged = [candidate for candidate in candidates if not candidate.is_whole]
    for candidate in damaged:
        log.error(
            "ended a job that cannot be claimed, because its id or fence is unreadable: job %s",
            candidate.document["_id"],
        )
        fields = {"status": int(Status.FAILED), "cause": Cause.UNREADABLE.value, "ended_at": now, "claims": 0}
        change = setting(fields | dict.fromkeys(("ready_at", "due", "expires", "unique")))
        connection.collections.jobs.update_one({"_id": candidate.document["_id"], "status": int(was)}, change)
    return [candidate for candidate in candidates if candidate.is_whole] if damaged else candidates


def _unmoved(candidates: Sequence[Candidate], was: Status) -> Document:
    """Return the filter for records of this status that nobody, not even an owner, has changed since they were read."""
    by_fence: dict[int, list[JobId]] = {}
    for candidate in candidates:
        by_fence.setdefault(candidate.claims, []).append(candidate.id)
    revisions = {candidate.document.get("revised") for candidate in candidates}
    where: Document = {"status": int(was), "revised": {"$in": [None, *(revisions - {None})]}}
    if len(by_fence) == 1:
        [(claims, ids)] = by_fence.items()
        return where | {"_id": {"$in": ids}, "claims": claims}
    fences = [{"_id": {"$in": ids}, "claims": claims} for claims, ids in by_fence.items()]
    return where | {"_id": {"$in": [candidate.id for candidate in candidates]}, "$and": [{"$or": fences}]}
