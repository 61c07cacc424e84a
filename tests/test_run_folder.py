"""The folder of a test run: where it is made, what is kept in it, and when it goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nodes import LIMIT, eventually
from tests.run_folder import MEMORY, remove_ended

ROOT = Path(__file__).parent.parent
USUAL = "/var/tmp"
CONFTEST = """
from tests.conftest import pytest_configure, pytest_configure_node, pytest_sessionfinish, pytest_unconfigure
"""
TESTS = """
import time
def test_passes(tmp_path): (tmp_path / "text").write_text("passed")
def test_fails(tmp_path):
    (tmp_path / "text").write_text("failed")
    raise AssertionError
def test_waits(tmp_path):
    (tmp_path / "text").write_text("waits")
    time.sleep(3600)
"""


@pytest.fixture
def usual(tmp_path: Path) -> Path:
    """Return the folder in which the runs of a test make theirs."""
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite/conftest.py").write_text(CONFTEST)
    (tmp_path / "suite/pytest.ini").write_text("[pytest]\ntmp_path_retention_policy = failed\n")
    (tmp_path / "suite/test_it.py").write_text(TESTS)
    (tmp_path / "usual").mkdir()
    return tmp_path / "usual"


def started(usual: Path, test: str, *options: str) -> subprocess.Popen[bytes]:
    """Start a run of the tests with this name."""
    environment = {name: value for name, value in os.environ.items() if "XDIST" not in name}
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TMPDIR": str(usual)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-k", test, *options]
    return subprocess.Popen(command, cwd=usual.parent / "suite", env=environment, stdout=subprocess.DEVNULL)


def texts(usual: Path) -> list[str]:
    """Return what the tests of all runs have written, as far as it is still there."""
    return [path.read_text() for path in usual.glob("*/tests/**/text") if not path.parent.is_symlink()]


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "1")], ids=["one process", "a worker"])
def test_a_run_keeps_the_folders_of_failed_tests_until_the_next_run(usual: Path, options: tuple[str, ...]) -> None:
    assert started(usual, "passes or fails", *options).wait(LIMIT) == pytest.ExitCode.TESTS_FAILED
    assert texts(usual) == ["failed"]

    assert started(usual, "passes", *options).wait(LIMIT) == pytest.ExitCode.OK
    assert list(usual.iterdir()) == []


def test_the_next_run_removes_what_a_killed_run_left_but_nothing_of_one_that_goes_on(usual: Path) -> None:
    with started(usual, "waits") as killed, started(usual, "waits") as running:
        eventually(lambda: texts(usual) == ["waits", "waits"])
        killed.send_signal(signal.SIGKILL)
        killed.wait()

        assert started(usual, "passes").wait(LIMIT) == pytest.ExitCode.OK

        assert texts(usual) == ["waits"]
        assert remove_ended(usual) == 1
        running.send_signal(signal.SIGKILL)


def test_the_folder_of_a_run_that_is_just_beginning_stays(tmp_path: Path) -> None:
    for name in ("made", "opened"):
        (tmp_path / f"taskqueue-tests-{name}").mkdir()
    (tmp_path / "taskqueue-tests-opened/lock").touch()

    assert remove_ended(tmp_path) == 0
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("memory", "room", "runs", "in_memory"),
    [
        ("size=1536k", 1 << 20, 1, [True]),
        ("size=512k", 1 << 20, 1, [False]),
        ("size=1536k", 1 << 20, 2, [True, False]),
        ("size=1000g", 500 << 30, 1, [False]),
        ("size=1536k,noexec", 1 << 20, 1, [False]),
        ("size=1536k,ro", 1 << 20, 1, [False]),
    ],
    ids=["room", "no room", "room for one of two", "more room than memory", "without programs", "not writable"],
)
def test_a_run_is_in_memory_if_all_runs_there_have_room(
    memory: str, room: int, runs: int, in_memory: list[bool]
) -> None:
    assert places(memory, room, runs) == [str(MEMORY) if is_there else USUAL for is_there in in_memory]


def test_a_run_is_where_tmpdir_says() -> None:
    assert places("size=1536k", 1 << 20, 1, TMPDIR=USUAL) == [USUAL]


def places(memory: str, room: int, runs: int, **environment: str) -> list[str]:
    """Return where this many runs make their folders if the memory is mounted with these options."""
    make = f"print(*(run_folder(os.environ, {room}).parent for _ in range({runs})), sep='\\n')"
    code = f"import os, tempfile; from tests.run_folder import run_folder; tempfile.tempdir = {USUAL!r}; {make}"
    mounted = f'mount -t tmpfs tmpfs {USUAL} && mount -t tmpfs -o {memory} tmpfs {MEMORY} && exec "$@"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mounted, "mounted", sys.executable, "-c", code]
    names = {name: value for name, value in os.environ.items() if name != "TMPDIR"} | environment
    ran = subprocess.run(command, cwd=ROOT, env=names, stdout=subprocess.PIPE, text=True, check=True)
    return ran.stdout.split()
