"""The command ``taskqueue-node``: one node of the daemon, with every setting as option, variable and key of a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import click

from taskqueue.cli import config_file, exit, logs, output
from taskqueue.cli.param_types import duration, size, work_on
from taskqueue.daemon.manager.scaling import PoolMode
from taskqueue.daemon.settings import Lead, Settings
from taskqueue.errors import ConfigError

Command = TypeVar("Command", bound=Callable[..., Any])

_DEFAULTS = {field.name: field.default for field in fields(Settings) if field.default is not MISSING}
_FOLDER = click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path)


def setting(name: str, **attributes: Any) -> Callable[[Command], Command]:
    """Return the decorator for one option that is a variable ``TASKQUEUE_…`` as well."""
    key = name.removeprefix("--").replace("-", "_")
    default = _DEFAULTS.get(key)
    if default not in (None, ()) and "default" not in attributes:
        attributes |= {"default": _written(default), "show_default": True}
    return click.option(name, envvar=f"TASKQUEUE_{key.upper()}", show_envvar=True, **attributes)


def pool_settings(command: Command) -> Command:
    """Declare what ``taskqueue-node`` and ``taskqueue run`` have in common: how many workers, and how they log."""
    for option in reversed(_POOL):
        command = option(command)
    return command


def settings_from(parameters: dict[str, Any]) -> Settings:
    """Return the settings for what click has parsed. Raises ``ConfigError``."""
    values = {key: value for key, value in parameters.items() if value is not None}
    values.setdefault("max_children", max(values["min_children"], Settings.max_children))
    values["pm"] = PoolMode(values["pm"])
    values["lead"] = Lead(values.get("lead", Settings.lead))
    values["queues"] = _queues(values.pop("work_on", ()))
    for name in ("preload", "allow"):
        values[name] = tuple(module for value in values.pop(name, ()) for module in value.split(","))
    return Settings(**values)


def start(settings: Settings, keep: Collection[int] = ()) -> int:
    """Run the node until it has left and return its exit code; all its processes have the descriptors in ``keep``."""
    from taskqueue.daemon.node.start import run

    return run(settings, announce=_announce, keep=keep)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``taskqueue-node`` and return its exit code."""
    if sys.stdout is None:  # only the banner goes there
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    return exit.run(command, "taskqueue-node", arguments)


def _queues(named: Sequence[tuple[str, int | None]]) -> dict[str, int | None]:
    """Return the bound of each queue; raise ``ConfigError`` where one has two."""
    queues = dict(named)
    if len(queues) < len(named):
        names = [name for name, _ in named]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"work_on names queue {twice} more than once: name it once, with its bound if it has one")
    return queues


def _announce(text: str) -> None:
    """Print the banner; an unreadable output does not stop the node."""
    try:
        output.line(text)
        sys.stdout.flush()
    except OSError:
        exit.discard_output()


def _written(default: object) -> str:
    """Return a default as a person would write it: ``5d`` for 432000.0 seconds."""
    if isinstance(default, Enum):
        return str(default.value)
    if not isinstance(default, float):
        return str(default)
    for unit, seconds in (("d", 86_400), ("h", 3600)):
        if default >= seconds:
            return f"{default / seconds:g}{unit}"
    return f"{default:g}"


def _with_file(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Put the file's values below options and variables."""
    if value is not None:
        ctx.params["config"] = value
        ctx.default_map = config_file.read(value, ctx.command)
    return value


_POOL = (
    setting("--pm", type=click.Choice([mode.value for mode in PoolMode]), help="How the pool of workers behaves."),
    setting("--min-children", type=int, metavar="N", help="Workers that are always there (static: exactly so many)."),
    setting(
        "--max-children",
        type=int,
        metavar="N",
        default=None,
        help="The most workers at once, not counting those of force_spawn jobs; default: 2, or --min-children if more.",
    ),
    setting("--log-level", type=click.Choice(logs.LEVELS), default="info", show_default=True, help="What to log."),
    setting("--log-format", type=click.Choice(logs.FORMATS), default="text", show_default=True, help="How to log it."),
    setting(
        "--log-config",
        type=_FILE,
        metavar="FILE",
        help="What to log, where and how, in the terms of logging.config.dictConfig: JSON (.json) or TOML. "
        "The other two do not count then.",
    ),
)


@click.command("taskqueue-node", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--config", type=click.Path(path_type=Path), is_eager=True, callback=_with_file, envvar="TASKQUEUE_CONFIG",
    show_envvar=True, metavar="FILE", help="A TOML file of these settings; options and variables win over it.",
)  # fmt: skip
@setting("--url", metavar="URL", help="The store; default: the embedded database of this user.")
@setting("--name", metavar="NAME", help="The seat this node takes; default: the host name.")
@setting(
    "--lead", type=click.Choice([lead.value for lead in Lead]),
    help="Claim jobs whenever this node has its seat (host), or only while it leads the cluster too (cluster).",
)  # fmt: skip
@pool_settings
@setting(
    "--work-on", type=work_on, multiple=True, metavar="QUEUE[=N]",
    help="Take jobs from this queue only, at most N at once; may be repeated. Default: every queue.",
)  # fmt: skip
@setting("--preload", multiple=True, metavar="MODULE", help="Import it before workers are forked; may be repeated.")
@setting("--bootstrap", type=_FILE, metavar="FILE", help="A Python file that each worker runs before its first job.")
@setting(
    "--allow", multiple=True, metavar="PREFIX",
    help="Run jobs of this module and those below it only; may be repeated. Default: every module.",
)  # fmt: skip
@setting("--chdir", type=_FOLDER, metavar="DIR", help="The folder to work in, importable; default: the present one.")
@setting("--finish", type=duration, metavar="S", help="Seconds that running jobs get to end by themselves at a stop.")
@setting("--grace", type=duration, metavar="S", help="Seconds between asking a job to end and killing it.")
@setting("--lease", type=duration, metavar="S", help="Seconds (at least 2) until jobs of a silent node go to others.")
@setting("--max-jobs-per-child", type=int, metavar="N", help="Replace a worker after so many jobs; 0 means never.")
@setting("--max-memory", type=size, metavar="SIZE", help="Replace a worker that holds more; 0 means never.")
@setting("--idle-timeout", type=duration, metavar="S", help="Seconds after which an idle surplus worker is retired.")
@setting(
    "--unroutable-after", type=duration, metavar="S", help="Seconds to go on trying a class that cannot be loaded."
)
@setting("--keep-done", type=duration, metavar="S", help="How long DONE jobs are kept.")
@setting("--keep-failed", type=duration, metavar="S", help="How long FAILED, CANCELED and TIMEOUT jobs are kept.")
@click.version_option(package_name="taskqueue", prog_name="taskqueue-node")
def command(config: Path | None, log_level: str, log_format: str, log_config: Path | None, **parameters: Any) -> int:
    """Run jobs on this host until stopped.

    SIGTERM or SIGINT stops: running jobs get --finish seconds to end, are then interrupted, and killed --grace seconds
    later; what did not end is WAITING again. A second signal skips the waiting. SIGQUIT lets running jobs end, however
    long. SIGHUP replaces the workers one by one.
    """
    settings = settings_from(parameters)
    return start(settings, logs.configure(log_level, log_format, log_config))


if __name__ == "__main__":
    sys.exit(main())
