"""``taskqueue analytics`` shows figures of a time, and ``taskqueue list`` the jobs behind them (REC-35, RW-23)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from bson import ObjectId

from taskqueue.exit_codes import Exit
from taskqueue.model.record import Cause, Record, Status
from taskqueue.store import Store
from tests.cli import records
from tests.cli.conftest import Answer

Taskqueue = Callable[..., Answer]
MINUTE = timedelta(minutes=1)


def whole_second() -> datetime:
    """Return the time: that of ``records`` is of the moment when the run began, which may be long ago."""
    return datetime.now(timezone.utc).replace(microsecond=0)


def over(status: Status, minutes_ago: int, took: float = 2.0, **fields: Any) -> Record:
    """Return a record that ended so, after a run of so many seconds that began a second after it could."""
    ended_at = whole_second() - minutes_ago * MINUTE
    began = ended_at - timedelta(seconds=took)
    ready = records.record(ready_at=began - timedelta(seconds=1), started_at=began, **fields)
    return replace(ready, status=status, ready_at=None, ended_at=ended_at)


@pytest.fixture
def jobs(store: Store) -> dict[str, ObjectId]:
    """Store jobs of every kind that reports are about."""
    late, ten_minutes_ago = records.record(), whole_second() - 10 * MINUTE
    added = {
        "quick": over(Status.DONE, 5, queue="mail", tags=("daily",)),
        "slow": over(Status.DONE, 6, took=90.0, queue="mail", failures=2),
        "bad": over(Status.FAILED, 7, error=records.FAILURE, failures=1),
        "old": over(Status.TIMEOUT, 300, took=60.0, error=records.FAILURE, failures=4),
        "late": late,
        "fresh": records.record(ready_at=store.now(), priority=5),
        "overdue": records.record(status=Status.POSTPONED, cause=Cause.RETRY, ready_at=ten_minutes_ago, failures=3),
        "behind": records.record(
            status=Status.POSTPONED, cause=Cause.BEHIND, ready_at=ten_minutes_ago, waiting_for=(late.id,)
        ),
    }
    store.add(list(added.values()))
    return {name: record.id for name, record in added.items()}


@pytest.mark.usefixtures("jobs")
def test_analytics_show_a_line_for_each_queue_and_one_for_all(taskqueue: Taskqueue) -> None:
    head, *lines = taskqueue("analytics").out.splitlines()

    assert head.split()[:7] == ["queue", "done", "failed", "timeout", "canceled", "retried", "done/min"]
    assert [line.split() for line in lines[:3]] == [
        ["mail", "2", "-", "-", "-", "1", "0.03", "1", "s", "1", "s", "2", "s", "2", "min"],
        ["default", "-", "1", "-", "-", "-", "0.00", "1", "s", "1", "s", "2", "s", "2", "s", "OutOfStock", "1"],
        ["all", "2", "1", "-", "-", "1", "0.03", "1", "s", "1", "s", "2", "s", "2", "min", "OutOfStock", "1"],
    ]
    assert lines[3].startswith("ended ")
    assert lines[4] == "now 3 queued, 0 postponed, 1 blocked by others, 0 running"


@pytest.mark.usefixtures("jobs")
def test_analytics_of_another_time_by_tag_for_programs(taskqueue: Taskqueue, store: Store) -> None:
    document = taskqueue("analytics", "--by", "tag", "--since", "1d", "--json").document

    assert document["store"] == store.url
    assert [group["name"] for group in document["groups"]] == ["daily"]
    assert (document["whole"]["ended"], document["whole"]["timeout"], document["cut"]) == (4, 1, False)
    assert document["whole"]["running"]["longest"] == 90.0
    assert document["present"] == {"queued": 3, "running": 0, "postponed": 0, "blocked": 1, "lost": 0}


@pytest.mark.usefixtures("jobs")
def test_a_bound_that_is_reached_is_said(taskqueue: Taskqueue) -> None:
    said = taskqueue("analytics", "--by", "tag", "--at-most", "2").out

    assert "more than 2 jobs ended in this period" in said


def test_a_time_in_which_nothing_ended_is_said_in_words(taskqueue: Taskqueue) -> None:
    first, second, third = taskqueue("analytics", "--by", "class", "--until", "1h").out.splitlines()

    assert first == "no jobs ended in this period"
    assert second.startswith("ended ")
    assert third == "now 0 queued, 0 postponed, 0 blocked by others, 0 running"


def test_a_job_whose_node_is_gone_is_counted_as_lost(taskqueue: Taskqueue, store: Store) -> None:
    store.add([records.in_every_status()["running"]])

    assert taskqueue("analytics").out.endswith("1 running (1 lost by their nodes)\n")


def test_a_time_that_cannot_be_read_is_one_line(taskqueue: Taskqueue) -> None:
    answer = taskqueue("analytics", "--since", "yesterday")

    assert answer.code == Exit.CONFIG
    assert answer.complaint.startswith(
        "taskqueue: --since: 'yesterday' is not a time: pass how long ago, such as '90m' or '2d', or"
    )
    assert taskqueue("list", "--since", "yesterday").complaint == answer.complaint
    assert "has no time zone" in taskqueue("list", "--since", "2030-01-01 12:00").complaint


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (["--slow", "5s"], {"slow", "old"}),
        (["--slow", "5s", "--since", "1h"], {"slow"}),
        (["--late", "5m"], {"late", "overdue"}),
        (["--attempts-over", "1"], {"slow", "old", "overdue"}),
        (["--attempts-over", "1", "--since", "1d"], {"slow", "old"}),
        (["--slow", "0", "--queue", "mail"], {"quick", "slow"}),
        (["--since", "2020-01-01T00:00:00Z", "--status", "failed"], {"bad"}),
    ],
)
def test_reports_find_their_jobs(
    taskqueue: Taskqueue, jobs: dict[str, ObjectId], filters: list[str], found: set[str]
) -> None:
    document = taskqueue("list", "--json", *filters).document

    assert {job["id"] for job in document} == {str(jobs[name]) for name in found}


@pytest.mark.parametrize("command", ["analytics", "list"])
@pytest.mark.parametrize("ahead", ["+1 hour", "2400-01-01 00:00Z"])
def test_a_time_that_lies_ahead_is_refused(taskqueue: Taskqueue, store: Store, command: str, ahead: str) -> None:
    answer = taskqueue(command, "--since", ahead)

    assert answer.code == Exit.CONFIG
    assert answer.complaint == f"taskqueue: --since: {ahead!r} is in the future: write how long ago, such as 90m or 2d"
