"""The settings file: TOML whose keys are names of options; variables and the command line override it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from taskqueue.errors import ConfigError
from taskqueue.model.other_systems import COMMAND_OPTIONS
from taskqueue.model.wording import or_nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read(path: Path, command: click.Command) -> dict[str, Any]:
    """Return the file's values by parameter name, for ``Context.default_map``. Raises ``ConfigError``."""
    options = {_key(param): param for param in command.params if isinstance(param, click.Option) and param.envvar}
    options.pop("config", None)
    values = {}
    for key, value in table(path, "--config").items():
        option = options.get(key.replace("_", "-"))
        if option is None or option.name is None:
            ours = COMMAND_OPTIONS.get(key.replace("_", "-"))
            meant = f"; did you mean {ours}?" if ours in options else or_nearest(key.replace("_", "-"), options)
            raise ConfigError(f"{path}: there is no setting {key!r}: use {', '.join(sorted(options))}{meant}")
        values[option.name] = _value(path, key, value, option)
    return values


def table(path: Path, option: str) -> Mapping[str, Any]:
    """Return the content of the TOML file that was passed to ``option``. Raises ``ConfigError``."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): pass a TOML file to {option}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None


def _key(param: click.Option) -> str:
    return max(param.opts, key=len).removeprefix("--")


def _value(path: Path, key: str, value: Any, option: click.Option) -> Any:
    """Return the value as click would get it from the command line; text for several is split as in a variable."""
    if isinstance(value, Mapping):
        raise ConfigError(f"{path}: {key} is a table: write key = value, without [sections]")
    if isinstance(value, list):
        if not option.multiple:
            raise ConfigError(f"{path}: {key} is a list, but takes one value")
        return [str(item) for item in value]
    if isinstance(value, bool) and not option.is_flag:
        raise ConfigError(f"{path}: {key} = {str(value).lower()} is a boolean: write a value as on the command line")
    return option.type.split_envvar_value(str(value)) if option.multiple else str(value)
