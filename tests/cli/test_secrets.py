"""A password in the address of the store is shown by no output, no list of processes and no command of a job."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psutil
import pytest

from taskqueue import Scheduler, ShellJob
from taskqueue.cli import main, node
from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.node.health import BacklogReader, NodeHealth
from taskqueue.daemon.node.leader_run import FindingsWatch
from taskqueue.daemon.node.metrics import Metrics
from taskqueue.daemon.node.monitor import ControlServer
from taskqueue.daemon.node.status import NodeStage, NodeStatus
from taskqueue.daemon.runtime.loop import Loop
from taskqueue.daemon.settings import Settings
from taskqueue.errors import StoreUnavailable
from taskqueue.exit_codes import Exit
from taskqueue.model.record import Holder
from taskqueue.store.open import open_store
from taskqueue.store.redaction import without_url
from tests.daemon.node.conftest import context_of
from tests.nodes import LIMIT, title
from tests.nodes import node as running_node
from tests.store.test_redaction import MISTYPED, SECRET

COMMANDS = (
    ["list"], ["list", "--json"], ["add", "shop:Job"], ["show", "1"], ["why", "1"], ["wait", "1"], ["nodes"], ["stats"],
    ["events"], ["migrate"], ["schedule", "list"], ["pause", "mail"], ["analytics"], ["class", "x"], ["flush", "--yes"],
    ["doctor"], ["doctor", "--json"],
)  # fmt: skip


@pytest.mark.parametrize("url", MISTYPED)
def test_no_command_prints_the_password_of_a_mistyped_address(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "node.toml"
    file.write_text(f"url = {json.dumps(url)}")
    codes = [main.main(["--url", url, *command]) for command in COMMANDS]
    codes += [main.main([*command, "--url", url]) for command in COMMANDS]
    codes += [node.main(["--url", url]), node.main(["--config", str(file)]), main.main([url, "list"])]
    monkeypatch.setenv("TASKQUEUE_URL", url)
    codes += [main.main(["list"]), node.main([])]

    said = capsys.readouterr()
    assert Exit.OK not in codes
    assert SECRET not in said.out + said.err


@contextmanager
def silent_server() -> Iterator[tuple[str, Callable[[], object]]]:
    """Listen, and answer nothing: the URL of such a server, and what waits until somebody calls it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LIMIT)
        host, port = server.getsockname()
        with ExitStack() as kept:
            yield f"mongodb://ann:{SECRET}@{host}:{port}/jobs", lambda: kept.enter_context(server.accept()[0])


@pytest.mark.parametrize(
    "arguments",
    [
        ["taskqueue.cli.main", "--url", "{}", "list"],
        ["taskqueue.cli.main", "--url={}", "add", "shop:Job", "--wait"],
        ["taskqueue.cli.main", "list", "--url", "{}"],
        ["taskqueue.cli.main", "--url", "{}", "run", "tests.daemon.jobs"],
        ["taskqueue.cli.node", "--url", "{}"],
        ["taskqueue.cli.node", "--url={}"],
    ],
    ids=lambda it: " ".join(it[1:]),
)
def test_nobody_finds_the_password_in_the_list_of_processes_while_the_store_is_silent(arguments: list[str]) -> None:
    with silent_server() as (url, called):
        started = [sys.executable, "-m", *(part.format(url) for part in arguments)]
        command = subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            called()
            family = [psutil.Process(command.pid), *psutil.Process(command.pid).children(recursive=True)]
            shown = " ".join(map(title, family))
        finally:
            command.terminate()
            said, _ = command.communicate(timeout=LIMIT)

    assert SECRET not in shown
    assert SECRET not in said


def test_the_health_of_a_node_shows_no_password(
    mongo_set: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", str(tmp_path / "run"))
    server = mongo_set.removeprefix("mongodb://").partition("/")[0]
    with pytest.raises(StoreUnavailable) as refused:
        open_store(f"mongodb://ann:{SECRET}@{server}/jobs")
    status, loop = NodeStatus(Settings(name="web-1")), Loop()
    status.degraded = str(refused.value)
    with closing(open_store(str(tmp_path / "jobs.db"))) as store:
        holder = Holder(seat="web-1", incarnation="1234567890")
        context = context_of(store, CircuitBreaker(lambda: None), loop=loop, status=status, holder=holder)
        status.stage = NodeStage.SEATED
        backlog = BacklogReader(context)
        watch = FindingsWatch(context, lambda _: None)
        health = NodeHealth(context, backlog)
        control = ControlServer("web-1", "1234567890", health.document)
        control.start()
        main.main(["health"])
        main.main(["health", "--json"])
        main.main(["--url", str(tmp_path / "jobs.db"), "doctor"])
        control.close()
        metrics = Metrics(context, health, backlog, watch).text("")[0].decode()
    loop.close()

    said = capsys.readouterr()
    assert "the server rejects the user or password" in said.out
    assert "taskqueue_store_up 0.0" in metrics
    assert SECRET not in said.out + said.err + metrics


def test_a_node_that_starts_anew_finds_its_store_in_the_environment() -> None:
    assert without_url(["-m", "taskqueue.cli.node", "--url", "x", "--name", "web"]) == [
        "-m", "taskqueue.cli.node", "--name", "web",
    ]  # fmt: skip
    assert without_url(["--url=x", "--preload", "shop"]) == ["--preload", "shop"]


def test_a_command_is_handed_nothing_of_the_node_and_a_job_reaches_its_store(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/jobs.db"
    own = {"TASKQUEUE_URL": url, "CREDENTIALS_DIRECTORY": "/run/x", "INVOCATION_ID": "1", "SHOP": "teapots"}
    with Scheduler(url) as scheduler, running_node(url, tmp_path, **own):
        command = scheduler.add_job(ShellJob, {"argv": ["env", "-0"]})
        given = scheduler.add_job(ShellJob, {"argv": ["env", "-0"], "env": {"TASKQUEUE_URL": "/tmp/other.db"}})
        script = scheduler.add_job("tests.daemon.jobs:environment")
        adding = scheduler.add_job("tests.daemon.jobs:Adding")
        scheduler.wait_for([command, given, script, adding], timeout=LIMIT, raise_on_error=True)
        added = scheduler.get_job(adding.result)

    variables = dict(one.split("=", 1) for one in command.result["stdout"].split("\0") if one)
    assert variables["SHOP"] == "teapots"
    assert not {*own, "NOTIFY_SOCKET"} & {*variables} - {"SHOP"}
    assert "TASKQUEUE_URL=/tmp/other.db" in given.result["stdout"].split("\0")
    assert "NOTIFY_SOCKET" not in script.result
    assert script.result["TASKQUEUE_URL"] == url
    assert added.job == "tests.daemon.jobs:Empty"
