"""``taskqueue audit``, and that what other commands do is in it."""

from __future__ import annotations

import ast
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from taskqueue import Scheduler, cli
from taskqueue.cli.top import actions
from taskqueue.exit_codes import Exit
from taskqueue.model.fingerprint import group_id
from taskqueue.model.query import parse
from taskqueue.scheduler.controls import user
from taskqueue.scheduler.operations import OPERATIONS
from taskqueue.store import Store
from tests.cli.conftest import Answer
from tests.web import jobs

Command = Callable[..., Answer]


@pytest.fixture
def scheduler(url: str) -> Scheduler:
    """Return a client with a waiting job, a failed one, and a schedule."""
    scheduler = Scheduler(url)
    scheduler.add_job(jobs.Mail, {"to": "ann"}, id="a" * 24)
    scheduler.run_job(jobs.Invoice, id="f" * 24, tags=f"workflow:{'f' * 24}")
    scheduler.schedule("nightly", jobs.Mail, cron="0 2 * * *")
    return scheduler


INVOICE = group_id("tests.web.jobs:Invoice", 'KeyError: …owned\\…owned\\… (raise KeyError(f"price {HOSTILE}"))')
"""The id of the failure of the job that failed."""

COMMANDS: list[tuple[list[str], str, str, dict[str, object]]] = [
    (["cancel", "aaaa", "--reason", "late"], "cancel", "a" * 24, {"reason": "late"}),
    (["cancel", "--query", '{"queue": "mail"}', "--yes"], "cancel", "jobs", {"number": 1}),
    (["give-up", "--query", "queue:mail", "--yes", "--reason", "gone"], "give up", "jobs", {"reason": "gone"}),
    (["recover", "--workflow", "ffff"], "run failed part again", "f" * 24, {"job": "tests.web.jobs:Invoice"}),
    (["recover", "ffff"], "run again", "f" * 24, {"job": "tests.web.jobs:Invoice"}),
    (
        ["recover", "--query", '{"data.token": "s3cret"}', "--yes"],
        "run again",
        "jobs",
        {"query": '{"data.token": "•••"}'},
    ),
    (["update", "aaaa", "--priority", "3"], "update", "a" * 24, {"changed": ["priority"]}),
    (["pause", "mail", "--reason", "moves", "--by", "ann"], "pause", "mail", {"reason": "moves", "by": "ann"}),
    (["resume", "--all"], "resume", "", {}),
    (["drain", "web-1"], "drain", "web-1", {}),
    (["undrain", "web-1"], "undrain", "web-1", {}),
    (["mute", INVOICE, "--until", "2h"], "mute", INVOICE, {"job": "tests.web.jobs:Invoice", "until": "2h"}),
    (["resolve", INVOICE, "--reason", "v2"], "resolve", INVOICE, {"reason": "v2"}),
    (["reopen", INVOICE], "reopen", INVOICE, {"job": "tests.web.jobs:Invoice"}),
    (["release", "v42"], "release", "v42", {}),
    (["unmark", "v42"], "unmark", "v42", {}),
    (["limit", "tests.web.jobs:Mail", "8"], "limit", "tests.web.jobs:Mail", {"limit": "8"}),
    (["limit", "tests.web.jobs:Mail", "--reset"], "limit", "tests.web.jobs:Mail", {"limit": "as declared"}),
    (["schedule", "pause", "nightly"], "pause schedule", "nightly", {}),
    (["schedule", "resume", "nightly"], "resume schedule", "nightly", {}),
    (["schedule", "trigger", "nightly"], "trigger", "nightly", {}),
    (["schedule", "remove", "nightly"], "remove schedule", "nightly", {}),
    (["schedule", "add", "hourly", "a:B", "--every", "1h"], "schedule", "hourly", {"job": "a:B"}),
    (["purge", "--failed", "--older", "1d", "--yes"], "purge", "jobs", {"statuses": ["FAILED"], "number": 0}),
    (["flush", "--yes"], "flush", "jobs", {"number": 2}),
    (["schedule", "import", "crontab", "--tz", "UTC"], "import schedules", "crontab", {}),
    (["doctor", "--repair"], "repair", "derived fields", {}),
]
"""Commands that change something, and their entries in the audit."""

FIRST = ["--first", "1", "--yes"]
BULK: list[tuple[list[str], str]] = [
    (["recover", "--query", "{}", "--name", "fix", *FIRST], "begin bulk action"),
    (["bulk", "fix", "--rest", *FIRST], "continue bulk action"),
    (["bulk", "fix", "--stop"], "stop bulk action"),
]
"""The commands of a bulk action, which follow each other."""


@pytest.mark.parametrize(("arguments", "action", "target", "about"), COMMANDS)
def test_what_a_command_does_is_in_the_audit(
    taskqueue: Command,
    scheduler: Scheduler,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    action: str,
    target: str,
    about: dict[str, object],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("crontab").write_text("0 3 * * * /bin/true\n")
    assert taskqueue(*arguments).code in (Exit.OK, Exit.FLAWS)  # of this host, says ``doctor``

    [entry] = scheduler.audit()
    assert (entry.by, entry.action, entry.target) == (user(), action, target)
    assert entry.source.startswith("command line of ")
    assert dict(entry.about).items() >= about.items()
    scheduler.close()


def test_each_command_of_a_bulk_action_is_in_the_audit_once(taskqueue: Command, scheduler: Scheduler) -> None:
    scheduler.run_job(jobs.Invoice)
    for arguments, action in BULK:
        before = len(scheduler.audit())
        assert taskqueue(*arguments).code == Exit.OK, action
        newest = scheduler.audit()[0]
        assert (newest.by, newest.action, newest.target, len(scheduler.audit())) == (user(), action, "fix", before + 1)
    scheduler.close()


def test_every_action_of_a_command_is_asked_for() -> None:
    calls = [
        node
        for file in Path(cli.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "acting"
    ]
    named = {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}

    assert named | set(OPERATIONS) | {"import schedules"} == {case[1] for case in (*COMMANDS, *BULK)}


@pytest.mark.parametrize(
    ("arguments", "broken"),
    [
        (["flush", "--yes"], "logs"),
        (["pause", "mail"], "controls"),
        (["undrain", "web-1"], "controls"),
        (["limit", "api", "3"], "controls"),
        (["cancel", "aaaa"], "waits"),
        (["schedule", "trigger", "nightly"], "events"),
    ],
)
def test_an_action_that_is_cut_off_is_in_the_audit(
    taskqueue: Command, scheduler: Scheduler, url: str, arguments: list[str], broken: str
) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite://"))) as raw, raw:
        raw.execute(f"DROP TABLE {broken}")

    assert taskqueue(*arguments).code == Exit.STORE

    [entry] = scheduler.audit()
    assert entry.action == " ".join(arguments[:1] if arguments[0] != "schedule" else ["trigger"])
    scheduler.close()


@pytest.mark.parametrize(
    ("arguments", "logged"),
    [
        (["cancel", "aaaa"], f"not recorded in the audit: cancel of '{'a' * 24}' "),
        (["cancel", "--query", "{}", "--yes"], "not recorded in the audit: cancel of 'jobs' "),
        (["pause", "mail"], "not recorded in the audit: pause of 'mail' "),
        (["drain", "web-1"], "not recorded in the audit: drain of 'web-1' "),
        (["schedule", "pause", "nightly"], "not recorded in the audit: pause schedule of 'nightly' "),
        (["resume", "mail"], None),
        (["update", "aaaa", "--priority", "3"], None),
        (["give-up", "aaaa"], None),
    ],
)
def test_only_a_stop_is_done_where_the_audit_cannot_be_written(
    taskqueue: Command,
    scheduler: Scheduler,
    url: str,
    caplog: pytest.LogCaptureFixture,
    arguments: list[str],
    logged: str | None,
) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite://"))) as raw, raw:
        raw.execute("DROP TABLE audit")
        raw.execute("CREATE TABLE audit (damaged)")

    assert taskqueue(*arguments).code == (Exit.STORE if logged is None else Exit.OK)

    assert [message.partition("{")[0] for message in caplog.messages] == ([] if logged is None else [logged])
    [job] = scheduler.find_jobs({"id": "a" * 24})
    assert (job.status.name == "CANCELED") == (arguments[0] == "cancel")
    assert job.priority == 0
    scheduler.close()


def test_what_is_refused_is_in_the_audit_with_its_refusal(taskqueue: Command, scheduler: Scheduler) -> None:
    assert taskqueue("update", "ffff", "--priority", "3").code == Exit.ERROR

    refused, asked = scheduler.audit()
    assert (asked.action, asked.target, asked.about["changed"]) == ("update", "f" * 24, ["priority"])
    assert (refused.action, refused.target, refused.about) == ("update refused", "f" * 24, {"error": "WrongStatus"})
    scheduler.close()


def test_what_only_looks_is_not_in_the_audit(taskqueue: Command, scheduler: Scheduler) -> None:
    for arguments in (
        ["cancel", "--query", "{}"],
        ["purge", "--failed", "--older", "1d"],
        ["schedule", "pause", "nothing"],
        ["add", "a:B"],
    ):
        taskqueue(*arguments)

    assert scheduler.audit() == []
    scheduler.close()


def test_actions_of_the_live_screen_are_in_the_audit(store: Store, scheduler: Scheduler) -> None:
    every = [(" of queue mail", parse({"queue": "mail"}))]
    ended = [("", parse({"status": "FAILED"}))]
    actions.cancel(store, every).act("late")
    actions.run_again(store, ended).act("")
    for name in ("pause", "pause", "drain", "drain"):
        actions.operate(store, OPERATIONS[name], "mail").act("why")

    found = [(entry.action, entry.target) for entry in reversed(scheduler.audit())]
    ids = [("cancel", "a" * 24), ("run again", "f" * 24)]
    assert found == [*ids, *((action, "mail") for action in ("pause", "resume", "drain", "undrain"))]
    scheduler.close()


def test_the_audit_is_printed_the_newest_first(taskqueue: Command, scheduler: Scheduler) -> None:
    assert taskqueue("audit").out == "no actions yet\n"
    taskqueue("cancel", "aaaa", "--reason", "late")
    taskqueue("pause", "--all")

    head, newest, oldest = (" ".join(line.split()) for line in taskqueue("audit").out.splitlines())
    assert head == "when who did to about from"
    assert " pause all command line of " in newest
    assert " cancel aaaaaaaa..aaaaaa reason late, job tests.web.jobs:Mail command line of " in oldest
    last = taskqueue("audit", "-n", "1", "--json").document[-1]
    assert (last["action"], last["by"]) == ("pause", user())
    assert taskqueue("audit", "--before", last["cursor"], "--json").document[0]["action"] == "cancel"
    assert "'nonsense' is not a cursor of the audit" in taskqueue("audit", "--before", "nonsense").err
    scheduler.close()
