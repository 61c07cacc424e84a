"""The unique keys of ``add_job_once``: one for a class, and one for each data of the class."""

from __future__ import annotations

from taskqueue.model.serializer import canonical

FEW = 100
"""How many jobs of a class without such a key a store caches; if more are pending, it reads all each time."""

_PREFIX = "once:"


def of_class(job: str) -> str:
    """Return the key that all jobs of the class share."""
    return f"{_PREFIX}{job}"


def of_data(job: str, data: str) -> str:
    """Return the key of a job with these data."""
    import hashlib  # it loads a library for ciphers; a program that adds each job once does not need it

    return f"{_PREFIX}{job}:{hashlib.sha256(canonical(data).encode()).hexdigest()[:32]}"


def range_of(job: str) -> tuple[str, str]:
    """Return the texts between which the keys of all data of the class are."""
    return f"{_PREFIX}{job}:", f"{_PREFIX}{job};"


def is_of(job: str, key: object) -> bool:
    """Return whether this is a key of the class, with or without data."""
    first, last = range_of(job)
    return isinstance(key, str) and (key == of_class(job) or first < key < last)
