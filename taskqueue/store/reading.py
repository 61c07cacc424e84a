"""Reads stored records one by one: logs unreadable ones and skips them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from taskqueue.model.reading import SHOWN, brief
from taskqueue.model.serializer import clean

log = logging.getLogger(__name__)

Kept = TypeVar("Kept")
Read = TypeVar("Read")


def readable(kept: Iterable[Kept], read: Callable[[Kept], Read], what: str) -> Iterator[Read]:
    """Return the readable values; log each unreadable one once and skip it."""
    for value in kept:
        try:
            yield read(value)
        except Exception as error:
            name_once(f"{what} {repr(value)[:SHOWN]}", brief(error))


@functools.lru_cache(maxsize=1000)
def name_once(what: str, reason: str) -> None:
    """Log an unreadable record, once per process."""
    log.error("skipped an unreadable entry, %s: %s", reason, clean(what))
