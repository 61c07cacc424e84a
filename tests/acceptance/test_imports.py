"""Imports that commit many rows at a time, with real nodes, through whatever ends their runs: no row is missing."""

from __future__ import annotations

import signal
import sqlite3
from collections import Counter
from contextlib import closing
from itertools import groupby
from pathlib import Path

import psutil
import pytest

from taskqueue import Process, Scheduler, retry
from tests.acceptance.imports import Import, ManualImport
from tests.chaos.interrupted_walk import NODE, RESTART, WORKER
from tests.nodes import LIMIT, Node, eventually

BATCHES = 200
FAILS = (30.5, 101)
"""Where an exception is raised, in batches: before and behind the commit of one."""
STRIKES = {50.3: WORKER, 71: WORKER, 110.5: RESTART, 171: NODE}
"""Where something is killed or restarted, in batches: before and behind the commit of one."""


class Importing:
    """One import, its target, and the one node that it has at a time."""

    def __init__(self, url: str, folder: Path, job: type[Import], scheduler: Scheduler, batch: int) -> None:
        self._url = url
        self._folder = folder
        self._batch = batch
        self.target = folder / "target.db"
        file = folder / "rows.csv"
        file.write_text("".join(f"{number}\r\n" for number in range(BATCHES * batch)))
        with closing(sqlite3.connect(self.target)) as target:
            target.execute("PRAGMA journal_mode = WAL")
            target.execute("CREATE TABLE rows (number INTEGER, run TEXT)")
        fails, strikes = (list(map(self._row, places)) for places in (FAILS, STRIKES))
        data = {"file": str(file), "target": str(self.target), "batch": batch, "fails": fails, "strikes": strikes}
        self.process: Process = scheduler.add_job(job, data, retry=retry.many_times(len(FAILS), 0))
        self._node = self._started()

    def strike(self, place: float, kind: str) -> None:
        """Do it when the job has come there, and the store knows of the batch before."""
        row = self._row(place)
        eventually((self._folder / f"reached-{row}").exists)
        if kind == WORKER:
            [worker] = self._node.workers()
            worker.kill()
            psutil.wait_procs([worker], timeout=LIMIT)
        if kind == NODE:
            eventually(lambda: self.process.refresh().snapshot.cursor == f'{{"":{row // self._batch * self._batch}}}')
            workers = self._node.workers()
            self._node.process.send_signal(signal.SIGKILL)
            self._node.close()
            psutil.wait_procs(workers, timeout=LIMIT)  # which would go on with the next batch until they are ended
        (self._folder / f"struck-{row}").touch()
        if kind == RESTART:
            self._node.stop()
            self._node.close()
        if kind != WORKER:
            self._node = self._started()

    def runs(self) -> list[tuple[str, list[int]]]:
        """Return the rows in the order in which they came, run by run."""
        with closing(sqlite3.connect(self.target)) as target:
            rows = target.execute("SELECT run, number FROM rows ORDER BY rowid")
            return [(run, [number for _, number in those]) for run, those in groupby(rows, key=lambda row: row[0])]

    def close(self) -> None:
        """End the node."""
        self._node.close()

    def _row(self, place: float) -> int:
        """Return the row in the middle of a batch, or the last one before a whole number of batches."""
        row = round(place * self._batch)
        return row - 1 if row % self._batch == 0 else row

    def _started(self) -> Node:
        node = Node(self._url, self._folder, ("--pm", "static", "--min-children", "1"), {})
        node.heed("READY=1")
        return node


@pytest.mark.parametrize("batch", [50, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("job", [Import, ManualImport])
def test_an_import_misses_no_row_and_repeats_a_batch_at_most(
    url: str, scheduler: Scheduler, tmp_path: Path, job: type[Import], batch: int
) -> None:
    importing = Importing(url, tmp_path, job, scheduler, batch)
    try:
        for place, kind in STRIKES.items():
            importing.strike(place, kind)
        scheduler.wait_for([importing.process], timeout=LIMIT)
    finally:
        importing.close()

    assert importing.process.is_done, importing.process.why()
    runs = importing.runs()
    assert len(runs) == 1 + len(FAILS) + len(STRIKES)
    counts = Counter(number for _, numbers in runs for number in numbers)
    assert sorted(counts) == list(range(BATCHES * batch))
    twice = sorted({number // batch for number, count in counts.items() if count > 1})
    assert twice == [70, 100, 170]  # where the run ended between the commit and the word that it was kept
    assert max(counts.values()) == 2
