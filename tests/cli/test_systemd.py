"""``taskqueue systemd`` writes units that start this installation."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from taskqueue.cli.systemd import closed_folder, installed_version, unit_text
from taskqueue.exit_codes import Exit
from tests.cli.conftest import Answer

Taskqueue = Callable[..., Answer]

PROGRAM = Path(sys.executable).parent / "taskqueue-node"


def test_the_unit_starts_the_node_of_this_installation(taskqueue: Taskqueue) -> None:
    answer = taskqueue("systemd", "--user", getpass.getuser(), "--for-version", "252")

    assert (answer.code, answer.err) == (Exit.OK, "")
    lines = answer.out.splitlines()
    assert f"ExecStart={PROGRAM}" in lines
    assert f"User={getpass.getuser()}" in lines
    assert "Type=notify" in lines
    assert "@" not in answer.out.replace("taskqueue-node@", "")


def test_systemd_that_knows_it_is_told_when_a_reload_is_over(taskqueue: Taskqueue) -> None:
    out = taskqueue("systemd", "--dynamic-user", "--for-version", "253").out

    assert "Type=notify-reload\n" in out
    assert "ExecReload" not in out
    assert "DynamicUser=yes\n" in out
    assert "User=taskqueue" not in out.replace("DynamicUser", "")


def test_the_version_is_that_of_this_host() -> None:
    said = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=True).stdout

    assert said.startswith(f"systemd {installed_version()} ")


def test_without_systemd_the_unit_is_one_that_all_versions_know(
    monkeypatch: pytest.MonkeyPatch, taskqueue: Taskqueue, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert "Type=notify\n" in taskqueue("systemd").out


def test_files_are_written_where_they_are_wanted(taskqueue: Taskqueue, tmp_path: Path) -> None:
    unit = taskqueue("systemd", "--instance", "--into", str(tmp_path))
    drop_in = taskqueue("systemd", "--instance", "--hardened", "--into", str(tmp_path))

    assert unit.out == f"wrote {tmp_path}/taskqueue-node@.service: systemctl daemon-reload makes it known\n"
    assert "TASKQUEUE_NAME=%H-%i" in (tmp_path / "taskqueue-node@.service").read_text()
    assert drop_in.code == Exit.OK
    assert "NoNewPrivileges=yes" in (tmp_path / "taskqueue-node@.service.d/hardened.conf").read_text()


def test_a_file_that_cannot_be_written_is_named(taskqueue: Taskqueue, tmp_path: Path) -> None:
    (tmp_path / "taskqueue-node.service").mkdir()

    answer = taskqueue("systemd", "--into", str(tmp_path))

    assert answer.code == Exit.CONFIG
    assert f"{tmp_path}/taskqueue-node.service cannot be written: Is a directory; try as root" in answer.err


def test_a_python_in_a_home_that_the_user_may_not_enter_is_found(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(0o710)
    uid, gid = home.stat().st_uid, home.stat().st_gid

    assert closed_folder([tmp_path, home], uid, -1) is None
    assert closed_folder([home], uid + 1, gid) is None
    assert closed_folder([home], uid + 1, gid + 1) == home
    home.chmod(0o711)
    assert closed_folder([home], uid + 1, gid + 1) is None


def test_a_user_that_is_missing_is_told_and_one_that_is_none_refused(taskqueue: Taskqueue) -> None:
    missing = taskqueue("systemd", "--user", "shop-that-is-not")
    refused = taskqueue("systemd", "--user", "shop\nExecStart=/bin/sh")

    assert missing.code == Exit.OK
    assert "there is no user shop-that-is-not yet: useradd --system shop-that-is-not" in missing.err
    assert refused.code == Exit.CONFIG
    assert "is not a user name: write lower-case letters" in refused.err


@pytest.mark.parametrize(
    ("program", "written"),
    [
        ("/opt/50%/bin/taskqueue-node", "/opt/50%%/bin/taskqueue-node"),
        ("/opt/my jobs/bin/taskqueue-node", '"/opt/my jobs/bin/taskqueue-node"'),
        ('/opt/a"b/bin/taskqueue-node', '"/opt/a\\"b/bin/taskqueue-node"'),
    ],
)
def test_systemd_reads_the_path_as_it_is(program: str, written: str) -> None:
    text = unit_text(Path(program), user="taskqueue", instance=False, version=252)

    assert f"ExecStart={written}\n" in text


def test_the_command_needs_no_store(taskqueue: Taskqueue) -> None:
    assert taskqueue("--url", "mongodb://no.such.host/jobs", "systemd").code == Exit.OK
    assert os.path.exists(PROGRAM)
