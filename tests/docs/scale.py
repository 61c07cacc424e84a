"""The parts of the page about scale that follow from the figures measured there: ``tests.docs.tables`` writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.figures import written
from benchmarks.saturation import bounds

PAGE = Path(__file__).parents[2] / "docs/explanation/scale.md"
CORES = (2, 8, 32, 64)
DAY = 86_400
PEAK = 4
"""How many times the mean of a day its busiest minute has."""

KEPT_FOR = 5
"""Days of ``--keep-done``, by default."""

SIZES = {"10 million": 10_000_000, "100 million": 100_000_000, "1 billion": 1_000_000_000}
Rows = Mapping[str, Sequence[float]]


def measured(heading: str) -> Rows:
    """Return the numbers of the first table after a heading of the page, by the first column."""
    text = PAGE.read_text().partition(f"\n{heading}\n")[2].partition("\n| ")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines()[2:]]
    return {name: [float(cell.replace(",", "")) for cell in cells] for name, *cells in rows}


def of_many_cores() -> str:
    """Return the highest rate of a node by cores, and the length of jobs from which all cores are busy."""
    rows = []
    costs = measured("## Processor time per job")
    for store in ("SQLite", "MongoDB"):
        _, node, manager, worker = costs[f"{store}, in batches"][:4]
        for cores in CORES:
            rate, bound, shortest = bounds({"node": node, "manager": manager, "worker": worker}, cores)
            rows.append((store, str(cores), f"{rate:,.0f}", bound, f"{shortest / 1000:.2g} ms"))
    return _table(("store", "cores", "empty jobs/s at most", "bound", "all cores are busy with jobs from"), rows)


def of_a_day() -> str:
    """Return the resources that a number of jobs a day needs, computed from those of one job."""
    per_job = measured("## Bytes written per job")
    costs = measured("## Processor time per job")
    node, server = costs["SQLite, in batches"][1], costs["MongoDB, in batches"][4]
    sqlite, mongodb = per_job["SQLite, in batches"], per_job["MongoDB, in batches"]
    needs = {
        "jobs/s, mean": lambda n: f"{n / DAY:,.0f}",
        f"jobs/s, at a peak of {PEAK} times": lambda n: f"{PEAK * n / DAY:,.0f}",
        "SQLite: cores of nodes, at the peak": lambda n: written(PEAK * n / DAY * node / 1e6),
        "SQLite: journal, MB/s at the peak": lambda n: written(PEAK * n / DAY * sqlite[0] / 1e6),
        f"SQLite: file, GB after {KEPT_FOR} days": lambda n: f"{n * KEPT_FOR * sqlite[1] / 1e9:,.0f}",
        "MongoDB: cores of the primary, at the peak": lambda n: written(PEAK * n / DAY * server / 1e6),
        "MongoDB: oplog, GB a day": lambda n: f"{n * mongodb[2] / 1e9:,.0f}",
        "MongoDB: oplog and journal, MB/s at the peak": lambda n: written(
            PEAK * n / DAY * (mongodb[0] + mongodb[2]) / 1e6
        ),
        f"MongoDB: collections, GB after {KEPT_FOR} days": lambda n: f"{n * KEPT_FOR * mongodb[1] / 1e9:,.0f}",
        "to remove, jobs/s": lambda n: f"{n / DAY:,.0f}",
    }
    return _table(("jobs a day", *SIZES), [(what, *map(need, SIZES.values())) for what, need in needs.items()])


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *rows))
