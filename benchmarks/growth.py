"""What calls cost as a store fills: among a thousand to a million jobs that wait, are due later, or have ended.

``python -m benchmarks.growth [--url URL] [--most 1000000] [--rounds 30] [--json FILE] [--plot FILE]`` prints
a table in Markdown; without a URL in SQLite files in the current folder, which it removes. Every store is filled first.
Then each round makes the same calls in each of them, one store after the other, so that a slow minute hits all alike.

``--kept FILE …`` takes more of them, which ``benchmarks.ten_million`` has filled: that takes long, and they stay.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.environment import at_level
from benchmarks.figures import written
from benchmarks.page import table
from benchmarks.store_costs import HOLDER, LEASE, claimed, records, seconds, settled
from taskqueue.cli import terminal
from taskqueue.cli.bench import ScratchStores, scratch_stores
from taskqueue.model.query import EVERYTHING, PENDING, Query, parse
from taskqueue.model.record import Record, Status
from taskqueue.model.schedules import Every
from taskqueue.model.schedules.schedule import NamedSchedule
from taskqueue.store import ClaimRequest, Event, Store
from taskqueue.store.open import open_store

SIZES = (1_000, 10_000, 100_000, 1_000_000)
DAY = timedelta(days=1)
BATCH = 8
"""Jobs that a round adds, claims, settles, and removes again: a store keeps its size."""

EVENTS = 80 - 4 * BATCH
"""Events that a round tells besides those of its jobs: as many altogether as the removal takes away."""

ACROSS = 4
COLOURS = ("#4477aa", "#ccbb44", "#ee6677", "#228833")
"""A column of panels, and a colour for each kind (Paul Tol, bright)."""

NOWHERE = ClaimRequest(pooled=BATCH, queues={"nowhere": None})

MIXED = "ended, a tenth waiting"
KINDS: Mapping[str, Status] = {
    "waiting": Status.WAITING,
    "due later": Status.POSTPONED,
    "ended": Status.DONE,
    MIXED: Status.DONE,
}
"""What a store holds, with the status of most of it."""

Taken = dict[str, float]
"""Seconds that each call of a round took, by its name."""


@dataclass(frozen=True, kw_only=True)
class Filled:
    """A store with so many jobs of one kind, and next to nothing else."""

    kind: str
    size: int
    store: Store

    def round(self) -> Taken:
        """Make every call once."""
        return {**self._jobs(), **self._looks(), **self._lists()}

    def _jobs(self) -> Taken:
        """Add, claim, settle and remove the same number of jobs."""
        store, taken = self.store, Taken()
        _, cursor = store.events(None)
        batch = [record for some in records(store, BATCH) for record in some]
        store.add(batch[1:])  # first, because it finds none of its pages in the cache after the lists of the last round
        taken["add 1"] = seconds(lambda: store.add(batch[:1]))
        taken["a wait's look at 8 events"] = seconds(lambda: store.events(cursor))
        runs: list[Record] = []
        taken["claim 8"] = seconds(lambda: runs.extend(claimed(store, BATCH)))
        now = store.now()
        taken["renew 8"] = seconds(lambda: store.renew(HOLDER, now + LEASE, {}))
        taken["settle 8"] = seconds(lambda: settled(store, runs))
        at = store.now()
        store.record_events(
            [Event(id=str(number), name="stepped_down", at=at, node="growth") for number in range(EVENTS)]
        )
        later = {Status.DONE: store.now() + DAY}
        taken["remove 8 old jobs and 80 events"] = seconds(lambda: store.prune(later, at + DAY, BATCH))
        return taken

    def _looks(self) -> Taken:
        """Look for what is seldom there."""
        store, now = self.store, self.store.now()
        return {
            "a claim that finds nothing": seconds(lambda: self._claim_elsewhere(now)),
            "removal of nothing": seconds(lambda: store.prune({Status.DONE: now - DAY}, now - DAY, 1000)),
            "lost leases": seconds(lambda: store.expired(now, 100)),
            "due schedules": seconds(lambda: store.due(now, 100)),
        }

    def _lists(self) -> Taken:
        """Read what people ask for."""
        store, mine = self.store, parse({"status": int(KINDS[self.kind])})
        return {
            "get_jobs, first page of the pending": seconds(lambda: store.find(PENDING)),
            "list, the newest 20": seconds(lambda: self._list(EVERYTHING)),
            "list --status with all of them": seconds(lambda: self._list(mine)),
            "list --status failed": seconds(lambda: self._list(parse({"status": int(Status.FAILED)}))),
            "count all with one status": seconds(lambda: store.count(mine)),
            "stats": seconds(store.tally),
        }

    def _claim_elsewhere(self, now: datetime) -> None:
        self.store.claim(HOLDER, NOWHERE, now, now + LEASE)

    def _list(self, query: Query) -> None:
        self.store.find(query, order="-created_at", limit=20)


def fill(store: Store, kind: str, size: int) -> Filled:
    """Put so many jobs of the kind into an empty store, and a schedule for tomorrow."""
    now = store.now()
    [[template]] = records(store, 1)
    store.replace_schedule(
        None,
        NamedSchedule(
            name="daily", trigger=Every(86_400, now), template=template, created_at=now, next_run_at=now + DAY
        ),
        [],
        now,
    )
    for batch in records(store, size, DAY if kind == "due later" else timedelta(0)):
        store.add(batch)
        if KINDS[kind] is Status.DONE:
            settled(store, claimed(store, len(batch) * (9 if kind == MIXED else 10) // 10))
    return Filled(kind=kind, size=size, store=store)


def measure(stores: ScratchStores, sizes: Sequence[int], rounds: int, kept: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return the median milliseconds of each call in each store, with those of all rounds."""
    with ExitStack() as opened:
        filled = list(_filled(opened, stores, sizes))
        for url in kept:
            store = opened.enter_context(closing(open_store(url)))
            filled.append(Filled(kind=MIXED, size=sum(store.tally().values()), store=store))
        taken: list[list[Taken]] = [[] for _ in filled]
        with terminal.progress("measuring") as advance:
            for number in range(rounds + 1):
                for each, found in zip(filled, taken, strict=True):
                    found.append(each.round())
                if advance is not None:
                    advance(done=number, total=rounds + 1, words=f"{len(filled)} stores")
        return {
            "hardware": environment.hardware(),
            "guarantee": filled[0].store.guarantee,
            "rounds": rounds,
            "figures": [
                {"call": call, "kind": each.kind, "jobs": each.size, **_figures([one[call] for one in found[1:]])}
                for each, found in zip(filled, taken, strict=True)
                for call in found[0]  # which was to warm up
            ],
        }


def _filled(opened: ExitStack, stores: ScratchStores, sizes: Sequence[int]) -> Iterator[Filled]:
    total = len(KINDS) * sum(sizes)
    with terminal.progress("filling") as advance:
        done = 0
        for size in sizes:
            for kind in KINDS:
                if advance is not None:
                    advance(done=done, total=total, words=f"{size:,} {kind}")
                store = opened.enter_context(closing(open_store(opened.enter_context(stores.fresh()))))
                yield fill(store, kind, size)
                done += size


def _figures(taken: Sequence[float]) -> Mapping[str, object]:
    milliseconds = [round(value * 1000, 4) for value in taken]
    return {"median_ms": statistics.median(milliseconds), "values_ms": milliseconds}


def summary(found: Mapping[str, Any]) -> list[str]:
    """Return a table in Markdown: milliseconds of each call in the smallest stores, and in each of the largest."""
    medians = _medians(found)
    sizes = _sizes(medians)
    fewest = min(sizes["waiting"])
    heads = ["milliseconds", f"{fewest:,} of any", *(f"{of[-1]:,} {kind}" for kind, of in sizes.items())]
    rows = []
    for call in dict.fromkeys(call for call, _, _ in medians):
        few = statistics.median(medians[call, kind, fewest] for kind in KINDS)
        rows.append([call, *map(written, (few, *(medians[call, kind, of[-1]] for kind, of in sizes.items())))])
    return table(heads, rows)


def draw(found: Mapping[str, Any], file: Path) -> None:
    """Write an SVG file with a panel for each call: milliseconds by how many jobs there are, a line for each kind."""
    medians = _medians(found)
    calls = list(dict.fromkeys(call for call, _, _ in medians))
    sizes = _sizes(medians)
    down = -(-len(calls) // ACROSS)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "taskqueue", "svg.fonttype": "none", "font.size": 8}):
        picture = Figure(figsize=(10, 2 * down + 0.5), layout="constrained")
        axes = picture.subplots(down, ACROSS, sharex=True, sharey=True, squeeze=False).flatten()
        for panel in axes[len(calls) :]:
            panel.remove()
        for panel, call in zip(axes, calls, strict=False):
            for kind, colour in zip(KINDS, COLOURS, strict=True):
                panel.plot(sizes[kind], [medians[call, kind, size] for size in sizes[kind]], color=colour, label=kind)
            panel.set(xscale="log", yscale="log", title=call)
            panel.minorticks_off()
            panel.spines[["top", "right"]].set_visible(False)
        picture.supxlabel("jobs of that kind")
        picture.supylabel("milliseconds")
        picture.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(KINDS))
        picture.savefig(file, format="svg", metadata={"Date": None})


def _medians(found: Mapping[str, Any]) -> dict[tuple[str, str, int], float]:
    return {(row["call"], row["kind"], row["jobs"]): row["median_ms"] for row in found["figures"]}


def url_of(file: str) -> str:
    """Return the address of a file like those of the other stores."""
    return f"sqlite://{Path(file).resolve()}?synchronous=normal"


def _sizes(medians: Mapping[tuple[str, str, int], float]) -> Mapping[str, Sequence[int]]:
    return {kind: sorted({jobs for _, of, jobs in medians if of == kind}) for kind in KINDS}


def main() -> None:
    """Measure, print, and write the files that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--most", type=int, default=SIZES[-1])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--kept", metavar="FILE", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    sizes = [size for size in SIZES if size <= given.most] or [given.most]
    with scratch_stores(given.url or at_level("growth.db", "normal")) as stores:
        found = measure(stores, sizes, given.rounds, [url_of(file) for file in given.kept])
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1))
    if given.plot is not None:
        draw(found, given.plot)
    sys.stdout.write("\n".join([*summary(found), ""]))


if __name__ == "__main__":
    main()
