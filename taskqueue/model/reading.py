"""Reads what is stored: unreadable fields of a record get a default and are named, unreadable entries are skipped."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from taskqueue.model.ids import JobId
from taskqueue.model.record import Cause, Record, Status, is_rank
from taskqueue.model.serializer import clean

log = logging.getLogger(__name__)

Stored = TypeVar("Stored")
Read = TypeVar("Read")

SHOWN = 200
"""Characters of a reason, and of a value that cannot be read."""


class Reading:
    """Reads the fields of one record one by one; unreadable fields get a default and are named."""

    def __init__(self) -> None:
        self._faults: list[str] = []

    def field(self, name: str, read: Callable[[], Read], otherwise: Read) -> Read:
        """Return the result of ``read``, or ``otherwise`` if it fails."""
        try:
            return read()
        except Exception as error:
            self._faults.append(f"{name}: {brief(error)}")
            return otherwise

    @property
    def damage(self) -> str:
        """Return the unreadable fields in words; empty if there are none."""
        return clean(f"cannot be read here: {'; '.join(self._faults)}") if self._faults else ""


def damaged_record(id: JobId, readers: Mapping[str, Callable[[], Any]]) -> Record:
    """Return the record with the fields that can be read, a default for each of the others, and its ``damage``.

    Readable fields are kept because the record is written again before a node takes it, such as when it is released,
    and may be readable on another host.
    """
    default = Record(
        id=id, job="?", created_at=id.generation_time, ready_at=None, status=Status.FAILED, cause=Cause.UNREADABLE
    )
    reading = Reading()
    values = {name: reading.field(name, read, getattr(default, name)) for name, read in readers.items()}
    return replace(default, **values, damage=reading.damage)


def readable(stored: Iterable[Stored], read: Callable[[Stored], Read], what: str) -> Iterator[Read]:
    """Return the readable values; log each unreadable one once and skip it."""
    for value in stored:
        try:
            yield read(value)
        except Exception as error:
            name_once(f"{what} {repr(value)[:SHOWN]}", brief(error))


@functools.lru_cache(maxsize=1000)
def name_once(what: str, reason: str) -> None:
    """Log an unreadable record, once per process."""
    log.error("skipped an unreadable entry, %s: %s", reason, clean(what))


def text(value: Any) -> str:
    """Return the text; raise ``TypeError`` for anything else."""
    if isinstance(value, str):
        return value
    raise _unexpected(value, "text")


def mapping(value: Any) -> dict[str, Any]:
    """Return the mapping in a JSON text; raise ``TypeError`` or ``ValueError`` for anything else."""
    parsed = json.loads(text(value))
    if isinstance(parsed, dict):
        return parsed
    raise _unexpected(parsed, "a mapping")


def number(value: Any) -> int:
    """Return the whole number; raise ``TypeError`` for anything else."""
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
        return int(value)
    raise _unexpected(value, "a whole number")


def figure(value: Any) -> float:
    """Return the number; raise ``TypeError`` for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    raise _unexpected(value, "a number")


def priority(value: Any) -> int:
    """Return the priority; raise ``TypeError`` or ``ValueError`` for anything else."""
    if is_rank(0, number(value)):
        return number(value)
    raise ValueError(f"{value!r} is out of range")


def rank(value: Any) -> int:
    """Return the rank; raise ``TypeError`` or ``ValueError`` for anything else."""
    if is_rank(number(value), 0):
        return number(value)
    raise ValueError(f"{value!r} is out of range")


def or_none(read: Callable[[Any], Read]) -> Callable[[Any], Read | None]:
    """Return a reader that accepts None."""
    return lambda value: None if value is None else read(value)


def brief(error: Exception) -> str:
    """Return the error in a line."""
    said = " ".join(str(error).split())
    said = f"{type(error).__name__}: {said}" if isinstance(error, LookupError) or not said else said
    return said if len(said) <= SHOWN else f"{said[:SHOWN]}…"


def _unexpected(value: Any, expected: str) -> TypeError:
    return TypeError(f"{repr(value)[:SHOWN]} is not {expected}")
