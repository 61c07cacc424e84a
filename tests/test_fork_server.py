"""The fork server: a forked node has the folder, environment and arguments of one that is started, and ends like it."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from taskqueue.exit_codes import Exit
from tests import fork_server
from tests.nodes import LIMIT, node


def test_what_a_node_prints_and_its_exit_code_come_back(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        started = fork_server.start(["--nonsense"], tmp_path, os.environ, log.fileno())

        assert started.wait(LIMIT) == Exit.USAGE
    assert "--nonsense" in (tmp_path / "log").read_text()
    assert started.poll() == Exit.USAGE


def test_a_node_has_the_folder_the_environment_and_the_titles_of_one_that_is_started(tmp_path: Path) -> None:
    with node(f"sqlite://{tmp_path}/jobs.db", tmp_path, TASKQUEUE_NAME="given") as running:
        running.heed("works")
        titles = [" ".join(process.cmdline()) for process in running.family()]

        assert Path(f"/proc/{running.pid}/cwd").resolve() == tmp_path
        assert {title.split()[1] for title in titles} >= {"node", "manager"}
        assert "node given" in running.log.read_text()


def test_a_node_that_runs_has_no_exit_code_and_one_that_is_killed_has_that_of_its_signal(tmp_path: Path) -> None:
    with node(f"sqlite://{tmp_path}/jobs.db", tmp_path) as running:
        assert running.process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            running.process.wait(0)
        running.process.kill()

        assert running.process.wait(LIMIT) == -signal.SIGKILL
