"""The workflows of GitHub test each supported Python with the commands of this checkout."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import yaml

from tests.pythons import configuration

CHECKOUT = Path(__file__).parent.parent
WORKFLOWS = sorted((CHECKOUT / ".github/workflows").glob("*.yml"))


def jobs(path: Path) -> dict[str, Any]:
    """Return the jobs of a workflow by their names."""
    found: dict[str, Any] = yaml.safe_load(path.read_text())["jobs"]
    return found


def commands() -> list[str]:
    """Return what the steps of all workflows run."""
    steps = (step for path in WORKFLOWS for job in jobs(path).values() for step in job["steps"])
    return [step["run"] for step in steps if "run" in step]


def test_each_supported_python_is_tested() -> None:
    matrix = jobs(CHECKOUT / ".github/workflows/test.yml")["test"]["strategy"]["matrix"]["python"]
    supported = re.findall(r":: (3\.\d+)$", configuration()["metadata"]["classifiers"], re.MULTILINE)

    assert [version.removesuffix("-rc") for version in matrix] == supported


def test_the_commands_of_the_checkout_are_there() -> None:
    called = [command for command in commands() if command.startswith("bin/")]

    assert called == ["bin/package", "bin/docs", "bin/test"]
    assert all(os.access(CHECKOUT / command, os.X_OK) for command in called)
