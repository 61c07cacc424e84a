"""``scheduler.analytics`` reads times as people write them, and refuses what makes no sense."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from taskqueue import Scheduler
from taskqueue.errors import InvalidOption
from tests.scheduler.jobs import Broken, Echo

PATH = "tests.scheduler.jobs"


def test_an_hour_is_looked_back_on_by_queue(scheduler: Scheduler) -> None:
    scheduler.add_jobs([(Echo, 1), (Echo, 2, {"tags": ["x"]}), (Broken, None, {"queue": "mail"})])
    scheduler.run_pending()
    scheduler.add_job(Echo, 3, at="+1 hour")

    value = scheduler.analytics()

    assert [(group.name, group.done, group.failed) for group in value.groups] == [("default", 2, 0), ("mail", 0, 1)]
    assert value.whole.errors == {"ValueError": 1}
    assert value.present.postponed == 1
    assert value.until - value.since == timedelta(hours=1)
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

    value = scheduler.analytics(at_most=2)

    assert value.is_cut
    assert value.whole.ended <= 2
    assert value.since > value.asked_since


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"by": "colour"}, "by='colour': figures are by queue, class, tag"),
        ({"since": "yesterday"}, "'yesterday' is no time"),
        ({"since": "now"}, "ends before it begins"),
        ({"at_most": 0}, "at_most=0"),
        ({"at_most": True}, "at_most=True"),
        ({"at_most": 10_000_001}, "from 1 to 10,000,000"),
    ],
)
def test_what_makes_no_sense_is_refused(scheduler: Scheduler, asked: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidOption, match=complaint):
        scheduler.analytics(**asked)
