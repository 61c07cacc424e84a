"""Looks up the names of exceptions in a retry policy after a failed run, in the process that has loaded the job."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from taskqueue.model.exception_names import defining_name, known_names
from taskqueue.model.lifecycle.outcomes import Failed, Outcome, TimedOut
from taskqueue.model.record import Failure

log = logging.getLogger(__name__)

UNKNOWN_LIMIT = 20
"""Maximum number of unknown names that are stored with a failure."""


def with_public_names(outcome: Outcome, names: Sequence[str], path: str) -> Outcome:
    """Return the outcome with the names that match its errors, and the names of which this process knows no class.

    ``path`` is the job's path, for the warning about names that no loaded module has.
    """
    if not isinstance(outcome, Failed | TimedOut):
        return outcome
    defined = {name: defining_name(name) for name in names}
    parts = outcome.parts if isinstance(outcome, Failed) else ()
    error_names = {name for failure in (outcome.failure, *parts) for name in _names(failure)}
    unknown = tuple(name for name, defining in defined.items() if defining is None and name not in error_names)
    for name in unknown:
        _warn(path, name)
    failure = replace(_named(outcome.failure, defined), unknown_names=unknown[:UNKNOWN_LIMIT])
    if isinstance(outcome, TimedOut):
        return replace(outcome, failure=failure)
    return replace(outcome, failure=failure, parts=tuple(_named(part, defined) for part in parts))


def _named(failure: Failure, defined: dict[str, str | None]) -> Failure:
    """Return the failure with more names among its bases: those under which other modules have its classes."""
    names = _names(failure)
    others = tuple(name for name, defining in defined.items() if defining in names and name not in names)
    return replace(failure, bases=(*failure.bases, *others))


def _names(failure: Failure) -> set[str]:
    return set(known_names((failure.type, *failure.bases)))


@lru_cache(1000)
def _warn(path: str, name: str) -> None:
    """Warn about each name only once: it is looked up after every failure."""
    log.warning(
        "the retry policy of %s names %s, which is not an exception class in any loaded module: "
        "check the name, or import its module in the job's module",
        path,
        name,
    )
