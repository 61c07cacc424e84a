"""Ids of jobs: made by clients, or derived from a text, a series, a schedule or a job that is recovered."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from bson import ObjectId

from taskqueue.model.timestamps import milliseconds

JobId = ObjectId

WORKFLOW_TAG = "workflow:"
"""The prefix of the tag that all members of a workflow have; the id of the first member follows."""

WORKFLOW = "workflow"
"""Where ``given`` of a record keeps the id of its workflow, by which stores find its members."""

ID_TEXT = "id"
"""Where ``given`` of a record keeps the text that the application chose as its id."""

TEXT_LIMIT = 64
"""Maximum number of characters of the text of an id."""

_numbers = itertools.count(int.from_bytes(os.urandom(3), "big") // 2)
_random = (0, b"")
"""The process that has made these three random bytes, which are in its ids between time and number."""


def new_ids() -> Iterator[JobId]:
    """Yield new ids without end, all with the time of the first, in order within this process.

    The time is in units of 1/65,536 s, so that ids of several processes come in the order of their times. Ids of
    ``JobId()`` have whole seconds; jobs never have them. After 16 million ids the count begins again.
    """
    start = _time_and_process()
    for number in _numbers:
        yield JobId(start + (number % 2**24).to_bytes(3, "big"))


def new_id() -> JobId:
    """Return a new id, as ``new_ids`` makes them."""
    return JobId(_time_and_process() + (next(_numbers) % 2**24).to_bytes(3, "big"))


def _time_and_process() -> bytes:
    global _random
    if _random[0] != os.getpid():
        _random = (os.getpid(), os.urandom(3))
    return (int(time.time() * 2**16) % 2**48).to_bytes(6, "big") + _random[1]


def id_of_text(job: str, text: str) -> JobId:
    """Return the id that a text means for jobs of this class path, the same in every process."""
    return JobId(_digest(f"{job}:{text}")[:12])


def id_with_class(written: str) -> JobId | None:
    """Return the id of a text that is written with its class path, ``shop:Invoice:invoice-7``; None for other text."""
    module, _, rest = written.partition(":")
    name, colon, text = rest.partition(":")
    return id_of_text(f"{module}:{name}", text) if colon and module and name and text else None


def without_text(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``given`` without the text, for another job than the one with that id."""
    return {name: value for name, value in given.items() if name != ID_TEXT} if ID_TEXT in given else given


def workflow_of(tags: Iterable[str]) -> JobId | None:
    """Return the id of the workflow that a job with these tags is a member of; None if it is of none."""
    named = (tag.removeprefix(WORKFLOW_TAG) for tag in tags if tag.startswith(WORKFLOW_TAG))
    return next((JobId(name) for name in named if JobId.is_valid(name)), None)


def occurrence_id(series: JobId, occurrence: int) -> JobId:
    """Return the id of an occurrence, the same in every process."""
    return _derived(series.binary[:4], f"series {series} {occurrence}")


def scheduled_id(schedule: str, slot: datetime, what: str = "job") -> JobId:
    """Return the id of the job that a schedule starts for a scheduled time, the same on every node."""
    at = milliseconds(slot)
    return _derived((at // 1000 % 2**32).to_bytes(4, "big"), f"schedule {what} {at} {schedule}")


def copy_id(of: JobId, ended_at: datetime) -> JobId:
    """Return the id of the copy that a query makes of a job that ended then, the same in every process."""
    return _derived((milliseconds(ended_at) // 1000 % 2**32).to_bytes(4, "big"), f"copy {of}")


def _derived(time: bytes, of: str) -> JobId:
    """Return an id that sorts by its time and whose rest follows from the text."""
    return ObjectId(time + _digest(of)[:8])


def _digest(of: str) -> bytes:
    import hashlib  # imported here: it loads a cipher library, and few programs derive ids

    return hashlib.sha256(of.encode(errors="surrogatepass")).digest()  # a shell may pass bytes that are no text
