"""What wakes a listener: a change stream that the server filters, or, without a replica set, the clock alone."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import pymongo
from pymongo.change_stream import CollectionChangeStream
from pymongo.errors import PyMongoError

from taskqueue.model.record import Status
from taskqueue.store import CONTROLS, ENDS, NEWS, PLANS, STOPS, WORK
from taskqueue.store.mongodb.connection import Collections
from taskqueue.store.mongodb.documents import Document

log = logging.getLogger(__name__)

Stream: TypeAlias = CollectionChangeStream[Document]

SURE = 5.0
"""Seconds after which a listener looks without a ring while a change stream is open."""

POLL = 1.0
"""Seconds after which a listener looks when nothing rings."""

FETCH = 0.5
"""Seconds for which one fetch of the change stream waits on the server, which nothing can interrupt."""

FETCH_DEADLINE = 10.0
PAUSES = (0.1, 5.0)
"""The first and the longest pause before a broken change stream is opened again, in seconds."""

_FREED = "updateDescription.updatedFields.freed"
_READY = {"$in": [int(Status.WAITING), int(Status.POSTPONED)]}
_WATCHED: dict[str, Document] = {
    WORK: {
        "$or": [
            {"fullDocument.status": _READY},
            {"updateDescription.updatedFields.status": _READY},
            {"updateDescription.updatedFields.rank": {"$exists": True}},
            {"updateDescription.updatedFields.queue": {"$exists": True}},
            {_FREED: {"$exists": True}},
        ]
    },
    STOPS: {"updateDescription.updatedFields.cancel": {"$exists": True}},
    NEWS: {"operationType": "insert"},
    ENDS: {"operationType": "insert", "fullDocument.events.status": {"$gt": int(Status.PROCESSING)}},
    PLANS: {},
    CONTROLS: {},
}


class PollBell:
    """A descriptor that never becomes readable: its listener looks each second."""

    def __init__(self) -> None:
        self.pause = POLL
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._descriptor

    def clear(self) -> None:
        """Take all rings that have come."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def close(self) -> None:
        """Listen no more."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def join(self, timeout: float) -> None:
        """Wait until nothing is left of a closed bell, so many seconds at most."""

    @property
    def is_over(self) -> bool:
        """Tell whether the bell was closed and nothing is left of it."""
        return self._descriptor < 0


class StreamBell(PollBell):
    """A descriptor that a thread makes readable whenever the change stream brings something."""

    def __init__(self, watch: Callable[[], Stream]) -> None:
        super().__init__()
        self._watch = watch
        self._changes = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        try:
            self._stream = watch()
        except BaseException:
            super().close()
            raise
        self.pause = SURE
        self._thread = threading.Thread(target=self._listen, name="taskqueue-bell", daemon=True)
        self._thread.start()

    @property
    def changes(self) -> int | None:
        """Return a number that stays the same while nothing new waits; None where nobody listens just now.

        A place under a limit that has become free is no job that is new.
        """
        return self._changes if self.pause == SURE and not self.is_over else None

    def close(self) -> None:
        """Listen no more; the thread ends with the fetch under way."""
        self._ended.set()
        with self._lock:
            super().close()

    def join(self, timeout: float) -> None:
        """Wait until the thread of a closed bell has ended, so many seconds at most."""
        self._thread.join(timeout)

    @property
    def is_over(self) -> bool:
        """Tell whether the bell was closed and its thread has ended."""
        return super().is_over and not self._thread.is_alive()

    def _listen(self) -> None:
        self._ring_until_closed()
        with contextlib.suppress(PyMongoError), pymongo.timeout(POLL):
            self._stream.close()

    def _ring_until_closed(self) -> None:
        while not self._ended.is_set():
            try:
                with pymongo.timeout(FETCH_DEADLINE):
                    change = self._stream.try_next()
                if change is not None:
                    self._changes += not _is_freed(change)
                    self._ring()
                elif not self._stream.alive:
                    self._reopen("its collection was dropped")
            except PyMongoError as error:
                self._reopen(error)

    def _reopen(self, reason: object) -> None:
        """Listen again from now on, and ring once for whatever came in between."""
        log.warning("the change stream broke, listeners look every %g s until it is back: %s", POLL, reason)
        self.pause = POLL
        for pause in _pauses():
            if self._ended.wait(pause):
                return
            with contextlib.suppress(PyMongoError), pymongo.timeout(FETCH_DEADLINE):
                self._stream = self._watch()
                break
        self._changes += 1
        self.pause = SURE
        self._ring()
        log.info("the change stream is back")

    def _ring(self) -> None:
        with self._lock:
            if not self._ended.is_set():
                os.eventfd_write(self._descriptor, 1)


def ring_for(topic: str, collections: Collections) -> StreamBell:
    """Return a bell of the topic that the server rings."""
    own = {NEWS: collections.events, ENDS: collections.events, PLANS: collections.plans, CONTROLS: collections.controls}
    collection = own.get(topic, collections.jobs)
    stages: list[Document] = [{"$match": _WATCHED[topic]}, {"$project": {"_id": True, _FREED: True}}]

    def watch() -> Stream:
        return collection.watch(stages, max_await_time_ms=int(FETCH * 1000))

    return StreamBell(watch)


def _is_freed(change: Mapping[str, Any]) -> bool:
    """Tell whether the change is only that a place under a limit is free."""
    return bool(change.get("updateDescription", {}).get("updatedFields"))


def _pauses() -> Iterator[float]:
    """Return growing pauses, jittered so that not everybody comes back at once."""
    pause, longest = PAUSES
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(pause * 2, longest)
