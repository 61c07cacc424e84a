"""Rings bells from change streams: defines which changes ring; a node shares one stream."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import pymongo
from bson import ObjectId
from pymongo.change_stream import ChangeStream, DatabaseChangeStream
from pymongo.errors import PyMongoError

from taskqueue.model.events import FLUSHED
from taskqueue.model.ids import JobId
from taskqueue.model.record import Status
from taskqueue.store.bell import CONTROLS, ENDS, NEWS, PLANS, STOPS, WORK
from taskqueue.store.fan_out import POLL_PAUSE, FanOut
from taskqueue.store.mongodb.bells import EndsBell, HostBells, StreamBell
from taskqueue.store.mongodb.connection import ACKNOWLEDGED, Collections, Connection, resets_after_fork
from taskqueue.store.mongodb.documents import Document
from taskqueue.store.mongodb.migration import SCHEMA

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
"""The fields that decide whether a claim finds an added job without a scan for due jobs, limits and other workers."""

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
            {f"fullDocument.{FLUSHED}": True},
        ],
    },
}

MOST_ENDED = 5
"""A change that ends this many jobs, or more, does not name them."""

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
"""The jobs that a page of events reports as ended."""


class Ring(NamedTuple):
    """The news of a change for the listeners of its topic."""

    new_jobs: int
    plain: int
    ended: Sequence[JobId]
    """All jobs that have ended, if they are few."""
    queue: str | None = None
    """The queue of an added job."""
    again: JobId | None = None
    """A job that waits again, or was moved: the log does not contain its queue."""


def event_stages(topic: str) -> list[Document]:
    """Return the stages of a stream of all events, or only of the ends of jobs."""
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
                "documentKey._id": True,
                _FREED: True,
                f"{_CANCEL}.requested_at": True,
                "fullDocument.status": True,
                "fullDocument.forced": True,
                "fullDocument.queue": True,
            }
        },
    ]


def node_topic(collections: Collections, change: Change) -> str:
    """Return the topic of a change in the stream of a node."""
    decided = (collections.controls.name, collections.leases.name)
    own = {collections.plans.name: PLANS, **dict.fromkeys(decided, CONTROLS)}
    return own.get(change["ns"]["coll"], STOPS if "cancel" in _updated(change) else WORK)


def ring_of(change: Change) -> Ring:
    """Return the news of the change; freed room under a limit is not a new job."""
    new_jobs = 0 if "freed" in _updated(change) else 1
    added = change.get("fullDocument") or {}
    plain, queue = int(added.items() >= _PLAIN.items()), added.get("queue")
    ended = change.get("ended") or ()
    id = change.get("documentKey", {}).get("_id") if new_jobs and not added else None
    return Ring(
        new_jobs,
        plain,
        ended=ended if len(ended) < MOST_ENDED else (),
        queue=queue if isinstance(queue, str) else None,
        again=id if type(id) is ObjectId else None,
    )


def _updated(change: Change) -> Change:
    """Return the fields that the change set, as far as the event contains them."""
    updated: Change = change.get("updateDescription", {}).get("updatedFields", {})
    return updated


Stream: TypeAlias = ChangeStream[Document]

FETCH = 0.5
"""Seconds for which one fetch of the change stream waits on the server."""

LONGEST_FETCH = 5.0
"""Seconds for which it waits when nothing has changed for four times as long."""

ENDS_WITHIN = 0.25
"""Seconds given to the server to learn that a fetch must end; after that, its own end is awaited."""

GLANCE = 0.001
"""Seconds for which a fetch waits while its listeners are saturated."""

LATE = 0.05
"""Maximum number of seconds by which a saturated listener's ring is delayed."""

FETCH_DEADLINE = 10.0
"""Seconds after which a fetch, or the attempt to open the stream again, has failed."""

NODE_TOPICS = (WORK, STOPS, PLANS, CONTROLS)
"""The topics of a node, which share one change stream."""

_WHOLE_DATABASE = "$cmd.aggregate"
"""The collection name that a server gives a cursor that watches a database."""


class ChangeStreams:
    """Opens bells, each with a change stream of its own or together with others of this process."""

    def __init__(self, connection: Connection, host_bells: HostBells) -> None:
        self._connection = connection
        self._host_bells = host_bells
        self._lock = threading.Lock()
        self._node_source: Source | None = None
        self._inherited: list[object] = []
        resets_after_fork(self)

    def bell(self, topic: str) -> StreamBell:
        """Return a bell of the topic that the server rings."""
        doorbell = self._host_bells.hang() if topic == ENDS else None
        bell = StreamBell(topic) if doorbell is None else EndsBell(doorbell)
        try:
            if topic in NODE_TOPICS:
                self._listen_together(bell)
            else:
                Source(self._connection, lambda: self._watch_events(topic), lambda _: topic).admit(bell)
        except BaseException:
            bell.close()
            raise
        return bell

    def reset_after_fork(self) -> None:
        """Listen through streams of this process; keep the parent's from being garbage-collected."""
        self._inherited.append(self._node_source)
        self._lock, self._node_source = threading.Lock(), None

    def _listen_together(self, bell: StreamBell) -> None:
        with self._lock:
            if self._node_source is None or not self._node_source.admit(bell):
                topic_of = partial(node_topic, self._connection.collections)
                self._node_source = Source(self._connection, self._watch_all, topic_of)
                self._node_source.admit(bell)

    def _watch_events(self, topic: str) -> Stream:
        return self._connection.collections.events.watch(event_stages(topic), max_await_time_ms=_ms(FETCH))

    def _watch_all(self) -> Stream:
        stages = node_stages(self._connection.collections)
        return self._connection.database.watch(stages, max_await_time_ms=_ms(FETCH))


class Source:
    """One change stream, and the thread that rings its bells until the last of them is closed.

    While a fetch waits, the server examines every single write for it. So a saturated node fetches
    a few times a second instead, and the server goes through what was written since at once.
    """

    def __init__(self, connection: Connection, watch: Callable[[], Stream], topic_of: Callable[[Change], str]) -> None:
        self._connection = connection
        self._watch = watch
        self._topic_of = topic_of
        self._hurried = threading.Event()
        self._fan_out = FanOut[StreamBell](self._listen, self._interrupt)
        self._stream = watch()

    def admit(self, bell: StreamBell) -> bool:
        """Ring this bell as well from now on; return False if the last bell has been closed."""
        bell.on_hurry(self._hurried.set)
        return self._fan_out.admit(bell)

    def _interrupt(self) -> None:
        """End a pause or a fetch: the server must drop the cursor, and does so at its next write."""
        self._hurried.set()
        cursor = self._stream._cursor  # noqa: SLF001 - the driver has no way to end a fetch
        collections = self._connection.collections
        collection = _WHOLE_DATABASE if isinstance(self._stream, DatabaseChangeStream) else collections.events.name
        facts = collections.facts.with_options(write_concern=ACKNOWLEDGED)
        with contextlib.suppress(PyMongoError), pymongo.timeout(ENDS_WITHIN):
            self._connection.database.command("killCursors", collection, cursors=[cursor.cursor_id])
            facts.update_one(SCHEMA, {"$currentDate": {"bell_closed_at": True}})

    def _listen(self) -> None:
        self._ring_until_closed()
        with contextlib.suppress(PyMongoError), pymongo.timeout(POLL_PAUSE):
            self._stream.close()

    def _ring_until_closed(self) -> None:
        change, changed_at = None, time.monotonic()
        while not self._fan_out.ended.is_set():
            self._hurried.clear()
            rests = any(bell.rests for bell in self._fan_out.bells)
            if rests and change is None:
                self._hurried.wait(LATE)
            idle_for = time.monotonic() - changed_at
            self._wait_for(GLANCE if rests else min(max(FETCH, idle_for / 4), LONGEST_FETCH))
            try:
                with pymongo.timeout(FETCH_DEADLINE):
                    change = self._stream.try_next()
                if change is not None:
                    changed_at = time.monotonic()
                    self._ring(change)
                elif not self._stream.alive:
                    self._reopen("its collection was dropped")
            except PyMongoError as error:
                if not self._fan_out.ended.is_set():
                    self._reopen(error)

    def _wait_for(self, seconds: float) -> None:
        """Set how long the next fetch waits on the server."""
        # The public option fixes that for the whole stream; a second stream would cost more than it saves.
        self._stream._cursor._max_await_time_ms = _ms(seconds)  # noqa: SLF001

    def _ring(self, change: Change) -> None:
        topic, ring = self._topic_of(change), ring_of(change)
        for bell in self._fan_out.bells:
            if bell.topic == topic:
                bell.ring(*ring)

    def _reopen(self, reason: object) -> None:
        """Listen again from now on."""
        self._fan_out.open_again("the change stream", reason, self._open, (PyMongoError,))

    def _open(self) -> None:
        with pymongo.timeout(FETCH_DEADLINE):
            self._stream = self._watch()


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
