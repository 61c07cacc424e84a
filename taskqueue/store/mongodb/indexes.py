"""The indexes of a store, created idempotently while other nodes work."""

from __future__ import annotations

from pymongo import ASCENDING, IndexModel
from pymongo.collection import Collection

from taskqueue.model.ids import ID_TEXT, WORKFLOW
from taskqueue.model.record import Status
from taskqueue.model.unique_period import KEY
from taskqueue.store.mongodb.documents import Document

WAITING = "waiting"
WAITING_IN_QUEUE = "waiting_in_queue"
DUE = "due"
EXPIRES = "expires"
HELD = "held"
OUTCOMES = "outcomes"
LEFTOVERS = "leftovers"
UNIQUE = "unique"
GIVEN = "given"
PERIODS = "periods"
BEHIND = "behind"
CHILDREN = "children"
DEPENDENTS = "dependents"
LIMITED = "limited"
CREATED = "created"
WITH_TEXT = "with_text"
OF_WORKFLOWS = "of_workflows"
NEXT = "next"
STARTS = "starts"
RANKED = {"rank": {"$gte": -(2**63)}}
"""Matches ranks that are numbers; a damaged rank cannot be compared, so its job waits until it is canceled."""

PERIOD_KEY = f"given.{KEY}"
HAS_PERIOD = {PERIOD_KEY: {"$exists": True}, "unique": {"$type": "string"}}
"""Matches the jobs whose unique key may stay taken after they end."""

BY_ID = {"_id": 1}
"""The hint for changes of records by id, which saves the server comparing query plans."""


def ensure(jobs: Collection[Document]) -> None:
    """Create missing indexes except ``UNIQUE``; each holds only the records that its queries need."""
    waiting = {"status": int(Status.WAITING)}
    jobs.create_indexes(
        [
            _index(WAITING, "forced", "rank", "_id", only=waiting),
            _index(WAITING_IN_QUEUE, "status", "queue", "forced", "rank", "_id", only=waiting),
            _index(HELD, "ready_at", "holder.seat", "holder.incarnation", only={"status": int(Status.PROCESSING)}),
            _index(DUE, "due", "_id", only={"due": {"$exists": True}}),
            _index(EXPIRES, "expires", "_id", only={"expires": {"$exists": True}}),
            _index(BEHIND, "waiting_for", only={"waiting_for": {"$exists": True}}),
            _index(LIMITED, "status", "lane", "forced", "rank", "_id", only={**waiting, "lane": {"$exists": True}}),
            _index(CHILDREN, "parent", "status", only={"parent": {"$exists": True}}),
            _index(DEPENDENTS, "depends_on.id", "status", only={"depends_on.id": {"$exists": True}}),
            _index(LEFTOVERS, "after.at", only={"after.at": {"$exists": True}}),
            _index(GIVEN, "after.successor.unique", only={"after.successor.unique": {"$exists": True}}),
            _index(WITH_TEXT, f"given.{ID_TEXT}", only={f"given.{ID_TEXT}": {"$exists": True}}),
            _index(OF_WORKFLOWS, f"given.{WORKFLOW}", "_id", only={f"given.{WORKFLOW}": {"$exists": True}}),
            _index(OUTCOMES, "status", "ended_at", "queue"),
            _index(CREATED, "created_at", "_id"),
        ]
    )


def ensure_unique(jobs: Collection[Document]) -> None:
    """Create the index that allows one pending job per unique key; raise ``DuplicateKeyError`` if two have one."""
    periods = IndexModel([(PERIOD_KEY, ASCENDING)], name=PERIODS, unique=True, partialFilterExpression=HAS_PERIOD)
    jobs.create_indexes([periods])
    only = {"unique": {"$type": "string"}, "status": {"$lte": int(Status.PROCESSING)}}
    jobs.create_indexes([IndexModel([("unique", ASCENDING)], name=UNIQUE, unique=True, partialFilterExpression=only)])


def are_unique(jobs: Collection[Document]) -> bool:
    """Return whether both indexes of ``ensure_unique`` exist."""
    return {PERIODS, UNIQUE} <= jobs.index_information().keys()


def ensure_schedules(plans: Collection[Document]) -> None:
    """Create the indexes for due schedules, and for schedules with jobs that a dead writer left."""
    plans.create_indexes(
        [
            _index(name, field, only={field: {"$exists": True}})
            for name, field in ((NEXT, "next_run_at"), (STARTS, "starts_at"))
        ]
    )


def _index(name: str, *fields: str, only: Document | None = None) -> IndexModel:
    keys = [(field, ASCENDING) for field in fields]
    if only is None:
        return IndexModel(keys, name=name)
    return IndexModel(keys, name=name, partialFilterExpression=only)
