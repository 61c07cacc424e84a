"""The built-in job that runs a command, keeps the end of its output, and stops the command with the job."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import IO, Any, TypeVar

from taskqueue.errors import InvalidJob
from taskqueue.model.environment import for_commands
from taskqueue.model.job import Fail, Interrupted, Job
from taskqueue.model.shown_text import as_code

Answer = TypeVar("Answer")

OUTPUT_LIMIT = 64 * 1024
"""How many bytes of stdout and of stderr are kept: the last ones."""

TERMINATE_FOR = 2.0
"""Seconds between SIGTERM and SIGKILL for a command; less than a worker's own grace period."""

_KEYS = ("argv", "shell", "cwd", "env")
_READ = 64 * 1024
"""Bytes of one read: the usual size of a pipe."""

_PIPE_READS = 16
"""How many reads empty any pipe, which holds up to 1 MiB; more would serve a writer that outlives the command."""


class CommandFailed(Exception):
    """Raised by ``ShellJob`` for a command that ended with another exit code than 0."""

    __module__ = "taskqueue"  # as users import it: the name is stored with the job, wherever this file is


class ShellJob(Job):
    """Run a command: ``add_job(ShellJob, {"argv": ["tar", "-cf", "/backup.tar", "/home"]})``.

    Data: ``argv``, a list of texts, or one text with ``"shell": True``; ``cwd``, a folder; ``env``, variables that are
    added to those of the worker, without ``TASKQUEUE_URL`` and what systemd tells the node. The result is
    ``{"exit_code", "stdout", "stderr"}`` with the last 64 KiB of each output. Another exit code than 0 is a failed
    attempt; a command that was killed by signal N has exit code -N. The command has a session of its own, and is ended
    with all of its process group. What it leaves running when it ends is not waited for; it is ended with the worker.
    """

    def start(self) -> dict[str, Any]:
        """Run the command and return its exit code and output."""

        def attend(command: subprocess.Popen[bytes]) -> tuple[subprocess.Popen[bytes], str, str]:
            stdout, stderr = listened_to(command, command.stdout, command.stderr)
            command.wait()  # so that what it leaves running is not killed
            return command, stdout, stderr

        command, stdout, stderr = run_command(lambda: _begun(self.data), attend, self._running.uninterrupted())
        if command.returncode != 0:
            raise CommandFailed(_said(command, stdout, stderr))
        return {"exit_code": command.returncode, "stdout": stdout, "stderr": stderr}


def run_command(
    begin: Callable[[], subprocess.Popen[bytes]],
    attend: Callable[[subprocess.Popen[bytes]], Answer],
    uninterrupted: AbstractContextManager[object],
) -> Answer:
    """Start a command, and return what ``attend`` returns; then the command has ended.

    An interrupt of the run asks the command to end. If ``attend`` leaves it unreaped, its process group is killed.
    """
    command: subprocess.Popen[bytes] | None = None
    try:
        with uninterrupted:  # nobody would know of a command whose start was interrupted
            command = begin()
        return attend(command)
    except Interrupted:
        if command is not None:
            _end(command)
        raise
    finally:
        if command is not None:
            _close(command)


def check(data: Any) -> None:
    """Raise ``InvalidJob`` if the data names no command."""
    if not isinstance(data, Mapping) or "argv" not in data:
        raise InvalidJob(f"data of ShellJob is {as_code(data)}: pass a mapping such as {{'argv': ['ls', '-l']}}")
    unknown = [key for key in data if key not in _KEYS]
    if unknown:
        raise InvalidJob(f"data of ShellJob has {as_code(unknown[0])}: use {', '.join(_KEYS)}")
    _check_argv(data["argv"], data.get("shell", False))
    if not isinstance(data.get("cwd"), str | None):
        raise InvalidJob(f"data['cwd'] of ShellJob is {as_code(data['cwd'])}: pass the path of a folder as text")
    env = data.get("env")
    if env is not None and not (
        isinstance(env, Mapping) and all(_is_text(part) for pair in env.items() for part in pair)
    ):
        raise InvalidJob(f"data['env'] of ShellJob is {as_code(env)}: pass a mapping of text to text")


def _check_argv(argv: Any, shell: Any) -> None:
    if not isinstance(shell, bool):
        raise InvalidJob(f"data['shell'] of ShellJob is {as_code(shell)}: pass True or False")
    if shell and not _is_text(argv):
        raise InvalidJob(
            f"data['argv'] of ShellJob is {as_code(argv)}: with shell=True pass one text, the command line"
        )
    if not shell and not (isinstance(argv, list | tuple) and argv and all(map(_is_text, argv))):
        raise InvalidJob(
            f"data['argv'] of ShellJob is {as_code(argv)}: pass a list of texts, or one text with shell=True"
        )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def _begun(data: Any) -> subprocess.Popen[bytes]:
    """Start the command as leader of a process group, so that signals to its group do not reach its worker."""
    try:
        check(data)
    except InvalidJob as refused:
        raise Fail(str(refused)) from None
    argv = ["/bin/sh", "-c", data["argv"]] if data.get("shell", False) else data["argv"]
    env = {**for_commands(os.environ), **(data.get("env") or {})}
    program = os.path.join(data.get("cwd") or "", argv[0]) if "/" in argv[0] else argv[0]
    is_here = shutil.which(program, path=env.get("PATH", os.defpath)) is not None  # if not, Python raises its own error
    command = subprocess.Popen(
        [*(_dying_with_us() if is_here else ()), *argv],
        cwd=data.get("cwd"),
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    command.args = data["argv"]
    return command


@functools.cache
def _dying_with_us() -> tuple[str, ...]:
    """Return the prefix that makes a command die with this process; empty if the host has no such program.

    Without it the command is killed by the manager, or by the next node of this host. What a program of its own does
    here, code of ours between fork and exec could do as well, but with threads it might wait forever for a lock that
    one of them held, and a fork takes many times as long.
    """
    path = shutil.which("setpriv")
    if path is None:
        return ()
    begins = (path, "--pdeathsig", "KILL", "--")
    tried = subprocess.run([*begins, "true"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return begins if tried.returncode == 0 else ()


class _Tail:
    """The last bytes of one output."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._bytes = bytearray()

    def read(self) -> bool:
        """Read once, and return whether there was something."""
        try:
            read = os.read(self.descriptor, _READ)
        except BlockingIOError:
            return False
        self._bytes += read
        del self._bytes[:-OUTPUT_LIMIT]
        return bool(read)

    def empty(self) -> None:
        """Read the rest of the pipe, without waiting for other processes that hold it open."""
        os.set_blocking(self.descriptor, False)
        for _ in range(_PIPE_READS):
            if not self.read():
                return

    def __str__(self) -> str:
        return self._bytes.decode("utf-8", "replace")


def listened_to(command: subprocess.Popen[bytes], *pipes: IO[bytes] | None, within: float | None = None) -> list[str]:
    """Return the ends of what the command has written to these pipes, once it has ended.

    Raises ``TimeoutError`` if it has not ended within ``within`` seconds. It is not reaped, so its group keeps its id.
    """
    tails = [_Tail(pipe.fileno()) for pipe in pipes if pipe is not None]
    deadline = None if within is None else time.monotonic() + within
    exited = os.pidfd_open(command.pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(exited, selectors.EVENT_READ, None)
            for tail in tails:
                selector.register(tail.descriptor, selectors.EVENT_READ, tail)
            while not _ended(selector, None if deadline is None else deadline - time.monotonic()):
                pass
    finally:
        os.close(exited)
    for tail in tails:
        tail.empty()
    return [str(tail) for tail in tails]


def _ended(selector: selectors.BaseSelector, within: float | None) -> bool:
    """Read the available output, and return whether the command has ended; raise ``TimeoutError``."""
    if within is not None and within <= 0:
        raise TimeoutError
    ended = False
    for key, _ in selector.select(within):
        if key.data is None:
            ended = True
        elif not key.data.read():
            selector.unregister(key.fileobj)
    return ended


def _end(command: subprocess.Popen[bytes]) -> None:
    """Ask the command to end, then kill it; further interruptions, which come every second, change nothing."""
    deadline = time.monotonic() + TERMINATE_FOR
    _signal(command, signal.SIGTERM)
    while (seconds := deadline - time.monotonic()) > 0:
        try:
            if _has_died(command, seconds):
                break
        except Interrupted:
            continue
    _signal(command, signal.SIGKILL)


def _has_died(command: subprocess.Popen[bytes], within: float) -> bool:
    """Return whether the command dies within this many seconds; it is not reaped, so its group keeps its id."""
    if command.returncode is not None:
        return True
    exited = os.pidfd_open(command.pid)
    try:
        poll = select.poll()
        poll.register(exited, select.POLLIN)
        return bool(poll.poll(within * 1000))
    finally:
        os.close(exited)


def _signal(command: subprocess.Popen[bytes], signum: int) -> None:
    """Signal the command and all of its process group, unless it was reaped: the id may be another group's by now."""
    if command.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(command.pid, signum)


def _close(command: subprocess.Popen[bytes]) -> None:
    """Leave nothing open, and no command running that was not waited for, whatever happened."""
    with command:  # this waits, and closes the pipes
        _signal(command, signal.SIGKILL)


def _said(command: subprocess.Popen[bytes], stdout: str, stderr: str) -> str:
    output = (stderr.strip() or stdout.strip())[-2000:]
    name = command.args if isinstance(command.args, str) else " ".join(map(str, command.args))  # type: ignore[arg-type]
    return f"exit code {command.returncode} of {name[:200]}" + (f": {output}" if output else "")
