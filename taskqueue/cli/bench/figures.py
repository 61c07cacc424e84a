"""What measurements find: samples of one round, and the figures that several rounds make of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SHARES = (50, 95, 99)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One number that one round of a workload gave."""

    name: str
    unit: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Figure:
    """The same number of all rounds."""

    workload: str
    name: str
    unit: str
    values: Sequence[float]

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.values)

    def document(self) -> Mapping[str, Any]:
        """Return it for programs, with the raw numbers."""
        return {
            "workload": self.workload,
            "name": self.name,
            "unit": self.unit,
            "median": round(self.median, 6),
            "values": [round(value, 6) for value in self.values],
        }


def percentiles(name: str, seconds: Sequence[float], shares: Sequence[int] = SHARES) -> list[Sample]:
    """Return the percentiles of durations, in milliseconds."""
    return [
        Sample(name=f"{name}, p{share}", unit="ms", value=percentile(seconds, share / 100) * 1000) for share in shares
    ]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which the share of all values lies, interpolated between two of them."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def over_rounds(rounds: Iterable[tuple[str, Sample]]) -> list[Figure]:
    """Return what the samples of all rounds say, each with the workload it is of, in the order of the first round."""
    gathered: dict[tuple[str, str, str], list[float]] = {}
    for workload, sample in rounds:
        gathered.setdefault((workload, sample.name, sample.unit), []).append(sample.value)
    return [
        Figure(workload=workload, name=name, unit=unit, values=tuple(values))
        for (workload, name, unit), values in gathered.items()
    ]
