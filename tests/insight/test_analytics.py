"""``scheduler.analytics`` reads times as people write them, and refuses what makes no sense."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from bson import ObjectId

from taskqueue import Scheduler
from taskqueue.errors import InvalidOption
from taskqueue.model.record import Record, Status
from taskqueue.store import Store
from tests.scheduler.jobs import Broken, Echo

PATH = "tests.scheduler.jobs"


def an_end(at: datetime) -> Record:
    """Return a record that ended at this time."""
    ready = Record(id=ObjectId(), job="app:Mail", created_at=at, ready_at=at).at_rank()
    return replace(ready, status=Status.DONE, ready_at=None, started_at=at, ended_at=at)


def test_an_hour_is_looked_back_on_by_queue(scheduler: Scheduler) -> None:
    scheduler.add_jobs([(Echo, 1), (Echo, 2, {"tags": ["x"]}), (Broken, None, {"queue": "mail"})])
    scheduler.run_pending()
    scheduler.add_job(Echo, 3, at="+1 hour")

    value = scheduler.analytics()

    assert [(group.name, group.done, group.failed) for group in value.groups] == [("default", 2, 0), ("mail", 0, 1)]
    assert value.whole.errors == {"ValueError": 1}
    assert value.present.postponed == 1
    assert value.until - value.asked_since == timedelta(hours=1)
    assert timedelta(0) <= value.asked_since - value.since < timedelta(minutes=1)
    with pytest.raises(FrozenInstanceError):
        value.until = value.since  # type: ignore[misc]


def test_classes_and_tags_have_figures_of_their_own(scheduler: Scheduler) -> None:
    scheduler.add_jobs([(Echo, 1, {"tags": ["x", "y"]}), (Broken, None)])
    scheduler.run_pending()

    classes, tags = scheduler.analytics("class"), scheduler.analytics("tag", since="5m")

    assert [group.name for group in classes.groups] == [f"{PATH}:Broken", f"{PATH}:Echo"]
    assert [group.name for group in tags.groups] == ["x", "y"]
    assert tags.whole.ended == 2


def test_a_time_is_named_or_counted_back_from_its_end(scheduler: Scheduler) -> None:
    scheduler.add_job(Echo)
    scheduler.run_pending()
    tomorrow = datetime.now(timezone.utc) + timedelta(days=1)

    assert scheduler.analytics(since="2h", until=tomorrow).whole.ended == 0
    assert scheduler.analytics(since=timedelta(days=2), until=tomorrow).whole.ended == 1
    assert scheduler.analytics(since=datetime(2020, 1, 1, tzinfo=timezone.utc), until="1h").whole.ended == 0
    assert scheduler.analytics(since="2020-01-01T00:00:00Z").whole.ended == 1


def test_the_bound_is_told(scheduler: Scheduler) -> None:
    for _ in range(3):
        scheduler.add_job(Echo)
        scheduler.run_pending()

    value = scheduler.analytics("tag", at_most=2)

    assert value.is_cut
    assert value.whole.ended <= 2
    assert value.since > value.asked_since


def test_a_long_time_is_that_of_its_hours_and_of_minutes_at_its_ends(scheduler: Scheduler, store: Store) -> None:
    now = store.now()
    ends = [now - timedelta(hours=hours, minutes=5) for hours in (0, 1, 30, 100)]
    store.add([an_end(at) for at in ends])

    def ended(since: str, until: str | None = None) -> int:
        return scheduler.analytics(since=since, until=until).whole.ended

    for _ in range(2):
        assert [ended(since) for since in ("4m", "6m", "66m", "31h", "102h", "90d")] == [0, 1, 2, 3, 4, 4]
        assert [ended("101h", until) for until in ("4m", "10m", "2h", "31h")] == [4, 3, 2, 1]
        assert scheduler.analytics("day", since="90d").whole.ended == 4
        store.tidy_history(now, 100)


def test_the_history_has_figures_by_minute_and_hour_of_a_queue_or_class(scheduler: Scheduler) -> None:
    scheduler.add_jobs([(Echo, 1), (Broken, None, {"queue": "mail"})])
    scheduler.run_pending()

    assert sum(one.done + one.failed for one in scheduler.history()) == 2
    assert {one.job for one in scheduler.history(queue="mail")} == {f"{PATH}:Broken"}
    assert sum(one.added for one in scheduler.history(job=Echo)) == 1
    [hour] = scheduler.history("5m", job=f"{PATH}:Broken", step="hour")[-1:]
    assert (hour.step, hour.failed, hour.started, hour.errors) == ("hour", 1, 1, {"ValueError": 1})
    assert scheduler.history("2d", "1d") == []
    with pytest.raises(InvalidOption, match="step='day': figures are kept by minute, hour"):
        scheduler.history(step="day")


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"by": "colour"}, "by='colour': figures are by queue, class, tag"),
        ({"since": "yesterday"}, "'yesterday' is not a time"),
        ({"since": "now"}, "ends before it starts"),
        ({"at_most": 0}, "at_most=0"),
        ({"at_most": True}, "at_most=True"),
        ({"at_most": 10_000_001}, "from 1 to 10,000,000"),
    ],
)
def test_what_makes_no_sense_is_refused(scheduler: Scheduler, asked: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidOption, match=complaint):
        scheduler.analytics(**asked)
