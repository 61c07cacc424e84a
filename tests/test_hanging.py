"""A run ends, and names the test that hung or failed, whatever that test writes or leaves behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.nodes import LIMIT

ROOT = Path(__file__).parent.parent
CONFTEST = """
from tests.conftest import pytest_configure, pytest_configure_node, pytest_unconfigure, pytest_xdist_make_scheduler
from tests.conftest import pytest_runtest_makereport
"""
SHORT = "def test_one(): pass\ndef test_two(): pass\n"
HANGS = "import time\ndef test_before(): pass\ndef test_hangs(): time.sleep(3600)\ndef test_after(): pass\n"
HANGS_WITH_A_CHILD = """
import os, time
def test_hangs():
    if (child := os.fork()) == 0:
        time.sleep(3600)
        os._exit(0)
    with open("child", "w") as file:
        file.write(str(child))
    time.sleep(3600)
"""
NO_TEXT = """
import logging
def test_logs(): logging.warning("\\udcff")
def test_fails(): assert "\\udcff" == ""
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name in ("a", "b", "c", "y", "z"):
        (tmp_path / f"test_{name}.py").write_text(SHORT)
    yield tmp_path
    if (tmp_path / "child").exists():
        psutil.Process(int((tmp_path / "child").read_text())).kill()


def output_of_a_run(folder: Path, *options: str) -> str:
    """Run the tests of the folder in two processes, and return what the run printed."""
    dealt = ["-p", "xdist", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if "XDIST" not in name}
    with (folder / "output").open("w") as output:  # no pipe: a child that outlives the run would keep it open
        subprocess.run(
            [sys.executable, "-m", "pytest", *dealt, *options, str(folder)],
            cwd=folder,
            env={**environment, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TMPDIR": str(folder)},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=4 * LIMIT,
        )
    return (folder / "output").read_text()


@pytest.mark.parametrize("text", [HANGS, HANGS_WITH_A_CHILD], ids=["alone", "with a child that outlives it"])
def test_a_run_ends_after_one_test_that_hangs_and_names_it(folder: Path, text: str) -> None:
    (folder / "test_h.py").write_text(text)

    said = output_of_a_run(folder, "-o", "faulthandler_timeout=10", "-o", "faulthandler_exit_on_timeout=true")

    others = text.count("def test_") + 5 * SHORT.count("def test_") - 1
    named = re.findall(
        r"^worker '\w+' crashed while running '(.*)'", said, re.MULTILINE
    )  # once more at its end in a CI
    assert named == ["test_h.py::test_hangs"], said
    assert f"1 failed, {others} passed" in said, said


def test_a_run_goes_on_after_a_test_that_writes_what_is_no_text(folder: Path) -> None:
    (folder / "test_h.py").write_text(NO_TEXT)

    said = output_of_a_run(folder)

    assert "FAILED test_h.py::test_fails" in said, said
    assert f"1 failed, {1 + 5 * SHORT.count('def test_')} passed" in said, said
