"""Start nodes as forks of one process that has imported them: to start Python and import the node takes most of a test.

Each process of a test run has a fork server of its own, started with its first node. The server ends with the process,
also where that is killed, and its nodes with the server. A fork becomes what
``python -m taskqueue.cli.node`` is: folder, environment, arguments and module path are those it is given.

A server that has ended by itself is replaced when the next node is started. Its error messages, and that it was
replaced, are in the file ``log``, which the run prints at its end.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from setproctitle import setproctitle

from taskqueue.daemon.runtime import child_setup
from taskqueue.model.lazy_dataclass import make_all

CHECKOUT = Path(__file__).resolve().parent.parent
PROGRAM = "taskqueue.cli.node"
IMPORTED = (
    *(PROGRAM, "taskqueue.cli.log_setup", "taskqueue.daemon.node.start"),
    *("taskqueue.store.relational.store", "taskqueue.store.relational.history", "taskqueue.store.relational.schedules"),
    *("taskqueue.store.mongodb.store", "email.parser"),  # the last is needed to read the version
)
LONGEST = 200_000
"""Bytes of a request: one message with arguments and environment."""

PR_SET_PDEATHSIG = 1
ENDS_WITHIN = 30.0
"""Seconds in which the server leaves: it may have coverage to write."""

log = Path(os.devnull)
"""Error messages of the servers."""


class Fork:
    """A started node, with the part of ``subprocess.Popen`` that tests use."""

    def __init__(self, answers: int) -> None:
        self._answers = answers
        self.pid = self._answer()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process and return its exit code. Raise ``subprocess.TimeoutExpired``."""
        if self.returncode is None:
            with selectors.PollSelector() as selector:
                selector.register(self._answers, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(PROGRAM, timeout or 0)
            self.returncode = self._answer()
            os.close(self._answers)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended, and its end is still under way
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask the process to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process at once."""
        self.send_signal(signal.SIGKILL)

    def _answer(self) -> int:
        answer = os.read(self._answers, 4)
        assert len(answer) == 4, "the fork server has gone"
        return int.from_bytes(answer, "big", signed=True)


def start(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], output: int, wrapper: Sequence[str] = ()
) -> Fork | subprocess.Popen[bytes]:
    """Start a node with these arguments that writes to the descriptor ``output``; with a wrapper as that starts it."""
    if wrapper:
        command = [*wrapper, sys.executable, "-m", PROGRAM, *arguments]
        return subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    request = json.dumps({"arguments": list(arguments), "folder": str(folder), "environment": dict(environment)})
    answers, writer = os.pipe()
    try:
        socket.send_fds(_server(), [request.encode()], [writer, output])
    except BrokenPipeError:
        with log.open("a") as file:
            file.write(f"process {os.getpid()} had to replace its fork server when it started a node in {folder}\n")
        _forget()
        socket.send_fds(_server(), [request.encode()], [writer, output])
    os.close(writer)
    return Fork(answers)


def end() -> None:
    """Let the server of this process leave, if there is one, and wait until it has written its coverage.

    A fork of the process has no server: to end that of its parent would leave the parent without one.
    """
    if _server.cache_info().currsize:
        with _server() as server:
            server.settimeout(ENDS_WITHIN)
            server.shutdown(socket.SHUT_WR)
            server.recv(1)
        _server.cache_clear()


@functools.cache
def _server() -> socket.socket:
    """Return the connection to the server of this process, which is started with the first call."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # The launcher ends at once: no test that looks at the children of its process sees the server.
    command = ["setsid", "--fork", sys.executable, "-m", "tests.fork_server", str(theirs.fileno())]
    with theirs, log.open("a") as errors:
        subprocess.run(
            command,
            cwd=CHECKOUT,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            check=True,
        )
    return ours


def _forget() -> None:
    if _server.cache_info().currsize:
        _server().close()
        _server.cache_clear()


os.register_at_fork(after_in_child=_forget)


def serve(requests: socket.socket) -> list[str]:
    """Fork for each request until the tests have ended; return the arguments of the node in each fork."""
    with selectors.PollSelector() as selector:
        selector.register(requests, selectors.EVENT_READ, None)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not requests:
                    selector.unregister(key.fileobj)
                    _report(key.fd, *key.data)
                    continue
                message, descriptors, _, _ = socket.recv_fds(requests, LONGEST, 2)
                if not message:
                    sys.exit()
                writer, output = descriptors
                pid = os.fork()
                if pid == 0:
                    requests.detach()
                    wanted = json.loads(message)
                    _become(**wanted, output=output)
                    return list(wanted["arguments"])
                os.close(output)
                os.write(writer, pid.to_bytes(4, "big", signed=True))
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, writer))


def _report(process: int, pid: int, writer: int) -> None:
    """Tell the tests the exit code of a process that has ended."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(writer, code.to_bytes(4, "big", signed=True))
    os.close(writer)
    os.close(process)


def _become(arguments: list[str], folder: str, environment: dict[str, str], output: int) -> None:
    """Make this process look as if it had just been started, but for its end with that of the server."""
    child_setup.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # Anew, for those of the server take the output for one that can be sought, as /dev/null can.
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    sys.path[:1] = [folder, str(CHECKOUT)]
    sys.orig_argv[:] = [sys.executable, "-m", PROGRAM, *arguments]
    sys.argv[:] = [str(importlib.import_module(PROGRAM).__file__), *arguments]


if __name__ == "__main__":
    setproctitle("taskqueue: fork server of tests")  # finds where titles go: it would not with another environment
    for module in IMPORTED:
        importlib.import_module(module)
    make_all()  # or each node would make them, which takes as long as all else that it does to start
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        arguments = serve(requests)
    sys.exit(importlib.import_module(PROGRAM).main(arguments))
