"""``taskqueue run``: a node for one application file, with a line for each run, which loads changed code if asked."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import click

from taskqueue.cli import exit, log_setup, node, output
from taskqueue.cli.application_module import folder_of, module_of
from taskqueue.cli.ids import short
from taskqueue.cli.node_options import POOL, settings_from
from taskqueue.daemon.node import run_log
from taskqueue.daemon.runtime import child_process, standard_streams
from taskqueue.errors import ConfigError, TaskqueueError
from taskqueue.model.record import Cause, Record, Status
from taskqueue.model.wording import span


@click.command("run", short_help="Run a node for one application file.", params=list(POOL))
@click.argument("application", metavar="FILE_OR_MODULE")
@click.option(
    "--name", metavar="NAME", help="The seat this node takes; default: development, with --burst one of its own."
)
@click.option("--web", is_flag=True, help="Serve the dashboard too, for every user of this host; needs the extra web.")
@click.option("--listen", metavar="[HOST:]PORT", help="With --web: where; default: 127.0.0.1:8030.")
@click.option(
    "--reload", is_flag=True,
    help="Load changed code: replace the workers when a Python file changes; needs the extra dev.",
)  # fmt: skip
@click.pass_context
def run_command(
    ctx: click.Context,
    /,
    application: str,
    name: str | None,
    schedules: str | None,
    burst: bool,
    reload: bool,
    web: bool,
    listen: str | None,
    log_level: str,
    log_format: str,
    log_config: Path | None,
    **parameters: Any,
) -> int:
    """Run a node for one application file, and print a line for each run.

    It runs until Ctrl-C, on the embedded store unless --url names another. The file's folder is importable, so that
    jobs added by `python FILE` are found. At the start, a worker imports the application and applies the schedules
    that it declares with @schedule. A class that cannot be loaded fails its job at once instead of being tried for an
    hour. With --reload, changed code runs with the next job; running jobs end first. With --web, the dashboard is
    served while the node runs. With --burst, it exits when no job can start now: with code 0, or with 1 if its
    schedules could not be applied or an outbox could not be emptied. Retries after a pause and jobs that are due later
    stay in the store.
    """
    if burst and reload:
        raise click.UsageError("--burst exits when nothing is due, but --reload waits for changes: pass only one")
    folder = folder_of(application)
    own = {"url": ctx.find_root().obj, "chdir": folder, "unroutable_after": 0.0, "burst": burst}
    declaring = schedules or _importable(module_of(application))
    seat = name or (_seat_of_burst() if burst else "development")
    settings = settings_from({**parameters, **own, "schedules": declaring, "name": seat})

    def start() -> int:
        child_process.require_linux()
        standard_streams.install()
        keep = log_setup.configure(log_level, log_format, log_config)
        if log_format == "text" and log_config is None:
            show()
        return node.start(settings, keep)

    if listen is not None and not web:
        raise click.UsageError("--listen says where the dashboard is served: pass --web too")
    with _dashboard(ctx.find_root().obj, listen) if web else nullcontext():
        if not reload:
            return start()
        return run_reloading(folder.resolve(), lambda: _reported(start))


def _importable(module: str) -> str | None:
    """Return the name of the module; None if no job can be imported from it."""
    return module if all(part.isidentifier() for part in module.split(".")) else None


def _seat_of_burst() -> str:
    """Return a name that no other node has: several nodes may run at once, for instance from cron."""
    return f"burst {os.getpid()} on {socket.gethostname()[:64]}"


@contextmanager
def _dashboard(url: str | None, listen: str | None) -> Iterator[None]:
    """Serve the dashboard in a process of its own, which exits when this one does, however it ends."""
    if find_spec("uvicorn") is None:
        raise ConfigError("--web needs the package uvicorn: pip install 'taskqueue-jobs[web]'")
    command = [sys.executable, "-m", "taskqueue", "web", "--until-closed", *(["--listen", listen] if listen else [])]
    environment = dict(os.environ) if url is None else {**os.environ, "TASKQUEUE_URL": url}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as process:
        try:
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()


def _reported(start: Callable[[], int]) -> int:
    """Run the node in a child process, which reports its errors itself."""
    sys.dont_write_bytecode = True  # otherwise two changes within a second would look the same
    try:
        return start()
    except TaskqueueError as error:
        return exit.complain("taskqueue", error)


_FRAME = re.compile(r'  File "(?P<path>[^"]+)", line \d+')

_LIBRARIES = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]),
)
"""Folders whose code is not the user's: of Python, of installed packages, and of this one."""


_ASKED = ("TimedOut", "Interrupted", "Canceled")
"""Outcomes whose error taskqueue raised inside the job: the frames of libraries say nothing about it."""


class RunLines(logging.Handler):
    """Prints ``12:00:00 6b03a3eb..915a32 shop:MailJob DONE in 120 ms`` for each run, coloured on a terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the line of a run that ``run_log`` has logged, and the traceback of its error."""
        from taskqueue.cli import terminal  # this imports rich, which manager and workers do not need

        if not isinstance(record, run_log.RunEnded):
            return
        after = record.after
        if after.cause is Cause.HANDED_BACK:
            return  # it did not start; with concurrency there may be many such runs
        status, words = _outcome(after)
        with contextlib.suppress(OSError):  # a closed output must not stop the node
            terminal.run_line(self._time(record), short(after.id), after.shown_job, status, words)
            error = after.error if after.attempts and after.attempts[-1].error is not None else None
            if error is not None and error.traceback:
                terminal.traceback(shown_frames(error.traceback, after.attempts[-1].outcome))

    def _time(self, record: logging.LogRecord) -> str:
        return logging.Formatter(datefmt="%H:%M:%S").formatTime(record, "%H:%M:%S")


def show() -> None:
    """Print a line for each run of the node in this process, in place of its log line."""
    run_log.runs.setLevel(logging.DEBUG)
    run_log.runs.propagate = False
    run_log.runs.handlers = [RunLines()]


def shown_frames(text: str, outcome: str) -> list[tuple[str, bool]]:
    """Return the lines of the traceback of a run with this outcome, and whether each is from a library."""
    return [(line, dim) for line, dim in users_first(text) if not (dim and outcome in _ASKED)]


def users_first(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a traceback, and whether each is from a library: first the user's frames and the error."""
    own: list[str] = []
    others: list[str] = []
    frames = own
    for line in text.splitlines():
        if not line.startswith("  ") and (own or others) and line:
            yield from _section(own, [line], others)
            own, others = [], []
            frames = own
            continue
        frame = _FRAME.match(line)
        if frame is not None:
            frames = others if frame["path"].startswith((*_LIBRARIES, "<frozen ")) else own
        if frame is not None or own or others:
            frames.append(line)
        else:
            yield line, False
    yield from _section(own, [], others)


def _section(own: Sequence[str], error: Sequence[str], others: Sequence[str]) -> Iterator[tuple[str, bool]]:
    yield from ((line, False) for line in (*own, *error))
    if others:
        yield "  below that, in libraries:", True
    yield from ((line, True) for line in others)


def _outcome(after: Record) -> tuple[str, str]:
    """Return the status after the run, or the cause if the job runs again later, and the words that follow it."""
    last = after.attempts[-1] if after.attempts else None
    words = ""
    if last is not None and last.started_at is not None:
        words = f"in {span((last.ended_at - last.started_at).total_seconds())}"
    if after.status is Status.DONE:
        return "DONE", words
    if after.status.is_final:
        return after.status.name, f"{words} ({after.cause.value})"
    cause = "FAILED" if after.cause in (Cause.RETRY, Cause.CRASHED) else after.status.name
    if last is None or after.ready_at is None:
        return cause, f"({after.cause.value})"
    pause = (after.ready_at - last.ended_at).total_seconds()
    again = f"again in {span(pause)}" if pause > 0 else "again at once"
    return cause, f"{words} ({after.cause.value}), {again}"


STEP = 50
"""Milliseconds without a change after which a change counts as complete."""

DEBOUNCE = 200
"""Milliseconds for which changes are collected at most."""

LOOK = 200
"""Milliseconds between two checks of the node."""

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)


def run_reloading(folder: Path, start: Callable[[], int]) -> int:
    """Run the node that ``start`` runs in a child process until it leaves, and return its exit code.

    Signals go to the node; after a change in the folder, SIGHUP makes it replace each worker after its current run.
    Raises ``ConfigError`` without the package watchfiles.
    """
    changes = _watch(folder)
    child = child_process.fork(lambda: _allowing_hangup(start), name="run --reload", death_signal=signal.SIGTERM)

    def forward(signum: int, _: FrameType | None) -> None:
        child.signal(signum)

    before = {signum: signal.signal(signum, forward) for signum in FORWARDED}
    try:
        for changed in changes:
            if select.select([child], [], [], 0)[0]:
                break
            if changed and _compile(changed):
                child.signal(signal.SIGHUP)
        ended = child.reap()
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        child.close()
    return ended.code if ended.code is not None else 128 + (ended.signal or 0)


def _watch(folder: Path) -> Iterator[list[Path]]:
    """Return an iterator over the Python files that have changed together; an empty list at intervals."""
    try:
        import watchfiles
    except ImportError:
        raise ConfigError("--reload needs the package watchfiles: pip install 'taskqueue-jobs[dev]'") from None
    changes = watchfiles.watch(
        folder,
        watch_filter=watchfiles.PythonFilter(),
        step=STEP,
        debounce=DEBOUNCE,
        rust_timeout=LOOK,
        yield_on_timeout=True,
        raise_interrupt=False,
    )
    return (sorted({Path(path) for _, path in together}) for together in changes)


def _compile(changed: Iterable[Path]) -> bool:
    """Print which files have changed, and return whether all can be compiled; if not, the old code keeps running."""
    is_whole = True
    for path in changed:
        try:
            compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
            output.line(f"reloading: {path.name} has changed", err=True)
        except FileNotFoundError:
            output.line(f"reloading: {path.name} was removed", err=True)
        except (OSError, SyntaxError, ValueError) as error:
            output.line(f"not reloading: {path.name} does not compile: {error}", err=True)
            is_whole = False
    return is_whole


def _allowing_hangup(start: Callable[[], int]) -> int:
    """Run the node in the child: a change before it is ready is no reason to end it."""
    signal.signal(signal.SIGHUP, lambda _number, _frame: None)
    child_process.allow_signals()
    return start()
