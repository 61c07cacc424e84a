"""The systemd units: understood by systemd, in keeping with what the node does, and those that the command writes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from taskqueue.cli.systemd import DROP_IN, TEMPLATE, UNIT, drop_in, unit_text
from taskqueue.daemon.settings import Settings
from taskqueue.exit_codes import Exit

UNITS = Path(__file__).resolve().parent.parent / "systemd"
INSTALLED = Path("/opt/taskqueue/.venv/bin/taskqueue-node")
FILES = (UNIT, TEMPLATE)


def settings_of(name: str) -> dict[str, list[str]]:
    """Return what a unit file sets; some names are given several times."""
    settings: dict[str, list[str]] = {}
    for line in (UNITS / name).read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            settings.setdefault(key, []).append(value)
    return settings


def made(folder: Path, name: str) -> Path:
    """Write the unit with a program that is there."""
    program = shutil.which("true")
    assert program is not None
    text = (UNITS / name).read_text()
    assert text.count(str(INSTALLED)) == 1
    file = folder / name
    file.write_text(text.replace(str(INSTALLED), program))
    return file


def exposure(file: Path) -> float:
    """Return what systemd says of the unit, from 0 (closed) to 10."""
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(file)]
    judged = subprocess.run(command, capture_output=True, text=True, timeout=60)
    found = re.search(r"exposure level for .*: ([\d.]+)", judged.stdout)
    assert found is not None, judged
    return float(found[1])


def test_the_units_are_those_of_the_command() -> None:
    for name in FILES:
        written = unit_text(INSTALLED, user="taskqueue", instance=name == TEMPLATE, version=252)
        assert (UNITS / name).read_text() == written
    assert (UNITS / DROP_IN).read_text() == drop_in(UNIT)


@pytest.mark.parametrize("name", FILES)
def test_systemd_understands_the_unit(tmp_path: Path, name: str) -> None:
    made(tmp_path, name)

    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name.replace("@", "@reports"))],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (verified.returncode, verified.stderr) == (0, "")


def test_a_unit_takes_little_from_jobs_and_the_drop_in_most(tmp_path: Path) -> None:
    unit = made(tmp_path, UNIT)

    assert exposure(unit) <= 6.0
    text = unit.read_text()
    unit.write_text(text.replace("[Install]", drop_in(UNIT).replace("[Service]", "") + "\n[Install]"))
    assert exposure(unit) <= 3.0


def test_every_line_of_the_drop_in_is_explained() -> None:
    page = (UNITS.parent / "docs/how-to/operations/deploy-with-systemd.md").read_text()

    for name in settings_of(DROP_IN):
        assert f"`{name}" in page, name


@pytest.mark.parametrize("name", FILES)
def test_a_stop_may_take_longer_than_the_default_stop_ladder(name: str) -> None:
    defaults = Settings()

    assert float(settings_of(name)["TimeoutStopSec"][0]) > defaults.finish + defaults.grace + 5


@pytest.mark.parametrize("name", FILES)
def test_the_exit_codes_are_those_of_the_node(name: str) -> None:
    settings = settings_of(name)

    assert settings["RestartPreventExitStatus"] == [f"{Exit.USAGE:d} {Exit.CONFIG:d} {Exit.BOOTSTRAP:d}"]
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
