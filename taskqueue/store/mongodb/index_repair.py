"""Restores missing indexes of a store in use; ends jobs and periods that block the unique ones."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from bson import ObjectId
from pymongo.collection import Collection as Jobs
from pymongo.errors import DuplicateKeyError

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.pending import canceled
from taskqueue.model.record import Cause, Record, Status
from taskqueue.model.unique_period import END, PERIOD
from taskqueue.model.wording import count
from taskqueue.store.mongodb import indexes
from taskqueue.store.mongodb.connection import Collections
from taskqueue.store.mongodb.documents import Document, cancel_request, record, unmoved
from taskqueue.store.mongodb.driver_errors import IndexMissing, RightsMissing, reaching
from taskqueue.store.mongodb.effects import change, effects_of
from taskqueue.store.mongodb.unique_keys import holds
from taskqueue.store.tries import Tries

if TYPE_CHECKING:
    from taskqueue.store.mongodb.store import MongoStore

log = logging.getLogger(__name__)

INDEXING = 600.0
"""Seconds that it may take: an index of a large collection takes a long time, and an interrupted build starts again."""

UNDER_WAY = 15.0
"""Seconds that it may take in a running process, which must renew its leases; a longer repair needs a restart."""

KEYS_AT_ONCE = 100
"""Maximum number of unique keys with several pending jobs that one statement finds."""

TRIES = 5
"""How often building an index is tried while others write records that it refuses."""

Given = ParamSpec("Given")
Returned = TypeVar("Returned")


def indexed(
    method: Callable[Concatenate[MongoStore, Given], Returned],
) -> Callable[Concatenate[MongoStore, Given], Returned]:
    """Wrap a method: create a missing index and call it again."""

    @functools.wraps(method)
    def call(store: MongoStore, /, *args: Given.args, **kwargs: Given.kwargs) -> Returned:
        try:
            return method(store, *args, **kwargs)
        except IndexMissing as missing:
            log.warning("%s", missing)
            store.index()
        return method(store, *args, **kwargs)

    return call


def ensure_if_allowed(collections: Collections, shown: str, now: datetime) -> None:
    """Create missing indexes; a user without that right still needs those on which unique keys depend."""
    try:
        ensure(collections, shown, now)
    except RightsMissing:
        with reaching(shown):
            if not indexes.are_unique(collections.jobs):
                raise


def ensure(collections: Collections, shown: str, now: datetime, seconds: float = INDEXING) -> None:
    """Create missing indexes; if several pending jobs have one unique key, end all but the oldest.

    If several jobs have a period of one unique key, all but the one that ends last lose it.
    """
    with reaching(shown, seconds):
        indexes.ensure_schedules(collections.plans)
        indexes.ensure(collections.jobs)
        for _ in range(TRIES):  # other processes may add more until the index exists
            try:
                indexes.ensure_unique(collections.jobs)
            except DuplicateKeyError:
                _end_duplicates(collections, shown, now)
                _end_periods(collections.jobs)
            else:
                return
        indexes.ensure_unique(collections.jobs)


def _end_duplicates(collections: Collections, shown: str, now: datetime) -> None:
    """End all but the oldest pending job of each unique key."""
    oldest_first: list[Document] = [
        {"$match": {"unique": {"$type": "string"}, "status": {"$lte": int(Status.PROCESSING)}}},
        {"$project": {"unique": True, "created_at": True}},
        {"$sort": {"created_at": 1, "_id": 1}},
        {"$group": {"_id": "$unique", "oldest": {"$first": "$_id"}, "number": {"$sum": 1}}},
        {"$match": {"number": {"$gt": 1}}},
        {"$limit": KEYS_AT_ONCE},
    ]
    jobs = collections.jobs
    tried: dict[JobId, Tries] = {}
    while shared := list(jobs.aggregate(oldest_first, allowDiskUse=True)):
        for group in shared:
            key, oldest = group["_id"], group["oldest"]
            for duplicate in jobs.find({**holds(key), "_id": {"$ne": oldest}}):
                before = record(duplicate)
                tried.setdefault(before.id, Tries(shown, f"job {before.id} with unique={key!r}")).another()
                _end_duplicate(collections, before, key, oldest, now)


def _end_periods(jobs: Jobs[Document]) -> None:
    """Leave the period of each unique key to the job whose period ends last."""
    last_first: list[Document] = [
        {"$match": indexes.HAS_PERIOD},
        {"$project": {indexes.PERIOD_KEY: True, f"given.{END}": True}},
        {"$sort": {f"given.{END}": -1, "_id": 1}},
        {"$group": {"_id": f"${indexes.PERIOD_KEY}", "last": {"$first": "$_id"}, "number": {"$sum": 1}}},
        {"$match": {"number": {"$gt": 1}}},
    ]
    for group in jobs.aggregate(last_first, allowDiskUse=True):
        others = {**indexes.HAS_PERIOD, indexes.PERIOD_KEY: group["_id"], "_id": {"$ne": group["last"]}}
        number = jobs.update_many(others, {"$unset": {f"given.{PERIOD}": ""}}).modified_count
        log.warning(
            "%s lost the period of the unique key %r, which job %s has: the index that keeps them apart was lost",
            count(number, "job"),
            group["_id"],
            group["last"],
        )


def _end_duplicate(collections: Collections, before: Record, key: str, oldest: JobId, now: datetime) -> None:
    """Cancel the job, or ask a running one to end and release its key; ``repair`` completes its effects."""
    reason = f"job {oldest}, which is older, has the same unique key {key!r}; the index that keeps them apart was lost"
    after = canceled(before, reason, now, Cause.DUPLICATE)
    if before.status is Status.PROCESSING:
        update: dict[str, Any] = {"$unset": {"unique": ""}}
        if after.cancel is not None and before.cancel is None:
            update["$set"] = {"cancel": cancel_request(after.cancel.reason, after.cancel.requested_at)}
    else:
        update = change(after, effects_of(after, ObjectId(), now))
    if collections.jobs.update_one(unmoved(before), update).matched_count:
        asked = "is asked to end" if before.status is Status.PROCESSING else "is canceled"
        log.warning("job %s %s: %s", before.id, asked, reason)
