"""A real node of the daemon as a child process: started, watched, stopped and started again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from place import Place

WORKERS = 4

LEAVES_WITHIN = 15.0
"""Seconds that a node takes at most to stop: --finish and --grace, and much more for a busy machine."""


class NodeLeft(Exception):
    """The node has left although nobody stopped it."""


class Node:
    """``taskqueue-node`` on the store of this run."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the node that runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it. Nobody has to wait until it is ready: jobs wait in the store."""
        command = [sys.executable, "-m", "taskqueue.cli.node"]
        command += ["--url", str(self._place.store), "--name", "quickstart"]
        command += ["--chdir", str(Path(__file__).parent)]  # where library.py is found
        command += ["--max-children", str(WORKERS), "--finish", "0"]  # so that a stop interrupts jobs at once
        with self._place.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the quickstart, which then stops the node
                pass_fds=[self._place.lock.fileno()],
            )

    def check(self) -> None:
        """Raise ``NodeLeft`` with the end of its log if it has left."""
        if self._process is not None and self._process.poll() is not None:
            last = "\n".join(self._place.log.read_text(errors="replace").splitlines()[-10:])
            raise NodeLeft(f"the node left with exit code {self._process.returncode}:\n{last}")

    def stop(self) -> None:
        """Stop it with SIGTERM and wait until it has left; it takes its workers along."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(LEAVES_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()  # manager and workers do not outlive it
            process.wait()


def worker_of(id: object) -> int | None:
    """Return the process that runs the job, or None: a worker has the job's id in its title, as ``ps`` shows it."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            title = path.read_bytes()
        except OSError:  # it has just ended
            continue
        if title.startswith(b"taskqueue: worker") and str(id).encode() in title:
            return int(path.parent.name)
    return None
