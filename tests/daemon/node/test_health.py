"""The health of a node: live while its loop turns, ready while it takes jobs, and the reason where it does not."""

from __future__ import annotations

import logging
import os
import re
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.node.health import LIVE_WITHIN, READ_EVERY, SELDOM, BacklogReader, NodeHealth, pause_after
from taskqueue.daemon.node.monitor import ControlServer
from taskqueue.daemon.node.status import WORKS, NodeStage, NodeStatus
from taskqueue.daemon.protocol.messages import PoolStatus
from taskqueue.daemon.runtime.loop import Loop
from taskqueue.daemon.settings import Settings
from taskqueue.insight import control_socket
from taskqueue.store import Store
from tests.daemon.node.conftest import Bench, context_of
from tests.nodes import eventually
from tests.store.children import in_child

NOBODY = 65534


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture
def status() -> NodeStatus:
    return NodeStatus(Settings(name="web-1"))


@pytest.fixture
def backlog(loop: Loop, store: Store) -> BacklogReader:
    node = context_of(store, CircuitBreaker(lambda: None), loop=loop)
    node.status.stage = NodeStage.SEATED
    return BacklogReader(node)


@pytest.fixture
def health(store: Store, status: NodeStatus, backlog: BacklogReader) -> NodeHealth:
    return NodeHealth(context_of(store, CircuitBreaker(lambda: None), status=status), backlog)


def test_a_node_that_works_with_a_worker_is_ready(health: NodeHealth, status: NodeStatus) -> None:
    status.phase = WORKS
    assert health.document()["reason"] == "none of its workers has started yet"
    status.pool = PoolStatus(idle=1, busy=0, forced=0, concurrent=0)
    document = health.document()
    assert (document["live"], document["ready"], document["reason"]) == (True, True, "")


def test_a_node_without_workers_that_cannot_start_one_says_what_is_short(
    health: NodeHealth, status: NodeStatus
) -> None:
    short = "no worker can be started (Too many open files): raise the limit"
    status.phase, status.pool = WORKS, PoolStatus(idle=0, busy=0, forced=0, concurrent=0, shortage=short)
    document = health.document()
    assert (document["live"], document["ready"], document["reason"]) == (True, False, short)
    assert status.about()["degraded"] == short
    status.pool = PoolStatus(idle=0, busy=1, forced=0, concurrent=0, shortage=short)
    assert health.document()["ready"]
    assert status.about()["degraded"] == short
    assert status.summary() == f"works; 1 busy, 0 idle; {short}"


@pytest.mark.parametrize("phase", ["waits for its seat", "is drained", "is stopping"])
def test_the_reason_for_not_being_ready_is_what_it_does_instead(
    health: NodeHealth, status: NodeStatus, phase: str
) -> None:
    status.phase = phase
    document = health.document()
    assert (document["live"], document["ready"], document["reason"]) == (True, False, f"it {phase}")


def test_a_loop_that_no_longer_turns_is_no_life(health: NodeHealth, status: NodeStatus) -> None:
    status.phase, status.pool = WORKS, PoolStatus(idle=1, busy=0, forced=0, concurrent=0)
    health.note_turn(time.monotonic() - LIVE_WITHIN - 1)
    document = health.document()
    assert (document["live"], document["ready"]) == (False, False)
    said = re.fullmatch(r"its loop has been stuck for (\d+) s: restart the node", document["reason"])
    assert said is not None
    assert int(said[1]) >= LIVE_WITHIN + 1
    health.note_turn()
    assert health.document()["live"]


def test_the_loop_reads_the_backlog_when_another_thread_asks(
    loop: Loop, bench: Bench, backlog: BacklogReader, status: NodeStatus
) -> None:
    bench.add(queue="mail")
    bench.add(queue="mail")
    bench.add(queue="report")

    def ask() -> None:
        backlog.refresh()
        loop.soon(loop.stop)
        backlog.refresh()  # wakes the loop

    asker = threading.Thread(target=ask)
    loop.soon(asker.start)
    loop.run()
    asker.join()

    latest = backlog.latest
    assert latest is not None
    assert latest.waiting == 3
    assert set(latest.waiting_since) == {"mail", "report"}
    assert latest.oldest is not None
    assert latest.oldest[0] == "mail"


@pytest.mark.parametrize(("took", "pause"), [(0.001, READ_EVERY), (0.05, 10.0), (0.3, SELDOM), (20.0, SELDOM)])
def test_a_read_that_was_slow_once_is_repeated_before_long(took: float, pause: float) -> None:
    assert pause_after(took) == pause


def test_a_loop_that_does_not_answer_costs_the_asker_a_moment_only(health: NodeHealth) -> None:
    assert health.document()["backlog"] is None


def not_there(folder: Path) -> Path:
    return folder / "no" / "such" / "folder"


def a_link(folder: Path) -> Path:
    (folder / "link").symlink_to(folder)
    return folder / "link"


def of_another_user(folder: Path) -> Path:
    os.chown(folder, NOBODY, NOBODY)
    return folder


def writable_for_all(folder: Path) -> Path:
    folder.chmod(0o2777)  # as an emptyDir of Kubernetes
    return folder


def writable_for_the_group(folder: Path) -> Path:
    folder.chmod(0o770)
    return folder


@pytest.mark.parametrize(
    "spoiled",
    [not_there, a_link, of_another_user, writable_for_all, writable_for_the_group],
    ids=lambda made: made.__name__,
)
def test_a_node_whose_folder_cannot_be_used_is_asked_without_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, spoiled: Callable[[Path], Path]
) -> None:
    caplog.set_level(logging.INFO)
    folder = spoiled(tmp_path)
    monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", str(folder))
    server = ControlServer("web-1", "1234567890", lambda: {"node": "web-1"})
    server.start()
    [path] = control_socket.sockets("web-1")
    answer = control_socket.ask(path)
    monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", "/another")
    others = [*control_socket.sockets("web-1")]
    server.close()
    monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", str(folder))

    assert answer.health == {"node": "web-1"}
    assert others == []
    eventually(lambda: [*control_socket.sockets()] == [])
    assert f"its control socket is {path}, because it cannot have one at {folder}/" in caplog.text
    assert folder == not_there(tmp_path) or [name for name in os.listdir(folder) if name != "link"] == []


def test_a_node_that_has_no_socket_at_all_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", str(not_there(tmp_path)))
    first, second = (ControlServer("web-1", "1234567890", dict) for _ in range(2))
    first.start()
    second.start()
    first.close()

    assert "`taskqueue health` cannot reach this node: no socket at @taskqueue-" in caplog.text


def test_the_address_of_a_node_that_another_user_has_taken_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", str(not_there(tmp_path)))
    ours = control_socket.path_without_folder(not_there(tmp_path), "web-1", "1234567890")
    theirs = Path(str(ours).replace(f"-{os.geteuid()}/", f"-{NOBODY}/"))
    with socket.socket(socket.AF_UNIX) as listener:
        with control_socket.short(theirs) as address:
            listener.bind(address)
        listener.listen()

        assert control_socket.ask(theirs).silence is control_socket.Silence.DENIED


def test_the_mode_of_the_socket_is_set_by_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", str(tmp_path))

    def start() -> None:
        named: list[object] = []
        sys.addaudithook(lambda event, arguments: named.append(arguments[0]) if event == "os.chmod" else None)
        os.umask(0)
        server = ControlServer("web-1", "1234567890", dict)
        server.start()
        [path] = tmp_path.iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [one for one in named if not isinstance(one, int)] == []
        server.close()

    in_child(start)


def test_root_asks_nodes_of_others_where_it_is_told_to_and_in_no_folder_of_tmp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    (tmp_path / f"{'0' * 16}-12345678.control").touch()

    monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", str(tmp_path))
    assert len([*control_socket.sockets()]) == 1
    monkeypatch.delenv("TASKQUEUE_RUNTIME_DIR")
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    assert [path for path in control_socket.sockets() if path.parent == tmp_path] == []


def test_the_folder_of_the_session_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TASKQUEUE_RUNTIME_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    os.chown(tmp_path, NOBODY, NOBODY)

    assert control_socket.own_folder() == Path(f"/tmp/taskqueue-{os.geteuid()}")


def test_a_long_name_has_a_short_socket(tmp_path: Path) -> None:
    path = control_socket.path_of(tmp_path, "ä/" * 100, "1234567890abcdef")
    assert path.parent == tmp_path
    assert len(path.name) < 40


def test_a_node_that_is_killed_while_it_is_asked_forbids_nothing(tmp_path: Path) -> None:
    path = tmp_path / "killed.control"

    def hang_up(listener: socket.socket) -> None:
        listener.accept()[0].close()

    with socket.socket(socket.AF_UNIX) as listener:
        with control_socket.short(path) as address:
            listener.bind(address)
        listener.listen()
        dying = threading.Thread(target=hang_up, args=(listener,))
        dying.start()
        assert control_socket.ask(path).silence is control_socket.Silence.KILLED
        dying.join()


def test_the_folder_is_that_of_the_service_of_the_session_or_below_tmp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TASKQUEUE_RUNTIME_DIR")
    monkeypatch.setenv("RUNTIME_DIRECTORY", f"{tmp_path}:/else")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert control_socket.own_folder() == tmp_path
    monkeypatch.delenv("RUNTIME_DIRECTORY")
    assert control_socket.own_folder() == tmp_path / "taskqueue"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "not-there"))
    assert control_socket.own_folder() == Path(f"/tmp/taskqueue-{os.geteuid()}")
