"""Divides threads, connections and the event loop among users: each has a share, so that none delays the others."""

from __future__ import annotations

import asyncio
import atexit
import ipaddress
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.web.problems import Problem

R = TypeVar("R")

MOST_CONNECTIONS = 8
"""Maximum number of separate connections; further users share the connection of the dashboard."""

RETRY_AFTER = {"retry-after": "1"}
"""Tells a client that was refused when its next request has a chance."""


@dataclass
class _Share:
    """The calls of one key."""

    running: int = 0
    waiting: deque[tuple[Future[Any], Callable[[], Any]]] = field(default_factory=deque)


class SharedThreads:
    """A few threads; each key has ``share`` of them at once, and the calls beyond these wait in turn."""

    def __init__(self, name: str, threads: int, share: int, most: int, most_in_all: int | None = None) -> None:
        """``most`` calls of a key run and wait at once, ``most_in_all`` of all keys; others are refused."""
        self._name, self._number = name, threads
        self._share, self._most, self._most_in_all = share, most, most_in_all
        self._lock = threading.Lock()
        self._shares: dict[str, _Share] = {}
        self._threads = self._new_threads()

    def submit(self, key: str, call: Callable[[], R]) -> Future[R] | None:
        """Return the future of a call; None if the key, or all keys together, have too many."""
        future: Future[R] = Future()
        with self._lock:
            in_all = sum(share.running + len(share.waiting) for share in self._shares.values())
            if self._most_in_all is not None and in_all >= self._most_in_all:
                return None
            share = self._shares.setdefault(key, _Share())
            if share.running + len(share.waiting) >= self._most:
                return None
            share.waiting.append((future, call))
            self._start(key, share)
        return future

    def end(self) -> None:
        """End each thread after its call; later calls have others."""
        with self._lock:
            threads, self._threads = self._threads, self._new_threads()
        threads.shutdown(wait=False)

    def _new_threads(self) -> ThreadPoolExecutor:
        """Return the threads, none of which exists before the first call."""
        return ThreadPoolExecutor(self._number, thread_name_prefix=self._name)

    def _start(self, key: str, share: _Share) -> None:
        """Start the call that has waited longest if the share allows it; forget a share without calls."""
        if share.waiting and share.running < self._share:
            share.running += 1
            self._threads.submit(self._run, key, share, *share.waiting.popleft())
        elif not share.running:
            del self._shares[key]

    def _run(self, key: str, share: _Share, future: Future[Any], call: Callable[[], Any]) -> None:
        """Make a call, unless its caller has stopped waiting; it takes its share until it has ended."""
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:  # as an executor does: it belongs to the caller
                future.set_exception(error)
        with self._lock:
            share.running -= 1
            self._start(key, share)


def network_of(address: str) -> str:
    """Return the owner of an address's share: the address, or its /64 network for IPv6, which one host owns."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))


def too_many_requests(detail: str) -> Problem:
    """Return the refusal of a request beyond a share."""
    return Problem("too-many-requests", detail, RETRY_AFTER)


@dataclass
class _Lent:
    """The connection of a user, and how many calls use it."""

    scheduler: Scheduler
    calls: int = 0


class UserConnections:
    """Schedulers on the store of one dashboard; threads may share it."""

    def __init__(self, scheduler: Scheduler) -> None:
        """``scheduler`` belongs to the dashboard and is never closed here."""
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._lent: dict[str, _Lent] = {}
        self._idle: list[Scheduler] = []
        self._is_ended = False
        self._at_exit = partial(_end_at_exit, weakref.ref(self))
        atexit.register(self._at_exit)

    @contextmanager
    def of(self, user: str) -> Iterator[Scheduler]:
        """Yield the scheduler of a user; concurrent calls of a user have the same one."""
        with self._lock:
            lent = self._lent.get(user)
            if lent is None:
                lent = self._lent[user] = _Lent(self._next())
            lent.calls += 1
        try:
            yield lent.scheduler
        finally:
            with self._lock:
                lent.calls -= 1
                if not lent.calls:
                    del self._lent[user]
                    self._give_back(lent.scheduler)

    def end(self) -> None:
        """Close idle connections now, and each other one after its last call."""
        with self._lock:
            self._is_ended = True
            idle, self._idle = self._idle, []
        for scheduler in idle:
            scheduler.close()
        atexit.unregister(self._at_exit)

    def _next(self) -> Scheduler:
        """Return an idle or new connection, or the dashboard's if too many are open."""
        if self._idle:
            return self._idle.pop()
        used = sum(lent.scheduler is not self._scheduler for lent in self._lent.values())
        return self._scheduler if used >= MOST_CONNECTIONS else copy(self._scheduler)

    def _give_back(self, scheduler: Scheduler) -> None:
        if scheduler is self._scheduler:
            return
        if self._is_ended:
            scheduler.close()
        else:
            self._idle.append(scheduler)


def _end_at_exit(reference: weakref.ReferenceType[UserConnections]) -> None:
    """Close the connections of a dashboard that is still running when the process exits, as it is within a site."""
    if connections := reference():
        connections.end()


class FairTurns:
    """Makes calls in the event loop, one of each key in a pass of it: many calls of a key delay only this key."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Callable[[], object]]] = {}

    def call(self, key: str, call: Callable[[], object]) -> None:
        """Make the call in the next free turn of the key."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._take)
        self._waiting.setdefault(key, deque()).append(call)

    async def turn(self, key: str) -> None:
        """Return in the next free turn of the key."""
        reached = asyncio.get_running_loop().create_future()
        self.call(key, lambda: None if reached.done() else reached.set_result(None))
        await reached

    def _take(self) -> None:
        """Make the first call of each key, and those after them in the next passes."""
        loop = asyncio.get_running_loop()
        for key, calls in [*self._waiting.items()]:
            loop.call_soon(calls.popleft())  # each on its own: an error of one is none of the others
            if not calls:
                del self._waiting[key]
        if self._waiting:
            loop.call_soon(self._take)
