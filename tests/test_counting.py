"""The coverage plugin: figures of every forked process arrive once, whatever became of coverage's lock."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from coverage import CoverageData

from tests.counting import gather

CHECKOUT = Path(__file__).resolve().parent.parent
CONFIGURATION = """
[run]
branch = true
parallel = true
source = counted
data_file = figures/coverage
patch = fork, subprocess, _exit
plugins = tests.counting
"""
INTERRUPTED = """
import os, threading
from coverage import Coverage
from counted import in_child, in_grandchild, in_parent

Coverage.current()._collector.lock_data()  # as a handler leaves it that raises right behind this call
in_parent()
child = os.fork()
if child == 0:
    Coverage.current()._collector.lock_data()
    in_child()
    if os.fork() == 0:
        in_grandchild()
        os._exit(0)
    os.wait()
    os._exit(0)
os.wait()
"""
COUNTED = """
def in_parent():
    return 1

def in_child():
    return 2

def in_grandchild():
    return 3
"""


def test_each_process_saves_its_own_figures_though_the_lock_was_never_given_back(tmp_path: Path) -> None:
    (tmp_path / "configuration").write_text(CONFIGURATION)
    (tmp_path / "program.py").write_text(INTERRUPTED)
    (tmp_path / "counted.py").write_text(COUNTED)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}

    subprocess.run(
        [sys.executable, "-m", "coverage", "run", "--rcfile=configuration", "program.py"],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": f"{CHECKOUT}:{tmp_path}"},
        check=True,
        timeout=60,
    )

    gather(tmp_path / "figures")
    assert sorted(lines_of(path) for path in (tmp_path / "figures").iterdir()) == [[3], [6, 9]]


def lines_of(path: Path) -> list[int]:
    """Return which lines inside the functions of ``counted`` these figures know."""
    data = CoverageData(basename=str(path), read_only=True)
    data.read()
    lines = {line for file in data.measured_files() for line in data.lines(file) or ()}
    data.close(force=True)
    return sorted(lines & {3, 6, 9})
