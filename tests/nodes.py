"""Real nodes for tests: started as a user starts them, ready when they say so, and gone with the test."""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import psutil

from tests import fork_server

LIMIT = 60.0
"""Seconds that any wait of a test may take: far more than it takes on the slowest machine."""

POLITENESS = 10.0
"""Seconds in which a node may leave by itself at the end of a test."""

Found = TypeVar("Found")


class Node:
    """A running ``taskqueue-node`` and everything it started."""

    def __init__(
        self,
        url: str,
        folder: Path,
        options: Iterable[str],
        environment: Mapping[str, str],
        output: int | None = None,
        wrapper: Sequence[str] = (),
    ) -> None:
        """``wrapper`` is a command that starts the one after it, as ``setpriv`` does."""
        self._told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._place = tempfile.TemporaryDirectory(prefix="tq-")
        address = f"{self._place.name}/notify"
        self._told.bind(address)
        self.log = folder / f"node-{time.monotonic_ns()}.log"
        self.statuses: list[str] = []
        environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), **environment, "NOTIFY_SOCKET": address}
        with self.log.open("wb") as log:
            to = log.fileno() if output is None else output
            self.process = fork_server.start(["--url", url, *options], folder, environment, to, wrapper)

    @property
    def pid(self) -> int:
        """Return the process id of the node itself."""
        return self.process.pid

    def heed(self, wanted: str, limit: float = LIMIT) -> str:
        """Wait until the node tells its supervisor something that contains ``wanted``, and return it."""
        ends_at = time.monotonic() + limit
        for told in self.statuses:
            if wanted in told:
                return told
        while time.monotonic() < ends_at:
            if self.process.poll() is not None:
                raise AssertionError(f"the node left with {self.process.returncode}:\n{self.log.read_text()}")
            if select.select([self._told], [], [], 0.05)[0]:
                told = self._told.recv(65536).decode()
                self.statuses.append(told)
                if wanted in told:
                    return told
        raise AssertionError(f"the node never told {wanted!r}, but {self.statuses}:\n{self.log.read_text()}")

    def manager(self) -> psutil.Process:
        """Return the node's worker manager."""
        [manager] = eventually(lambda: psutil.Process(self.pid).children())
        return manager

    def workers(self) -> list[psutil.Process]:
        """Return the workers that there are now."""
        return self.manager().children()

    def family(self) -> list[psutil.Process]:
        """Return the node and all processes below it."""
        node = psutil.Process(self.pid)
        return [node, *node.children(recursive=True)]

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """Send the signal, wait for the node to leave, and return its exit code."""
        self.process.send_signal(signum)
        return self.wait()

    def wait(self) -> int:
        """Wait for the node to leave and return its exit code."""
        try:
            return self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the node did not leave:\n{self.log.read_text()}") from None

    def kill(self) -> None:
        """End the node and all it started at once, as a power cut does."""
        with suppress(psutil.NoSuchProcess):
            family = self.family()
            for member in family:
                with suppress(psutil.NoSuchProcess):
                    member.kill()
            psutil.wait_procs(family, timeout=LIMIT)
        self.process.wait(LIMIT)

    def close(self) -> None:
        """End the node and all it started: politely, so that coverage is written, and then by force."""
        if self.process.poll() is None:
            for signum in (signal.SIGCONT, signal.SIGTERM, signal.SIGTERM):
                self.process.send_signal(signum)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(POLITENESS)
        self.kill()
        self._told.close()
        self._place.cleanup()


@contextmanager
def node(
    url: str, folder: Path, *options: str, ready: str = "READY=1", wrapper: Sequence[str] = (), **environment: str
) -> Iterator[Node]:
    """Start a node, wait until it tells ``ready``, and end it with all its processes when the block is left."""
    started = Node(url, folder, options, environment, wrapper=wrapper)
    try:
        started.heed(ready)
        yield started
    finally:
        started.close()


@contextmanager
def node_with_output(output: int, url: str, folder: Path, *options: str, wrapper: Sequence[str] = ()) -> Iterator[Node]:
    """Start a node that writes to the descriptor ``output``, as ``node`` does."""
    started = Node(url, folder, options, {}, output, wrapper)
    try:
        started.heed("READY=1")
        yield started
    finally:
        started.close()


def eventually(look: Callable[[], Found], limit: float = LIMIT) -> Found:
    """Look until there is something, and return it."""
    ends_at = time.monotonic() + limit
    while not (found := look()):
        if time.monotonic() > ends_at:
            raise AssertionError(f"still {found!r} after {limit:g} s")
        time.sleep(0.01)
    return found


@contextmanager
def no_descriptors(pid: int = 0) -> Iterator[None]:
    """Let a process, by default this one, open no more files in the block."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def title(process: psutil.Process) -> str:
    """Return what the process calls itself; nothing when it has ended."""
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.NoSuchProcess:
        return ""


def given_time(attempt: Callable[[float], Found | None], seconds: float = 0.2) -> Found:
    """Try with a limit of so many seconds, and with twice as many if it came too early: then there is None."""
    while (found := attempt(seconds)) is None:
        seconds *= 2
        assert seconds < LIMIT, "it never came so far as to exceed its limit there"
    return found
