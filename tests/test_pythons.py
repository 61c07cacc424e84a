"""Which Pythons and which versions of the dependencies the acceptance tests run with."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from tests import unstable
from tests.pythons import (
    ALL,
    BETWEEN,
    LEFT_OUT,
    MONGODB,
    NOT_MONGODB,
    OF_EXTRAS,
    PACKAGES,
    ROOT,
    TOOLS,
    configuration,
    environments,
    lowest_requirements,
    oldest_supported,
    pythons,
    unstable_environments,
    version_of,
)


def test_the_running_python_is_found_with_its_version() -> None:
    assert version_of(Path(sys.executable)) == sys.version_info[:2]


def test_what_is_no_python_is_left_out(tmp_path: Path) -> None:
    broken = tmp_path / "python3.12"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)

    assert pythons([broken, Path(sys.executable)], oldest_supported()) == {sys.version_info[:2]: Path(sys.executable)}


def test_a_python_that_is_too_old_is_left_out() -> None:
    assert pythons([Path(sys.executable)], (sys.version_info[0], sys.version_info[1] + 1)) == {}


def test_both_ends_run_every_test_with_one_set_of_versions_and_others_the_embedded_store() -> None:
    found = {(3, minor): Path(f"/python3.{minor}") for minor in (10, 11, 12, 13)}

    tests = {environment.name: environment.tests for environment in environments(found, (3, 11), max(found))}

    assert list(tests) == [
        *("3.10-lowest", "3.10-lowest-extras", "3.10-newest", "3.12-newest"),
        *("3.13-lowest", "3.13-lowest-extras", "3.13-newest"),
    ]
    assert tests["3.10-newest"] == (OF_EXTRAS, *PACKAGES)
    assert tests["3.13-lowest"] == PACKAGES
    assert tests["3.13-newest"] == ALL
    assert tests["3.12-newest"] == BETWEEN
    assert tests["3.10-lowest"] == (*ALL, f"--ignore={OF_EXTRAS}")
    assert tests["3.10-lowest-extras"] == tests["3.13-lowest-extras"] == (OF_EXTRAS,)
    assert environments({}, (3, 11), (3, 11)) == []


def test_the_files_of_the_packages_are_there() -> None:
    assert [name for name in PACKAGES if name.startswith("tests/") and not (ROOT / name).exists()] == []


def test_environments_with_the_most_tests_come_first() -> None:
    found = {(3, minor): Path(f"/python3.{minor}") for minor in (10, 12)}

    names = [one.name for one in sorted(environments(found, (3, 11), max(found)), key=lambda one: one.place)]

    assert names == [
        *("3.10-lowest", "3.12-newest"),
        *("3.10-newest", "3.12-lowest"),
        *("3.10-lowest-extras", "3.12-lowest-extras"),
    ]


def test_one_python_alone_runs_every_test_with_the_lowest_versions() -> None:
    found = {(3, 10): Path("/p")}
    tests = {environment.kind: environment.tests for environment in environments(found, (3, 11), (3, 10))}

    assert tests["lowest"] == (*ALL, f"--ignore={OF_EXTRAS}")
    assert tests["newest"] == (OF_EXTRAS, *PACKAGES)


def test_a_python_that_only_the_unstable_distribution_has_runs_the_tests_of_the_embedded_store_there() -> None:
    [environment] = unstable_environments({(3, 14): Path("/usr/local/bin/python3.14")})

    assert (environment.name, environment.tests) == ("3.15-unstable", NOT_MONGODB)
    assert environment.python == Path("/usr/bin/python3.15")


def test_an_unstable_python_before_another_runs_what_those_between_run_and_the_newest_here_keeps_mongodb() -> None:
    found = {(3, minor): Path(f"/python3.{minor}") for minor in (10, 11, 13)}

    of_unstable = {environment.version: environment.tests for environment in unstable_environments(found)}
    here = {environment.name: environment.tests for environment in environments(found, (3, 11), (3, 15))}

    assert of_unstable == {(3, 14): BETWEEN, (3, 15): NOT_MONGODB}
    assert here["3.13-newest"] == MONGODB
    assert here["3.10-lowest"] == (*ALL, f"--ignore={OF_EXTRAS}")


def test_a_user_who_is_not_root_is_told_why_the_unstable_distribution_is_not_used() -> None:
    asked = "import os; from tests.unstable import why_not; os.geteuid() or os.setuid(65534); print(why_not())"
    told = subprocess.run([sys.executable, "-c", asked], cwd=unstable.ROOT, capture_output=True, text=True)

    assert "only root" in told.stdout, told.stderr


def test_each_python_that_is_tested_has_a_classifier() -> None:
    oldest, newest = oldest_supported(), unstable.VERSIONS[-1]
    tested = [f"Programming Language :: Python :: 3.{minor}" for minor in range(oldest[1], newest[1] + 1)]

    assert [line for line in configuration()["metadata"]["classifiers"].split("\n") if ":: 3." in line] == tested


def test_the_lowest_version_of_each_dependency_is_the_one_that_setup_cfg_names() -> None:
    lowest = [*lowest_requirements(), *lowest_requirements(extras=True)]

    for name in ("click", "opentelemetry-api", "starlette", "textual", "uvicorn"):
        assert any(line.startswith(f"{name}==") for line in lowest), name
    assert all("==" in line and ">=" not in line.split(";")[0] for line in lowest)


def test_what_runs_without_the_extras_imports_none_of_their_packages() -> None:
    installed = {canonical(distribution.metadata["Name"]): distribution for distribution in metadata.distributions()}
    reached, left = set[str](), [canonical(re.split(r"[^\w.-]", line)[0]) for line in (*lowest_requirements(), *TOOLS)]
    while left:
        name = left.pop()
        if name not in reached and name in installed:
            reached.add(name)
            needed = [line for line in installed[name].requires or () if "extra ==" not in line]
            left += [canonical(re.split(r"[^\w.-]", line)[0]) for line in needed]
    others = {
        module
        for module, names in metadata.packages_distributions().items()
        if reached.isdisjoint(map(canonical, names)) and module != "taskqueue"
    }
    assert {"starlette", "django", "psycopg", "textual"} <= others
    files = sorted((ROOT / "tests/acceptance").glob("test_*.py"))
    without = [file.stem for file in files if file.name not in (*LEFT_OUT, Path(OF_EXTRAS).name)]

    asked = f"""
import importlib, sys
sys.modules.update(dict.fromkeys({sorted(others)}))
for name in {without}:
    try:
        importlib.import_module("tests.acceptance." + name)
    except ImportError as error:
        print(name, error)
"""
    told = subprocess.run([sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True)

    assert (told.returncode, told.stdout) == (0, ""), told.stderr


def canonical(name: str) -> str:
    """Return the name of a distribution as it is compared."""
    return re.sub(r"[-_.]+", "-", name).lower()
