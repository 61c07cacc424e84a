"""``taskqueue schedule`` and its verbs."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from taskqueue.exit_codes import Exit
from taskqueue.model.schedules import Again, Cron, Custom, Every
from taskqueue.model.schedules.schedule import Miss, next_version
from taskqueue.store import Store
from tests.cli.conftest import Answer
from tests.nodes import LIMIT

Command = Callable[..., Answer]
THREE = datetime.fromisoformat("2026-07-01T03:00+00:00")


def test_a_schedule_is_defined_and_shown(taskqueue: Command, store: Store) -> None:
    answer = taskqueue(
        *("schedule", "add", "nightly", "shop:MailJob", "--data", '{"to": "a"}', "--cron", "15 3 * * *"),
        *("--tz", "Europe/Berlin", "--retry", "5", "--queue", "mail", "--max-runs", "9", "--overlap", "allow"),
    )
    [plan] = store.schedules()

    assert answer.code == Exit.OK
    assert "trigger    cron 15 3 * * * in Europe/Berlin" in answer.out
    assert plan.trigger == Cron("15 3 * * *", "Europe/Berlin")
    assert (plan.template.job, plan.template.data, plan.template.queue) == ("shop:MailJob", '{"to":"a"}', "mail")
    assert (plan.max_runs, plan.overlap.value, plan.grace) == (9, "allow", 60)
    shown = taskqueue("schedule", "show", "nightly", "--json").document
    assert (shown["name"], shown["stage"], shown["data"], shown["max_runs"]) == ("nightly", "active", {"to": "a"}, 9)


@pytest.mark.parametrize(
    ("options", "trigger"),
    [
        (("--every", "5m"), Every(300)),
        (
            ("--every", "12h", "--from", "2026-07-01T03:00:00Z"),
            Every("12h", THREE),
        ),
        (("--every", "-1"), Again()),
        (("--at", "app:Fridays", "--arguments", '{"hour": 5}'), Custom("app:Fridays", {"hour": 5})),
    ],
)
def test_each_trigger_can_be_written(
    taskqueue: Command, store: Store, options: tuple[str, ...], trigger: object
) -> None:
    assert taskqueue("schedule", "add", "a", "shop:MailJob", *options).code == Exit.OK
    assert [plan.trigger for plan in store.schedules()] == [trigger]


def test_a_schedule_without_trigger_is_refused(taskqueue: Command) -> None:
    answer = taskqueue("schedule", "add", "a", "shop:MailJob")

    assert answer.code == Exit.CONFIG
    assert "one trigger" in answer.complaint


def test_schedules_are_listed(taskqueue: Command) -> None:
    assert taskqueue("schedule", "list").out == "no schedules\n"
    taskqueue("schedule", "add", "b", "shop:MailJob", "--every", "5m")
    taskqueue("schedule", "add", "a", "shop:MailJob", "--at", "app:Fridays")
    listed = taskqueue("schedule", "list").out

    assert [line.split()[0] for line in listed.splitlines()[1:] if line.strip()][-2:] == ["a", "b"]
    assert "after job" in listed
    assert [one["name"] for one in taskqueue("schedule", "list", "--json").document] == ["a", "b"]


def test_a_schedule_is_paused_resumed_and_removed(taskqueue: Command, store: Store) -> None:
    taskqueue("schedule", "add", "a", "shop:MailJob", "--every", "5m")

    assert taskqueue("schedule", "pause", "a", "--reason", "holidays").out == "a is paused\n"
    assert "stage      paused: holidays" in taskqueue("schedule", "show", "a").out
    assert taskqueue("schedule", "resume", "a").out.startswith("a is active, next: in 5 min")
    assert taskqueue("schedule", "remove", "a").out == "a is removed\n"
    assert store.schedules() == []


def test_a_job_of_a_schedule_is_started_now(taskqueue: Command) -> None:
    taskqueue("schedule", "add", "a", "shop:MailJob", "--every", "5m")
    id = taskqueue("schedule", "trigger", "a").out.strip()

    assert "Schedule a started it for" in taskqueue("why", id).out


def test_a_schedule_shows_when_it_starts_a_job_next_and_with_which_options(taskqueue: Command, store: Store) -> None:
    cron = ("--cron", "15 3 * * *", "--tz", "Europe/Berlin")
    taskqueue("schedule", "add", "a", "shop:MailJob", *cron, "--retry", "3", "--queue", "mail")
    taskqueue("schedule", "add", "b", "shop:MailJob", *cron)
    [plan, _] = store.schedules()
    assert plan.next_run_at is not None

    shown = taskqueue("schedule", "show", "a").out

    assert f", {plan.next_run_at.astimezone():%Y-%m-%d %H:%M:%S %Z}\n" in shown
    assert "options    retry=3, queue='mail'\n" in shown
    assert "options    from the class\n" in taskqueue("schedule", "show", "b").out


def test_the_next_times_are_printed(taskqueue: Command, store: Store) -> None:
    taskqueue("schedule", "add", "a", "shop:MailJob", "--every", "1h", "--from", "2026-07-01T03:00:00Z")
    times = taskqueue("schedule", "preview", "a", "-n", "3", "--json").document["times"]

    first, second, third = map(datetime.fromisoformat, times)
    assert third - second == second - first == timedelta(hours=1)
    assert len(taskqueue("schedule", "preview", "a").out.splitlines()) == 5


def test_the_next_times_of_a_cron_expression_are_printed_in_its_zone_too(taskqueue: Command) -> None:
    taskqueue("schedule", "add", "a", "shop:MailJob", "--cron", "30 2 31 3 *", "--tz", "Europe/Berlin")

    lines = taskqueue("schedule", "preview", "a", "-n", "20").out.splitlines()

    assert {line[-22:] for line in lines} == {"02:30:00 Europe/Berlin", "03:00:00 Europe/Berlin"}


def test_what_was_missed_is_shown_with_its_reason(taskqueue: Command, store: Store) -> None:
    taskqueue("schedule", "add", "a", "shop:MailJob", "--every", "1h")
    [plan] = store.schedules()
    miss = Miss(first=plan.created_at, last=plan.created_at, count=3, reason="no node fired it in time")
    store.replace_schedule(
        plan, next_version(plan, misses=(miss,), missed=3, next_run_at=plan.created_at), [], store.now()
    )
    shown = taskqueue("schedule", "show", "a").out

    assert "next       now" in shown
    assert "missed     3 times from" in shown
    assert "no node fired it in time" in shown


@pytest.mark.parametrize("verb", ["show", "pause", "resume", "remove", "trigger", "preview"])
def test_an_unknown_schedule_is_said(taskqueue: Command, verb: str) -> None:
    answer = taskqueue("schedule", verb, "nothing")

    assert answer.code == Exit.NOT_FOUND
    assert "there is no schedule nothing" in answer.complaint


def test_the_nearest_schedule_is_named(taskqueue: Command, store: Store) -> None:
    taskqueue("schedule", "add", "nightly", "app:Job", "--every", "1d")

    assert "there is no schedule nihgtly: did you mean nightly?" in taskqueue("schedule", "show", "nihgtly").complaint


def test_a_time_that_is_none_is_said_with_its_option(taskqueue: Command, store: Store) -> None:
    every = taskqueue("schedule", "add", "a", "shop:MailJob", "--every", "-2")
    until = taskqueue("schedule", "add", "a", "shop:MailJob", "--every", "5m", "--until", "2030-01-01")

    assert (every.code, until.code) == (Exit.CONFIG, Exit.CONFIG)
    assert every.complaint.startswith("taskqueue: --every: '-2' is not a duration: ")
    assert every.complaint.endswith(", or -1 for at once")
    assert until.complaint.startswith("taskqueue: until='2030-01-01' has no time zone: append one")
    assert store.schedules() == []


def test_each_change_of_a_schedule_is_json_for_programs(taskqueue: Command, store: Store) -> None:
    taskqueue("schedule", "add", "nightly", "shop:Report", "--every", "1d")

    paused = taskqueue("schedule", "pause", "nightly", "--reason", "audit", "--json").document
    resumed = taskqueue("schedule", "resume", "nightly", "--json").document
    job = taskqueue("schedule", "trigger", "nightly", "--json").document
    removed = taskqueue("schedule", "remove", "nightly", "--json").document

    assert (paused["stage"], paused["reason"], resumed["stage"]) == ("paused", "audit", "active")
    assert (job["job"], job["status"]) == ("shop:Report", "WAITING")
    assert (removed["name"], removed["removed"]) == ("nightly", True)


SHOP = """
from taskqueue import schedule, task

@schedule("nightly", cron="15 3 * * *", retry=3)
@task
def clean():
    pass

@schedule("often", every="10m")
@task
def poll():
    pass
"""


def sync(url: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Sync the schedules of ``shop.py`` in a process of its own."""
    command = [sys.executable, "-m", "taskqueue", "--url", url, "schedule", "sync", str(folder / "shop.py"), *options]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # the file changes within a second
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT)


def test_a_dry_run_makes_no_store(taskqueue: Command, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "crontab").write_text("0 3 * * * /usr/bin/clean\n")
    missing = tmp_path / "missing.db"

    preview = sync(str(missing), tmp_path, "--dry-run")
    imported = taskqueue("--url", str(missing), "schedule", "import", str(tmp_path / "crontab"), "--dry-run")

    assert preview.stdout.splitlines()[-1] == "2 schedules of application shop would change"
    assert imported.out.splitlines()[-1] == "1 schedule of application crontab would change"
    assert not missing.exists()


def test_sync_makes_the_schedules_exactly_those_of_the_code(
    taskqueue: Command, url: str, store: Store, tmp_path: Path
) -> None:
    taskqueue("schedule", "add", "by-hand", "shop:poll", "--every", "1h")
    (tmp_path / "shop.py").write_text(SHOP)
    first = sync(url, tmp_path)
    (tmp_path / "shop.py").write_text(
        SHOP.replace("retry=3", "retry=4, tz='Europe/Berlin'").replace('"often"', '"new"')
    )
    before = store.schedules()
    preview = sync(url, tmp_path, "--dry-run")
    unchanged = store.schedules()
    second = sync(url, tmp_path)
    third = sync(url, tmp_path)

    assert first.stdout.splitlines() == [
        "add     nightly",
        "add     often",
        "2 schedules of application shop changed",
    ], first.stderr
    lines = ["add     new", "change  nightly: trigger, retry", "remove  often"]
    assert preview.stdout.splitlines() == [*lines, "3 schedules of application shop would change"]
    assert unchanged == before
    assert second.stdout.splitlines() == [*lines, "3 schedules of application shop changed"]
    assert third.stdout.splitlines() == ["nothing of application shop changed"]
    assert [(plan.name, plan.application) for plan in store.schedules()] == [
        ("by-hand", None),
        ("new", "shop"),
        ("nightly", "shop"),
    ]
    assert "declared   by application shop" in taskqueue("schedule", "show", "new").out
    assert [entry.target for entry in store.audit(100) if entry.action == "sync schedules"] == ["shop"] * 3


def test_sync_writes_json_and_takes_another_name(url: str, store: Store, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    answer = sync(url, tmp_path, "--json", "--name", "backend")

    assert json.loads(answer.stdout) == {
        "application": "backend",
        "dry_run": False,
        "added": ["nightly", "often"],
        "changed": {},
        "removed": [],
    }
    assert {plan.application for plan in store.schedules()} == {"backend"}


def test_sync_restores_an_older_set_and_what_was_removed_by_hand(
    taskqueue: Command, url: str, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    sync(url, tmp_path)
    taskqueue("schedule", "remove", "often")

    assert sync(url, tmp_path).stdout.splitlines()[0] == "add     often"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nothing\n", "module shop cannot be imported: NameError: name 'nothing' is not defined"),
        (SHOP.replace('"often"', '"by-hand"'), "schedule by-hand cannot be declared by application shop"),
    ],
)
def test_sync_changes_nothing_of_an_application_that_is_wrong(
    taskqueue: Command, url: str, store: Store, tmp_path: Path, text: str, complaint: str
) -> None:
    taskqueue("schedule", "add", "by-hand", "shop:poll", "--every", "1h")
    (tmp_path / "shop.py").write_text(text)
    answer = sync(url, tmp_path)

    assert answer.returncode == Exit.CONFIG
    assert complaint in answer.stderr
    assert [plan.name for plan in store.schedules()] == ["by-hand"]


CRONTAB = """
CRON_TZ=Europe/Berlin
# name: nightly
15 3 * * * bin/clean --days 30
@hourly bin/report
"""


def test_a_crontab_is_imported_and_its_second_import_changes_nothing(
    taskqueue: Command, store: Store, tmp_path: Path
) -> None:
    taskqueue("schedule", "add", "by-hand", "shop:poll", "--every", "1h")
    file = tmp_path / "crontab"
    file.write_text(CRONTAB)
    preview = taskqueue("schedule", "import", str(file), "--dry-run")
    before = store.schedules()
    first = taskqueue("schedule", "import", str(file), "--queue", "host-1")
    stored = store.schedules()
    second = taskqueue("schedule", "import", str(file), "--queue", "host-1")
    unchanged = store.schedules()
    file.write_text(CRONTAB.replace("15 3", "30 4").replace("@hourly bin/report", ""))
    third = taskqueue("schedule", "import", str(file), "--queue", "host-1")

    lines = ["add     nightly", "add     report"]
    assert preview.out.splitlines() == [*lines, "2 schedules of application crontab would change"]
    assert [plan.name for plan in before] == ["by-hand"]
    assert first.out.splitlines() == [*lines, "2 schedules of application crontab changed"]
    assert {plan.template.queue for plan in stored if plan.application} == {"host-1"}
    assert second.out.splitlines() == ["nothing of application crontab changed"]
    assert unchanged == stored
    assert third.out.splitlines() == [
        "change  nightly: trigger",
        "remove  report",
        "2 schedules of application crontab changed",
    ]
    assert [entry.target for entry in store.audit(100) if entry.action == "import schedules"] == ["crontab"] * 3


def test_nothing_is_imported_if_one_line_is_wrong_unless_that_is_asked_for(
    taskqueue: Command, store: Store, tmp_path: Path
) -> None:
    file = tmp_path / "crontab"
    file.write_text(f"{CRONTAB}@reboot bin/start\n0 9 * * * mail ann%hello\n")
    refused = taskqueue("schedule", "import", str(file))
    unchanged = store.schedules()
    skipped = taskqueue("schedule", "import", str(file), "--skip", "--name", "shop", "--json")

    assert refused.code == Exit.CONFIG
    assert "nothing is imported: line 6: @reboot has no equivalent" in refused.complaint
    assert "; line 7: the text after %" in refused.complaint
    assert "or pass --skip" in refused.complaint
    assert unchanged == []
    assert skipped.document["added"] == ["nightly", "report"]
    assert [line[:17] for line in skipped.err.splitlines()] == ["left out: line 6:", "left out: line 7:"]
    assert {plan.application for plan in store.schedules()} == {"shop"}


def test_the_crontab_of_the_standard_input_is_imported(url: str, store: Store) -> None:
    command = [sys.executable, "-m", "taskqueue", "--url", url, "schedule", "import", "-", "--tz", "Asia/Tokyo"]
    answer = subprocess.run(command, input="@daily run\n", capture_output=True, text=True, timeout=LIMIT)

    assert answer.stdout.splitlines() == ["add     run", "1 schedule of application crontab changed"], answer.stderr
    assert [plan.trigger for plan in store.schedules()] == [Cron("@daily", "Asia/Tokyo")]


def test_a_file_that_is_no_text_is_refused(taskqueue: Command, tmp_path: Path) -> None:
    (tmp_path / "crontab").write_bytes(b"@daily \xff\n")
    answer = taskqueue("schedule", "import", str(tmp_path / "crontab"))

    assert answer.code == Exit.CONFIG
    assert "is not UTF-8 text" in answer.complaint


def test_a_file_that_cannot_be_read_is_named(taskqueue: Command, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none", Path("/proc/self/mem")):
        answer = taskqueue("schedule", "import", str(path))

        assert answer.code == Exit.CONFIG
        assert f"{path} cannot be read" in answer.complaint


def test_the_files_of_the_system_need_their_users(taskqueue: Command) -> None:
    for file in ("/etc/crontab", "/etc/cron.d/backup"):
        answer = taskqueue("schedule", "import", file)

        assert answer.code == Exit.USAGE
        assert "pass --system" in answer.err


@pytest.mark.parametrize("standard_input", ["<&-", "< /dev/null"])
def test_an_import_of_nothing_removes_no_schedule(url: str, store: Store, standard_input: str) -> None:
    """Say because `crontab -l` failed before the pipe."""
    run = partial(subprocess.run, shell=True, capture_output=True, text=True, timeout=LIMIT)
    command = f"{sys.executable} -m taskqueue --url '{url}' schedule import -"
    run(f"echo '0 3 * * * /usr/bin/backup' | {command}", check=True)

    answer = run(f"{command} {standard_input}")

    assert answer.returncode == Exit.CONFIG
    assert "standard input is empty: nothing is imported" in answer.stderr
    assert [schedule.name for schedule in store.schedules()] == ["backup"]
    run(f"echo '# none' | {command}", check=True)
    assert store.schedules() == []


def test_a_crontab_of_windows_is_imported(taskqueue: Command, store: Store, tmp_path: Path) -> None:
    (tmp_path / "crontab").write_bytes("\ufeff0 3 * * * /usr/bin/backup\r\n".encode())

    taskqueue("schedule", "import", str(tmp_path / "crontab"))

    [schedule] = store.schedules()
    assert json.loads(str(schedule.template.data)) == {"argv": "/usr/bin/backup", "shell": True}


def test_lines_of_a_file_with_users_are_imported(taskqueue: Command, store: Store, tmp_path: Path) -> None:
    (tmp_path / "backup").write_text(f"0 9 * * * {getpass.getuser()} bin/backup\n")
    answer = taskqueue("schedule", "import", str(tmp_path / "backup"), "--system")

    assert answer.code == Exit.OK
    assert [plan.name for plan in store.schedules()] == ["backup"]
