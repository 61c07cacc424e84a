"""Which Pythons and which versions of the dependencies the acceptance tests run with."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.pythons import environments, lowest_requirements, oldest_supported, pythons, version_of


def test_the_running_python_is_found_with_its_version() -> None:
    assert version_of(Path(sys.executable)) == sys.version_info[:2]


def test_what_is_no_python_is_left_out(tmp_path: Path) -> None:
    broken = tmp_path / "python3.12"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)

    assert pythons([broken, Path(sys.executable)], oldest_supported()) == {sys.version_info[:2]: Path(sys.executable)}


def test_a_python_that_is_too_old_is_left_out() -> None:
    assert pythons([Path(sys.executable)], (sys.version_info[0], sys.version_info[1] + 1)) == {}


def test_the_lowest_versions_are_tried_on_the_oldest_and_newest_python_and_the_newest_wherever_they_were_not() -> None:
    found = {(3, minor): Path(f"/python3.{minor}") for minor in (10, 11, 12, 13)}

    names = [environment.name for environment in environments(found, (3, 11))]

    lowest = ("lowest", "lowest-extras")
    oldest, last = ([f"{version}-{kind}" for kind in (*lowest, "newest")] for version in ("3.10", "3.13"))
    assert names == [*oldest, "3.12-newest", *last]
    assert environments({}, (3, 11)) == []


def test_the_lowest_version_of_each_dependency_is_the_one_that_setup_cfg_names() -> None:
    lowest = [*lowest_requirements(), *lowest_requirements(extras=True)]

    for name in ("click", "opentelemetry-api", "starlette", "textual", "uvicorn"):
        assert any(line.startswith(f"{name}==") for line in lowest), name
    assert all("==" in line and ">=" not in line.split(";")[0] for line in lowest)
