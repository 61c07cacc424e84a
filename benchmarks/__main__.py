"""``python -m benchmarks``: measure every workload on empty stores of the given kind."""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks import environment, figures, workloads
from benchmarks.environment import at_level
from benchmarks.figures import Figure
from benchmarks.scale import JOBS, Scale
from taskqueue.cli import output
from taskqueue.cli.bench import ScratchStores, scratch_stores, terminated_as_interrupted


@click.command()
@click.option("--url", metavar="URL", help="Make the stores beside this one. Default: the embedded store.")
@click.option(
    "--workload", "names", multiple=True, type=click.Choice(list(workloads.WORKLOADS)),
    help="Measure this one only; may be repeated. Default: all.",
)  # fmt: skip
@click.option(
    "--repeat", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
    help="Measure so many rounds and show the medians.",
)  # fmt: skip
@click.option(
    "--jobs", type=click.IntRange(min=10), default=JOBS, show_default=True, metavar="N",
    help="How many jobs are drained; everything else is in proportion.",
)  # fmt: skip
@click.option(
    "--synchronous", type=click.Choice(["full", "normal"]),
    help="What SQLite waits for; default: what the address says, else full.",
)  # fmt: skip
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.svg",
    help="Draw the figures, too; needs matplotlib.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object for programs.")
def main(
    url: str | None,
    names: tuple[str, ...],
    repeat: int,
    jobs: int,
    synchronous: str | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure what this system does on this machine.

    Empty stores are made beside the one that --url names, on the same disk or in the same database, and removed
    afterwards; the jobs of the store itself are not touched. W1 adds jobs, W2 drains them, W3 waits for single ones, W4
    has jobs due at a time, W5 has a backlog and an idle node, W6 kills workers, W7 stops a node. All of it takes a
    minute or two.
    """
    if plot is not None:
        from benchmarks import plot as picture  # complains before anything is measured
    hardware = environment.hardware()
    chosen = [name for name in workloads.WORKLOADS if name in names or not names]
    with terminated_as_interrupted(), scratch_stores(at_level(url, synchronous)) as stores:
        durable, found = figures.split(_measured(stores, chosen, Scale(jobs=jobs), repeat))
        block = environment.durability(stores, durable)
    settings = {"workloads": chosen, "repeat": repeat, "jobs": jobs}
    document = figures.document(settings, hardware, block, found)
    if as_json:
        output.write(document)
    else:
        figures.show(document, found)
    if plot is not None:
        title = f"taskqueue {hardware['taskqueue']} on {hardware['cores']} cores: {block['guarantee']}"
        picture.draw(found, title, plot)


def _measured(stores: ScratchStores, chosen: list[str], scale: Scale, repeat: int) -> list[Figure]:
    from taskqueue.cli import terminal

    with terminal.progress("measuring") as advance:

        def tell(done: int, total: int, words: str) -> None:
            if advance is not None:
                advance(done=done, total=total, words=words)

        return workloads.run(stores, chosen, scale, repeat, tell)


if __name__ == "__main__":
    main()
