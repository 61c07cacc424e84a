"""Crontabs as schedules: what each line becomes, and which lines have no equivalent."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from taskqueue import Scheduler, ShellJob
from taskqueue.model.schedules import Cron
from taskqueue.scheduler import crontab

CRONTAB = r"""
# m h  dom mon dow   command
MAILTO=""
PATH = /usr/local/bin:/usr/bin:/bin

# Nightly
# name: nightly
15 3 * * mon-fri  pg_dump shop >/backup/$(date +\%F).sql
@daily    cd /srv/shop && GREETING=hello bin/report.sh --all # not a comment here
	*/5 * * * *	bin/report.sh
CRON_TZ=Europe/Berlin
SHELL='/bin/bash'
HOME="/srv/shop"
TZ=Asia/Tokyo
0 9 * * 7 "run it" <(ls)
CRON_TZ=
0 9 1 * * report.sh-2
"""


def a_line(command: str, cron: str, tz: str = "UTC", **more: Any) -> Mapping[str, Any]:
    data = {"argv": command, "shell": True, "env": {"PATH": "/usr/local/bin:/usr/bin:/bin"}, **more}
    data = {key: value for key, value in data.items() if value is not None}
    return {"job": ShellJob, "data": data, "cron": Cron(cron, tz), "overlap": "allow", "misfire": "skip"}


def test_each_line_becomes_a_schedule_with_the_settings_above_it() -> None:
    path = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    env = {**path, "SHELL": "/bin/bash", "HOME": "/srv/shop", "TZ": "Asia/Tokyo"}
    later: Mapping[str, Any] = {"shell": None, "cwd": "/srv/shop", "env": env}
    found = crontab.read(CRONTAB, "UTC")

    assert found.wrong == ()
    assert found.entries == {
        "nightly": a_line("pg_dump shop >/backup/$(date +%F).sql", "15 3 * * mon-fri"),
        "report.sh": a_line("cd /srv/shop && GREETING=hello bin/report.sh --all # not a comment here", "@daily"),
        "report.sh-2": a_line("bin/report.sh", "*/5 * * * *"),
        "run": a_line("", "0 9 * * 7", "Europe/Berlin", **{**later, "argv": ["/bin/bash", "-c", '"run it" <(ls)']}),
        "report.sh-2-2": a_line("", "0 9 1 * *", **{**later, "argv": ["/bin/bash", "-c", "report.sh-2"]}),
    }


def test_the_schedules_can_be_defined(scheduler: Scheduler) -> None:
    changes = scheduler.schedules(crontab.read(CRONTAB, "Europe/Berlin").entries, application="crontab")

    assert changes.added == ("nightly", "report.sh", "report.sh-2", "report.sh-2-2", "run")
    assert str(scheduler.get_schedule("nightly").snapshot.trigger) == "cron 15 3 * * mon-fri in Europe/Berlin"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("@reboot start", "@reboot has no equivalent: start the command with a systemd unit"),
        ("MAILTO=ops@example.org", "MAILTO has no equivalent"),
        ("RANDOM_DELAY=5", "RANDOM_DELAY: times are exact: leave the line out"),
        ("0 9 * * * mail -s hi ann%Dear Ann", "the text after % is the input of the command"),
        ("0 9 * * *", "there is no command after the times"),
        ("@daily", "there is no command after the times"),
        ("0 9 * * run", "cron '0 9 * * run' cannot be read"),
        ("0 25 * * * run", "cron '0 25 * * *' cannot be read"),
        ("@sometimes run", "cron '@sometimes' cannot be read"),
        ("CRON_TZ=Europe/Berlinn", "this host has no time zone 'Europe/Berlinn'"),
        ("hello", "cron 'hello' cannot be read"),
    ],
)
def test_a_line_without_equivalent_is_named_with_its_number(line: str, reason: str) -> None:
    found = crontab.read(f"# first\n{line}\n", "UTC")

    [wrong] = found.wrong
    assert str(wrong).startswith("line 2: ")
    assert reason in wrong.reason
    assert found.entries == {}


def test_lines_after_a_wrong_time_zone_are_not_imported_in_another() -> None:
    found = crontab.read("CRON_TZ=Nowhere\n@daily a\n@daily b\nCRON_TZ=UTC\n@daily c\n", "UTC")

    assert [wrong.number for wrong in found.wrong] == [1, 2, 3]
    assert list(found.entries) == ["c"]


@pytest.mark.parametrize("name", ["", "two words", "a/b"])
def test_a_name_that_no_schedule_can_have_is_refused(name: str) -> None:
    [wrong] = crontab.read(f"# name: {name}\n@daily a\n", "UTC").wrong
    assert wrong.number == 2
    assert f"a schedule's name is {name!r}" in wrong.reason


def test_a_name_belongs_to_one_line() -> None:
    found = crontab.read("# name: a\n@daily a\n# name: a\n@daily b\n", "UTC")
    assert [str(wrong) for wrong in found.wrong] == [
        "line 4: the name a is already used by a line above: write another one"
    ]


@pytest.mark.parametrize("gap", [" ", "\t", "   "])
def test_lines_of_this_user_are_taken_from_a_file_with_users(gap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "somebody")  # as after `su` without a new login
    user = pwd.getpwuid(os.getuid()).pw_name
    text = f"0 9 * * *{gap}{user}{gap}run --all\n@daily{gap}somebody{gap}run\n@daily {user}\n"
    found = crontab.read(text, "UTC", has_users=True)

    assert {name: entry.get("data") for name, entry in found.entries.items()} == {
        "run": {"argv": "run --all", "shell": True}
    }
    first, second = map(str, found.wrong)
    assert first.startswith("line 2: it runs as user 'somebody', but a node runs commands as its own user")
    assert second == "line 3: there is no command after the times"


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_a_line_ends_with_a_newline_alone_as_for_cron(separator: str) -> None:
    found = crontab.read(f"# off:{separator}@daily rm -r old\n@hourly echo a{separator}b\r\n", "UTC")

    assert not found.wrong
    assert {name: entry.get("data") for name, entry in found.entries.items()} == {
        "echo": {"argv": f"echo a{separator}b", "shell": True}
    }


def test_the_zone_of_the_host_is_read(tmp_path: Path) -> None:
    assert crontab.zone_of_host(tmp_path) == "UTC"

    zone = tmp_path / "zoneinfo" / "Europe" / "Berlin"
    zone.parent.mkdir(parents=True)
    zone.write_text("")
    (tmp_path / "localtime").symlink_to(zone)
    assert crontab.zone_of_host(tmp_path) == "Europe/Berlin"

    (tmp_path / "localtime").unlink()
    (tmp_path / "localtime").write_text("a copy")
    assert crontab.zone_of_host(tmp_path) is None

    (tmp_path / "timezone").write_text("Etc/UTC\n")
    assert crontab.zone_of_host(tmp_path) == "UTC"
