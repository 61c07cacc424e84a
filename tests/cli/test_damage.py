"""What commands say of jobs and schedules that cannot be read, and that they do their work on all others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from taskqueue.exit_codes import Exit
from taskqueue.model.schedules import Cron
from taskqueue.model.schedules.schedule import NamedSchedule
from taskqueue.store import Store
from tests.cli.conftest import Answer
from tests.cli.records import NOW, in_full, record
from tests.store.damaging import FAR, MISSING
from tests.store.test_damage import FIELDS, NOWHERE, damage, damage_plan

Command = Callable[..., Answer]


@pytest.mark.parametrize("values", [("garbage", MISSING), pytest.param(("[1]", b"\xff", FAR), marks=pytest.mark.long)])
@pytest.mark.parametrize("field", FIELDS)
def test_commands_go_on_whatever_field_of_a_job_is_damaged(
    taskqueue: Command, store: Store, url: str, field: str, values: tuple[object, ...]
) -> None:
    whole, waiting, full = record(), record(tags=("a",)), in_full()
    store.add([whole, waiting, full])
    for value in values:
        for one in (waiting, full):
            damage(url, "jobs", one.id, field, value)
            for command in ("show", "show --json", "why"):
                assert taskqueue(*command.split(), str(one.id)).code == Exit.OK
        for command in ("list", "list --json", "list --tag a", "list --slow 1s", "stats", "analytics", "nodes"):
            assert taskqueue(*command.split()).code == Exit.OK
        assert str(whole.id) in taskqueue("list", "--json").out

    assert taskqueue("cancel", str(waiting.id)).code == Exit.OK
    assert taskqueue("cancel", str(whole.id)).code == Exit.OK


def test_a_damaged_job_is_shown_with_what_cannot_be_read(taskqueue: Command, store: Store, url: str) -> None:
    job = record()
    store.add([job])
    damage(url, "jobs", job.id, "options", '{"retry":{"policy":"lunar"}}')

    assert "unreadable" in taskqueue("list").out
    shown = taskqueue("show", str(job.id), "--json").document
    assert shown["damage"].startswith("cannot be read here: options: 'lunar' is not a retry policy")
    said = taskqueue("why", str(job.id)).out
    assert "Its record cannot be read here: options: 'lunar' is not a retry policy" in said
    assert "until then it can be canceled" in said


def test_a_schedule_in_an_unknown_zone_is_listed_shown_defined_anew_and_removed(
    taskqueue: Command, store: Store, url: str
) -> None:
    for name in ("broken", "lost", "fine"):
        plan = NamedSchedule(name=name, trigger=Cron("* * * * *"), template=record(), created_at=NOW, next_run_at=NOW)
        store.replace_schedule(None, plan, [], NOW)
        if name != "fine":
            damage_plan(url, name, "trigger", NOWHERE)

    listed = {one["name"]: one for one in taskqueue("schedule", "list", "--json").document}

    assert "fine" in taskqueue("schedule", "list").out
    assert (listed["fine"]["stage"], listed["broken"]["stage"]) == ("active", "paused")
    assert "this host has no time zone 'Mars/Phobos'" in listed["broken"]["damage"]
    assert "this host has no time zone 'Mars/Phobos'" in taskqueue("schedule", "show", "broken").out
    for verb in ("resume", "trigger"):
        refused = taskqueue("schedule", verb, "broken")
        assert refused.code == Exit.ERROR
        assert "correct it, define the schedule again, or remove it" in refused.complaint
    assert taskqueue("schedule", "remove", "lost").code == Exit.OK
    assert taskqueue("schedule", "add", "broken", "shop:MailJob", "--cron", "0 3 * * *").code == Exit.OK
    assert [(plan.name, plan.stage.value, plan.damage) for plan in store.schedules()] == [
        ("broken", "active", ""),
        ("fine", "active", ""),
    ]


def test_a_missing_zone_is_not_recommended(taskqueue: Command) -> None:
    answer = taskqueue("schedule", "add", "a", "shop:MailJob", "--cron", "0 3 * * *", "--tz", "Europe/Nowhere")

    assert answer.code == Exit.CONFIG
    assert "this host has no time zone 'Europe/Nowhere': correct the name, or install tzdata" in answer.complaint
    assert "Berlin" not in answer.complaint
