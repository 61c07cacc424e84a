"""A real node in its own processes, started for one test."""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

STARTS_WITHIN = 60.0
STOPS_WITHIN = 30.0


class TestNode:
    """A running ``taskqueue-node``; it finds modules where the test does."""

    __test__ = False  # pytest does not collect it

    def __init__(self, url: str, options: Sequence[str] = (), variables: Mapping[str, str] | None = None) -> None:
        """Start the node, and return when it takes jobs; raise ``AssertionError`` with its log if it does not."""
        self._folder = tempfile.TemporaryDirectory(prefix="taskqueue-node-")
        self.log = Path(self._folder.name) / "node.log"
        """Its log."""
        address = f"@taskqueue-test-{secrets.token_hex(16)}"  # not a file, whose path may be too long
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(variables or {})}
        command = [sys.executable, "-m", "taskqueue.cli.node", "--url", url]
        command += ["--name", "testing", "--grace", "1", *options]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as statuses, self.log.open("wb") as log:
            statuses.bind(address.replace("@", "\0"))
            self._process = subprocess.Popen(
                command,
                env={**environment, "NOTIFY_SOCKET": address},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                self._wait_until_ready(statuses)
            except BaseException:
                self.kill()
                raise

    @property
    def pid(self) -> int:
        """The process id of the node; its manager and workers are below it."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the node is still running."""
        return self._process.poll() is None

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """Ask the node to stop, wait until it has left, and return its exit code; kill one that does not leave."""
        if self.is_running:
            self._process.send_signal(signum)
        try:
            code = self._process.wait(STOPS_WITHIN)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the node did not stop within {STOPS_WITHIN:g} s:\n{self._text()}") from None
        self._folder.cleanup()
        return code

    def kill(self) -> None:
        """Kill the node, its manager and its workers at once, as a crash of the host would."""
        if self.is_running:
            self._process.kill()  # its children die with it
        self._process.wait()
        self._folder.cleanup()

    def _wait_until_ready(self, statuses: socket.socket) -> None:
        ends_at = time.monotonic() + STARTS_WITHIN
        while time.monotonic() < ends_at:
            if select.select([statuses], [], [], 0.02)[0] and b"READY=1" in statuses.recv(65536):
                return
            if not self.is_running:
                raise AssertionError(f"the node left with code {self._process.returncode}:\n{self._text()}")
        raise AssertionError(f"the node was not ready within {STARTS_WITHIN:g} s:\n{self._text()}")

    def _text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""
