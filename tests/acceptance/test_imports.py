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
from tests.chaos.march import NODE, RESTART, WORKER
from tests.nodes import LIMIT, Node, eventually

ROWS = 200_000
BATCH = 1000
FAILS = (30_500, 100_999)
"""Rows with an exception before and behind the commit of their batch."""
STRIKES = {50_300: WORKER, 70_999: WORKER, 110_500: RESTART, 170_999: NODE}
"""Rows at which something is killed or restarted, before and behind the commit of their batch."""


class Importing:
    """One import, its target, and the one node that it has at a time."""

    def __init__(self, url: str, folder: Path, job: type[Import], scheduler: Scheduler) -> None:
        self._url = url
        self._folder = folder
        self.target = folder / "target.db"
        file = folder / "rows.csv"
        file.write_text("".join(f"{number}\r\n" for number in range(ROWS)))
        with closing(sqlite3.connect(self.target)) as target:
            target.execute("PRAGMA journal_mode = WAL")
            target.execute("CREATE TABLE rows (number INTEGER, run TEXT)")
        data = {"file": str(file), "target": str(self.target), "batch": BATCH, "fails": FAILS, "strikes": list(STRIKES)}
        self.process: Process = scheduler.add_job(job, data, retry=retry.many_times(len(FAILS), 0))
        self._node = self._started()

    def strike(self, row: int, kind: str) -> None:
        """Do it when the job has come to the row, and the store knows of the batch before."""
        eventually((self._folder / f"reached-{row}").exists)
        if kind == WORKER:
            [worker] = self._node.workers()
            worker.kill()
            psutil.wait_procs([worker], timeout=LIMIT)
        if kind == NODE:
            eventually(lambda: self.process.refresh().snapshot.cursor == f'{{"":{row // BATCH * BATCH}}}')
            self._node.process.send_signal(signal.SIGKILL)
            self._node.close()
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

    def _started(self) -> Node:
        node = Node(self._url, self._folder, ("--pm", "static", "--min-children", "1"), {})
        node.heed("READY=1")
        return node


@pytest.mark.parametrize("job", [Import, ManualImport])
def test_an_import_misses_no_row_and_repeats_a_batch_at_most(
    url: str, scheduler: Scheduler, tmp_path: Path, job: type[Import]
) -> None:
    importing = Importing(url, tmp_path, job, scheduler)
    try:
        for row, kind in STRIKES.items():
            importing.strike(row, kind)
        scheduler.wait_for([importing.process], timeout=LIMIT)
    finally:
        importing.close()

    assert importing.process.is_done, importing.process.why()
    runs = importing.runs()
    assert len(runs) == 1 + len(FAILS) + len(STRIKES)
    counts = Counter(number for _, numbers in runs for number in numbers)
    assert sorted(counts) == list(range(ROWS))
    twice = sorted({number // BATCH for number, count in counts.items() if count > 1})
    assert twice == [70, 100, 170]  # where the run ended between the commit and the word that it was kept
    assert max(counts.values()) == 2
