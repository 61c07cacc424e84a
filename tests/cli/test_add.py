"""``taskqueue add`` stores what ``add_job`` would store, and says what is wrong in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from taskqueue.exit_codes import Exit
from taskqueue.model.query import EVERYTHING
from taskqueue.model.record import OnCrash, Record, Status
from taskqueue.model.retry import FixedRetry
from taskqueue.store import Store
from tests.cli.conftest import Answer
from tests.nodes import LIMIT

Taskqueue = Callable[..., Answer]


def only(store: Store) -> Record:
    """Return the only job of the store."""
    [record] = store.find(EVERYTHING)
    return record


def test_a_key_is_taken_for_a_period(taskqueue: Taskqueue, store: Store) -> None:
    options = ("--unique", "k", "--unique-for", "1h", "--at", "+1 hour")
    first = taskqueue("add", "shop:Mail", "--data", "1", *options).out.strip()
    again = taskqueue("add", "shop:Mail", "--data", "2", *options, "--on-duplicate", "replace").out.strip()
    refused = taskqueue("add", "shop:Mail", *options, "--on-duplicate", "raise")

    assert (again, only(store).data) == (first, "2")
    assert (refused.code, refused.out) == (Exit.CONFIG, "")
    assert f"job {first} (shop:Mail, POSTPONED) has this key" in refused.err


def test_the_meta_of_a_job_is_given_and_shown(taskqueue: Taskqueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "ann")
    options = ("--meta", "tenant=acme", "--meta", "request=r-7", "--queue", "mail")
    id = taskqueue("add", "shop:Mail", *options).out.strip()
    other = taskqueue("add", "shop:Mail", "--queue", "mail").out.strip()

    shown = taskqueue("show", id)
    found = taskqueue("list", "--query", '{"meta.tenant": "acme"}', "--json").document
    refused = taskqueue("add", "shop:Mail", "--meta", "tenant")

    assert "tenant=acme, request=r-7, added_by=ann@" in shown.out
    assert [one["id"] for one in found] == [id] != [other]
    assert found[0]["meta"]["request"] == "r-7"
    assert (refused.code, refused.out) == (Exit.CONFIG, "")
    assert "'tenant': pass a mapping" in refused.err


@pytest.mark.parametrize("own", [["added_by=deploy"], [f"key-{number}=" for number in range(16)]])
def test_a_meta_that_names_who_adds_it_or_is_full_stays(taskqueue: Taskqueue, store: Store, own: list[str]) -> None:
    taskqueue("add", "shop:Mail", *[part for one in own for part in ("--meta", one)])

    assert [f"{key}={value}" for key, value in only(store).meta.items()] == own


def test_add_prints_the_id_of_the_job_it_stored(taskqueue: Taskqueue, store: Store) -> None:
    answer = taskqueue("add", "shop.mail:MailJob", "--data", '{"to": "a@example.org"}')

    record = only(store)
    assert (answer.code, answer.out, answer.err) == (0, f"{record.id}\n", "")
    assert (record.job, record.data) == ("shop.mail:MailJob", '{"to":"a@example.org"}')


def test_every_option_of_jobs_can_be_given(taskqueue: Taskqueue, store: Store) -> None:
    answer = taskqueue(
        *("add", "shop:Job", "--retry", "-1", "--retry-interval", "90", "--timeout", "5m", "--priority", "-7"),
        *("--queue", "2030", "--tags", "b", "--tag", "a", "--unique", "17", "--force-spawn", "--crash-retries", "0"),
        *("--on-crash", "fail", "--id", "6740a1b2000000000000000f", "--at", "+1 hour", "--expires", "+2 hours"),
    )

    record = only(store)
    assert answer.code == 0
    assert str(record.id) == "6740a1b2000000000000000f"
    assert record.options.retry == FixedRetry(times=-1, interval=90.0)
    assert (record.options.timeout, record.options.crash_retries) == (300.0, 0)
    assert (record.options.on_crash, record.options.force_spawn) == (OnCrash.FAIL, True)
    assert (record.queue, record.tags, record.unique, record.priority) == ("2030", ("a", "b"), "17", -7)
    assert record.status is Status.POSTPONED
    assert record.ready_at == record.created_at + timedelta(hours=1)
    assert record.expires_at == record.created_at + timedelta(hours=3)


def test_a_job_can_be_added_behind_others(taskqueue: Taskqueue, store: Store) -> None:
    first, second = (taskqueue("add", "shop:Job").out.strip() for _ in range(2))
    behind = ("--depends-on", first, "--depends-on", second, "--on-dependency-failure", "ignore", "--parent", first)
    id = taskqueue("add", "shop:Report", *behind).out.strip()
    refused = taskqueue("add", "shop:Report", "--depends-on", "0" * 24)

    shown = json.loads(taskqueue("show", id, "--json").out)
    assert shown["depends_on"] == {first: "ignore", second: "ignore"}
    assert (shown["waiting_for"], shown["parent"]) == ([first, second], first)
    assert (refused.code, "there is no such job" in refused.err) == (Exit.CONFIG, True)


def test_limits_are_given_as_text(taskqueue: Taskqueue, store: Store) -> None:
    data = ("--data", '{"bucket": "a"}')
    id = taskqueue("add", "shop:Job", *data, "--limits", "5 by=bucket", "--limits", "100/60").out.strip()

    shown = json.loads(taskqueue("show", id, "--json").out)
    assert shown["limits"] == ['at most 5 at once of shop:Job by=bucket "a"', "at most 100 in 60 s of shop:Job"]
    assert only(store).given["limits"] == ["5 by=bucket", "100/60"]
    assert "at most 100 in 60 s of shop:Job" in taskqueue("show", id).out.replace("\n", " ")
    assert "--limits: 'many': write '5', '5 by=bucket'" in taskqueue("add", "shop:Job", "--limits", "many").err


def test_options_that_are_not_given_are_not_stated(taskqueue: Taskqueue, store: Store) -> None:
    taskqueue("add", "shop:Job", "--retry", "2")

    assert set(only(store).given) == {"retry", "meta"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--data", "{"], "taskqueue: --data: '{' is not JSON: Expecting property name"),
        (["--data", ""], "taskqueue: --data: '' is not JSON: "),
        (
            ["--data", "to=ann"],
            "taskqueue: --data: 'to=ann' is not JSON: Expecting value: line 1 column 1 (char 0): write for example {",
        ),
        (["--data", '{"$oid": "x"}'], "taskqueue: --data: "),
        (["--retry", "often"], "taskqueue: --retry: 'often': write the number of further attempts"),
        (["--retry", "-2"], "taskqueue: --retry: -2: write the number of further attempts"),
        (["--priority", "21"], "taskqueue: --priority: 21: pass a whole number from -20 to 20"),
        (
            ["--id", ""],
            "taskqueue: --id: '': write text of 1 to 64 printable characters, or the 24 digits of an id; for a key",
        ),
        (["--timeout", "soon"], "taskqueue: --timeout: 'soon' is not a duration: "),
        (["--at", "2030-01-01 00:00"], "taskqueue: --at: '2030-01-01 00:00' has no time zone: append one, as in "),
        (
            ["--at", "yesterday"],
            "taskqueue: --at: 'yesterday' is not a time: write 'now', '+1 hour', Unix seconds or ISO",
        ),
        (
            ["--at", "60"],
            "taskqueue: --at: 60 is not a time: write '+60 seconds' for that long from now; unix seconds of",
        ),
        (["--at", "5m"], "taskqueue: --at: '5m' is not a time: write '+5m' for that long from now"),
        (
            ["--expires", "1 hour"],
            "taskqueue: --expires: '1 hour' is not a time: write '+1 hour' for that long from now",
        ),
        (["--until", "60"], "taskqueue: --until: 60 is not a time: write '+60 seconds'"),
        (["--interval-reference", "0"], "taskqueue: --interval-reference: 0 is not a time: write '+0 seconds'"),
        (
            ["--ready", "5"],
            "taskqueue: --ready: 5 is not a predicate: write 'module:function' or '#method' of the job's",
        ),
        (["--limits", "5:a"], "taskqueue: --limits: '5:a': write '5', '5 by=bucket', '100/60' or '100/60 name=api'"),
        (["--depends-on", "55"], "taskqueue: --depends-on: '55': write the 24 digits of a job's id"),
        (["--timeout", "soon"], "taskqueue: --timeout: 'soon' is not a duration: write seconds (30), '5m'"),
        (["--interval", "-2"], "taskqueue: --interval: -2: pass a duration such as '5m', or -1 for at once"),
        (["--data", "@/no/such.json"], "taskqueue: --data: '/no/such.json' cannot be read (No such file or directory)"),
        (["--data", "@"], "taskqueue: --data: '' cannot be read ("),
        (["--ignore-data", "--queue", "a b"], "taskqueue: --queue: 'a b': "),
    ],
)
def test_a_wrong_value_is_one_line_and_nothing_is_stored(
    taskqueue: Taskqueue, store: Store, arguments: list[str], complaint: str
) -> None:
    answer = taskqueue("add", "shop:Job", *arguments)

    assert (answer.code, answer.out) == (Exit.CONFIG, "")
    assert answer.complaint.startswith(complaint)
    assert store.count(EVERYTHING) == 0


@pytest.mark.parametrize(
    "arguments", [["--wait-timeout", "5m"], ["--here", "--wait"], ["--here", "--once"], ["--bootstrap", __file__]]
)
def test_options_that_do_not_go_together_are_refused(taskqueue: Taskqueue, store: Store, arguments: list[str]) -> None:
    answer = taskqueue("add", "shop:Job", *arguments)

    assert answer.code == Exit.USAGE
    assert arguments[0] in answer.complaint
    assert store.count(EVERYTHING) == 0


def test_data_are_read_from_a_file(taskqueue: Taskqueue, store: Store, tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    file.write_text(json.dumps({"to": "ä@example.org", "body": "x" * 200_000}))

    assert taskqueue("add", "shop:Job", "--data", f"@{file}").code == 0
    assert json.loads(only(store).data) == json.loads(file.read_text())


@pytest.mark.parametrize(
    ("content", "why"), [(b"{", "is not JSON"), (b"\xff", "is not UTF-8 text"), (b"", "is not JSON")]
)
def test_a_file_that_holds_no_data_is_named(
    taskqueue: Taskqueue, store: Store, tmp_path: Path, content: bytes, why: str
) -> None:
    file = tmp_path / "data.json"
    file.write_bytes(content)

    answer = taskqueue("add", "shop:Job", "--data", f"@{file}")

    assert answer.code == Exit.CONFIG
    assert answer.complaint.startswith(f"taskqueue: --data: {file} {why}: ")
    assert store.count(EVERYTHING) == 0


def test_data_are_read_from_standard_input(url: str, store: Store) -> None:
    data = {"body": "ä" * 100_000}
    called = [sys.executable, "-m", "taskqueue.cli.main", "--url", url, "add", "shop:Job", "--data", "-"]
    done = subprocess.run(called, input=json.dumps(data).encode(), capture_output=True, timeout=LIMIT)

    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(only(store).data) == data


def test_a_standard_input_that_is_closed_holds_no_data(url: str, store: Store) -> None:
    called = [sys.executable, "-m", "taskqueue.cli.main", "--url", url, "add", "shop:Job", "--data", "-"]
    done = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", *called], capture_output=True, text=True, timeout=LIMIT)

    assert done.returncode == Exit.CONFIG
    assert done.stderr.startswith("taskqueue: --data: standard input is not JSON: ")


def test_a_class_that_is_no_import_path_is_refused(taskqueue: Taskqueue) -> None:
    answer = taskqueue("add", "MailJob")

    assert answer.code == Exit.CONFIG
    assert "'MailJob'" in answer.complaint


@pytest.mark.parametrize(
    ("written", "meant"), [("shop.MailJob", "shop:MailJob"), ("shop.mail.Mailer.send", "shop.mail:Mailer.send")]
)
def test_a_path_without_its_colon_is_understood(taskqueue: Taskqueue, written: str, meant: str) -> None:
    assert taskqueue("add", written).complaint == f"taskqueue: '{written}' is not an import path: did you mean {meant}?"


def test_a_bare_class_is_looked_for_among_recent_jobs(taskqueue: Taskqueue) -> None:
    taskqueue("add", "shop.jobs:MailJob")

    assert taskqueue("add", "MailJob").complaint.endswith("is not an import path: did you mean shop.jobs:MailJob?")


def test_the_first_job_of_a_class_named_like_another_is_questioned(taskqueue: Taskqueue, store: Store) -> None:
    first = taskqueue("add", "shop.jobs:MailJob")
    other = taskqueue("add", "shop.jobs:MailJobb")
    again = taskqueue("add", "shop.jobs:MailJobb")

    assert (first.err, again.err) == ("", "")
    assert other.err == "this is the first job of class shop.jobs:MailJobb: did you mean shop.jobs:MailJob?\n"
    assert (other.code, store.count(EVERYTHING)) == (Exit.OK, 3)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["MailJob"], "'MailJob' is not an import path: write 'module:Class'"),
        (["--here", "applikation:MailJob"], "applikation:MailJob cannot be loaded: No module named 'applikation'"),
        (["--here", "tests.daemon.jobs:Emty"], "tests.daemon.jobs:Emty: module tests.daemon.jobs has no Emty: did you"),
    ],
)
def test_a_class_that_cannot_be_loaded_makes_no_store(
    taskqueue: Taskqueue, tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    answer = taskqueue("--url", f"sqlite://{tmp_path}/new.db", "add", *arguments)

    assert answer.code == Exit.CONFIG
    assert answer.complaint.startswith(f"taskqueue: {complaint}")
    assert not (tmp_path / "new.db").exists()


def test_a_run_here_has_the_hooks_of_a_bootstrap_file(taskqueue: Taskqueue, store: Store, tmp_path: Path) -> None:
    hooks = tmp_path / "hooks_of_here.py"
    hooks.write_text(
        "def before_add(new):\n    new.meta['tenant'] = 'acme'\n\n\n"
        "def around_run(job, proceed):\n    print('begins for', job.meta['tenant'])\n    proceed()\n"
    )
    answer = taskqueue("add", "tests.daemon.jobs:Empty", "--here", "--bootstrap", str(hooks))

    assert answer.code == Exit.OK
    assert answer.out.startswith("begins for acme\n")
    assert only(store).meta["tenant"] == "acme"


def test_a_run_here_says_that_a_node_took_a_step_in_between(taskqueue: Taskqueue, store: Store, tmp_path: Path) -> None:
    hooks = tmp_path / "hooks_of_a_step.py"
    hooks.write_text(
        "from contextlib import closing\n"
        "from taskqueue.store.open import open_store\n"
        "from tests.scheduler.playing import take\n\n\n"
        f"def run_ended(job, result):\n    with closing(open_store({store.url!r})) as store:\n        take(store)\n"
    )

    answer = taskqueue(
        "add", "tests.scheduler.stepping:Counting", "--data", '{"to": 3}', "--here", "--bootstrap", str(hooks)
    )

    assert answer.code == Exit.UNSUCCESSFUL
    assert only(store).status is Status.PROCESSING
    assert "a node took over one of its steps" in answer.complaint


def test_a_bootstrap_file_that_cannot_be_run_is_named(taskqueue: Taskqueue, store: Store, tmp_path: Path) -> None:
    hooks = tmp_path / "broken_hooks.py"
    hooks.write_text("import no_such_module\n")
    answer = taskqueue("add", "tests.daemon.jobs:Empty", "--here", "--bootstrap", str(hooks))

    assert answer.code == Exit.CONFIG
    assert answer.complaint == (
        f"taskqueue: --bootstrap {hooks}: ModuleNotFoundError: No module named 'no_such_module'"
    )
    assert store.count(EVERYTHING) == 0


def test_add_once_finds_the_pending_job(taskqueue: Taskqueue, store: Store) -> None:
    first = taskqueue("add", "shop:Job", "--data", "[1]", "--once")
    second = taskqueue("add", "shop:Job", "--data", "[1]", "--once")

    assert first.out == second.out == f"{only(store).id}\n"


def test_add_says_that_nothing_was_added(taskqueue: Taskqueue, store: Store) -> None:
    first = taskqueue("add", "shop:Job", "--unique", "k")
    second = taskqueue("add", "shop:Other", "--unique", "k")

    assert (first.out, second.out, second.code) == (second.out, f"{only(store).id}\n", Exit.OK)
    assert first.err == ""
    assert second.complaint == "nothing was added: a job with the same id or unique key already exists"
    assert taskqueue("add", "shop:Other", "--unique", "k", "--json").document["existed"] is True
    assert taskqueue("add", "shop:Other", "--json").document["existed"] is False


def test_add_writes_json_for_programs(taskqueue: Taskqueue, store: Store) -> None:
    document = taskqueue("add", "shop:Job", "--data", '{"when": {"$date": "2030-01-01T00:00:00Z"}}', "--json").document

    assert document["id"] == str(only(store).id)
    assert document["status"] == "WAITING"
    assert document["data"] == {"when": {"$date": {"$numberLong": "1893456000000"}}}


def test_a_wait_that_takes_too_long_names_the_open_job(taskqueue: Taskqueue, store: Store) -> None:
    answer = taskqueue("add", "shop:Job", "--wait", "--wait-timeout", "10ms")

    id, complaint = answer.err.splitlines()
    assert answer.code == Exit.UNFINISHED
    assert id == str(only(store).id)
    assert complaint.startswith("taskqueue: still open after 0.01 s: ")


def test_a_store_that_cannot_be_opened_is_one_line(taskqueue: Taskqueue) -> None:
    answer = taskqueue("--url", "sqlite:///no/such/folder/jobs.db", "add", "shop:Job")

    assert answer.code == Exit.STORE
    assert answer.complaint.startswith("taskqueue: store /no/such/folder/jobs.db: ")


def test_a_url_that_is_none_is_one_line(taskqueue: Taskqueue) -> None:
    answer = taskqueue("--url", "mysql://host/db", "list")

    assert answer.code == Exit.CONFIG
    assert "mysql://host/db" in answer.complaint
