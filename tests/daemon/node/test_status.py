"""What a node says of itself when it starts."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import pytest

from taskqueue.daemon.node.status import WORKS, NodeStatus
from taskqueue.daemon.protocol.messages import PoolStatus
from taskqueue.daemon.settings import Lead, PoolMode, Settings
from taskqueue.store.open import open_store
from tests.nodes import LIMIT, no_descriptors


def banner(folder: Path, settings: Settings) -> list[str]:
    with closing(open_store(str(folder / "jobs.db"))) as store:
        return [" ".join(line.split()) for line in NodeStatus(settings).banner(store)]


def test_a_banner_says_what_is_promised_and_taken(tmp_path: Path) -> None:
    said = banner(tmp_path, Settings(name="web-1", queues={"mail": None, "reports": 2}))

    assert said[1:] == [
        f"store sqlite://{tmp_path}/jobs.db",
        "guarantee an acknowledged job survives a power cut (SQLite, synchronous=full)",
        "pool dynamic, 1 to 2 workers",
        "queues mail, reports (at most 2)",
    ]


def test_a_banner_names_what_a_node_does_beside_its_jobs_and_what_keeps_it_from_some(tmp_path: Path) -> None:
    said = banner(
        tmp_path,
        Settings(
            lead=Lead.CLUSTER, allow=("shop.mail", "shop.reports"), schedules="shop", outbox=("shop.jobs:outbox",)
        ),
    )

    assert said[-5:] == [
        "queues all",
        "schedules shop",
        "outbox shop.jobs:outbox",
        "lead works only while it leads the cluster",
        "allowed shop.mail, shop.reports",
    ]


def test_a_node_says_the_version_it_was_started_with_when_another_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = NodeStatus(Settings())
    started_with = status.about()["version"]
    installed = tmp_path / "taskqueue_jobs-99.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: taskqueue-jobs\nVersion: 99.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert metadata.version("taskqueue-jobs") == "99.0"
    assert status.about()["version"] == started_with


def test_a_node_measures_itself_its_manager_and_its_workers() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as worker:  # this process is node and manager of it
        status = NodeStatus(Settings(), os.getpid())
        preloaded = NodeStatus(Settings(preload=("shop",)), os.getpid())
        ends_at = time.monotonic() + LIMIT
        while not (use := cast(dict[str, Any], status.about()["use"]))["cpu"].get("node"):
            assert time.monotonic() < ends_at

        assert use["memory"]["node"] > use["memory"]["workers"] > 0
        assert use["memory"]["manager"] > use["memory"]["workers"]
        assert 0 < use["cpu"]["node"] < 4
        assert use["cpu"]["workers"] >= 0
        [age, age_of_manager] = [cast(dict[str, Any], each.about()["use"])["code_age"] for each in (status, preloaded)]
        assert 0 <= age < age_of_manager
        assert worker.stdin is not None
        worker.stdin.close()

    assert cast(dict[str, Any], NodeStatus(Settings()).about()["use"])["code_age"] is None


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket of a supervisor that the node notifies."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as listening:
        listening.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listening


def shown(status: NodeStatus, supervisor: socket.socket) -> list[str]:
    status.show()
    return supervisor.recv(4096).decode().splitlines()


def test_a_node_is_announced_once_when_its_first_worker_is_up(supervisor: socket.socket) -> None:
    status = NodeStatus(Settings(min_children=1))

    assert shown(status, supervisor) == ["STATUS=waits for its seat; 0 busy, 0 idle"]
    status.phase = WORKS
    assert shown(status, supervisor) == ["STATUS=works; 0 busy, 0 idle"]
    status.pool = PoolStatus(idle=1, busy=0, forced=0, concurrent=0)
    assert shown(status, supervisor) == ["READY=1", "STATUS=works; 0 busy, 1 idle"]
    status.pool = PoolStatus(idle=0, busy=1, forced=0, concurrent=0)
    assert shown(status, supervisor) == ["STATUS=works; 1 busy, 0 idle"]


@pytest.mark.parametrize(
    ("settings", "phase", "degraded"),
    [
        pytest.param(Settings(min_children=0), WORKS, "", id="it keeps no workers"),
        pytest.param(Settings(pm=PoolMode.ONDEMAND), WORKS, "", id="on demand"),
        pytest.param(Settings(), "stands by: seat web-1 is held by another", "", id="another has the seat"),
        pytest.param(Settings(), "waits for its seat", "no route to host", id="the store is away"),
    ],
)
def test_a_node_that_waits_for_others_is_announced(
    supervisor: socket.socket, settings: Settings, phase: str, degraded: str
) -> None:
    status = NodeStatus(settings)
    status.phase, status.degraded = phase, degraded

    assert shown(status, supervisor)[0] == "READY=1"


def test_the_use_of_a_node_without_free_descriptors_is_the_last_known() -> None:
    use = NodeStatus(Settings()).use
    with no_descriptors():
        assert use.document() == {"memory": {}, "cpu": {}, "code_age": None}

    before = use.document()
    assert set(before["memory"]) == {"node"}
    with no_descriptors():
        assert use.document() == before
