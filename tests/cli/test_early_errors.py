"""What cannot work is said at once: a store that is not there, a misspelt module or variable, nobody who does a job."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
from pymongo import MongoClient

from taskqueue import Scheduler
from taskqueue.cli import main, node
from taskqueue.exit_codes import Exit
from taskqueue.model.record import Status
from taskqueue.store import Store
from tests.cli import records
from tests.cli.conftest import Answer
from tests.cli.test_terminal import terminal
from tests.nodes import LIMIT
from tests.nodes import node as running_node
from tests.servers import PATIENCE, emptied, with_database

Taskqueue = Callable[..., Answer]
CHECKOUT = Path(__file__).parent.parent.parent
ID = "6740a1b2000000000000000f"

READING = (
    ["list"], ["list", "--json"], ["show", ID], ["why", ID], ["wait", ID], ["stats"], ["analytics"], ["events"],
    ["class", "x"], ["queue", "x"],
    ["events", "--follow"], ["nodes"], ["nodes", "--leader"], ["limit"], ["schedule", "list"],
    ["schedule", "show", "x"], ["schedule", "preview", "x"], ["cancel", ID], ["update", ID, "--priority", "1"],
    ["recover", ID], ["flush", "--yes"], ["resume", "--all"], ["undrain", "web"],
    ["schedule", "trigger", "x"], ["nodes", "--leader", "--resign"],
)  # fmt: skip


@pytest.fixture(params=["sqlite", "mongodb"])
def absent(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """Return the URL of a store that is not there, and what lists what is there of it."""
    if request.param == "sqlite":
        yield f"sqlite://{tmp_path}/jobs.db", lambda: [path.name for path in tmp_path.iterdir()]
        return
    name = f"absent_{secrets.token_hex(6)}"
    server = request.getfixturevalue("mongo_set")
    with MongoClient[dict[str, object]](server) as client:
        yield with_database(server, name), client[name].list_collection_names


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_a_command_that_reads_makes_no_store(
    absent: tuple[str, Callable[[], list[str]]], arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    url, found = absent

    assert main.main(["--url", url, *arguments]) == Exit.STORE
    said = capsys.readouterr()
    assert said.out == ""
    assert "there is no such store: name it with --url or TASKQUEUE_URL (`taskqueue health` names" in said.err
    assert found() == []


@pytest.mark.parametrize("path", ["", "/"])
def test_a_url_without_a_database_says_which_one_was_looked_into(
    mongo_set: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = urlunsplit(urlsplit(mongo_set)._replace(path=path))

    assert main.main(["--url", f"{url}&taskqueue.prefix=absent_", "list"]) == Exit.STORE
    assert "taskqueue.prefix=absent_ (database taskqueue): there is no such store" in capsys.readouterr().err


def test_the_store_of_the_user_is_not_made_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    assert main.main(["list"]) == Exit.STORE
    assert f"store {tmp_path}/taskqueue/jobs.db: there is no such store" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [["add", "shop:Job"], ["schedule", "add", "x", "shop:Job", "--every", "1h"], ["pause", "mail"], ["drain", "web"]],
    ids=" ".join,
)
def test_what_is_to_be_kept_makes_the_store(tmp_path: Path, arguments: list[str]) -> None:
    url = str(tmp_path / "new.db")

    assert main.main(["--url", url, *arguments]) == Exit.OK
    assert main.main(["--url", url, "stats"]) == Exit.OK


@pytest.mark.parametrize("name", ["shop.maill", "shop.mail.x", "json.decoderr", "shop/mail"])
def test_a_module_that_is_not_there_is_no_application(
    tmp_path: Path, url: str, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "mail.py").touch()
    monkeypatch.chdir(tmp_path)

    assert main.main(["--url", url, "run", name]) == Exit.CONFIG
    assert capsys.readouterr().err.startswith(f"taskqueue: there is no module {name} in {tmp_path}: pass a Python file")


def test_who_waits_hears_that_no_node_runs(url: str, store: Store) -> None:
    added = subprocess.run(
        [sys.executable, "-m", "taskqueue.cli.main", "--url", url, "add", "a:B", "--wait", "--wait-timeout", "2.5"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )

    assert added.returncode == Exit.UNFINISHED
    assert "No node is running on this store: start one with `taskqueue-node`" in added.stderr
    assert added.stdout == ""


def test_who_waits_for_what_no_node_takes_hears_that(url: str, store: Store, tmp_path: Path) -> None:
    [job] = store.add([records.record(queue="mail")])
    with (
        running_node(url, tmp_path, "--work-on", "reports"),
        terminal(url, 120, "wait", str(job.id), "--timeout", str(LIMIT)) as shown,
    ):
        shown.heed("No node takes jobs of queue mail")
        assert re.search(r"[\r\n](\x1b\[[0-9;?]*[A-Za-z])*No node takes", shown.shown)
        store.cancel(job.id, "", store.now())
        assert shown.end() == Exit.UNSUCCESSFUL


def test_who_waits_for_what_runs_hears_nothing(url: str, store: Store) -> None:
    [job] = store.add([records.in_every_status()["running"]])
    with terminal(url, 120, "wait", str(job.id), "--timeout", "2.5") as shown:
        assert shown.end() == Exit.UNFINISHED

    assert "No node" not in shown.shown


def test_the_bar_is_as_long_as_the_job_has_come(url: str, store: Store) -> None:
    job = records.in_every_status()["running"]
    lengths = []
    for progress in (10.0, 90.0):
        [kept] = store.add([replace(job, id=records.record().id, progress=progress)])
        with terminal(url, 120, "wait", str(kept.id), "--timeout", "1") as shown:
            shown.end()
        [length] = set(re.findall(rf"{progress:.0f}% page 9 \x1b\[[0-9;]*m(━+)", shown.shown))
        lengths.append(len(length))

    assert lengths == [4, 36]


@pytest.mark.parametrize(
    ("variable", "near"),
    [("TASKQUEUE_URI", "TASKQUEUE_URL"), ("TASKQUEUE_MAX_CHILD", "TASKQUEUE_MAX_CHILDREN")],
)
def test_a_variable_that_nobody_reads_is_named(
    variable: str, near: str, taskqueue: Taskqueue, store: Store, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv(variable, "g3heim")
    answer = taskqueue("list")

    assert (answer.code, answer.out) == (Exit.OK, "no jobs\n")
    assert answer.complaint == f"taskqueue: unknown variable {variable}: did you mean {near}?"
    assert node.main(["--max-children", "0"]) == Exit.CONFIG
    assert f"taskqueue-node: unknown variable {variable}: did you mean {near}?" in capsys.readouterr().err


def test_a_variable_like_no_other_is_named_too(
    taskqueue: Taskqueue, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKQUEUE_ZZZ", "1")
    monkeypatch.setenv("TASKQUEUE_LEASE", "30")

    assert taskqueue("list").complaint.startswith("taskqueue: unknown variable TASKQUEUE_ZZZ: use TASKQUEUE_")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("URL", '"sqlite:///tmp/jobs.db"', "begins or ends with a quote"),
        ("NAME", "'web-1'", "begins or ends with a quote"),
        ("NAME", "web-1 ", "begins or ends with a space"),
        ("MAX_CHILDREN", '"8"', "begins or ends with a quote"),
        ("WORK_ON", '"mail"', "begins or ends with a quote"),
        ("WORK_ON", "mail # and no more", "contains a comment"),
        ("USERS", " users.json", "begins or ends with a space"),
        ("RUNTIME_DIR", "run", "is not an absolute path: pass one such as /run/taskqueue"),
        ("RUNTIME_DIR", '"/run/taskqueue"', "begins or ends with a quote"),
        ("LEASE", " ", "begins or ends with a space"),
    ],
)
def test_a_variable_with_what_a_shell_would_have_taken_off_is_named(
    name: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"TASKQUEUE_{name}", value)

    for program in (main.main, node.main):
        assert program(["--version"]) == Exit.CONFIG
        said = capsys.readouterr().err
        assert f"the variable TASKQUEUE_{name}={value!r} {reason}" in said


def test_a_variable_that_is_none_of_ours_may_have_quotes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TASKQUEUE_PLUGIN", '"x"')

    assert main.main(["--version"]) == Exit.OK
    assert "unknown variable TASKQUEUE_PLUGIN" in capsys.readouterr().err


def test_a_variable_with_a_password_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TASKQUEUE_URL", '"mongodb://ann:s3cret@a/jobs"')

    assert main.main(["list"]) == Exit.CONFIG
    assert "s3cret" not in capsys.readouterr().err


def test_an_empty_file_of_users_is_not_everybody(taskqueue: Taskqueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKQUEUE_USERS", "")

    answer = taskqueue("web", "--listen", "127.0.0.1:0", "--host-name", "https://never")

    assert answer.code == Exit.CONFIG
    assert "the variable TASKQUEUE_USERS is empty: name the file of users, or remove it" in answer.complaint


def test_a_probe_names_a_wrong_variable(tmp_path: Path) -> None:
    environment = {**os.environ, "TASKQUEUE_RUNTIME_DIR": "run"}
    done = subprocess.run(
        [sys.executable, "-m", "taskqueue", "health"], env=environment, capture_output=True, text=True, timeout=LIMIT
    )

    assert done.returncode == Exit.CONFIG
    assert "TASKQUEUE_RUNTIME_DIR='run' is not an absolute path" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--url", "jobs.db", "list"], "'jobs.db' is in the working folder, which was removed"),
        (["schedule", "sync", "shop"], "the working folder was removed: change to another folder"),
        (["schedule", "import", "crontab"], "the working folder was removed: change to another folder"),
        (["add", "shop:Job", "--here"], "the working folder was removed: change to another folder"),
        (["backup", "jobs.db"], "the working folder was removed: change to another folder"),
    ],
)
def test_a_command_in_a_folder_that_was_removed_says_so(tmp_path: Path, arguments: list[str], words: str) -> None:
    old, store = tmp_path / "old", tmp_path / "jobs.db"
    old.mkdir()
    with Scheduler(str(store)) as scheduler:
        scheduler.add_job("shop:Job")
    done = subprocess.run(
        ["/bin/sh", "-c", 'rmdir "$0"; exec "$@"', str(old), sys.executable, "-m", "taskqueue", *arguments],
        cwd=old,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "TASKQUEUE_URL": str(store)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )

    assert done.returncode == Exit.CONFIG
    [complaint] = done.stderr.splitlines()
    assert words in complaint


def test_a_node_with_one_connection_says_what_it_lacks(mongo_set: str, tmp_path: Path) -> None:
    url = f"{with_database(mongo_set, f'pool_{secrets.token_hex(6)}')}&maxPoolSize=1"

    with (
        pytest.raises(AssertionError, match=f"the node left with {Exit.CONFIG:d}") as refused,
        running_node(url, tmp_path),
    ):
        pass

    assert "maxPoolSize=1 is one connection, which the change stream takes: pass 2 or more" in str(refused.value)


def test_two_connections_are_enough_for_a_node_and_for_those_who_wait(mongo_set: str, tmp_path: Path) -> None:
    url = f"{emptied(mongo_set, f'pool_{secrets.token_hex(6)}')}&maxPoolSize=2&timeoutMS={PATIENCE * 1000:.0f}"

    with running_node(url, tmp_path), Scheduler(url) as scheduler:
        added = [scheduler.add_job("tests.acceptance.work:Echo", number) for number in range(20)]
        scheduler.wait_for(added, timeout=LIMIT)

        assert {process.refresh().status for process in added} == {Status.DONE}
