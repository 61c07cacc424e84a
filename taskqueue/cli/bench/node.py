"""A real node as a child of the measurement: started as operators start it, watched, and stopped."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from taskqueue.cli.bench.jobs import address
from taskqueue.daemon.protocol.control_socket import VARIABLE
from taskqueue.errors import TaskqueueError, WaitTimeout
from taskqueue.model.query import PENDING, And, Query, parse
from taskqueue.scheduler.process import Process
from taskqueue.store import Store

STUCK_AFTER = 120.0
"""Seconds in which nothing moves, after which a measurement is given up."""

LEAVES_WITHIN = 30.0
"""Seconds after which a node that was asked to leave is killed: many times as long as it takes to leave."""

LOOK_EVERY = 0.05
"""Seconds between two looks at the measured work: more looks would take time from it."""

COUNT_EVERY = 5.0
"""Seconds between two counts of the jobs that are left: MongoDB counts 10,000 in 13 ms, a core of two meanwhile."""

_PROC = Path("/proc")

_OTHERS = ("TASKQUEUE_", "NOTIFY_SOCKET", "WATCHDOG_", "STATE_DIRECTORY")
"""Prefixes of variables that would give the node other settings, but for the folder in which bells of a host hang."""


class MeasurementFailed(TaskqueueError):
    """The node left, or nothing moved any more."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """A job has started: in which process, and when by this host's clock."""

    pid: int
    at: float


class StartSignals:
    """The socket to which jobs of the class ``Blocking`` send their start, past the store."""

    def __init__(self, listening: socket.socket, name: str) -> None:
        self._listening = listening
        self.data = {"to": name}
        """The data for a job."""

    def receive(self) -> Start:
        """Wait until a job has started. Raises ``MeasurementFailed``."""
        try:
            pid, at = self._listening.recv(1024).split()
        except TimeoutError:
            raise MeasurementFailed(f"no job began for {STUCK_AFTER:g} s") from None
        return Start(pid=int(pid), at=float(at))


class Node:
    """``taskqueue-node`` with so many workers on a store of its own."""

    def __init__(self, url: str, folder: Path, workers: int, options: tuple[str, ...]) -> None:
        self._log = folder / f"node-{secrets.token_hex(4)}.log"
        own = {name: value for name, value in os.environ.items() if not name.startswith(_OTHERS) or name == VARIABLE}
        command = [sys.executable, "-m", "taskqueue.cli.node", "--name", "bench", "--log-level", "warning"]
        command += ["--pm", "static", "--min-children", str(workers), "--finish", "0", *options]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env={**own, "TASKQUEUE_URL": url},  # not an argument: an address may hold a password
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the measurement, which then stops the node
            )

    @property
    def pid(self) -> int:
        """The process id of the node itself."""
        return self._process.pid

    def wait(self, process: Process) -> Process:
        """Wait until the job has ended as DONE, and return it. Raises ``MeasurementFailed``."""
        ends_at = time.monotonic() + STUCK_AFTER
        while True:
            try:
                process.wait(timeout=1.0)
                break
            except WaitTimeout:
                self.check(ends_at, process)
        if not process.is_done:
            raise MeasurementFailed(f"job {process.id} ended as {process.status.name}: {process.why()}")
        return process

    def drain(self, store: Store) -> None:
        """Wait until no job is pending. Raises ``MeasurementFailed``."""
        before, ends_at = -1, 0.0
        while left := store.count(PENDING):
            if left != before:
                before, ends_at = left, time.monotonic() + STUCK_AFTER
            self._await_newest(store, ends_at)

    def check(self, ends_at: float, process: Process | None = None) -> None:
        """Raise ``MeasurementFailed`` if the node has left, or after the monotonic time, saying why the job waits."""
        code = self._process.poll()
        if code is not None:
            raise MeasurementFailed(f"the node left with exit code {code}: {self._last_words()}")
        if time.monotonic() > ends_at:
            why = "" if process is None else process.why()
            raise MeasurementFailed(f"nothing moved for {STUCK_AFTER:g} s: {self._last_words()} {why}".rstrip())

    def stop(self) -> float:
        """Stop it with SIGTERM, and return the seconds until it had left."""
        began = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(LEAVES_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()  # manager and workers do not outlive it
            self._process.wait()
        return time.monotonic() - began

    def memory(self) -> int:
        """Return the proportional set size of all its processes in bytes: shared memory counts for each by its part."""
        total = 0
        for pid in family(self.pid):
            for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        return total

    def processor_time(self) -> float:
        """Return the seconds for which the threads of all its processes have run."""
        total = 0
        for pid in family(self.pid):
            for thread in (_PROC / str(pid) / "task").iterdir():
                with suppress(OSError):  # it has just ended
                    total += int((thread / "schedstat").read_text().split()[0])
        return total / 1e9

    def close(self) -> None:
        """Stop it if it runs."""
        if self._process.poll() is None:
            self.stop()

    def _await_newest(self, store: Store, ends_at: float) -> None:
        """Wait until the newest pending job has ended, which is one of the last, or the next count is due."""
        counts_at = time.monotonic() + COUNT_EVERY
        watched: Query = PENDING
        while (newest := store.find(watched, order="-id", limit=1)) and time.monotonic() < counts_at:
            self.check(ends_at)
            watched = And((PENDING, parse({"id": str(newest[0].id)})))
            time.sleep(LOOK_EVERY)

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return " ".join(lines[-3:]) or "its log is empty"


@contextmanager
def node(url: str, folder: Path, workers: int, *options: str) -> Iterator[Node]:
    """Start a node and stop it when the block is left."""
    started = Node(url, folder, workers, options)
    try:
        yield started
    finally:
        started.close()


@contextmanager
def start_signals() -> Iterator[StartSignals]:
    """Listen to starts while the block runs."""
    name = secrets.token_hex(8)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(address(name))
        listening.settimeout(STUCK_AFTER)
        yield StartSignals(listening, name)


def family(pid: int) -> list[int]:
    """Return the process and all below it."""
    children = []
    for thread in (_PROC / str(pid) / "task").iterdir():
        children += [int(child) for child in (thread / "children").read_text().split()]
    return [pid, *(member for child in children for member in family(child))]
