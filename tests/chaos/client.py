"""The client of the fault matrix: adds a job, waits for it, says so, and lingers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from taskqueue import Process, Scheduler
from tests.chaos.host import Host
from tests.chaos.work import Mark


class Client:
    """An application in a process of its own."""

    def __init__(self, host: Host) -> None:
        self._host = host
        command = [sys.executable, "-m", "tests.chaos.client", host.url, host.file, host.gate.path]
        self.process = subprocess.Popen(command, cwd=Path.cwd(), stdout=subprocess.PIPE, stdin=subprocess.PIPE)

    def add(self) -> Process:
        """Have a job added, and return it."""
        self._say("add")
        return self._host.scheduler.get_job(self.hear())

    def hear(self) -> str:
        """Return the next line of the client; empty when it has gone."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def close(self) -> None:
        """End the client."""
        self.process.kill()
        self.process.communicate()

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()


def main(url: str, file: str, gate: str) -> None:
    """Add a job when a line comes, print its id and, later, how it ended, until there are no more lines."""
    with Scheduler(url) as scheduler:
        for _ in sys.stdin:
            process = scheduler.add_job(Mark, {"file": file, "gate": gate})
            print(process.id, flush=True)
            print(process.wait().status.name, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
