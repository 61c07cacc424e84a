"""The fork server: a forked node has the folder, environment and arguments of one that is started, and ends like it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from taskqueue.exit_codes import Exit
from tests import fork_server
from tests.chaos.process_fault import is_gone
from tests.forking import fork
from tests.nodes import LIMIT, eventually, node, title


def test_what_a_node_prints_and_its_exit_code_come_back(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        started = fork_server.start(["--nonsense"], tmp_path, os.environ, log.fileno())

        assert started.wait(LIMIT) == Exit.USAGE
    assert "--nonsense" in (tmp_path / "log").read_text()
    assert started.poll() == Exit.USAGE


def test_a_node_has_the_folder_the_environment_and_the_titles_of_one_that_is_started(tmp_path: Path) -> None:
    with node(f"sqlite://{tmp_path}/jobs.db", tmp_path, TASKQUEUE_NAME="given") as running:
        running.heed("works")
        titles = [title(process).split() for process in running.family()]

        assert Path(f"/proc/{running.pid}/cwd").resolve() == tmp_path
        assert {words[1] for words in titles if len(words) > 1} >= {"node", "manager"}
        assert "node given" in running.log.read_text()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """Return the file for errors of fork servers, which belongs to the test: these are not errors of the run."""
    fork_server.end()
    of_the_run, fork_server.log = fork_server.log, tmp_path / "log"
    yield fork_server.log
    fork_server.end()
    fork_server.log = of_the_run


def test_a_server_that_has_gone_is_replaced_and_the_log_says_so(tmp_path: Path, log: Path) -> None:
    url = f"sqlite://{tmp_path}/jobs.db"
    with node(url, tmp_path) as running:
        server = psutil.Process(running.pid).parent()
        assert server is not None
    server.kill()
    eventually(lambda: is_gone(server))

    with node(url, tmp_path) as running:
        running.heed("works")

    assert "had to replace its fork server" in log.read_text()


def test_a_fork_that_ends_as_a_test_run_does_leaves_the_server_alone(tmp_path: Path) -> None:
    with node(f"sqlite://{tmp_path}/jobs.db", tmp_path) as running:
        if (child := fork()) == 0:
            try:
                fork_server.end()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

        assert running.process.poll() is None
        running.heed("works")


OF_A_TEST_RUN = """
import sys
from pathlib import Path
from tests.nodes import Node

node = Node(sys.argv[1], Path(sys.argv[2]), [], {})
node.heed("works")
print(node.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_nodes_end_with_a_test_run_that_is_killed(tmp_path: Path, signum: int) -> None:
    with tempfile.TemporaryDirectory(prefix="tq-") as place:
        run = subprocess.Popen(
            [sys.executable, "-c", OF_A_TEST_RUN, f"sqlite://{tmp_path}/jobs.db", str(tmp_path)],
            env={**os.environ, "TMPDIR": place}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        with run:
            assert run.stdout is not None
            node = psutil.Process(int(run.stdout.readline()))
            family = [node, *node.children(recursive=True)]
            run.send_signal(signum)
        _, left = psutil.wait_procs(family, LIMIT)

    assert len(family) > 1
    assert left == []


def test_a_node_that_runs_has_no_exit_code_and_one_that_is_killed_has_that_of_its_signal(tmp_path: Path) -> None:
    with node(f"sqlite://{tmp_path}/jobs.db", tmp_path) as running:
        assert running.process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            running.process.wait(0)
        running.process.kill()

        assert running.process.wait(LIMIT) == -signal.SIGKILL
