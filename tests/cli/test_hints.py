"""Names of other systems lead to ours, and why is read easily: wrapped at words, in the reader's own time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from taskqueue.cli import main, node
from taskqueue.exit_codes import Exit
from taskqueue.model.record import Failure
from taskqueue.store import Store
from tests.cli import records
from tests.cli.conftest import Answer
from tests.cli.test_terminal import terminal
from tests.nodes import LIMIT

Taskqueue = Callable[..., Answer]


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("worker", "`taskqueue-node` runs jobs"),
        ("start", "`taskqueue-node` runs jobs"),
        ("node", "`taskqueue-node` runs jobs"),
        ("beat", "nodes start scheduled jobs"),
        ("inspect", "`taskqueue nodes` lists the nodes"),
        ("status", "`taskqueue nodes` lists the nodes"),
        ("revoke", "`taskqueue cancel` ends jobs"),
        ("requeue", "`taskqueue recover` runs jobs"),
        ("help", "`taskqueue --help` lists"),
        ("lst", "did you mean list?"),
        ("queues", "`taskqueue stats` counts"),
        ("remove", "`taskqueue cancel` ends jobs, `taskqueue purge` removes"),
        ("flash-all", "use add, list, show"),
        ("xyz", "use add, list, show"),
    ],
)
def test_a_command_of_another_name_is_named(taskqueue: Taskqueue, command: str, hint: str) -> None:
    answer = taskqueue(command, "--all")

    assert answer.code == Exit.USAGE
    assert answer.complaint.startswith(f"taskqueue: No such command '{command}': {hint}")


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("releases", "`taskqueue release NAME` marks a release"),
        ("failures", "`taskqueue class NAME` shows one class"),
        ("nodes", "`taskqueue health --node NAME` asks one node"),
        ("stats", "`taskqueue queue NAME` one queue"),
        ("analytics", "`taskqueue queue NAME` one queue"),
        ("events", "`taskqueue why ID` says what happened"),
    ],
)
def test_an_argument_that_a_command_does_not_take_leads_to_the_command_that_does(
    taskqueue: Taskqueue, command: str, hint: str
) -> None:
    answer = taskqueue(command, "v2")

    assert answer.code == Exit.USAGE
    assert hint in answer.complaint


@pytest.mark.parametrize(
    ("option", "ours"),
    [
        ("--delay", "--at"), ("--countdown", "--at"), ("--eta", "--at"), ("--run-at", "--at"),
        ("--max-retries", "--retry"), ("--retries", "--retry"), ("--expire", "--expires"),
    ],
)  # fmt: skip
def test_an_option_of_another_name_is_named(taskqueue: Taskqueue, option: str, ours: str) -> None:
    answer = taskqueue("add", "shop:Job", option, "5")

    assert answer.code == Exit.USAGE
    assert f"No such option: {option}: did you mean {ours}?" in answer.complaint


@pytest.mark.parametrize(
    ("option", "ours"),
    [
        ("--concurrency", "--max-children"), ("-c", "--max-children"), ("-Q", "--work-on"), ("--queues", "--work-on"),
        ("--broker", "--url"), ("--loglevel", "--log-level"), ("--pool", "--pm"), ("-A", "--bootstrap"),
        ("--max-tasks-per-child", "--max-jobs-per-child"), ("--hostname", "--name"),
    ],
)  # fmt: skip
def test_an_option_of_other_workers_leads_to_that_of_the_node(
    capsys: pytest.CaptureFixture[str], option: str, ours: str
) -> None:
    assert node.main([option, "4"]) == Exit.USAGE
    assert f"No such option: {option}: did you mean {ours}?" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["-B", "--beat", "--with-scheduler"])
def test_an_option_without_an_equal_leads_to_a_way(capsys: pytest.CaptureFixture[str], option: str) -> None:
    assert node.main([option]) == Exit.USAGE
    assert f"No such option: {option}: every node starts jobs at their times" in capsys.readouterr().err


def test_an_offset_leads_to_the_way_to_all_jobs(taskqueue: Taskqueue) -> None:
    assert (
        "No such option: --offset: `list --limit 0` shows all jobs, and scheduler.find_jobs"
        in taskqueue("list", "--offset", "20").complaint
    )


@pytest.mark.parametrize("option", ["--port", "-p", "--host", "--address", "--bind"])
def test_a_port_of_a_node_leads_to_what_serves_one(capsys: pytest.CaptureFixture[str], option: str) -> None:
    assert node.main([option, "8080"]) == Exit.USAGE
    assert f"No such option: {option}: `taskqueue web --listen PORT` serves the dashboard" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--daemon", "-D", "--detach", "--pidfile"])
def test_a_node_in_the_background_leads_to_systemd(capsys: pytest.CaptureFixture[str], option: str) -> None:
    assert node.main([option]) == Exit.USAGE
    assert f"No such option: {option}: it runs in the foreground: `taskqueue systemd`" in capsys.readouterr().err


def test_a_name_in_place_of_a_subcommand_leads_to_the_subcommands(taskqueue: Taskqueue) -> None:
    assert "No such command 'nightly': use add, import, list" in taskqueue("schedule", "nightly", "shop:Job").complaint


def test_a_wrong_option_of_a_group_does_not_lead_to_its_subcommands(taskqueue: Taskqueue) -> None:
    assert taskqueue("schedule", "--foo").complaint == (
        "taskqueue: No such option '--foo' (see taskqueue schedule --help)"
    )


def test_an_application_for_all_commands_is_not_needed(taskqueue: Taskqueue) -> None:
    assert "No such option: -A: jobs are found by their import path" in taskqueue("-A", "shop", "worker").complaint


@pytest.mark.parametrize("argument", ["mail", "shop.py"])
def test_an_argument_of_a_node_leads_to_what_it_was_meant_for(
    capsys: pytest.CaptureFixture[str], argument: str
) -> None:
    assert node.main([argument]) == Exit.USAGE
    assert f"({argument}): --work-on QUEUE takes the jobs of one queue, and" in capsys.readouterr().err


def test_arguments_of_a_job_lead_to_its_data(taskqueue: Taskqueue) -> None:
    answer = taskqueue("add", "shop:Job", "--kwargs", "{}")

    assert answer.complaint == "taskqueue: No such option: --kwargs: did you mean --data?"


def test_an_empty_address_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for run, arguments in ((main.main, ["list", "--url", ""]), (node.main, ["--url", ""])):
        assert run(arguments) == Exit.CONFIG
        assert "the address of the store is empty: name the store, or leave the address out" in capsys.readouterr().err


def test_data_without_an_option_leads_to_it(taskqueue: Taskqueue) -> None:
    assert (
        '({}): --data takes the data of the job, such as --data \'{"to": "ann"}\''
        in taskqueue("add", "shop:Job", "{}").complaint
    )


@pytest.mark.parametrize(("status", "ours"), [("success", "done"), ("FAILURE", "failed"), ("started", "processing")])
def test_a_status_of_another_system_leads_to_ours(taskqueue: Taskqueue, status: str, ours: str) -> None:
    answer = taskqueue("list", "--status", status)

    assert answer.code == Exit.CONFIG
    assert answer.complaint.endswith(f"; did you mean {ours}?")


def test_the_queue_of_a_command_leads_to_its_jobs(taskqueue: Taskqueue) -> None:
    assert "No such option: -Q: did you mean --queue?" in taskqueue("list", "-Q", "mail").complaint
    assert "No such option: -Q: `list queue:mail` shows the jobs" in taskqueue("purge", "-Q", "mail").complaint


def test_an_option_is_named_only_if_the_command_has_it(taskqueue: Taskqueue) -> None:
    assert "No such option: --port: did you mean --listen?" in taskqueue("web", "--port", "80").complaint
    assert "did you mean" not in taskqueue("stats", "--port", "80").complaint


def _words(text: str) -> list[str]:
    """Return the words without how long ago something was, which changes."""
    return re.sub(r"\([^()]* ago\)", "", " ".join(text.split())).split()


@pytest.mark.parametrize("columns", [80, 120])
def test_why_is_wrapped_at_words(url: str, store: Store, columns: int) -> None:
    error = Failure(type="shop.errors.OutOfStock", message="no more teapots " * 20)
    [job] = store.add([replace(records.in_full(), error=error)])
    with terminal(url, columns, "why", str(job.id)) as shown:
        assert shown.end() == 0

    said = subprocess.run(
        [sys.executable, "-m", "taskqueue.cli.main", "--url", url, "why", str(job.id)],
        capture_output=True, text=True, timeout=LIMIT,
    ).stdout  # fmt: skip
    assert max(map(len, said.splitlines())) > columns
    assert max(map(len, shown.lines)) <= columns
    assert _words(shown.shown) == _words(said)


def test_times_are_the_readers_own_and_json_is_utc(url: str, store: Store) -> None:
    [job] = store.add([records.in_full()])

    def said(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "taskqueue.cli.main", "--url", url, *arguments, str(job.id)],
            capture_output=True, text=True, timeout=LIMIT, env={**os.environ, "TZ": "Asia/Kolkata"},
        ).stdout  # fmt: skip

    assert re.search(r"It ended 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d IST \(", said("why"))
    assert "UTC" not in said("why")
    assert re.search(r"added +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d IST", said("show"))
    assert "began IST" in said("show")
    assert re.search(r'"created_at": "[^"]+\+00:00"', said("show", "--json"))
