"""Figures of the measurements: samples of one round, medians of several, as a table for people or a document."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taskqueue.cli import terminal
from taskqueue.model.wording import count, size

SHARES = (50, 95, 99)

DURABILITY = "durability"
"""Stands for a workload in figures of single writes, which are measured first."""


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
    position = (len(ordered) - 1) * share
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def over_rounds(rounds: Iterable[tuple[str, Sample]]) -> list[Figure]:
    """Return the figures of the samples of all rounds, each with its workload, in the order of the first round."""
    gathered: dict[tuple[str, str, str], list[float]] = {}
    for workload, sample in rounds:
        gathered.setdefault((workload, sample.name, sample.unit), []).append(sample.value)
    return [
        Figure(workload=workload, name=name, unit=unit, values=tuple(values))
        for (workload, name, unit), values in gathered.items()
    ]


def document(
    settings: Mapping[str, Any],
    hardware: Mapping[str, Any],
    durability_block: Mapping[str, Any],
    figures: Sequence[Figure],
) -> Mapping[str, Any]:
    """Return everything for programs; each figure names its unit."""
    return {
        "settings": settings,
        "hardware": hardware,
        "durability": durability_block,
        "figures": [figure.document() for figure in figures],
    }


def show(document: Mapping[str, Any], figures: Sequence[Figure]) -> None:
    """Print hardware, durability and a table with a line for each figure."""
    machine, durable = document["hardware"], document["durability"]
    terminal.facts(
        [
            ("machine", f"{machine['processor']}, {machine['cores']} cores, {size(machine['memory'])}"),
            ("system", f"Linux {machine['kernel']}, Python {machine['python']}, SQLite {machine['sqlite']}"),
            ("load", f"{machine['load']:g} before the first measurement"),
            ("taskqueue", machine["taskqueue"]),
            ("guarantee", durable["guarantee"]),
            *([("filesystem", durable["filesystem"])] if "filesystem" in durable else []),
            *((write["name"], f"{written(write['median'])} {write['unit']}") for write in durable["writes"]),
        ]
    )
    repeat = document["settings"]["repeat"]
    columns = [
        terminal.Column(head="", side="left"),
        terminal.Column(head="figure", cut="end"),
        terminal.Column(head="median" if repeat > 1 else "found", side="right"),
        terminal.Column(head="unit"),
    ]
    if repeat > 1:
        columns += [terminal.Column(head="least", side="right"), terminal.Column(head="most", side="right")]
    terminal.heading(f"{count(repeat, 'round')}, {document['settings']['jobs']:,} jobs to drain")
    terminal.table(columns, [_row(figure, repeat) for figure in figures])


def split(figures: Sequence[Figure]) -> tuple[list[Figure], list[Figure]]:
    """Return the figures of durability, and those of the workloads."""
    durable = [figure for figure in figures if figure.workload == DURABILITY]
    return durable, [figure for figure in figures if figure.workload != DURABILITY]


def written(value: float) -> str:
    """Return the number with three figures that matter."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _row(figure: Figure, repeat: int) -> list[str]:
    row = [figure.workload, figure.name, written(figure.median), figure.unit]
    return [*row, written(min(figure.values)), written(max(figure.values))] if repeat > 1 else row
