"""The comparison as a page of the documentation: for each figure the systems in order, the best first."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.figures import written
from benchmarks.page import table
from benchmarks.peers.systems import PEERS
from benchmarks.peers.workloads import NEVER
from taskqueue.model.wording import count


def page(report: Mapping[str, Any]) -> str:
    """Return the page for what ``__main__`` measured."""
    machine = report["hardware"]
    text = [
        "# Compared with other systems",
        "",
        (
            f"Medians of {count(report['rounds'], 'round')} in one run, {report['jobs']:,} jobs: "
            f"{machine['processor']}, {machine['cores']} cores, Linux {machine['kernel']}, Python {machine['python']}, "
            f"load {machine['load']:g} at its end. Read the figures as ratios: on another machine, or on another day, "
            "all of them change. To measure them yourself, run `python -m benchmarks.peers`. The versions are in "
            "`benchmarks/peers/requirements.txt`; the servers are Debian's, with Debian's settings."
        ),
        "",
        "What an acknowledged job survives, and what else runs in its process:",
        "",
        *table(("system", "survives", "beside it"), _promises(report["values"])),
    ]
    for title, by in report["values"].items():
        if not any(value for values in by.values() for value in values):  # nothing ran twice, nothing early
            continue
        text += ["", f"## {title}", "", *table(("system", "median", "rounds"), _rows(title, by))]
    return "\n".join(text) + "\n"


def _promises(values: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    measured = {peer for by in values.values() for peer in by}
    return [(peer.name, peer.survives, peer.isolation) for peer in PEERS.values() if peer.name in measured]


def _rows(title: str, by: Mapping[str, Sequence[float]]) -> list[tuple[str, ...]]:
    medians = {peer: statistics.median(values) for peer, values in by.items()}
    more_is_better = title.endswith("jobs/s")
    order = sorted(
        medians, key=lambda peer: (medians[peer] == NEVER, -medians[peer] if more_is_better else medians[peer])
    )
    return [(peer, _told(medians[peer]), ", ".join(map(_told, by[peer]))) for peer in order]


def _told(value: float) -> str:
    return "never" if value == NEVER else written(value)
