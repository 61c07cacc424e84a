"""``taskqueue systemd``: the units of this installation, for the systemd of this host."""

from __future__ import annotations

import pwd
import re
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import resources
from pathlib import Path

import click

from taskqueue.cli import output
from taskqueue.errors import ConfigError

UNIT = "taskqueue-node.service"
TEMPLATE = "taskqueue-node@.service"
DROP_IN = "hardened.conf"

RELOADS_SINCE = 253
"""The first version of systemd that supports ``Type=notify-reload``."""

_USER = re.compile(r"[a-z_][a-z0-9_-]{0,30}")

_ABOUT = f"""\
# One node per host. Written by "taskqueue systemd"; put it into /etc/systemd/system, then:
#     systemctl daemon-reload && systemctl enable --now {UNIT.removesuffix(".service")}
#
# Every option of taskqueue-node is also a TASKQUEUE_ variable: put them into /etc/taskqueue/node.env."""
_ABOUT_INSTANCES = f"""\
# Several nodes on one host, each with a name and settings of its own, say one for reports only. Written by
# "taskqueue systemd --instance"; put it into /etc/systemd/system, then:
#     systemctl daemon-reload && systemctl enable --now {TEMPLATE.removesuffix(".service")}reports
#
# Every option of taskqueue-node is also a TASKQUEUE_ variable: put what all nodes share into /etc/taskqueue/node.env,
# and what only this one needs into /etc/taskqueue/node-reports.env."""


@click.command("systemd")
@click.option("--user", default="taskqueue", show_default=True, metavar="NAME", help="The user and group of the node.")
@click.option("--dynamic-user", is_flag=True, help="Have systemd create a user while the node runs.")
@click.option("--instance", is_flag=True, help="Write the template for several nodes on this host.")
@click.option("--hardened", is_flag=True, help="Write the drop-in that restricts jobs further, for the same unit.")
@click.option(
    "--for-version",
    type=click.IntRange(1),
    metavar="N",
    help="The version of systemd; default: the version on this host.",
)
@click.option(
    "--into", "folder", type=click.Path(file_okay=False, exists=True, path_type=Path), metavar="DIR",
    help="Write the file into this folder, such as /etc/systemd/system; default: print it.",
)  # fmt: skip
def systemd_command(
    user: str, dynamic_user: bool, instance: bool, hardened: bool, for_version: int | None, folder: Path | None
) -> None:
    """Write the systemd unit of this installation.

    `taskqueue systemd --into /etc/systemd/system` as root, then `systemctl daemon-reload` and `systemctl enable --now
    taskqueue-node`. Other settings of the node are in /etc/taskqueue/node.env.
    """
    unit = TEMPLATE if instance else UNIT
    if hardened:
        name, text = f"{unit}.d/{DROP_IN}", drop_in(unit)
    else:
        program = Path(sys.executable).parent / "taskqueue-node"
        version = installed_version() if for_version is None else for_version
        name, text = unit, unit_text(program, user=None if dynamic_user else user, instance=instance, version=version)
        if not dynamic_user:
            _warn_of_unknown(user)
        _warn_of_closed(user)
    if folder is None:
        output.lines(text.rstrip("\n"))
        return
    _write(folder / name, text)
    output.line(f"wrote {folder / name}: systemctl daemon-reload makes it known")


def unit_text(program: Path, *, user: str | None, instance: bool, version: int) -> str:
    """Return the unit that starts ``program``; with ``user`` None systemd creates one. Raises ``ConfigError``."""
    if user is not None and not _USER.fullmatch(user):
        raise ConfigError(f"--user {user!r} is not a user name: write lower-case letters, digits, - and _")
    environment = ["EnvironmentFile=-/etc/taskqueue/node.env"]
    if instance:
        environment.insert(0, "# One name, one node, in the whole cluster.\nEnvironment=TASKQUEUE_NAME=%H-%i")
        environment.append("EnvironmentFile=-/etc/taskqueue/node-%i.env")
    reloads = version >= RELOADS_SINCE
    return _filled(
        UNIT,
        about=_ABOUT_INSTANCES if instance else _ABOUT,
        description=f"taskqueue node{' %i: runs' if instance else ': runs the'} background jobs of this host",
        program=_quoted(program),
        type="Type=notify-reload" if reloads else "Type=notify\nExecReload=/bin/sh -c 'kill -HUP $MAINPID'",
        user="DynamicUser=yes" if user is None else f"User={user}\nGroup={user}",
        runtime="taskqueue/%i" if instance else "taskqueue",
        environment="\n".join(environment),
    )


def drop_in(unit: str) -> str:
    """Return the drop-in of the unit that restricts jobs further."""
    return _filled(DROP_IN, unit=unit)


def installed_version() -> int:
    """Return the version of this host's systemd; 0 if there is none."""
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, timeout=10, check=True)
        if version := re.match(r"systemd (\d+)", said.stdout):
            return int(version[1])
    return 0


def _filled(name: str, **values: str) -> str:
    text = (resources.files("taskqueue.cli") / "units" / name).read_text(encoding="utf-8")
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def _quoted(program: Path) -> str:
    """Return the path as systemd reads it in a command."""
    text = str(program).replace("%", "%%").replace("$", "$$")
    if re.fullmatch(r"[\w./%$@+-]+", text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _warn_of_unknown(user: str) -> None:
    try:
        pwd.getpwnam(user)
    except KeyError:
        make = f"useradd --system {user}"
        output.line(f"taskqueue systemd: there is no user {user} yet: {make}, or pass --user", err=True)


def closed_folder(folders: Iterable[Path], uid: int, gid: int) -> Path | None:
    """Return the first folder that this user is not allowed to enter; None if there is none."""
    for folder in folders:
        status = folder.stat()
        bit = 0o100 if status.st_uid == uid else 0o010 if status.st_gid == gid else 0o001
        if not status.st_mode & bit:
            return folder
    return None


def _warn_of_closed(user: str) -> None:
    """Warn if Python is in a home folder that the node's user may not enter: the unit would end with 203/EXEC."""
    try:
        uid, gid = pwd.getpwnam(user)[2:4]
    except KeyError:
        uid = gid = -1  # a user that is yet to be created
    if uid == 0:
        return
    for program in (Path(sys.executable), Path(sys.executable).resolve()):
        closed = closed_folder(reversed(program.parents), uid, gid)
        if closed is not None:
            words = f"the user of the node cannot enter {closed}, on the path to {program}"
            do = "create the environment elsewhere, with another Python, say /usr/bin/python3"
            output.line(f"taskqueue systemd: {words}: {do}", err=True)
            return


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; try as root, or another --into") from None
