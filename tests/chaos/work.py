"""The jobs of the chaos tests; what they did is written to files, outside any store."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from taskqueue import Fail, Interrupted, Job
from tests.acceptance.work import write_line
from tests.chaos.gate import pass_through

library = logging.getLogger("library")


class Mark(Job):
    """Writes a line when it starts and one when it ends; between them it waits at the gate ``data["gate"]``."""

    def start(self) -> str:
        print(f"run {self.run_key}")
        write_line(self.data["file"], f"started {self.run_key}")
        if self.data["gate"]:
            pass_through(self.data["gate"])
        write_line(self.data["file"], f"ended {self.run_key}")
        return self.run_key


class CrashOnce(Job):
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


class ManagerKiller(Job):
    """Kills the manager of its worker, and so itself, before anybody has heard that it runs."""

    def start(self) -> None:
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()


class SlowJob(Job):
    """Says and writes a line when it starts, takes ``data["seconds"]``, and says and prints a line when it ends."""

    def start(self) -> str:
        self.log.info("attempt %d is run %s", self.attempt, self.run_key)
        write_line(self.data["file"], f"started {self.run_key}")
        time.sleep(self.data["seconds"])
        return last_words(self.run_key)


class AsyncSlowJob(Job):
    """The same in an event loop."""

    async def start(self) -> str:
        self.log.info("attempt %d is run %s", self.attempt, self.run_key)
        write_line(self.data["file"], f"started {self.run_key}")
        await asyncio.sleep(self.data["seconds"])
        return last_words(self.run_key)


def last_words(run_key: str) -> str:
    """Say and print that the run has come to its end, and return its key."""
    library.warning("done with run %s", run_key)
    print(f"printed by run {run_key}\n", end="", flush=True)  # one write, whatever the buffer: others write there, too
    return run_key


class Pulse(Job):
    """Writes a line with the time every 20 ms for as long as it lives, and does not let itself be interrupted."""

    def start(self) -> None:
        while True:
            with suppress(Interrupted):
                write_line(self.data["file"], f"{self.run_key} {time.monotonic()}")
                time.sleep(0.02)


class Breeder(Job):
    """Starts what outlives a careless parent, and tells which of those that an earlier run started live when it begins.

    They are commands and forked children, each in a session of its own or not; then it waits at the gate.
    """

    def start(self) -> str:
        file, pids = self.data["file"], Path(self.data["pids"])
        before = pids.read_text().split() if pids.exists() else []
        write_line(file, f"started {self.key} beside {sum(map(_runs, before))} of {len(before)}")
        for leads_session in (False, True):
            command = subprocess.Popen(["sleep", "1000"], start_new_session=leads_session, env={})
            write_line(str(pids), str(command.pid))
            write_line(str(pids), str(_forked(leads_session)))
        write_line(file, f"bred {self.key}")
        pass_through(self.data["gate"])
        return self.key


def _forked(leads_session: bool) -> int:
    pid = os.fork()
    if pid == 0:
        if leads_session:
            os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()
    return pid


def _runs(pid: str) -> bool:
    """Return whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "XZ"
    except (FileNotFoundError, ProcessLookupError):
        return False
