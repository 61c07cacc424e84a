"""``taskqueue config``: the active settings of a node on this host, and the origin of each."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from taskqueue.cli import node, output
from taskqueue.cli.node_options import settings_from, written
from taskqueue.notifications import receiver_of
from taskqueue.store.open import address_of
from taskqueue.store.redaction import concealed


@click.command(
    "config",
    short_help="Show the settings of a node, and where each comes from.",
    context_settings={"ignore_unknown_options": True},
)
@output.json_option("a JSON list")
@click.argument("options", metavar="[NODE OPTIONS]", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def config_command(ctx: click.Context, options: tuple[str, ...], as_json: bool) -> None:
    """Show the settings of a node started here, and where each comes from.

    An option of taskqueue-node wins over its variable TASKQUEUE_…, the variable over the file of --config, and the file
    over the default. Pass the options that the node is started with, such as --config FILE.
    """
    root = ctx.find_root()
    url = ["--url", root.obj] if root.get_parameter_source("url") is ParameterSource.COMMANDLINE else []
    parsed = node.command.make_context("taskqueue-node", [*url, *options])
    values = _values(parsed)
    if as_json:
        output.write_all(
            {"setting": name, "value": value, "from": _origin(parsed, name)} for name, value in values.items()
        )
        return
    from taskqueue.cli import terminal

    columns = [terminal.Column(head="setting"), terminal.Column(head="value", cut="end"), terminal.Column(head="from")]
    terminal.table(columns, [[_option(name), _text(value), _origin(parsed, name)] for name, value in values.items()])


def _values(parsed: click.Context) -> dict[str, Any]:
    """Return the settings that the node would have, by name. Raises ``ConfigError``."""
    given = {name: value for name, value in parsed.params.items() if name != "config"}
    logging = {name: given.pop(name) for name in ("log_level", "log_format", "log_config")}
    settings = settings_from(given)
    values = {field.name: getattr(settings, field.name) for field in fields(settings)} | logging
    queues = values.pop("queues")
    values["work_on"] = [queue if bound is None else f"{queue}={bound}" for queue, bound in queues.items()]
    values["notify"] = [receiver_of(text).name for text in settings.notify]
    values["url"] = concealed(address_of(settings.url))
    order = [str(param.name) for param in parsed.command.params]
    return {name: _plain(values[name]) for name in sorted(values, key=order.index)}


def _plain(value: object) -> object:
    """Return the value in JSON form."""
    match value:
        case Enum():
            return value.value
        case Path():
            return str(value)
        case tuple():
            return list(value)
    return value


def _origin(parsed: click.Context, name: str) -> str:
    """Return where the value comes from: ``option``, the name of a variable, the settings file or ``default``."""
    [option] = [param for param in parsed.command.params if param.name == name]
    match parsed.get_parameter_source(name):
        case ParameterSource.COMMANDLINE:
            return "option"
        case ParameterSource.ENVIRONMENT:
            return str(option.envvar)
        case ParameterSource.DEFAULT_MAP:
            return str(parsed.params.get("config"))
    return "default"


def _option(name: str) -> str:
    return name.replace("_", "-")


def _text(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "-"
    return "-" if value is None else written(value)
