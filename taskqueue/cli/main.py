"""The command ``taskqueue``: the group that knows its commands by name and imports only the one that is called."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from taskqueue.cli import exit
from taskqueue.model.environment import node_command
from taskqueue.model.version import VERSION
from taskqueue.store.redaction import concealed

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

CONTROLS = "Controls and schedules"
NEEDS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "Jobs": (
            *("add", "list", "show", "why", "logs", "stack", "wait"),
            *("update", "cancel", "give-up", "recover", "bulk", "workflows"),
        ),
        "Figures, events and health": (
            "top",
            "stats",
            "failures",
            "releases",
            "class",
            "queue",
            "events",
            "analytics",
            "nodes",
            "health",
            "doctor",
            "notify",
        ),
        CONTROLS: (
            *("pause", "resume", "drain", "undrain", "mute", "resolve", "reopen", "release", "unmark"),
            *("limit", "schedule", "audit"),
        ),
        "Store": ("purge", "flush", "backup", "migrate"),
        "Installation": ("run", "reload", "web", "config", "systemd", "completion", "bench"),
    }
)
"""All commands by their purpose; each is in the file of its name, except the ones below.

A declared operation needs no line here: help shows it with the controls.
"""

COMMANDS = tuple(name for names in NEEDS.values() for name in names)
"""All commands in the order in which help shows them."""

FILES: Mapping[str, str] = MappingProxyType(
    {
        "why": "show",
        "give-up": "cancel",
        "bulk": "recover",
        "releases": "failures",
        "reload": "health",
        "stack": "show",
        "flush": "purge",
        **dict.fromkeys(("pause", "resume", "drain", "undrain", "mute", "resolve", "reopen"), "controls"),
        **dict.fromkeys(("release", "unmark", "limit"), "controls"),
        "class": "work",
        "queue": "work",
    }
)
"""Commands that share a file of this folder."""

ALIASES: Mapping[str, str] = MappingProxyType({"retry": "recover"})
"""A second name of a command, which help does not list separately."""


_NODE = f"`{node_command()}` runs jobs, and `taskqueue run FILE` runs the jobs of one application"
_STATE = "`taskqueue nodes` lists the nodes, `taskqueue stats` counts jobs, `taskqueue list` lists jobs"
_END = "`taskqueue cancel` ends jobs, `taskqueue purge` removes jobs that ended some time ago"

OF_OTHERS: Mapping[str, str] = MappingProxyType(
    {
        "worker": _NODE,
        "node": _NODE,
        **dict.fromkeys(("beat", "cron"), "nodes start scheduled jobs, and `taskqueue schedule` defines schedules"),
        **dict.fromkeys(("call", "enqueue", "send"), "`taskqueue add` adds a job"),
        **dict.fromkeys(("inspect", "status", "info"), _STATE),
        "control": "`taskqueue pause`, `drain` and `limit` change what nodes do",
        "ping": "`taskqueue health` asks the nodes of this host",
        **dict.fromkeys(("revoke", "kill", "stop"), "`taskqueue cancel` ends jobs, a signal stops a node"),
        "result": "`taskqueue show` prints the result of a job, `taskqueue wait` waits for it",
        "requeue": "`taskqueue recover` runs jobs that have ended again",
        "empty": "`taskqueue cancel --query` ends all jobs that match",
        "suspend": "`taskqueue pause` keeps jobs of a queue from starting",
        "monitor": "`taskqueue top` is a live screen",
        "flower": "`taskqueue web` serves a dashboard",
        "help": "`taskqueue --help` lists the commands",
        "workers": "`taskqueue nodes` lists the nodes and their workers",
        "start": _NODE,
        "jobs": "`taskqueue list` lists them",
        "queues": "`taskqueue stats` counts the jobs of each",
        "dashboard": "`taskqueue web` serves it",
        "delete": _END,
        "remove": _END,
    }
)
"""Commands of other systems, each with its equivalent here."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called or described."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the names in the order in which help shows them."""
        return [*COMMANDS, *_declared()]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands below their purpose."""
        needs = {**NEEDS, CONTROLS: (*NEEDS[CONTROLS], *_declared())}
        wide = max(map(len, self.list_commands(ctx)))
        for need, names in needs.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(need):
                formatter.write_dl(
                    [(f"{name:{wide}}", command.get_short_help_str(100)) for name, command in commands if command]
                )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return commands and options with this prefix; descriptions of the commands would import all their files."""
        from click.shell_completion import CompletionItem

        needs = {name: need for need, names in NEEDS.items() for name in names}
        needs |= {alias: needs[name] for alias, name in ALIASES.items()}
        items = [CompletionItem(name, help=need) for name, need in needs.items() if name.startswith(incomplete)]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is called; if none has this name, suggest the nearest."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            ctx.fail(f"No such command {concealed(name)!r}: {_hint(name)}")
        return super().resolve_command(ctx, args)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, or None if there is none of this name."""
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        file = FILES.get(cmd_name, cmd_name) if cmd_name in COMMANDS else "controls"
        command: click.Command | None = getattr(
            import_module(f"taskqueue.cli.{file}"), f"{cmd_name.replace('-', '_')}_command", None
        )
        if command is not None:
            _add_url(command)
        return command


def _declared() -> list[str]:
    """Return the operations that are not in ``NEEDS``; this imports what operations need."""
    from taskqueue.scheduler.operations import OPERATIONS

    return [name for name in OPERATIONS if name not in COMMANDS]


def _use_url(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    """Treat a ``--url`` after the command as if it came before it."""
    if value is not None:
        root = ctx.find_root()
        root.obj = root.params["url"] = value
        root.set_parameter_source("url", ParameterSource.COMMANDLINE)


_URL_AFTER = click.Option(["--url"], metavar="URL", hidden=True, expose_value=False, callback=_use_url)
"""The option of the group, for users who write it after the command, as with ``taskqueue-node``."""


def _add_url(command: click.Command) -> None:
    """Make the command and its subcommands accept ``--url``."""
    if _URL_AFTER not in command.params:
        command.params.append(_URL_AFTER)
        for below in command.commands.values() if isinstance(command, click.Group) else ():
            _add_url(below)


def _hint(name: str) -> str:
    """Return a hint for a mistyped command, or one by the name of another system."""
    if name in OF_OTHERS:
        return OF_OTHERS[name]
    near = get_close_matches(name, COMMANDS, n=1, cutoff=0.7)  # a word that merely resembles flush must not suggest it
    return f"did you mean {near[0]}?" if near else f"use {', '.join(COMMANDS)}"


@click.group(
    "taskqueue", cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--url", envvar="TASKQUEUE_URL", show_envvar=True, metavar="URL",
    help="The store, before or after the command; default: the embedded database of this user.",
)  # fmt: skip
@click.version_option(VERSION, prog_name="taskqueue")
@click.pass_context
def command(ctx: click.Context, url: str | None) -> None:
    """Add jobs, look at them, wait for them and end them.

    An ID can be written in full, as a prefix, or as `list` shows it: prefix, two dots and suffix.
    """
    ctx.obj = url


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``taskqueue`` and return its exit code."""
    return exit.run(command, "taskqueue", arguments)


if __name__ == "__main__":
    sys.exit(main())
