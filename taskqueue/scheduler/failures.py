"""The failures of a time, grouped by class and error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol


class Ended(Protocol):
    """How many jobs of a class ended in a part of the time, such as a ``HistoryEntry``."""

    @property
    def at(self) -> datetime:
        """Return when the part began."""

    @property
    def job(self) -> str:
        """Return the import path of the class."""

    @property
    def ended(self) -> int:
        """Return how many ended in all."""

    @property
    def failed(self) -> int:
        """Return how many ended as FAILED."""

    @property
    def timeout(self) -> int:
        """Return how many ended as TIMEOUT."""

    @property
    def errors(self) -> Mapping[str, int]:
        """Return how many ended by an error of each class."""


class EndedJobs(NamedTuple):
    """The same as plain values."""

    at: datetime
    job: str
    ended: int
    failed: int
    timeout: int
    errors: Mapping[str, int]


@dataclass(kw_only=True)
class Failures:
    """The jobs of one class that failed by one error."""

    job: str
    error: str
    """The class of the error, as a dotted name; empty for those without one."""
    ended: int = 0
    """How many jobs of the class have ended in all."""
    numbers: dict[datetime, int] = field(default_factory=dict)
    """How many failed in each part of the time."""

    @property
    def number(self) -> int:
        """Return how many failed."""
        return sum(self.numbers.values())

    @property
    def first_at(self) -> datetime:
        """Return the part of the time of the first one."""
        return min(self.numbers)

    @property
    def last_at(self) -> datetime:
        """Return the part of the time of the last one."""
        return max(self.numbers)


def failures_of(parts: Iterable[Ended]) -> list[Failures]:
    """Return the failures of these parts of the time, the most frequent first."""
    ended: dict[str, int] = {}
    found: dict[tuple[str, str], Failures] = {}
    for part in parts:
        ended[part.job] = ended.get(part.job, 0) + part.ended
        without = part.failed + part.timeout - sum(part.errors.values())
        for error, number in ({**part.errors, "": without} if without > 0 else part.errors).items():
            group = found.get((part.job, error))
            if group is None:
                group = found[part.job, error] = Failures(job=part.job, error=error)
            group.numbers[part.at] = group.numbers.get(part.at, 0) + number
    for group in found.values():
        group.ended = ended[group.job]
    return sorted(found.values(), key=lambda one: (-one.number, one.job, one.error))
