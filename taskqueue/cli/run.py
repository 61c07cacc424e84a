"""``taskqueue run``: a node for one application file, for development."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from taskqueue.cli import exit, log_setup, node, run_lines
from taskqueue.cli.application_module import folder_of, module_of
from taskqueue.cli.node_options import POOL, settings_from
from taskqueue.daemon.runtime import child_process, standard_streams
from taskqueue.errors import ConfigError, TaskqueueError


@click.command("run", short_help="Run a node for one application file.", params=list(POOL))
@click.argument("application", metavar="FILE_OR_MODULE")
@click.option(
    "--name", metavar="NAME", help="The seat this node takes; default: development, with --burst one of its own."
)
@click.option(
    "--web",
    is_flag=True,
    help="Serve the dashboard too, for every user of this host; needs the extra web.",
)
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
    schedules could not be applied: retries after a pause and jobs that are due later stay in the store.
    """
    if burst and reload:
        raise click.UsageError("--burst leaves when nothing is due, and --reload waits for changes: pass one of them")
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
            run_lines.show()
        return node.start(settings, keep)

    if listen is not None and not web:
        raise click.UsageError("--listen says where the dashboard is served: pass --web too")
    with _dashboard(ctx.find_root().obj, listen) if web else nullcontext():
        if not reload:
            return start()
        from taskqueue.cli import reload as reloading

        return reloading.run(folder.resolve(), lambda: _reported(start))


def _importable(module: str) -> str | None:
    """Return the name of the module, None if it is one that no job can be imported by."""
    return module if all(part.isidentifier() for part in module.split(".")) else None


def _seat_of_burst() -> str:
    """Return a name that no other node has: several may run at once, from cron for instance."""
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
    sys.dont_write_bytecode = True  # two changes within a second would have the same age
    try:
        return start()
    except TaskqueueError as error:
        return exit.complain("taskqueue", error)
