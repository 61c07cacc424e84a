"""One job over many items while its workers and nodes are killed and restarted; none may be skipped.

``python -m tests.chaos.interrupted_walk --items 1000000 --restarts 20 --workers 20`` prints what was repeated.
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import psutil

from taskqueue import Scheduler
from tests.acceptance.walks import Footprint, Walk, footprints, last_footprint, last_footprints
from tests.nodes import Node, eventually

OPTIONS = ("--pm", "static", "--min-children", "1", "--lease", "20")

RESTART, WORKER, NODE = "restart", "worker kill", "node kill"

LAST_SECOND = 1.0
"""Seconds of work that the death of a node may cost; a machine that stands still may hold up the word of more."""


@dataclass(frozen=True)
class Interruption:
    """What ended a run, and by when."""

    kind: str
    at: float


class InterruptedWalk:
    """One walk, and the one node that it has at a time."""

    def __init__(self, url: str, folder: Path, items: int, seconds: float, kind: str = "range") -> None:
        self.file = folder / "steps"
        self._url = url
        self._folder = folder
        self._items = items
        with Scheduler(url) as scheduler:
            data = {"file": str(self.file), "items": items, "seconds": seconds, "kind": kind}
            self._id = scheduler.add_job(Walk, data).id
        self._node = self._started()

    def run(self, interruptions: Sequence[str], chance: random.Random) -> list[Interruption]:
        """Interrupt it once in each stretch of the way, and return the interruptions when the job has ended."""
        struck: list[Interruption] = []
        stretch = self._items // (len(interruptions) + 1)
        claims = 0
        for number, kind in enumerate(interruptions, start=1):
            wanted = int(stretch * (number - chance.random() * 0.5))
            claims = eventually(partial(self._claim_beyond, wanted, claims), limit=600)
            self._interrupt(kind)
            struck.append(Interruption(kind, time.time()))
        with Scheduler(self._url) as scheduler:
            process = scheduler.get_job(self._id).wait(timeout=600)
            assert process.is_done, process.why()
        return struck

    def close(self) -> None:
        """End the node."""
        self._node.close()

    def _claim_beyond(self, wanted: int, claims: int) -> int:
        """Return the claim that has come so far, a later one than the last; 0 if there is none yet."""
        step = last_footprint(self.file)
        return step.claim if step is not None and step.item >= wanted and step.claim > claims else 0

    def _interrupt(self, kind: str) -> None:
        if kind == WORKER:
            for worker in self._node.workers():
                with suppress(psutil.NoSuchProcess):
                    worker.kill()
            return
        if kind == NODE:
            eventually(self._is_kept)
            self._node.process.send_signal(signal.SIGKILL)
        else:
            self._node.stop()
        self._node.close()
        self._node = self._started()

    def _is_kept(self) -> bool:
        """Return whether the store knows all but the last half second of the walk, as it does as a rule."""
        with Scheduler(self._url) as scheduler:
            cursor = scheduler.get_job(self._id).snapshot.cursor
        done = re.fullmatch(r'\{"":(\d+)\}', cursor or "")
        if done is None:
            return cursor is not None  # a place of another kind, which no step tells
        steps = last_footprints(self.file, 20_000)
        known = next((step.at for step in reversed(steps) if step.item < int(done[1])), 0.0)
        return steps[-1].at - known < LAST_SECOND / 2

    def _started(self) -> Node:
        node = Node(self._url, self._folder, OPTIONS, {})
        node.heed("READY=1")
        return node


def repeated(steps: Sequence[Footprint]) -> list[list[Footprint]]:
    """Return, for each change of the claim, the items that the claim before had done and the next one did again."""
    again = []
    for before, after in pairwise(_by_claim(steps)):
        first = after[0].item
        again.append([step for step in before if step.item >= first])
    return again


def complaints(steps: Sequence[Footprint], items: int, interruptions: Sequence[Interruption]) -> list[str]:
    """Return what was skipped, and what was repeated although it need not be."""
    found = []
    skipped = set(range(items)) - {step.item for step in steps}
    if skipped:
        found.append(f"{len(skipped)} items were skipped, the first is {min(skipped)}")
    again = repeated(steps)
    hit = [interruption for interruption in interruptions if interruption.at < steps[-1].at]  # others may come too late
    if not len(hit) <= len(again) <= len(interruptions):
        found.append(f"{len(interruptions)} interruptions, but {len(again)} new claims")
    for interruption, those in zip(interruptions, again, strict=False):
        if interruption.kind != NODE and len(those) > 1:
            found.append(f"{len(those)} items were repeated after a {interruption.kind}")
        if interruption.kind == NODE and those and those[-1].at - those[0].at > LAST_SECOND:
            found.append(f"{those[-1].at - those[0].at:.2f} s of items were repeated after a {interruption.kind}")
    return found


def _by_claim(steps: Sequence[Footprint]) -> list[list[Footprint]]:
    runs: list[list[Footprint]] = []
    for step in steps:
        if not runs or runs[-1][-1].claim != step.claim:
            runs.append([])
        runs[-1].append(step)
    return runs


def figures(steps: Sequence[Footprint], interruptions: Sequence[Interruption]) -> str:
    """Return in words what each kind of interruption cost."""
    counts: dict[str, list[int]] = {}
    seconds = 0.0
    for interruption, those in zip(interruptions, repeated(steps), strict=False):
        counts.setdefault(interruption.kind, []).append(len(those))
        if interruption.kind == NODE and those:
            seconds = max(seconds, those[-1].at - those[0].at)
    took = steps[-1].at - steps[0].at
    lines = [f"{len({step.item for step in steps}):,} items in {took:.0f} s, {len(steps):,} runs of items"]
    for kind, found in counts.items():
        spread = ", ".join(f"{times} times {count}" for count, times in sorted(Counter(found).items()))
        lines.append(f"{kind}: {len(found)}, items repeated: {spread}")
    lines.append(f"the most that a node kill cost: {seconds:.2f} s of items")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Walk once, print the figures, and return how many complaints there are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.0001)
    parser.add_argument("--kind", choices=("range", "iterator", "cursor"), default="range")
    parser.add_argument("--url", default="")
    parser.add_argument("--seed", type=int, default=7)
    chosen = parser.parse_args(arguments)
    chance = random.Random(chosen.seed)
    interruptions = [RESTART] * chosen.restarts + [WORKER] * chosen.workers + [NODE] * chosen.nodes
    chance.shuffle(interruptions)
    with tempfile.TemporaryDirectory(prefix="walk-") as place:
        url = chosen.url or f"sqlite:///{place}/jobs.db"
        walk = InterruptedWalk(url, Path(place), chosen.items, chosen.seconds, chosen.kind)
        try:
            struck = walk.run(interruptions, chance)
        finally:
            walk.close()
        steps = footprints(walk.file)
    found = complaints(steps, chosen.items, struck)
    print(figures(steps, struck))
    print("\n".join(found) or "no complaints")
    return len(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
