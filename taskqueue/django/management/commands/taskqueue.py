"""``manage.py taskqueue``: the command line of taskqueue, on the store and with the settings of the project."""

from __future__ import annotations

import argparse
import os
import sys
import sysconfig
from collections.abc import Collection, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from taskqueue import django
from taskqueue.django import project
from taskqueue.errors import ConfigError
from taskqueue.exit_codes import Exit

PRELOAD = "taskqueue.django.preload"
BOOTSTRAP = os.path.join(os.path.dirname(django.__file__), "bootstrap.py")


class Command(BaseCommand):
    """Calls ``taskqueue-node`` or a command of ``taskqueue``; programs that keep running replace this process.

    They start without Django, which only the workers of a node set up, or its manager, before it forks them.
    """

    help = (
        "Run a node of this project (node), a node for development (run), the dashboard (web), or another command of "
        "taskqueue on the store of this project, such as schedules, list or why."
    )

    requires_system_checks = ()  # it checks the setting itself, and needs nothing else from the project

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Accept the name of a command, and leave its arguments to the command."""
        parser.add_argument("name", metavar="node|run|schedules|web|…", help="The command.")
        parser.add_argument("arguments", nargs=argparse.REMAINDER, help="Its options: see `… NAME --help`.")

    def handle(self, *, name: str, arguments: Sequence[str], **_: Any) -> None:
        """Run the command, and exit with its exit code."""
        try:
            variables = project.node_variables()
        except ConfigError as error:
            raise CommandError(str(error), returncode=Exit.CONFIG) from None
        os.environ.update({key: value for key, value in variables.items() if key not in os.environ})
        given = _without_settings(arguments)
        match name:
            case "node":
                _replace_process("taskqueue.cli.node", *_bootstrap(given), *_preload(), *_schedules(given), *given)
            case "run":
                _replace_process("taskqueue", "run", _project(), *_bootstrap(given), *_schedules(given), *given)
            case "web":
                _replace_process("taskqueue", "web", *given)
        from taskqueue.cli import main

        code = main.main(["schedule" if name == "schedules" else name, *given])
        if code:
            sys.exit(code)


def _without_settings(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without the options that ``manage.py`` itself has read, wherever they stand."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--settings")
    parser.add_argument("--pythonpath")
    return parser.parse_known_args(arguments)[1]


def _has(option: str, arguments: Sequence[str]) -> bool:
    return any(argument.partition("=")[0] == option for argument in arguments)


def _bootstrap(arguments: Sequence[str]) -> Sequence[str]:
    """Return the option that names our bootstrap file, which runs the file of the project."""
    if _has("--bootstrap", arguments):
        raise CommandError(
            "--bootstrap would replace the file that handles the connections of this project: name yours in "
            "TASKQUEUE['BOOTSTRAP'], or in the variable TASKQUEUE_BOOTSTRAP",
            returncode=Exit.USAGE,
        )
    own = os.environ.get("TASKQUEUE_BOOTSTRAP")
    if own:
        os.environ["TASKQUEUE_BOOTSTRAP"] = os.path.abspath(own)  # workers may run in another folder
    return ["--bootstrap", BOOTSTRAP]


def _project() -> str:
    """Return the module of the project's settings."""
    return os.environ["DJANGO_SETTINGS_MODULE"]


def _schedules(arguments: Sequence[str]) -> Sequence[str]:
    """Return the option that applies the schedules of the project, under the name of its package."""
    if "TASKQUEUE_SCHEDULES" in os.environ or _has("--schedules", arguments):
        return ()
    return ["--schedules", _project().partition(".")[0]]


def _preload() -> Sequence[str]:
    """Return the options for the modules to preload: the project first, then those of the setting or the variable."""
    named = os.environ.get("TASKQUEUE_PRELOAD", "").replace(",", " ").split()
    return [part for module in (PRELOAD, *named) for part in ("--preload", module)]


def _replace_process(module: str, *arguments: str) -> None:
    """Run the module as a program in place of this process; it finds the modules that this one finds."""
    library = {os.path.realpath(path) for path in sysconfig.get_paths().values()}
    own = [path for path in sys.path if path and not _is_below(os.path.realpath(path), library)]
    os.environ["PYTHONPATH"] = os.pathsep.join(own)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606 - there is no shell


def _is_below(path: str, folders: Collection[str]) -> bool:
    """Return whether Python itself puts this entry on its path."""
    return path.endswith(".zip") or any(path == folder or path.startswith(f"{folder}{os.sep}") for folder in folders)
