"""The container's files, and the node as process 1 of a container, which here is a PID namespace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

from taskqueue import Scheduler
from taskqueue.cli.node import command as node_command
from taskqueue.cli.node_options import settings_from
from taskqueue.model.record import Status
from tests.nodes import LIMIT, eventually

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = Path(sys.executable).parent
NAMESPACE = (
    "unshare",
    *(() if os.geteuid() == 0 else ("--user", "--map-root-user")),
    "--fork",
    "--pid",
    "--mount-proc",
)


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    return found


def test_a_linter_has_nothing_to_say_of_the_dockerfile() -> None:
    linted = subprocess.run(
        [PROGRAMS / "hadolint", "--no-color", "Dockerfile"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )

    assert (linted.returncode, linted.stdout) == (0, "")


def test_the_image_holds_what_an_installation_needs_and_runs_as_a_user_of_its_own() -> None:
    text = (ROOT / "Dockerfile").read_text()

    assert "COPY taskqueue taskqueue" in text
    assert 'ENTRYPOINT ["taskqueue-node"]' in text
    assert 'CMD ["taskqueue", "health", "--live"]' in text
    assert text.index("USER 10001") > text.rindex("RUN ")
    assert {"tests", ".git", ".venv"} <= set((ROOT / ".dockerignore").read_text().split())


def test_the_settings_of_the_compose_file_are_understood() -> None:
    node = services()["node"]
    with node_command.make_context("taskqueue-node", list(node["command"])) as parsed:
        given = {
            name: value for name, value in parsed.params.items() if not name.startswith(("config", "log_", "version"))
        }
        settings = settings_from(given)

    assert settings.max_children == 8
    assert settings.max_memory > 0
    assert float(node["stop_grace_period"].rstrip("s")) > settings.finish + settings.grace + 5
    assert node["depends_on"]["mongodb"]["condition"] == "service_healthy"


def test_the_nodes_of_the_compose_file_use_its_replica_set() -> None:
    found = services()
    url = found["node"]["environment"]["TASKQUEUE_URL"]
    command = found["mongodb"]["command"]

    assert url.startswith("mongodb://mongodb:27017/")
    assert url.endswith(f"?replicaSet={command[command.index('--replSet') + 1]}")
    assert 'host: "mongodb:27017"' in found["mongodb"]["healthcheck"]["test"][-1]


def test_the_nodes_on_postgresql_of_the_compose_file_use_its_server() -> None:
    found = services()
    server, node = found["postgresql"], found["node-postgresql"]
    address = conninfo_to_dict(node["environment"]["TASKQUEUE_URL"])

    assert (address["host"], address["user"]) == ("postgresql", server["environment"]["POSTGRES_USER"])
    assert address["dbname"] == server["environment"]["POSTGRES_DB"]
    assert list(node["depends_on"]) == ["postgresql"]
    assert node["profiles"] == server["profiles"]
    assert node["command"] == found["node"]["command"]


@contextmanager
def container(url: str, folder: Path, *options: str) -> Iterator[psutil.Process]:
    """Start a node as process 1 of a PID namespace of its own, and yield it."""
    command = [*NAMESPACE, "--kill-child", PROGRAMS / "taskqueue-node", "--url", url, *options]
    with (folder / "node.log").open("wb") as log:
        started = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        [node] = eventually(psutil.Process(started.pid).children)
        yield node
        assert started.wait(LIMIT) == 0, (folder / "node.log").read_text()
    finally:
        started.kill()
        started.wait(LIMIT)


def inside(node: psutil.Process, *command: str) -> None:
    """Run the command in the node's namespace, as "docker exec" does."""
    user = () if os.geteuid() == 0 else ("--user", "--preserve-credentials")
    subprocess.run(["nsenter", "--target", str(node.pid), "--pid", *user, *command], check=True, timeout=LIMIT)


def statuses(processes: Iterable[psutil.Process]) -> list[str]:
    """Return the status of each process that has not been reaped since it was found."""
    found: list[str] = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            found.append(process.status())
    return found


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_as_process_1_a_node_runs_jobs_reaps_orphans_and_heeds_signals(tmp_path: Path, signum: int) -> None:
    url = f"sqlite://{tmp_path}/jobs.db"
    with Scheduler(url) as scheduler, container(url, tmp_path, "--max-children", "1") as node:
        done = scheduler.add_job("taskqueue:ShellJob", {"argv": ["sh", "-c", "echo $PPID; (sleep 0.01 &)"]})
        done.wait(LIMIT)
        assert int(done.result["stdout"]) < 100, "the job ran in the namespace"

        inside(node, "sh", "-c", "(sh -c 'exit 3' &); exit 0")
        eventually(lambda: statuses(node.children()) == [psutil.STATUS_SLEEPING])

        waiting = scheduler.add_job("taskqueue:ShellJob", {"argv": ["sleep", "1000"]})
        eventually(lambda: waiting.refresh().status is Status.PROCESSING)
        os.kill(node.pid, signum)
        eventually(lambda: not node.is_running())
        assert waiting.refresh().status is Status.WAITING, "it was interrupted and waits again"
