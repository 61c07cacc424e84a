"""``taskqueue run``: a node for one application file, for development, with a line for each run."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from taskqueue.cli import exit, log_setup, node
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
    served while the node runs. With --burst, it leaves when no job can begin now, with exit code 0, or 1 if its
    schedules could not be applied or an outbox not be emptied: retries after a pause and jobs that are due later stay
    in the store.
    """
    if burst and reload:
        raise click.UsageError("--burst leaves when nothing is due, and --reload waits for changes: pass only one")
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
        from taskqueue.cli import code_reload as reloading

        return reloading.run(folder.resolve(), lambda: _reported(start))


def _importable(module: str) -> str | None:
    """Return the name of the module; None if no job can be imported from it."""
    return module if all(part.isidentifier() for part in module.split(".")) else None


def _seat_of_burst() -> str:
    """Return a name that no other node has: several nodes may run at once, for instance from cron."""
    return f"burst {os.getpid()} on {socket.gethostname()[:64]}"


@contextmanager
def _dashboard(url: str | None, listen: str | None) -> Iterator[None]:
    """Serve the dashboard in a process of its own, which leaves when this one does, however that ends."""
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
    """Run the node in a child process, which reports its own errors."""
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
        found = _FRAME.match(line)
        if found is not None:
            frames = others if found["path"].startswith((*_LIBRARIES, "<frozen ")) else own
        if found is not None or own or others:
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
