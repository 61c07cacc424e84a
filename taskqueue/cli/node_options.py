"""The options of a node: each is an option, a variable ``TASKQUEUE_…`` and a key of the settings file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from datetime import timedelta
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any

import click

from taskqueue.cli.log_setup import FORMATS, LEVELS
from taskqueue.cli.param_types import duration, memory, work_on
from taskqueue.daemon.settings import Lead, Order, PoolMode, Settings
from taskqueue.errors import ConfigError
from taskqueue.model.other_systems import COMMAND_OPTIONS

PREFIX = "TASKQUEUE_"

_DEFAULTS = {field.name: field.default for field in fields(Settings) if field.default is not MISSING}
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)  # links are resolved at each reload
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def written(value: object) -> str:
    """Return a value as a person would write it: ``5d`` for 432000.0 seconds."""
    if isinstance(value, Enum):
        return str(value.value)
    if not isinstance(value, float):
        return str(value)
    for unit, seconds in (("d", 86_400), ("h", 3600)):
        if value >= seconds:
            return f"{value / seconds:g}{unit}"
    return f"{value:g}"


def _setting(name: str, **attributes: Any) -> click.Option:
    """Return an option that is a variable as well, with the default of the settings."""
    key = name.removeprefix("--").replace("-", "_")
    default = _DEFAULTS.get(key)
    if default not in (None, ()) and "default" not in attributes:
        attributes |= {"default": written(default), "show_default": True}
    return click.Option([name], envvar=f"{PREFIX}{key.upper()}", show_envvar=True, **attributes)


POOL = (
    _setting("--pm", type=click.Choice([mode.value for mode in PoolMode]), help="How the pool of workers behaves."),
    _setting(
        "--min-children", type=int, metavar="N", help="Workers that are always running (static: exactly this number)."
    ),
    _setting(
        "--max-children",
        type=int,
        metavar="N",
        default=None,
        help="At most this many workers at once, not counting concurrent workers and those of force_spawn jobs; "
        "default: 2, or --min-children if more.",
    ),
    _setting(
        "--bootstrap",
        type=_FILE,
        metavar="FILE",
        help="A Python file that each worker runs before its first job; its hooks run around every job.",
    ),
    _setting(
        "--schedules",
        metavar="MODULE",
        help="Import this module in a worker, and store exactly the schedules that it declares with @schedule, "
        "once per deployment.",
    ),
    _setting(
        "--outbox",
        multiple=True,
        metavar="MODULE:NAME",
        help="Move the jobs of this outbox to the store, in a worker beside the pool while this node leads; "
        "may be repeated.",
    ),
    _setting(
        "--notify",
        multiple=True,
        metavar="RECEIVER",
        help="Where to send notifications while this node leads: a URL, mailto:ADDRESS?smtp=URL, or the path of a "
        "program; may be repeated.",
    ),
    _setting(
        "--burst",
        is_flag=True,
        default=False,
        help="Run the jobs that are due now, and the jobs that they add, then exit.",
    ),
    _setting(
        "--log-level",
        type=click.Choice(LEVELS, case_sensitive=False),
        default="info",
        show_default=True,
        help="What to log.",
    ),
    _setting("--log-format", type=click.Choice(FORMATS), default="text", show_default=True, help="How to log it."),
    _setting("--capture-output", is_flag=True, default=False, help="Keep what jobs print as log lines."),
    _setting(
        "--log-config",
        type=_FILE,
        metavar="FILE",
        help="What to log, where and how, as logging.config.dictConfig takes it: JSON (.json) or TOML. "
        "It replaces --log-level and --log-format.",
    ),
)
"""The options that ``taskqueue-node`` and ``taskqueue run`` share: workers, what runs around them, and their log."""

NODE = (
    _setting("--url", metavar="URL", help="The store; default: the embedded database of this user."),
    _setting("--name", metavar="NAME", help="The seat that this node takes; default: the host name."),
    _setting(
        "--lead",
        type=click.Choice([lead.value for lead in Lead]),
        help="Claim jobs whenever this node has its seat (host), or only while it also leads the cluster (cluster).",
    ),
    *POOL,
    _setting(
        "--work-on",
        type=work_on,
        multiple=True,
        metavar="QUEUE[=N]",
        help="Take jobs only from this queue, at most N at once; may be repeated. Default: every queue.",
    ),
    _setting(
        "--order",
        type=click.Choice([order.value for order in Order]),
        help="Share the runs of this node among its queues (fair), or take the first job across all queues (strict).",
    ),
    _setting("--preload", multiple=True, metavar="MODULE", help="Import it before forking workers; may be repeated."),
    _setting(
        "--allow",
        multiple=True,
        metavar="PREFIX",
        help="Run only jobs of this module and its submodules; may be repeated. Default: every module.",
    ),
    _setting(
        "--chdir", type=_FOLDER, metavar="DIR", help="The folder to work in and import from; default: the current one."
    ),
    _setting("--finish", type=duration, metavar="S", help="Seconds that running jobs get to finish at a stop."),
    _setting("--grace", type=duration, metavar="S", help="Seconds between asking a job to end and killing it."),
    _setting(
        "--lease",
        type=duration,
        metavar="S",
        help="Seconds (at least 2) until jobs of a silent node go to other nodes.",
    ),
    _setting("--max-jobs-per-child", type=int, metavar="N", help="Replace a worker after N jobs; 0 means never."),
    _setting(
        "--max-memory",
        type=memory,
        metavar="SIZE",
        help="Replace a worker that uses more memory after a run: 512M, or 10% of this container; 0 means never.",
    ),
    _setting(
        "--idle-timeout", type=duration, metavar="S", help="Seconds after which an idle surplus worker is retired."
    ),
    _setting(
        "--unroutable-after", type=duration, metavar="S", help="Seconds to keep trying to load an unloadable class."
    ),
    _setting(
        "--metrics",
        metavar="[HOST:]PORT",
        default=None,
        help="Serve metrics for Prometheus, and /live and /ready, over HTTP; only to this host unless HOST is given. "
        "Needs the extra metrics.",
    ),
    _setting("--keep-done", type=duration, metavar="S", help="How long DONE jobs are kept."),
    _setting("--keep-failed", type=duration, metavar="S", help="How long FAILED, CANCELED and TIMEOUT jobs are kept."),
)
"""All options of ``taskqueue-node`` but ``--config``."""


def variables_of(origin: str, given: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables for values by key, such as ``MAX_CHILDREN``; ``origin`` names them in errors.

    Raises ``ConfigError`` for a key that is not an option and for a value that the option does not take.
    """
    options = {str(option.envvar).removeprefix(PREFIX): option for option in NODE}
    variables, values = {}, {}
    for key, value in given.items():
        option = options.get(key)
        if option is None or option.name is None:
            name = COMMAND_OPTIONS.get(str(key).lower().replace("_", "-"), str(key)).replace("-", "_").upper()
            near = get_close_matches(name, options, n=1)
            way_out = f"did you mean {near[0]!r}?" if near else f"use {', '.join(options)}"
            raise ConfigError(f"{origin} has no key {key!r}: {way_out}")
        parts = [_text(part) for part in value] if isinstance(value, (list, tuple)) else [_text(value)]
        if len(parts) != 1 and not option.multiple:
            raise ConfigError(f"{origin}[{key!r}] is {value!r}, but takes one value")
        variables[str(option.envvar)] = " ".join(parts)
        values[option.name] = parts if option.multiple else parts[0]
    _check(origin, values)
    return variables


def _text(value: object) -> str:
    """Return the value as it is written in a variable."""
    return str(value.total_seconds()) if isinstance(value, timedelta) else str(value)


def _check(origin: str, values: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` if these values, with variables and defaults, are not settings of a node."""
    try:
        ctx = click.Command(origin, params=list(NODE)).make_context(origin, [], default_map=dict(values))
    except click.BadParameter as refused:
        key = "" if refused.param is None else str(refused.param.envvar).removeprefix(PREFIX)
        is_ours = refused.param is not None and refused.param.name in values
        raise ConfigError(f"{f'{origin}[{key!r}]' if is_ours else PREFIX + key}: {refused.message}") from None
    settings_from({name: value for name, value in ctx.params.items() if not name.startswith("log_")})


def settings_from(parameters: dict[str, Any]) -> Settings:
    """Return the settings from what click has parsed. Raises ``ConfigError``."""
    values = {key: value for key, value in parameters.items() if value is not None}
    values.setdefault("max_children", max(values["min_children"], Settings.max_children))
    values["pm"] = PoolMode(values["pm"])
    values["lead"] = Lead(values.get("lead", Settings.lead))
    values["order"] = Order(values.get("order", Settings.order))
    for name in ("chdir", "bootstrap"):
        if name in values:
            values[name] = values[name].absolute()
    values["notify"] = tuple(values.pop("notify", ()))
    values["queues"] = _queues(values.pop("work_on", ()))
    for name in ("preload", "allow", "outbox"):
        values[name] = tuple(module for value in values.pop(name, ()) for module in value.split(","))
    return Settings(**values)


def _queues(named: Sequence[tuple[str, int | None]]) -> dict[str, int | None]:
    """Return the bound of each queue; raise ``ConfigError`` if a queue is named twice."""
    queues = dict(named)
    if len(queues) < len(named):
        names = [name for name, _ in named]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"--work-on names queue {twice} more than once: name it once, with its bound if it has one")
    return queues
