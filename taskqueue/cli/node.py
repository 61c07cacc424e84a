"""The command ``taskqueue-node``: one node of the daemon."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import click

from taskqueue.cli import config_file, exit, log_setup, output
from taskqueue.cli.node_options import NODE, settings_from
from taskqueue.daemon.runtime import child_process, standard_streams
from taskqueue.daemon.settings import Settings
from taskqueue.model.version import VERSION


def start(settings: Settings, keep: Collection[int] = ()) -> int:
    """Run the node until it has left and return its exit code; all its processes have the descriptors in ``keep``."""
    from taskqueue.daemon.node.start import run

    try:
        return run(settings, announce=_announce, keep=keep)
    finally:
        standard_streams.finish()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``taskqueue-node`` and return its exit code."""
    if sys.stdout is None:  # only the banner is written there
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    try:
        return exit.run(command, "taskqueue-node", arguments)
    finally:
        standard_streams.finish()


def _announce(text: str) -> None:
    """Print the banner at once."""
    output.line(text)
    sys.stdout.flush()


def _with_file(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Make the file's values the defaults, which options and variables override."""
    if value is not None:
        ctx.params["config"] = value
        ctx.default_map = config_file.read(value, ctx.command)
    return value


_CONFIG = click.Option(
    ["--config"], type=click.Path(path_type=Path), is_eager=True, callback=_with_file, envvar="TASKQUEUE_CONFIG",
    show_envvar=True, metavar="FILE", help="A TOML file of these settings; options and variables take precedence.",
)  # fmt: skip


@click.command(
    "taskqueue-node",
    params=[_CONFIG, *NODE],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(VERSION, prog_name="taskqueue-node")
def command(config: Path | None, log_level: str, log_format: str, log_config: Path | None, **parameters: Any) -> int:
    """Run jobs on this host until stopped.

    SIGTERM or SIGINT stops: running jobs get --finish seconds to end, are then interrupted, and killed --grace seconds
    later; jobs that did not end are WAITING again. A second signal skips the wait. SIGQUIT waits for running jobs
    without a limit. SIGHUP replaces the workers one by one.
    """
    settings = settings_from(parameters)
    child_process.require_linux()
    standard_streams.install()
    return start(settings, log_setup.configure(log_level, log_format, log_config))


if __name__ == "__main__":
    sys.exit(main())
