"""The jobs of the chaos tests; what they did is written to files, outside any store."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from taskqueue import Fail, Interrupted, Job
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


class Fate(Job):
    """Kills its worker on its first run if there is a file to note that in, and ends as ``data["end"]`` says."""

    def start(self) -> None:
        crash = self.data["crash"]
        if crash and not Path(crash).exists():
            Path(crash).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.data["end"] == "FAILED":
            raise Fail("as it was to be")
        if self.data["end"] == "TIMEOUT":
            signal.pause()


class Orphan(Job):
    """Kills the manager of its worker, and so itself, before anybody has heard that it runs."""

    def start(self) -> None:
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()


class Toil(Job):
    """Writes a line when it starts, and takes ``data["seconds"]``."""

    def start(self) -> str:
        write_line(self.data["file"], f"started {self.key}")
        time.sleep(self.data["seconds"])
        return self.key


class Pulse(Job):
    """Writes a line with the time every 20 ms for as long as it lives, and does not let itself be interrupted."""

    def start(self) -> None:
        while True:
            with suppress(Interrupted):
                write_line(self.data["file"], f"{self.key} {time.monotonic()}")
                time.sleep(0.02)
