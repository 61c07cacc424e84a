"""The rules by which changes ring: the stages of change streams, and the reading of their documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from taskqueue.model.ids import JobId
from taskqueue.model.record import Status
from taskqueue.store.bell import CONTROLS, ENDS, NEWS, PLANS, STOPS, WORK
from taskqueue.store.mongodb.connection import Collections
from taskqueue.store.mongodb.documents import Document

Change: TypeAlias = Mapping[str, Any]

_FREED = "updateDescription.updatedFields.freed"
_CANCEL = "updateDescription.updatedFields.cancel"
_READY = {"$in": [int(Status.WAITING), int(Status.POSTPONED)]}
_JOB_CHANGES: Document = {
    "$or": [
        {"operationType": {"$in": ["insert", "replace"]}, "fullDocument.status": _READY},
        {
            "operationType": "update",
            "$or": [
                {"updateDescription.updatedFields.status": _READY},
                {"updateDescription.updatedFields.rank": {"$exists": True}},
                {"updateDescription.updatedFields.queue": {"$exists": True}},
                {_FREED: {"$exists": True}},
                {_CANCEL: {"$exists": True}},
            ],
        },
    ]
}
"""The changes of jobs that ring, by kind: in the log, updates have no ``fullDocument``, and the server would build
every event to see that."""

_PLAIN: Document = {"status": int(Status.WAITING), "forced": False}
"""The streamed fields of an added job that a claim finds without a scan for due jobs, limits and other workers."""

_LEASE_CHANGES: Document = {
    "$or": [{"operationType": "insert"}, {"updateDescription.updatedFields.holder": {"$exists": True}}]
}
"""The changes of leases that ring: acquired, not renewed."""

_EVENT_CHANGES: dict[str, Document] = {
    NEWS: {"operationType": "insert"},
    ENDS: {
        "operationType": "insert",
        "$or": [
            {"fullDocument.events.status": {"$gt": int(Status.PROCESSING)}},
            {"fullDocument.flushed": True},
        ],
    },
}

MOST_ENDED = 5
"""A change of so many ends, or more, does not say of which jobs."""

_ENDED: Document = {
    "$slice": [
        {
            "$map": {
                "input": {
                    "$filter": {
                        "input": "$fullDocument.events",
                        "cond": {"$gt": ["$$this.status", int(Status.PROCESSING)]},
                    }
                },
                "in": "$$this.job",
            }
        },
        MOST_ENDED,
    ]
}
"""The jobs that have ended, of a page of events."""


class Ring(NamedTuple):
    """The news of a change for the listeners of its topic."""

    new_jobs: int
    plain: int
    ended: Sequence[JobId]
    """All jobs that have ended, if they are few."""


def event_stages(topic: str) -> list[Document]:
    """Return the stages of a stream of events, of all or of those that jobs have ended."""
    brought = {"_id": True, **({"ended": _ENDED} if topic == ENDS else {})}
    return [{"$match": _EVENT_CHANGES[topic]}, {"$project": brought}]


def node_stages(collections: Collections) -> list[Document]:
    """Return the stages of the one stream for all topics of a node."""
    others = {"ns.coll": {"$in": [collections.plans.name, collections.controls.name]}}
    taken = {"ns.coll": collections.leases.name, **_LEASE_CHANGES}
    return [
        {"$match": {"$or": [{"ns.coll": collections.jobs.name, **_JOB_CHANGES}, others, taken]}},
        {
            "$project": {
                "_id": True,
                "ns.coll": True,
                _FREED: True,
                f"{_CANCEL}.requested_at": True,
                "fullDocument.status": True,
                "fullDocument.forced": True,
            }
        },
    ]


def node_topic(collections: Collections, change: Change) -> str:
    """Return the topic of a change in the stream of a node."""
    decided = (collections.controls.name, collections.leases.name)
    own = {collections.plans.name: PLANS, **dict.fromkeys(decided, CONTROLS)}
    return own.get(change["ns"]["coll"], STOPS if "cancel" in _updated(change) else WORK)


def ring_of(change: Change) -> Ring:
    """Return the news of the change; freed room under a limit is no new job."""
    new_jobs = 0 if "freed" in _updated(change) else 1
    plain = int(change.get("fullDocument") == _PLAIN)
    ended = change.get("ended") or ()
    return Ring(new_jobs, plain, ended if len(ended) < MOST_ENDED else ())


def _updated(change: Change) -> Change:
    """Return the fields that the change has set, as far as the event has them."""
    updated: Change = change.get("updateDescription", {}).get("updatedFields", {})
    return updated
