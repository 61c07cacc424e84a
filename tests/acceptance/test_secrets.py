"""Nothing that a node with a password says holds it: logs, kept lines, errors, metrics, health, and every command."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from bson import ObjectId
from pymongo import MongoClient

from taskqueue import Scheduler
from taskqueue.cli import main
from taskqueue.store.redaction import concealed_in
from tests.acceptance.test_metrics import page, port_of
from tests.acceptance.work import Blab
from tests.nodes import LIMIT, eventually, node
from tests.servers import with_database
from tests.store.test_redaction import SECRET

ID = "{id}"
"""In arguments of commands: the id of a job that has failed."""

SAID: dict[str, list[list[str]]] = {
    "add": [["tests.acceptance.work:Echo"], ["tests.acceptance.work:Echo", "--json"]],
    "list": [[], ["--json"], ["--status", "FAILED", "--json"]],
    "show": [[ID], [ID, "--json"]],
    "why": [[ID], [ID, "--json"]],
    "logs": [[ID], [ID, "--json"], ["-f", ID]],
    "wait": [[ID], [ID, "--json"]],
    "update": [[ID, "--priority", "1"]],
    "cancel": [[ID], [ID, "--json"], ["--query", "{}"]],
    "recover": [[ID, "--json"], ["--query", "{}", "--since", "1h"]],
    "stats": [[], ["--json"]],
    "events": [["--since", "1h"], ["--since", "1h", "--json"]],
    "analytics": [[], ["--by", "class"], ["--json"]],
    "nodes": [[], ["--json"]],
    "leader": [[], ["--json"]],
    "health": [[], ["--json"]],
    "doctor": [[], ["--json"]],
    "pause": [["mail"], ["mail", "--json"]],
    "resume": [["mail"]],
    "drain": [["elsewhere"]],
    "undrain": [["elsewhere"]],
    "limit": [["import", "4"], ["import", "--reset"]],
    "schedule": [["list"], ["list", "--json"]],
    "purge": [["--done", "--older", "7d"], ["--done", "--older", "7d", "--json"]],
    "flush": [[]],
    "backup": [["copy.db"]],
    "migrate": [["--dry-run"], ["--dry-run", "--json"]],
    "config": [[], ["--json"]],
    "systemd": [[], ["--instance", "--hardened"]],
    "completion": [["bash"], ["zsh"], ["fish"]],
}
"""What each command is asked while the store has a password; errors count, too."""

ELSEWHERE = {"run", "bench"}
"""Commands that start nodes: ``tests/cli/test_secrets.py`` and ``tests/cli/test_bench.py``."""


def test_every_command_is_asked() -> None:
    assert {*SAID} | ELSEWHERE == {*main.COMMANDS}


@pytest.fixture
def url(mongo_set: str) -> Iterator[str]:
    """Return the URL of an empty store with user and password; the server lets others in as well."""
    name = f"secrets_{ObjectId()}"
    with MongoClient[dict[str, Any]](mongo_set) as client:
        client.admin.command("createUser", name, pwd=SECRET, roles=["root"])
        yield with_database(mongo_set, name).replace("://", f"://{name}:{SECRET}@") + "&authSource=admin"
        client.admin.command("dropUser", name)
        client.drop_database(name)


@pytest.mark.parametrize("form", ["text", "json"])
def test_neither_a_node_nor_a_command_says_the_password_of_the_store(
    url: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TASKQUEUE_URL", url)
    monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", str(tmp_path / "run"))
    options = ("--name", "web-1", "--metrics", "127.0.0.1:0", "--log-format", form, "--capture-output")
    with Scheduler(url) as scheduler, node(url, tmp_path, *options) as running:
        process = scheduler.add_job(Blab)
        scheduler.wait_for([process], timeout=LIMIT)
        eventually(lambda: "hung up" in running.log.read_text())
        pages = {path: page(port_of(running), path)[1] for path in ("/metrics", "/live", "/ready")}
        shown = [part for member in running.family() for part in (*member.cmdline(), _title(member))]
        said = {"metrics and health": "\n".join(pages.values()), "processes": "\n".join(shown)}
        said["the record"] = repr(process.refresh().snapshot)
        said["kept lines"] = repr(process.logs())
        capsys.readouterr()
        for command, asked in SAID.items():
            for arguments in asked:
                main.main([command, *(str(process.id) if one is ID else one for one in arguments)])
                captured = capsys.readouterr()
                said[" ".join([command, *arguments])] = captured.out + captured.err
    said["the log"] = _without_prints(running.log.read_text())

    assert "ConnectionError" in said["show {id}"] + said["the record"]
    assert "working with mongodb://" in said["logs {id}"]
    assert "taskqueue_runs_total" in said["metrics and health"]
    assert [what for what, text in said.items() if SECRET in text or not text] == []


@pytest.mark.parametrize("command", ["list", "nodes", "stats"])
def test_a_watch_does_not_say_the_password(url: str, command: str) -> None:
    with Scheduler(url) as scheduler:
        scheduler.add_job(Blab)
    started = [sys.executable, "-m", "taskqueue.cli.main", "--url", url, command, "--watch", "1"]
    watching = subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert watching.stdout is not None
    first = watching.stdout.readline()
    shown = " ".join(psutil.Process(watching.pid).cmdline())
    watching.send_signal(signal.SIGINT)
    rest, _ = watching.communicate(timeout=LIMIT)

    assert first
    assert SECRET not in first + rest + shown


@pytest.mark.parametrize(
    "pattern", ["compose.yaml", "Dockerfile", "systemd/*", "taskqueue/cli/units/*", "docs/monitoring/*"]
)
def test_no_file_that_is_installed_has_an_address_with_a_password(pattern: str) -> None:
    files = list(Path(__file__).parents[2].glob(pattern))
    assert files
    for file in files:
        assert concealed_in(file.read_text()) == file.read_text()


def _title(member: psutil.Process) -> str:
    return Path(f"/proc/{member.pid}/comm").read_text()


def _without_prints(log: str) -> str:
    """Return the log without what the job itself has printed, which is no part of it."""
    return "\n".join(line for line in log.splitlines() if not line.startswith("working with "))
