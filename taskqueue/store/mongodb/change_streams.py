"""The change streams that ring bells; one for all that a node listens to, as each costs the server at every write."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import pymongo
from pymongo.change_stream import ChangeStream
from pymongo.errors import PyMongoError

from taskqueue.model.record import Status
from taskqueue.store import CONTROLS, ENDS, NEWS, PLANS, STOPS, WORK
from taskqueue.store.mongodb.bells import POLL, SURE, StreamBell
from taskqueue.store.mongodb.connection import Connection, begins_anew
from taskqueue.store.mongodb.documents import Document

log = logging.getLogger(__name__)

Change: TypeAlias = Mapping[str, Any]
Stream: TypeAlias = ChangeStream[Document]

FETCH = 0.5
"""Seconds for which one fetch of the change stream waits on the server, which nothing can interrupt."""

GLANCE = 0.001
"""Seconds for which a fetch waits while its listeners rest."""

LATE = 0.05
"""Seconds by which a ring comes late at most to a listener with its hands full."""

FETCH_DEADLINE = 10.0
PAUSES = (0.1, 5.0)
"""The first and the longest pause before a broken change stream is opened again, in seconds."""

TOGETHER = (WORK, STOPS, PLANS, CONTROLS)
"""What a node listens to, through one change stream."""

_FREED = "updateDescription.updatedFields.freed"
_CANCEL = "updateDescription.updatedFields.cancel"
_READY = {"$in": [int(Status.WAITING), int(Status.POSTPONED)]}
_TO_DO: Document = {
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
"""What of jobs rings. Kinds are told apart, because the server cannot look for ``fullDocument`` of an update in its
log: it would build the event of every update to see that it has none."""
_TAKEN: Document = {"$or": [{"operationType": "insert"}, {"updateDescription.updatedFields.holder": {"$exists": True}}]}
"""What of leases rings: those that were taken, not those that were renewed."""
_TOLD: dict[str, Document] = {
    NEWS: {"operationType": "insert"},
    ENDS: {
        "operationType": "insert",
        "$or": [
            {"fullDocument.events.status": {"$gt": int(Status.PROCESSING)}},
            {"fullDocument.flushed": True},
        ],
    },
}


class ChangeStreams:
    """Opens bells, each with a change stream of its own or together with others of this process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._together: Source | None = None
        self._inherited: list[object] = []
        begins_anew(self)

    def bell(self, topic: str) -> StreamBell:
        """Return a bell of the topic that the server rings."""
        bell = StreamBell(topic)
        try:
            if topic in TOGETHER:
                self._listen_together(bell)
            else:
                Source(lambda: self._told(topic), lambda _: topic).admit(bell)
        except BaseException:
            bell.close()
            raise
        return bell

    def begin_anew(self) -> None:
        """Listen through streams of this process; the parent's is only kept from being collected."""
        self._inherited.append(self._together)
        self._lock, self._together = threading.Lock(), None

    def _listen_together(self, bell: StreamBell) -> None:
        with self._lock:
            if self._together is None or not self._together.admit(bell):
                self._together = Source(self._to_do, self._topic)
                self._together.admit(bell)

    def _told(self, topic: str) -> Stream:
        events = self._connection.collections.events
        return events.watch([{"$match": _TOLD[topic]}, {"$project": {"_id": True}}], max_await_time_ms=_ms(FETCH))

    def _to_do(self) -> Stream:
        collections = self._connection.collections
        others = {"ns.coll": {"$in": [collections.plans.name, collections.controls.name]}}
        taken = {"ns.coll": collections.leases.name, **_TAKEN}
        stages: list[Document] = [
            {"$match": {"$or": [{"ns.coll": collections.jobs.name, **_TO_DO}, others, taken]}},
            {"$project": {"_id": True, "ns.coll": True, _FREED: True, f"{_CANCEL}.requested_at": True}},
        ]
        return self._connection.database.watch(stages, max_await_time_ms=_ms(FETCH))

    def _topic(self, change: Change) -> str:
        collections = self._connection.collections
        decided = (collections.controls.name, collections.leases.name)
        own = {collections.plans.name: PLANS, **dict.fromkeys(decided, CONTROLS)}
        return own.get(change["ns"]["coll"], STOPS if "cancel" in _updated(change) else WORK)


class Source:
    """One change stream, and the thread that rings its bells until the last of them is closed.

    A server on which a fetch waits looks at every single write for it. So while a node has its hands full, it fetches
    a few times a second instead, and the server goes through what was written since at once.
    """

    def __init__(self, watch: Callable[[], Stream], topic_of: Callable[[Change], str]) -> None:
        self._watch = watch
        self._topic_of = topic_of
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._hurried = threading.Event()
        self._bells: list[StreamBell] = []
        self._pause = SURE
        self._stream = watch()
        self._thread = threading.Thread(target=self._listen, name="taskqueue-bell", daemon=True)

    def admit(self, bell: StreamBell) -> bool:
        """Ring this bell, too, from now on; False if the last bell was closed."""
        with self._lock:
            if self._ended.is_set():
                return False
            bell.belongs_to(self._thread, self._dismiss, self._hurried.set)
            bell.pause = self._pause
            self._bells.append(bell)
            if not self._thread.is_alive():
                self._thread.start()
            return True

    def _dismiss(self, bell: StreamBell) -> None:
        with self._lock:
            if bell in self._bells:
                self._bells.remove(bell)
            if not self._bells:
                self._ended.set()
                self._hurried.set()
            else:
                bell.leave()

    def _listen(self) -> None:
        self._ring_until_closed()
        with contextlib.suppress(PyMongoError), pymongo.timeout(POLL):
            self._stream.close()

    def _ring_until_closed(self) -> None:
        change = None
        while not self._ended.is_set():
            self._hurried.clear()
            rests = self._listeners_rest()
            if rests and change is None:
                self._hurried.wait(LATE)
            self._wait_for(GLANCE if rests else FETCH)
            try:
                with pymongo.timeout(FETCH_DEADLINE):
                    change = self._stream.try_next()
                if change is not None:
                    self._ring(change)
                elif not self._stream.alive:
                    self._reopen("its collection was dropped")
            except PyMongoError as error:
                self._reopen(error)

    def _wait_for(self, seconds: float) -> None:
        """Set for how long the next fetch waits on the server."""
        # What is public fixes that for the whole stream; another stream would cost more than it spares.
        self._stream._cursor._max_await_time_ms = _ms(seconds)  # noqa: SLF001

    def _listeners_rest(self) -> bool:
        with self._lock:
            return any(bell.rests for bell in self._bells)

    def _ring(self, change: Change) -> None:
        topic = self._topic_of(change)
        news = 0 if "freed" in _updated(change) else 1
        with self._lock:
            for bell in self._bells:
                if bell.topic == topic:
                    bell.ring(news)

    def _reopen(self, reason: object) -> None:
        """Listen again from now on, and ring once for whatever came in between."""
        log.warning("the change stream broke, listeners look every %g s until it is back: %s", POLL, reason)
        self._set_pause(POLL)
        for pause in _pauses():
            if self._ended.wait(pause):
                return
            with contextlib.suppress(PyMongoError), pymongo.timeout(FETCH_DEADLINE):
                self._stream = self._watch()
                break
        with self._lock:
            for bell in self._bells:
                bell.ring(1)
        self._set_pause(SURE)
        log.info("the change stream is back")

    def _set_pause(self, pause: float) -> None:
        with self._lock:
            self._pause = pause
            for bell in self._bells:
                bell.pause = pause


def _updated(change: Change) -> Change:
    """Return the fields that the change has set, as far as they are told."""
    updated: Change = change.get("updateDescription", {}).get("updatedFields", {})
    return updated


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _pauses() -> Iterator[float]:
    """Return growing pauses, jittered so that not everybody comes back at once."""
    pause, longest = PAUSES
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(pause * 2, longest)
