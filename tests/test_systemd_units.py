"""The systemd units: understood by systemd, and in keeping with what the node does by default."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from taskqueue.daemon.settings import Settings
from taskqueue.exit_codes import Exit

UNITS = Path(__file__).resolve().parent.parent / "systemd"
INSTALLED = "/opt/taskqueue/.venv/bin/taskqueue-node"
FILES = ("taskqueue-node.service", "taskqueue-node@.service")


def settings_of(name: str) -> dict[str, list[str]]:
    """Return what a unit file sets; some names are given several times."""
    settings: dict[str, list[str]] = {}
    for line in (UNITS / name).read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            settings.setdefault(key, []).append(value)
    return settings


@pytest.mark.parametrize("name", FILES)
def test_systemd_understands_the_unit(tmp_path: Path, name: str) -> None:
    program = shutil.which("true")
    assert program is not None
    text = (UNITS / name).read_text()
    assert text.count(INSTALLED) == 1
    (tmp_path / name).write_text(text.replace(INSTALLED, program))

    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name.replace("@", "@reports"))],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (verified.returncode, verified.stderr) == (0, "")


@pytest.mark.parametrize("name", FILES)
def test_a_stop_may_take_longer_than_the_default_stop_ladder(name: str) -> None:
    defaults = Settings()

    assert float(settings_of(name)["TimeoutStopSec"][0]) > defaults.finish + defaults.grace + 5


@pytest.mark.parametrize("name", FILES)
def test_the_exit_codes_are_those_of_the_node(name: str) -> None:
    settings = settings_of(name)

    assert settings["RestartPreventExitStatus"] == [f"{Exit.USAGE:d} {Exit.CONFIG:d}"]
    assert settings["SuccessExitStatus"] == [f"{Exit.KILLED:d}"]


@pytest.mark.parametrize("name", FILES)
def test_only_the_node_is_signalled_and_listened_to(name: str) -> None:
    settings = settings_of(name)

    assert settings["Type"] == ["notify"]
    assert settings["NotifyAccess"] == ["main"]
    assert settings["KillMode"] == ["mixed"]


def test_the_template_differs_in_its_name_only() -> None:
    plain, template = (settings_of(name) for name in FILES)

    assert {key for key in template if template[key] != plain.get(key)} == {
        "Description",
        "Environment",
        "EnvironmentFile",
        "RuntimeDirectory",
    }
    assert template["Environment"] == [*plain["Environment"], "TASKQUEUE_NAME=%H-%i"]
