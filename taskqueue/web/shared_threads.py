"""Threads that several users share: each user has a part of them, so calls that hang do not delay other users."""

from __future__ import annotations

import ipaddress
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from taskqueue.web.problems import Problem

R = TypeVar("R")

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
