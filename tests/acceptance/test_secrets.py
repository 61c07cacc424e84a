"""Nothing that a node with a password says holds it: logs, kept lines, errors, metrics, health, and every command."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from html import unescape
from pathlib import Path
from typing import Any

import psutil
import pytest
from bson import ObjectId
from pymongo import MongoClient
from starlette.testclient import TestClient
from textual.pilot import Pilot

from taskqueue import Process, Scheduler
from taskqueue.cli import main
from taskqueue.cli.top.app import Top
from taskqueue.store.open import open_store
from taskqueue.store.redaction import concealed_in
from taskqueue.web import app
from tests.acceptance.conftest import JobFiles
from tests.acceptance.test_metrics import page, port_of
from tests.acceptance.work import LogPassword
from tests.cli.test_top import run_top, shows
from tests.nodes import LIMIT, eventually, node, title
from tests.servers import with_database
from tests.store.test_redaction import SECRET

MOST_PAGES = 25
"""Pages of the dashboard that are read; the first ones lead to all kinds."""

ID, RUNNING = "{id}", "{running}"
"""In arguments of commands: the ids of a job that has failed, and of one that runs."""

SAID: dict[str, list[list[str]]] = {
    "add": [["tests.acceptance.work:Echo"], ["tests.acceptance.work:Echo", "--json"]],
    "list": [[], ["--json"], ["--status", "FAILED", "--json"]],
    "show": [[ID], [ID, "--json"]],
    "why": [[ID], [ID, "--json"]],
    "logs": [[ID], [ID, "--json"], ["-f", ID]],
    "stack": [[RUNNING], [RUNNING, "--json"], [ID]],
    "wait": [[ID], [ID, "--json"]],
    "update": [[ID, "--priority", "1"]],
    "cancel": [[ID], [ID, "--json"], ["--query", "{}"]],
    "give-up": [[ID], ["--query", "{}"]],
    "recover": [[ID, "--json"], ["--query", "{}", "--since", "1h", "--yes"]],
    "bulk": [[], ["nightly"], ["nightly", "--json"]],
    "workflows": [[], ["--json"]],
    "failures": [[], ["--all"], ["--json"]],
    "mute": [["nothing"]],
    "resolve": [["nothing"]],
    "reopen": [["nothing"]],
    "release": [["v42"], ["v43", "--json"]],
    "unmark": [["v41"]],
    "releases": [[], ["--json"]],
    "class": [["Echo"], ["Echo", "--json"]],
    "queue": [["mail"], ["mail", "--json"]],
    "notify": [[], ["--json"]],
    "reload": [["nothing"]],
    "stats": [[], ["--json"]],
    "events": [["--since", "1h"], ["--since", "1h", "--json"]],
    "analytics": [[], ["--by", "class"], ["--json"]],
    "audit": [[], ["--json"]],
    "nodes": [[], ["--json"], ["--leader"], ["--leader", "--json"]],
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

ELSEWHERE = {"run", "bench", "top", "web"}
"""Commands that start nodes (``tests/cli/test_secrets.py``, ``tests/cli/test_bench.py``), and those that go on."""


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


@pytest.mark.parametrize("form", ["json", pytest.param("text", marks=pytest.mark.long)])
def test_neither_a_node_nor_a_command_says_the_password_of_the_store(
    url: str,
    form: str,
    files: JobFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TASKQUEUE_URL", url)
    monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", str(tmp_path / "run"))
    options = ("--name", "web-1", "--metrics", "127.0.0.1:0", "--log-format", form, "--capture-output")
    with Scheduler(url) as scheduler, node(url, tmp_path, *options) as running:
        process = scheduler.add_job(LogPassword)
        stopped = scheduler.add_job(LogPassword, files.gate())
        scheduler.wait_for([process], timeout=LIMIT)
        eventually(lambda: len(stopped.logs()) == 2)
        eventually(lambda: "hung up" in running.log.read_text())
        pages = {path: page(port_of(running), path)[1] for path in ("/metrics", "/live", "/ready")}
        shown = [part for member in running.family() for part in (title(member), _name(member))]
        said = {"metrics and health": "\n".join(pages.values()), "processes": "\n".join(shown)}
        said["the record"] = repr(process.refresh().snapshot)
        said["kept lines"] = repr(process.logs())
        said.update(_pages_of_the_dashboard(scheduler, process))
        said["top"] = _screens_of_top(url, process)
        ids = {ID: str(process.id), RUNNING: str(stopped.id)}
        capsys.readouterr()
        for command, asked in SAID.items():
            for arguments in asked:
                main.main([command, *(ids.get(one, one) for one in arguments)])
                captured = capsys.readouterr()
                said[" ".join([command, *arguments])] = captured.out + captured.err
    said["the log"] = _without_prints(running.log.read_text())

    assert "ConnectionError" in said["show {id}"] + said["the record"]
    assert "working with mongodb://" in said["logs {id}"]
    assert "read_text" in said["stack {running}"]
    assert len([what for what in said if what.startswith("page /")]) > 10
    assert "taskqueue_runs_total" in said["metrics and health"]
    assert [what for what, text in said.items() if SECRET in text or not text] == []


@pytest.mark.parametrize("command", ["list", "nodes", "stats"])
def test_a_watch_does_not_say_the_password(url: str, command: str) -> None:
    with Scheduler(url) as scheduler:
        scheduler.add_job(LogPassword)
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
        text = re.sub(r":\$\{\w+-\}@", "@", file.read_text())  # a variable of the one who starts it
        assert concealed_in(text) == text


def _pages_of_the_dashboard(scheduler: Scheduler, process: Process) -> dict[str, str]:
    """Return the pages of the dashboard that links lead to, and what its interface answers about the job."""
    found: dict[str, str] = {}
    asked = [f"/api/v1/jobs/{process.id}{part}" for part in ("", "/logs", "/why")]
    asked += [f"/api/v1/{name}" for name in ("jobs", "nodes", "stats", "queues", "failures", "audit")]
    asked += ["/", f"/jobs/{process.id}"]
    with TestClient(app(scheduler, local=True), base_url="http://127.0.0.1", client=("127.0.0.1", 5000)) as browser:
        while asked and len(found) < MOST_PAGES:
            path = asked.pop(0)
            answer = browser.get(path)
            found[f"page {path}"] = f"{answer.status_code} {answer.text}"
            links = re.findall(r'href="(/[^"#]*)"', answer.text) if "html" in answer.headers["content-type"] else []
            asked += [link for link in dict.fromkeys(map(unescape, links)) if f"page {link}" not in found]
    return found


def _screens_of_top(url: str, process: Process) -> str:
    """Return what the screen of ``taskqueue top`` shows at first, and of failures and the job."""
    seen: list[str] = []

    async def look(pilot: Pilot[int]) -> None:
        seen.append(await shows(pilot, "LogPassword"))
        await pilot.press("f")
        seen.append(await shows(pilot, "ConnectionError"))
        top = pilot.app
        assert isinstance(top, Top)
        top.open(process.snapshot)
        for key, shown in (("", "FAILED"), ("l", "log of job"), ("w", "why job")):
            if key:
                await pilot.press(key)
            seen.append(await shows(pilot, shown, "mongodb://"))

    with closing(open_store(url)) as store:
        run_top(store, look, size=(120, 40))
    return "\n".join(seen)


def _name(member: psutil.Process) -> str:
    try:
        return member.name()
    except psutil.NoSuchProcess:
        return ""


def _without_prints(log: str) -> str:
    """Return the log without what the job itself has printed, which is not a part of it."""
    return "\n".join(line for line in log.splitlines() if not line.startswith("working with "))
