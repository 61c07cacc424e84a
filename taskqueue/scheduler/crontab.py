"""Reads a crontab as schedules that run its commands, by cron's own rules, and says which lines have no equivalent."""

from __future__ import annotations

import os
import pwd
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from taskqueue.errors import InvalidOption
from taskqueue.execution.shell_job import ShellJob
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.schedules import Cron
from taskqueue.model.shown_text import as_code
from taskqueue.scheduler.schedules import check_name

if TYPE_CHECKING:
    from taskqueue.model.options.table import ScheduleEntry

UTC = "UTC"

_NAME = re.compile(r"#\s*name:\s*(.*?)\s*", re.IGNORECASE)
_SETTING = re.compile(r"""["']?([A-Za-z_]\w*)["']?\s*=\s*(.*?)\s*""")
_FIRST_STEPS = re.compile(r"(?:cd\s+\S+\s*(?:&&|;)\s*|[A-Za-z_]\w*=\S*\s+)*")
"""What a command line often does before it names its program."""

_OF_MAIL = ("MAILTO", "MAILFROM", "CONTENT_TYPE", "CONTENT_TRANSFER_ENCODING")


@dataclass(frozen=True, kw_only=True)
class WrongLine:
    """A line that cannot be imported."""

    number: int
    reason: str

    def __str__(self) -> str:
        """Return the number and the reason."""
        return f"line {self.number}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Crontab:
    """The content of a crontab."""

    entries: Mapping[str, ScheduleEntry]
    """Its schedules by name."""
    wrong: tuple[WrongLine, ...]


def read(text: str, tz: str, *, has_users: bool = False) -> Crontab:
    """Return the schedules of a crontab; its times are in the zone ``tz`` until its first ``CRON_TZ``.

    With ``has_users`` each line names a user after its times, as in ``/etc/crontab``.
    """
    reader = _Reader(tz, has_users)
    wrong: list[WrongLine] = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            reader.take(line.strip())
        except InvalidOption as refused:
            wrong.append(WrongLine(number=number, reason=str(refused)))
    return Crontab(entries=reader.entries(), wrong=tuple(wrong))


def zone_of_host(etc: Path = Path("/etc")) -> str | None:
    """Return the time zone by whose clock cron starts commands on this host; None if the host does not name it."""
    path = etc / "localtime"
    if not path.exists():
        return UTC
    zone = os.path.realpath(path).partition("/zoneinfo/")[2]
    if not zone and (etc / "timezone").is_file():
        zone = (etc / "timezone").read_text().strip()
    return {"Etc/UTC": UTC, "": None}.get(zone, zone)


class _Command(NamedTuple):
    """A line with times and a command."""

    name: str | None
    line: str
    entry: Any


class _Reader:
    """What the lines so far have set for the lines after them."""

    def __init__(self, tz: str, has_users: bool) -> None:
        self._usual_tz = tz
        self._tz: str | None = tz
        self._has_users = has_users
        self._settings: dict[str, str] = {}
        self._name: str | None = None
        self._commands: list[_Command] = []

    def take(self, line: str) -> None:
        """Read a line; raise ``InvalidOption`` with the reason if it cannot be imported."""
        if named := _NAME.fullmatch(line):
            self._name = named[1]
        elif setting := _SETTING.fullmatch(line):
            self._set(setting[1], _unquoted(setting[2]))
        elif line and not line.startswith("#"):
            name, self._name = self._name, None
            self._add(name, line)

    def entries(self) -> dict[str, ScheduleEntry]:
        """Return the schedules by name; a line without a name gets the name of its program, with a number if needed."""
        entries = {command.name: command.entry for command in self._commands if command.name is not None}
        numbers: Counter[str] = Counter()
        for command in self._commands:
            if command.name is None:
                entries[_free_name(command.line, numbers, entries)] = command.entry
        return entries

    def _set(self, name: str, value: str) -> None:
        if name == "CRON_TZ":
            self._tz = None  # if it is wrong, the times of the next lines are not known
            self._tz = Cron("@daily", value or self._usual_tz).tz
        elif name in _OF_MAIL:
            if value:
                raise InvalidOption(
                    f"{name} has no equivalent: jobs keep their output, and `taskqueue list --status FAILED` shows "
                    "failures: leave the line out"
                )
        elif name == "RANDOM_DELAY" and value != "0":
            raise InvalidOption("RANDOM_DELAY: times are exact: leave the line out")
        else:
            self._settings[name] = value

    def _add(self, name: str | None, line: str) -> None:
        width = 1 if line.startswith("@") else 5
        parts = line.split(None, width)
        if parts[0] == "@reboot":
            raise InvalidOption("@reboot has no equivalent: start the command with a systemd unit")
        if self._tz is None:
            raise InvalidOption("its time zone is not known, because the CRON_TZ above is wrong")
        cron = Cron(" ".join(parts[:width]), self._tz)
        command = parts[width] if len(parts) > width else ""
        command = self._of_this_user(command) if self._has_users else command
        if not command:
            raise InvalidOption("there is no command after the times")
        if name is not None:
            check_name(name)
            if name in [command.name for command in self._commands]:
                raise InvalidOption(f"the name {name} is already used by a line above: write another one")
        entry = {"job": ShellJob, "data": self._data(command), "cron": cron, "overlap": "allow", "misfire": "skip"}
        self._commands.append(_Command(name, command, entry))

    def _of_this_user(self, line: str) -> str:
        user, command = (*line.split(None, 1), "", "")[:2]
        if command and user != _own_name():
            raise InvalidOption(
                f"it runs as user {as_code(user)}, but a node runs commands as its own user: import it as that user, "
                "into the store of a node of that user"
            )
        return command

    def _data(self, command: str) -> dict[str, Any]:
        """Return the data of a ``ShellJob`` that runs the command as cron does."""
        if re.search(r"(?<!\\)%", command):
            raise InvalidOption(
                "the text after % is the input of the command, which has no equivalent: pass it with a pipe, or write "
                r"\% for a percent sign"
            )
        command = command.replace(r"\%", "%")
        shell = self._settings.get("SHELL", "/bin/sh")
        data: dict[str, Any] = {"argv": command, "shell": True}
        if shell != "/bin/sh":
            data = {"argv": [shell, "-c", command]}
        if "HOME" in self._settings:
            data["cwd"] = self._settings["HOME"]
        if self._settings:
            data["env"] = dict(self._settings)
        return data


def _own_name() -> str:
    """Return the name of the user of this process, whatever the environment says; empty if there is none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""


def _unquoted(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if is_quoted else value


def _free_name(line: str, numbers: Counter[str], taken: Mapping[str, Any]) -> str:
    steps = _FIRST_STEPS.match(line)
    words = line[steps.end() if steps else 0 :].split()
    program = re.sub(r"[^\w.-]", "", (words or [""])[0].rpartition("/")[2])[:190] or "command"
    while True:
        numbers[program] += 1
        name = program if numbers[program] == 1 else f"{program}-{numbers[program]}"
        if name not in taken:
            return name
