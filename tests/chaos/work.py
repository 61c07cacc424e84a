"""The jobs of the chaos tests; what they did is written to files, outside any store."""

from __future__ import annotations

import time

from taskqueue import Job
from tests.acceptance.work import write_line
from tests.chaos.gate import pass_through


class Mark(Job):
    """Writes a line when it starts and one when it ends; between them it waits at the gate ``data["gate"]``."""

    def start(self) -> str:
        write_line(self.data["file"], f"started {self.key}")
        if self.data["gate"]:
            pass_through(self.data["gate"])
        write_line(self.data["file"], f"ended {self.key}")
        return self.key


class Toil(Job):
    """Writes a line when it starts, and takes ``data["seconds"]``."""

    def start(self) -> str:
        write_line(self.data["file"], f"started {self.key}")
        time.sleep(self.data["seconds"])
        return self.key
