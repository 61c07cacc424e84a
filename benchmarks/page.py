"""Write ``docs/explanation/figures.md`` from what measurements printed as JSON.

``python -m benchmarks.page BENCH.json … [--one-job ONE.json] [--stores COSTS.json] [--nodes NODES.json]``, where
the first are from ``python -m benchmarks --json``, for one level of durability each.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import written
from benchmarks.workloads import TITLES
from taskqueue.model.wording import count, size

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "figures.md"


def page(benches: Sequence[Mapping[str, Any]], parts: Iterable[str]) -> str:
    """Return the page: the machine, what ``bench`` found at each level, and the other parts."""
    machine, settings = benches[0]["hardware"], benches[0]["settings"]
    rounds = count(settings["repeat"], "round")
    text = [
        "# Figures",
        "",
        (
            f"All benchmarks of taskqueue {machine['taskqueue']}, as medians of {rounds}. "
            "[Where the time goes](performance.md) explains them."
        ),
        "",
        (
            f"The machine: {machine['processor']}, {machine['cores']} cores, {size(machine['memory'])}, "
            f"Linux {machine['kernel']}, Python {machine['python']}, SQLite {machine['sqlite']}; "
            f"load {machine['load']:g} before the first measurement. The figures of a shared machine change from day "
            "to day: compare only figures of one run."
        ),
    ]
    if machine["load"] > machine["cores"] / 2:
        text += ["", "**Other programs kept the machine busy: do not rely on these figures.**"]
    for bench in benches:
        text += ["", *_bench(bench)]
    for part in parts:
        text += ["", part]
    return "\n".join(text) + "\n"


def one_job(found: Mapping[str, Any]) -> str:
    """Return the table of the time that each step of one job takes."""
    rows = [(name, written(us)) for name, us in found["hops_us"].items()]
    rows += [(f"**{name}**", f"**{written(us)}**") for name, us in found["whole_us"].items()]
    counts = [f"{count(round(calls), 'system call')} by the {name}" for name, calls in found["system_calls"].items()]
    if found["journal_bytes"] is not None:
        counts.append(f"{found['journal_bytes']:,} bytes written to the journal")
    return "\n".join(
        [
            "## One job on an idle system",
            "",
            f"The time of each step; {found['guarantee']}.",
            "",
            *table(("step", "µs"), rows),
            "",
            f"It costs {', '.join(counts)}.",
        ]
    )


def stores(found: Mapping[str, Any]) -> str:
    """Return the table of a store alone."""
    batches = [(f"{row['batch']:,}", f"{row['jobs_per_second']:,}") for row in found["batches"]]
    return "\n".join(
        [
            "## The store alone",
            "",
            f"Without a node; {found['guarantee']}.",
            "",
            *table(("jobs in a claim and a settle", "jobs/s"), batches),
        ]
    )


def nodes(found: Mapping[str, Any]) -> str:
    """Return the rates of one node and of three."""
    return "\n".join(
        [
            "## Three nodes on one MongoDB",
            "",
            (
                f"Jobs that sleep for 20 ms, on nodes with {found['workers_per_node']} workers, which could run "
                f"{found['most_per_node']:g} a second each: one node runs {found['one_node']:,} jobs a second, three "
                f"nodes {found['three_nodes']:,}, which is {found['ratio']:g} times as many."
            ),
        ]
    )


def _bench(bench: Mapping[str, Any]) -> list[str]:
    durable = bench["durability"]
    what = f"SQLite, synchronous={durable['synchronous']}" if "synchronous" in durable else "MongoDB"
    costs = ", ".join(f"{write['name']}: {written(write['median'])} {write['unit']}" for write in durable["writes"])
    where = f" Filesystem: {durable['filesystem']}." if "filesystem" in durable else ""
    rows = [
        (
            f"{figure['workload']} {TITLES[figure['workload']]}",
            figure["name"],
            f"{written(figure['median'])} {figure['unit']}",
            " ".join(written(value) for value in figure["values"]),
        )
        for figure in bench["figures"]
    ]
    return [
        f"## {what}",
        "",
        f"{durable['guarantee'][0].upper()}{durable['guarantee'][1:]}.{where} In the same run, {costs}.",
        "",
        *table(("workload", "figure", "median", "rounds"), rows),
    ]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("benches", nargs="+", type=_read)
    parser.add_argument("--one-job", type=_read)
    parser.add_argument("--stores", type=_read)
    parser.add_argument("--nodes", type=_read)
    given = parser.parse_args()
    told = ((one_job, given.one_job), (stores, given.stores), (nodes, given.nodes))
    PAGE.write_text(page(given.benches, [tell(found) for tell, found in told if found is not None]))


def _read(path: str | os.PathLike[str]) -> Any:
    return json.loads(Path(path).read_text())


if __name__ == "__main__":
    main()
