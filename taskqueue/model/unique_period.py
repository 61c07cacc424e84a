"""The unique keys of ``add_job_once``, and the period of a key (``unique_for``).

For the period the key stays taken, even after its job has ended. It is kept in ``given`` of the record, under one name;
no two records of a store have one key there.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from taskqueue.model.record import Record, Status, changed
from taskqueue.model.serializer import canonical
from taskqueue.model.timestamps import milliseconds, moment

PERIOD = "unique_period"
"""Where ``given`` has the key, and the end of its period in milliseconds since 1970."""

KEY = f"{PERIOD}.key"
END = f"{PERIOD}.until"


def period(key: str, seconds: float, starts_at: datetime) -> Mapping[str, Any]:
    """Return the period of a job that starts at this time."""
    return {"key": key, "until": milliseconds(starts_at) + round(seconds * 1000)}


def key_of(record: Record) -> str | None:
    """Return the key that the record keeps taken for its period; None if it has no period, or gave its key up."""
    period_of_key = record.given.get(PERIOD) if record.given and record.unique is not None else None
    return None if period_of_key is None else str(period_of_key["key"])


def end_of(record: Record) -> datetime | None:
    """Return when the period of the record's key ends; None if there is none."""
    period_of_key = record.given.get(PERIOD)
    return None if period_of_key is None else moment(period_of_key["until"])


def keeps_out(kept: Record, new: Record) -> bool:
    """Return whether the record has its key for longer than until the new one starts.

    A job that ended without success gives its key up.
    """
    ends_at = end_of(kept)
    if ends_at is None or kept.status in (Status.FAILED, Status.CANCELED, Status.TIMEOUT):
        return False
    return ends_at > starts_at(new)


def starts_at(record: Record) -> datetime:
    """Return when a new record may start; a record that is added as claimed starts at once."""
    if record.ready_at is None or record.status is Status.PROCESSING:
        return record.created_at
    return max(record.ready_at, record.created_at)


def without(record: Record) -> Record:
    """Return the record without a period."""
    if PERIOD not in record.given:
        return record
    return changed(record, given={name: value for name, value in record.given.items() if name != PERIOD})


FEW = 100
"""How many jobs of a class without such a key a store caches; if more are pending, it reads all each time."""

_PREFIX = "once:"


def of_class(job: str) -> str:
    """Return the key that all jobs of the class share."""
    return f"{_PREFIX}{job}"


def of_data(job: str, data: str) -> str:
    """Return the key of a job with these data."""
    import hashlib  # it loads a cipher library, which few programs need

    return f"{_PREFIX}{job}:{hashlib.sha256(canonical(data).encode()).hexdigest()[:32]}"


def range_of(job: str) -> tuple[str, str]:
    """Return the texts between which the keys of all data of the class are."""
    return f"{_PREFIX}{job}:", f"{_PREFIX}{job};"


def is_of(job: str, key: object) -> bool:
    """Return whether this is a key of the class, with or without data."""
    first, last = range_of(job)
    return isinstance(key, str) and (key == of_class(job) or first < key < last)
