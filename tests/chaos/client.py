"""The client of the fault matrix: adds a job, waits for it, says so, and lingers; or adds jobs as fast as it can."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from taskqueue import Scheduler
from tests.chaos.work import Mark


class Client:
    """An application in a process of its own."""

    def __init__(self, url: str, file: str, gate: str) -> None:
        command = [sys.executable, "-m", "tests.chaos.client", url, file, gate]
        self.process = subprocess.Popen(command, cwd=Path.cwd(), stdout=subprocess.PIPE, stdin=subprocess.PIPE)

    def add(self) -> str:
        """Have a job added and waited for, and return its id."""
        self._say("add")
        return self.hear()

    def add_on_and_on(self) -> None:
        """Have jobs added until the client is killed; it says the id of each that was acknowledged."""
        self._say("go on")

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
    data = {"file": file, "gate": gate}
    with Scheduler(url) as scheduler:
        for line in sys.stdin:
            while line.startswith("go on"):
                print(scheduler.add_job(Mark, data).id, flush=True)
            process = scheduler.add_job(Mark, data)
            print(process.id, flush=True)
            print(process.wait().status.name, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
