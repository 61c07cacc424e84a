"""Node, manager and worker are killed together: nothing that a job started lives beside its next run on this host."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from taskqueue import Process, Scheduler
from tests.chaos.gate import Gate
from tests.chaos.process_fault import is_gone
from tests.chaos.work import Breeder
from tests.nodes import LIMIT, Node, eventually, node

OPTIONS = ("--lease", "600", "--pm", "static", "--min-children", "1")
OF_ALL, *OTHERS = itertools.permutations(("node", "manager", "worker"))
ORDERS = [
    *itertools.permutations(("node", "manager")),
    OF_ALL,
    *(pytest.param(order, marks=pytest.mark.long) for order in OTHERS),
]


class Brood:
    """A job that starts processes, and what is left of them."""

    def __init__(self, scheduler: Scheduler, folder: Path) -> None:
        self._file, self._pids = folder / "lines", folder / "pids"
        self.gate = Gate(folder / "gate")
        data = {"file": str(self._file), "pids": str(self._pids), "gate": self.gate.path}
        self.process: Process = scheduler.add_job(Breeder, data)

    def heed(self, runs: int) -> None:
        """Wait until so many runs have started what they start."""
        eventually(lambda: len(self._lines("bred")) == runs)

    @property
    def beginnings(self) -> list[str]:
        """Return what each run found when it began."""
        return [line.partition("beside ")[2] for line in self._lines("started")]

    def alive(self) -> list[psutil.Process]:
        """Return what was started and lives."""
        pids = {int(pid) for pid in (self._pids.read_text().split() if self._pids.exists() else ())}
        return [process for process in psutil.process_iter() if process.pid in pids and not is_gone(process)]

    def close(self) -> None:
        """Leave nothing behind, whatever the product did."""
        for process in self.alive():
            process.kill()
        self.gate.close()

    def _lines(self, beginning: str) -> list[str]:
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        return [line for line in lines if line.startswith(beginning)]


@pytest.fixture
def scheduler(url: str) -> Iterator[Scheduler]:
    with Scheduler(url) as scheduler:
        yield scheduler


@pytest.fixture
def brood(scheduler: Scheduler, tmp_path: Path) -> Iterator[Brood]:
    brood = Brood(scheduler, tmp_path)
    yield brood
    brood.close()


def kill(running: Node, order: tuple[str, ...]) -> None:
    """Kill these processes of the node one after another, as fast as that goes, and wait until they have ended."""
    manager = running.manager()
    [worker] = manager.children()
    pids = {"node": running.pid, "manager": manager.pid, "worker": worker.pid}
    for name in order:
        with suppress(ProcessLookupError):  # what is followed by its manager and workers, or by its node, may be sooner
            os.kill(pids[name], signal.SIGKILL)
    running.process.wait(LIMIT)
    eventually(lambda: is_gone(manager))


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_a_job_begins_again_beside_nothing_of_its_last_run(
    url: str, brood: Brood, tmp_path: Path, order: tuple[str, ...]
) -> None:
    with node(url, tmp_path, *OPTIONS) as first:
        brood.heed(1)
        kill(first, order)
    with node(url, tmp_path, *OPTIONS) as second:
        second.heed("works")
        brood.heed(2)
        brood.gate.open()
        brood.process.wait(LIMIT)

    assert brood.beginnings == ["0 of 0", "0 of 4"]
    assert eventually(lambda: not brood.alive())
