"""Imports of many rows into a database of their own, some hundred rows in each transaction."""

from __future__ import annotations

import csv
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from taskqueue import Job


class Import(Job):
    """Inserts the rows of ``data["file"]`` into ``data["target"]``, ``data["batch"]`` of them in each transaction.

    It fails once at each row of ``data["fails"]``. At each row of ``data["strikes"]`` it leaves a file ``reached-N`` in
    the folder of the target, and waits there until there is a file ``struck-N``; at the last row of a batch it does so
    behind the commit.
    """

    def start(self) -> None:
        with (
            closing(sqlite3.connect(self.data["target"], isolation_level=None)) as target,
            open(self.data["file"], newline="") as lines,
        ):
            self.write(target, csv.reader(lines))

    def write(self, target: sqlite3.Connection, rows: Iterable[list[str]]) -> None:
        """Insert all rows, a list of them in each transaction."""
        for batch in self.each(rows, batch=self.data["batch"]):
            target.execute("BEGIN")
            target.executemany("INSERT INTO rows VALUES (?, ?)", self.numbered(batch))
            target.execute("COMMIT")
            self.meet(int(batch[-1][0]))

    def numbered(self, batch: Iterable[list[str]]) -> Iterator[tuple[int, str]]:
        """Yield the rows of a batch, and do what is to happen at each but the last one."""
        for row in batch:
            number = int(row[0])
            if not self.ends_batch(number):
                self.meet(number)
            yield number, self.run_key

    def ends_batch(self, number: int) -> bool:
        """Return whether the row is the last one of a batch."""
        return bool((number + 1) % self.data["batch"] == 0)

    def meet(self, number: int) -> None:
        """Do what is to happen at the row."""
        folder = Path(self.data["target"]).parent
        if number in self.data["fails"] and not (folder / f"failed-{number}").exists():
            (folder / f"failed-{number}").touch()
            raise ValueError(f"row {number}")
        if number in self.data["strikes"]:
            (folder / f"reached-{number}").touch()
            while not (folder / f"struck-{number}").exists():
                time.sleep(0.002)


class ManualImport(Import):
    """Goes through the rows one by one, and says itself when they are kept."""

    def write(self, target: sqlite3.Connection, rows: Iterable[list[str]]) -> None:
        target.execute("BEGIN")
        loop: Any = self.each(rows, manual=True)
        for [number] in map(self.numbers, loop):
            target.execute("INSERT INTO rows VALUES (?, ?)", (number, self.run_key))
            if self.ends_batch(number):
                target.execute("COMMIT")
                self.meet(number)
                loop.keep()
                target.execute("BEGIN")
            else:
                self.meet(number)
        target.execute("COMMIT")
        loop.keep()

    def numbers(self, row: list[str]) -> list[int]:
        return [int(row[0])]
