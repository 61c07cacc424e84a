"""How figures are told: a table for people, a document for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taskqueue.cli import terminal, words
from taskqueue.cli.bench import durability
from taskqueue.cli.bench.figures import Figure


def document(
    settings: Mapping[str, Any],
    hardware: Mapping[str, Any],
    durability_block: Mapping[str, Any],
    figures: Sequence[Figure],
) -> Mapping[str, Any]:
    """Return everything for programs; times are in the unit of each figure."""
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
            ("machine", f"{machine['processor']}, {machine['cores']} cores, {words.size(machine['memory'])}"),
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
    terminal.heading(f"{words.count(repeat, 'round')}, {document['settings']['jobs']:,} jobs to drain")
    terminal.table(columns, [_row(figure, repeat) for figure in figures])


def split(figures: Sequence[Figure]) -> tuple[list[Figure], list[Figure]]:
    """Return the figures of durability, and those of the workloads."""
    durable = [figure for figure in figures if figure.workload == durability.NAME]
    return durable, [figure for figure in figures if figure.workload != durability.NAME]


def written(value: float) -> str:
    """Return the number with three figures that matter."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _row(figure: Figure, repeat: int) -> list[str]:
    row = [figure.workload, figure.name, written(figure.median), figure.unit]
    return [*row, written(min(figure.values)), written(max(figure.values))] if repeat > 1 else row
