"""Rings bells from change streams; a node shares one, as each costs the server at every write."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

import pymongo
from pymongo.change_stream import ChangeStream, DatabaseChangeStream
from pymongo.errors import PyMongoError

from taskqueue.store.bell import CONTROLS, ENDS, PLANS, STOPS, WORK
from taskqueue.store.mongodb.bells import POLL_PAUSE, STREAM_PAUSE, StreamBell
from taskqueue.store.mongodb.connection import ACKNOWLEDGED, Connection, resets_after_fork
from taskqueue.store.mongodb.documents import Document
from taskqueue.store.mongodb.host_bells import EndsBell, HostBells
from taskqueue.store.mongodb.migration import SCHEMA
from taskqueue.store.mongodb.ringing_changes import Change, event_stages, node_stages, node_topic, ring_of

log = logging.getLogger(__name__)

Stream: TypeAlias = ChangeStream[Document]

FETCH = 0.5
"""Seconds for which one fetch of the change stream waits on the server."""

LONGEST_FETCH = 5.0
"""Seconds for which it waits when nothing has changed for four times as long."""

ENDS_WITHIN = 0.25
"""Seconds within which the server hears that a fetch is to end, or its end is waited for."""

GLANCE = 0.001
"""Seconds for which a fetch waits while its listeners are saturated."""

LATE = 0.05
"""Seconds by which a ring of a saturated listener is delayed at most."""

FETCH_DEADLINE = 10.0
"""Seconds after which a fetch, or the attempt to open the stream again, has failed."""

PAUSES = (0.1, 5.0)
"""The first and the longest pause before a broken change stream is opened again, in seconds."""

NODE_TOPICS = (WORK, STOPS, PLANS, CONTROLS)
"""The topics of a node, which share one change stream."""

_WHOLE_DATABASE = "$cmd.aggregate"
"""The name that a server gives the collection of a cursor that watches a database."""


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
        """Listen through streams of this process; keep the parent's from being collected."""
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

    A server on which a fetch waits looks at every single write for it. So a saturated node fetches
    a few times a second instead, and the server goes through what was written since at once.
    """

    def __init__(self, connection: Connection, watch: Callable[[], Stream], topic_of: Callable[[Change], str]) -> None:
        self._connection = connection
        self._watch = watch
        self._topic_of = topic_of
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._hurried = threading.Event()
        self._bells: list[StreamBell] = []
        self._pause = STREAM_PAUSE
        self._stream = watch()
        self._thread = threading.Thread(target=self._listen, name="taskqueue-bell", daemon=True)

    def admit(self, bell: StreamBell) -> bool:
        """Ring this bell, too, from now on; return False if the last bell was closed."""
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
            if bell not in self._bells:
                return
            self._bells.remove(bell)
            if self._bells:
                bell.leave()
                return
            self._ended.set()
            self._hurried.set()
        if self._thread.is_alive():  # not in a forked child, whose cursor it is not
            self._interrupt()

    def _interrupt(self) -> None:
        """End a fetch under way: the server is told to forget the cursor, which it heeds at the next write of all."""
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
        while not self._ended.is_set():
            self._hurried.clear()
            rests = self._listeners_rest()
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
                if not self._ended.is_set():
                    self._reopen(error)

    def _wait_for(self, seconds: float) -> None:
        """Set how long the next fetch waits on the server."""
        # The public option fixes that for the whole stream; a second stream would cost more than it saves.
        self._stream._cursor._max_await_time_ms = _ms(seconds)  # noqa: SLF001

    def _listeners_rest(self) -> bool:
        with self._lock:
            return any(bell.rests for bell in self._bells)

    def _ring(self, change: Change) -> None:
        topic, ring = self._topic_of(change), ring_of(change)
        with self._lock:
            for bell in self._bells:
                if bell.topic == topic:
                    bell.ring(*ring)

    def _reopen(self, reason: object) -> None:
        """Listen again from now on, and ring for all changes in between; ring before, too, for the shorter pause."""
        log.warning("the change stream broke, listeners look every %g s until it is back: %s", POLL_PAUSE, reason)
        self._set_pause(POLL_PAUSE)
        self._ring_all()
        for pause in _pauses():
            if self._ended.wait(pause):
                return
            with contextlib.suppress(PyMongoError), pymongo.timeout(FETCH_DEADLINE):
                self._stream = self._watch()
                break
        self._set_pause(STREAM_PAUSE)
        self._ring_all()
        log.info("the change stream is back")

    def _ring_all(self) -> None:
        with self._lock:
            for bell in self._bells:
                bell.ring(1)

    def _set_pause(self, pause: float) -> None:
        with self._lock:
            self._pause = pause
            for bell in self._bells:
                bell.pause = pause


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _pauses() -> Iterator[float]:
    """Return growing pauses, jittered so that listeners do not return at once."""
    pause, longest = PAUSES
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(pause * 2, longest)
