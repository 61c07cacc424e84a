"""Metrics and health of real nodes over HTTP: of the cluster by its leader, of each node, and as promtool wants it."""

from __future__ import annotations

import json
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from taskqueue import Scheduler
from taskqueue.daemon.node.monitor import MOST_CONNECTIONS, MetricsServer
from taskqueue.daemon.settings import Settings
from taskqueue.errors import ConfigError
from taskqueue.exit_codes import Exit
from taskqueue.insight import control_socket
from tests.acceptance.work import Echo, GiveUp, Prompt
from tests.nodes import LIMIT, Node, eventually, node
from tests.promtool import promtool
from tests.servers import free_port

ONE = ("--pm", "static", "--min-children", "1")


def page(port: int, path: str) -> tuple[int, str]:
    """Return the status and the text of a page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LIMIT) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def value(text: str, sample: str) -> float | None:
    """Return the value of a sample, None without it."""
    found = re.search(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
    return None if found is None else float(found[1])


def heed(port: int, sample: str, wanted: float, limit: float = LIMIT) -> str:
    """Wait until a sample has the value, and return all metrics."""
    texts: list[str] = []

    def has_come() -> bool:
        texts.append(page(port, "/metrics")[1])
        return value(texts[-1], sample) == wanted

    eventually(has_come, limit)
    return texts[-1]


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the nodes of one test in a folder of their own."""
    monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", str(tmp_path / "run"))


@pytest.fixture
def running(url: str, tmp_path: Path) -> Iterator[Node]:
    with node(url, tmp_path, "--name", "web-1", "--metrics", "0", *ONE) as started:
        yield started


@pytest.fixture
def port(running: Node) -> int:
    return port_of(running)


def port_of(started: Node) -> int:
    """Return the port that a node has chosen."""
    return ports_of(started)[0]


def ports_of(started: Node) -> list[int]:
    """Return the ports that a node has chosen at its start and at each reload."""
    log = started.log.read_text()
    found = re.findall(r"^metrics +http://127.0.0.1:(\d+)/metrics, /live and /ready$", log, re.MULTILINE)
    return [int(port) for port in found]


def test_the_metrics_of_a_leader_tell_of_runs_and_backlog(running: Node, scheduler: Scheduler, port: int) -> None:
    scheduler.wait_for([scheduler.add_job(Echo, number, queue="mail") for number in range(3)], timeout=LIMIT)
    scheduler.wait_for([scheduler.add_job(GiveUp, "no", queue="mail")], timeout=LIMIT)
    scheduler.pause("reports", "a test")
    scheduler.add_job(Echo, 1, queue="reports")

    text = heed(port, 'taskqueue_jobs{queue="reports",status="waiting"}', 1)
    work = "tests.acceptance.work"
    assert value(text, f'taskqueue_runs_total{{class="{work}:Echo",outcome="done",queue="mail"}}') == 3
    assert value(text, f'taskqueue_runs_total{{class="{work}:GiveUp",outcome="failed",queue="mail"}}') == 1
    assert value(text, f'taskqueue_run_seconds_count{{class="{work}:Echo"}}') == 3
    assert value(text, 'taskqueue_start_delay_seconds_bucket{le="+Inf",queue="mail"}') == 4
    assert value(text, "taskqueue_leader") == 1
    assert value(text, 'taskqueue_nodes{state="live"}') == 1
    assert sum(value(text, f'taskqueue_workers{{state="{state}"}}') or 0 for state in ("idle", "busy")) == 1
    assert value(text, "taskqueue_store_up") == 1
    assert (value(text, 'taskqueue_oldest_waiting_seconds{queue="reports"}') or -1) >= 0
    assert (value(text, "process_resident_memory_bytes") or 0) > 2**20
    checked = subprocess.run(
        [promtool(), "check", "metrics"], input=text, capture_output=True, text=True, timeout=LIMIT
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_a_node_shows_the_memory_of_its_processes(running: Node, port: int) -> None:
    def used(text: str) -> list[float]:
        of = ("node", "manager", "workers")
        return [value(text, f'taskqueue_memory_bytes{{process="{process}"}}') or 0 for process in of]

    assert eventually(lambda: min(used(page(port, "/metrics")[1])) > 2**20)


def test_a_leader_names_paused_queues_and_drained_nodes(running: Node, scheduler: Scheduler, port: int) -> None:
    scheduler.pause("reports", "a test")
    scheduler.pause(None, "a test")
    scheduler.drain("web-9", "a test")

    text = heed(port, 'taskqueue_paused{queue="*"}', 1)
    assert value(text, 'taskqueue_paused{queue="reports"}') == 1
    assert value(text, 'taskqueue_drained{node="web-9"}') == 1

    scheduler.resume()
    eventually(lambda: value(page(port, "/metrics")[1], 'taskqueue_paused{queue="*"}') is None)


def test_a_leader_shows_a_queue_with_added_and_expired_jobs(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    scheduler.pause("mail", "a test")
    scheduler.add_job(Echo, 1, queue="mail", expires="+0.1s")
    with node(url, tmp_path, "--metrics", "0", *ONE) as started:
        text = heed(port_of(started), 'taskqueue_expired_total{queue="mail"}', 0)

        assert value(text, 'taskqueue_added_total{queue="mail"}') == 0


@pytest.mark.long
def test_a_leader_counts_added_and_expired_jobs(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    scheduler.pause("mail", "a test")
    scheduler.add_job(Echo, 1, queue="mail")
    with node(url, tmp_path, "--metrics", "0", *ONE) as started:
        port = port_of(started)
        heed(port, 'taskqueue_added_total{queue="mail"}', 0)

        scheduler.add_jobs([(Echo, number, {"queue": "mail", "expires": "+1s"}) for number in range(3)])

        heed(port, 'taskqueue_expired_total{queue="mail"}', 0)
        text = heed(port, 'taskqueue_expired_total{queue="mail"}', 3, limit=3 * LIMIT)
        assert value(text, 'taskqueue_added_total{queue="mail"}') == 3


def test_a_leader_counts_what_needs_somebody(running: Node, scheduler: Scheduler, port: int) -> None:
    scheduler.pause("reports", "a test")

    text = heed(port, 'taskqueue_findings{severity="warning"}', 1)

    assert value(text, 'taskqueue_findings{severity="error"}') == 0


def test_a_leader_knows_promises_and_schedules(running: Node, scheduler: Scheduler, port: int) -> None:
    scheduler.schedule("ticks", Echo, data=1, every=1)
    eventually(lambda: scheduler.get_schedule("ticks").fired > 1)
    scheduler.wait_for([scheduler.add_job(Prompt)], timeout=LIMIT)
    of_class = '{class="tests.acceptance.work:Prompt"}'
    jobs = f"taskqueue_promise_jobs_total{of_class}"

    shown = eventually(lambda: text if value(text := page(port, "/metrics")[1], jobs) is not None else "")
    assert value(shown, jobs) == 0  # so that the first job is an increase
    text = heed(port, f"taskqueue_promise_budget_ratio{of_class}", 1)

    assert value(text, jobs) == 1
    assert value(text, f"taskqueue_promise_late_total{of_class}") == 0
    assert value(text, f"taskqueue_promise_ratio{of_class}") == 0.9
    assert value(text, f"taskqueue_promise_begin_within_seconds{of_class}") == 3600

    def times() -> list[float]:
        shown = page(port, "/metrics")[1]
        names = (f"taskqueue_schedule_last_{time}_timestamp_seconds" for time in ("due", "success"))
        return [at for name in names if (at := value(shown, f'{name}{{schedule="ticks"}}')) is not None]

    due, done = eventually(lambda: both if len(both := times()) == 2 else [])  # looked up less often than promises
    assert abs(done - due) < LIMIT


def test_health_is_served_beside_the_metrics(running: Node, scheduler: Scheduler, port: int) -> None:
    eventually(lambda: page(port, "/ready")[0] == 200)
    scheduler.drain("web-1", "a test")
    eventually(lambda: page(port, "/ready")[0] == 503)
    status, text = page(port, "/live")
    assert (status, json.loads(text)["reason"]) == (200, "it is drained")
    assert page(port, "/elsewhere")[0] == 404


def test_a_node_that_does_not_lead_tells_of_itself_alone(
    running: Node, scheduler: Scheduler, url: str, tmp_path: Path
) -> None:
    with node(url, tmp_path, "--name", "web-2", "--metrics", "localhost:0", *ONE) as second:
        text = heed(port_of(second), "taskqueue_ready", 1)
    assert value(text, "taskqueue_leader") == 0
    assert "taskqueue_jobs{" not in text
    assert value(text, 'taskqueue_node_info{node="web-2",version="0.1.0"}') == 1


@contextmanager
def serving(host: str = "127.0.0.1") -> Iterator[int]:
    """Serve metrics without a node; yield the port."""
    server = MetricsServer((host, 0), lambda _: (b"figures\n", "text/plain"), lambda: {"live": True, "ready": True})
    server.start()
    try:
        yield int(server.url.rpartition(":")[2])
    finally:
        server.close()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=LIMIT)


def test_a_connection_that_sends_a_byte_now_and_then_holds_up_nobody_and_is_closed() -> None:
    has_begun, ends = threading.Event(), threading.Event()

    def send(connection: socket.socket) -> None:
        with suppress(ConnectionError):
            while not (ends.is_set() or select.select([connection], (), (), 0.1)[0]):  # readable: it is closed
                connection.send(b"x")
                has_begun.set()

    with serving() as port, connect(port) as slow, ThreadPoolExecutor(1) as sending:
        sent = sending.submit(send, slow)
        try:
            assert has_begun.wait(LIMIT)
            assert page(port, "/metrics") == (200, "figures\n")
            sent.result(LIMIT)
        finally:
            ends.set()


def test_an_answer_that_nobody_reads_holds_up_nobody() -> None:
    server = MetricsServer(("127.0.0.1", 0), lambda _: (b"x" * 64 * 2**20, "text/plain"), lambda: {"live": True})
    server.start()
    port = int(server.url.rpartition(":")[2])
    with connect(port) as silent:
        silent.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert silent.recv(1, socket.MSG_PEEK)
        assert page(port, "/live")[0] == 200
    server.close()


def test_as_many_connections_as_somebody_likes_hold_up_nobody() -> None:
    with serving() as port, ExitStack() as opened:
        idle = [opened.enter_context(connect(port)) for _ in range(MOST_CONNECTIONS + 3)]
        assert page(port, "/live")[0] == 200
        for connection in idle:
            assert connection.recv(1) == b""  # the oldest ones at once, the others at their deadline


def test_connections_are_answered_side_by_side() -> None:
    waiting = threading.Barrier(MOST_CONNECTIONS)

    def text(_: str) -> tuple[bytes, str]:
        waiting.wait(LIMIT)
        return b"", "text/plain"

    server = MetricsServer(("127.0.0.1", 0), text, dict)
    server.start()
    with ThreadPoolExecutor(MOST_CONNECTIONS) as asking:
        port = int(server.url.rpartition(":")[2])
        answers = [asking.submit(page, port, "/metrics") for _ in range(MOST_CONNECTIONS)]
        assert {answer.result(LIMIT)[0] for answer in answers} == {200}
    server.close()


def asked(port: int, head: str) -> tuple[str, str]:
    """Return the status line and the body of the answer to a request with this head."""
    with connect(port) as client:
        client.sendall(head.encode() + b"\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(65536), b"")).decode()
    return answer.partition("\r\n")[0], answer.partition("\r\n\r\n")[2]


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:{port}", "", "[::1", "a@127.0.0.1"]
)
@pytest.mark.parametrize("path", ["/metrics", "/live", "/ready", "/nothing"])
def test_a_name_of_another_site_is_not_answered_on_this_host(host: str, path: str) -> None:
    with serving() as port:
        status, said = asked(port, f"GET {path} HTTP/1.1\r\nHost: {host.format(port=port)}")

    assert status.split()[1] == "400"
    assert "is not served here" in said
    assert "--metrics 0.0.0.0:" in said


def test_two_hosts_are_refused() -> None:
    with serving() as port:
        assert asked(port, "GET /live HTTP/1.1\r\nHost: localhost\r\nHost: evil.example")[0].split()[1] == "400"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:{port}", "127.0.0.1:{port}", "[::1]:{port}", "10.0.0.1"])
def test_addresses_and_this_host_are_answered(host: str) -> None:
    with serving() as port:
        assert asked(port, f"GET /metrics HTTP/1.1\r\nHost: {host.format(port=port)}")[1] == "figures\n"


def test_a_probe_that_names_no_host_is_answered() -> None:
    with serving() as port:
        assert asked(port, "GET /metrics HTTP/1.0")[1] == "figures\n"


def test_a_server_for_other_hosts_has_the_name_by_which_they_know_it() -> None:
    with serving("0.0.0.0") as port:
        assert asked(port, "GET /metrics HTTP/1.1\r\nHost: metrics.example.org")[1] == "figures\n"


def test_a_node_that_executes_itself_again_answers_again(tmp_path: Path) -> None:
    with node(f"sqlite:///{tmp_path}/jobs.db", tmp_path, "--metrics", "0", "--preload", "json", *ONE) as started:
        started.process.send_signal(signal.SIGHUP)
        eventually(lambda: len(ports_of(started)) == 2)
        eventually(lambda: page(ports_of(started)[1], "/ready")[0] == 200)
        assert json.loads(page(ports_of(started)[1], "/live")[1])["pid"] == started.pid
        [answer] = [control_socket.ask(path) for path in control_socket.sockets(socket.gethostname())]
        assert answer.health is not None
        assert answer.health["ready"]


def test_the_port_of_a_node_that_was_killed_is_free_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    port = free_port()  # one that no outgoing connection gets meanwhile
    with node(url, tmp_path, "--metrics", str(port), *ONE) as started:
        assert page(port, "/live")[0] == 200
        started.kill()
        with node(url, tmp_path, "--metrics", str(port), *ONE) as successor:
            text = heed(port, "taskqueue_ready", 1)
    assert f"127.0.0.1:{port}" in successor.log.read_text()
    assert value(text, "taskqueue_live") == 1


def test_a_port_that_is_taken_is_named_with_the_way_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with (
            pytest.raises(AssertionError, match=f"the node left with {Exit.CONFIG:d}") as refused,
            node(f"sqlite:///{tmp_path}/jobs.db", tmp_path, "--metrics", address),
        ):
            pass
    assert f"--metrics {address} cannot be used (Address already in use)" in str(refused.value)
    assert "choose a free port" in str(refused.value)


def test_a_host_that_cannot_be_written_as_a_name_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--metrics ä+:0 cannot be used"):
        MetricsServer(("ä" * 100, 0), lambda _: (b"", ""), dict)


def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    code = "import sys; sys.modules['prometheus_client'] = None; from taskqueue.cli import node; sys.exit(node.main())"
    said = subprocess.run(
        [sys.executable, "-c", code, "--url", f"{tmp_path}/jobs.db", "--metrics", "0"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert said.returncode == Exit.CONFIG
    assert said.stderr == (
        "taskqueue-node: --metrics needs the package prometheus-client: pip install 'taskqueue-jobs[metrics]'\n"
    )


@pytest.mark.parametrize("address", ["here", "localhost:", "1:99999", "²", "9" * 5000, "\udc80:90", "a\0:90"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(
        ConfigError, match=re.escape(f"--metrics {address!r} is not an address: pass a port such as 9464")
    ):
        Settings(metrics=address)


def test_a_port_alone_is_one_of_this_host_alone() -> None:
    assert Settings(metrics="9464").metrics_address == ("127.0.0.1", 9464)
    assert Settings(metrics=":9464").metrics_address == ("127.0.0.1", 9464)
    assert Settings(metrics="0.0.0.0:9464").metrics_address == ("0.0.0.0", 9464)
    assert Settings(metrics="[::1]:9464").metrics_address == ("::1", 9464)
