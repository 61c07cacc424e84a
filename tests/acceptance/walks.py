"""Long jobs for tests: each item, or step, leaves a line in a file, outside any store."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskqueue import Job, StepwiseJob
from taskqueue.model.record import Failure
from tests.acceptance.work import write_line

_STEP = struct.Struct("<IId")


@dataclass(frozen=True)
class Footprint:
    """One item of a walk: the claim that did it, and when."""

    claim: int
    item: int
    at: float


class Walk(Job):
    """Does ``data["items"]`` items of ``data["seconds"]`` each; ``data["kind"]`` says how they are found."""

    def start(self) -> int:
        claim = int(self.run_key.partition(":")[2])
        descriptor = os.open(self.data["file"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        pause = self.data.get("seconds", 0)
        for item in self.each(self._items(), turn=self.data.get("turn")):
            os.write(descriptor, _STEP.pack(claim, item, time.time()))
            if pause:
                time.sleep(pause)
        os.close(descriptor)
        return int(self.data["items"])

    def _items(self) -> Any:
        items = range(self.data["items"])
        match self.data.get("kind"):
            case "iterator":
                return iter(items)
            case "cursor":
                return self._behind
        return items

    def _behind(self, cursor: Any) -> Iterator[tuple[Any, int]]:
        """Yield pages of items, as a query for keys above the last one does."""
        first = 0 if cursor is None else cursor["above"] + 1
        for item in range(first, self.data["items"]):
            ballast = self.data.get("ballast", "") if item else ""
            yield {"above": item, "ballast": ballast}, item


def footprints(path: Path) -> list[Footprint]:
    """Return what a walk has done so far, in order."""
    if not path.exists():
        return []
    whole = path.read_bytes()
    return [Footprint(*step) for step in _STEP.iter_unpack(whole[: len(whole) // _STEP.size * _STEP.size])]


def last_footprints(path: Path, most: int) -> list[Footprint]:
    """Return the latest items of a walk, in order, so many at most."""
    steps = path.stat().st_size // _STEP.size if path.exists() else 0
    if not steps:
        return []
    with path.open("rb") as file:
        file.seek(max(0, steps - most) * _STEP.size)
        return [Footprint(*step) for step in _STEP.iter_unpack(file.read(min(steps, most) * _STEP.size))]


def last_footprint(path: Path) -> Footprint | None:
    """Return the latest item of a walk."""
    steps = last_footprints(path, 1)
    return steps[0] if steps else None


class Count(StepwiseJob):
    """Counts to ``data["to"]``, a step each; writes a line for each thing that it does.

    ``data["at"]`` says what it does at a step, by number: ``raise``, ``die`` (once each, as a file tells) or ``wait``.
    """

    def initialize(self) -> None:
        self.state["count"] = 0
        self._tell("initialize")

    def iterate(self) -> bool:
        self.state["count"] += 1
        count = self.state["count"]
        self.reports["counted"] = count
        self._tell(f"iterate {count}")
        self._do(str(count))
        return bool(count < self.data["to"])

    def complete(self) -> Any:
        self.reports["complete"] = True
        self._tell("complete")
        return self.state["count"]

    def clean_up(self, failure: Failure | None) -> None:
        self.reports["cleaned"] = True
        self._tell(f"clean up {self.state.get('count')}: {failure.message if failure else ''}")
        self._do("clean up")

    def _do(self, step: str) -> None:
        what = self.data.get("at", {}).get(step)
        once = Path(f"{self.data['file']}-{self.data.get('name', '')}{step}")
        if what == "wait":
            Path(self.data["gate"]).read_text()
        if what == "raise":
            raise ValueError(f"no step {step}")
        if what == "die" and not once.exists():
            once.touch()
            os.kill(os.getpid(), 9)

    def _tell(self, words: str) -> None:
        write_line(self.data["file"], f"{self.data.get('name', '')} {words}".strip())
