"""Figures of recent minutes and hours are those of the history, and what cannot change is not read again."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from taskqueue.errors import StoreUnavailable
from taskqueue.insight.recent_figures import WHOLE, RecentFigures
from taskqueue.model.history import Parts, Step
from taskqueue.model.lifecycle.outcomes import Failed, Run
from taskqueue.model.lifecycle.settle import ended
from taskqueue.model.record import Failure
from taskqueue.model.timestamps import milliseconds
from taskqueue.store import Settlement, Store
from tests.nodes import eventually
from tests.store.records import WEB_1, a_record, claim

on_both = pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)

ERROR = Failure(type="shop.Broken", message="no answer")


def fail(store: Store, queue: str, at: datetime) -> None:
    """Let a job fail at this time, after two seconds."""
    store.add([a_record(queue=queue, created_at=at, ready_at=at)])
    [run] = claim(store, now=at).records
    began = Run(node="web-1", started_at=at - timedelta(seconds=2))
    after = ended(run, Failed(failure=ERROR), began, at)
    store.settle([Settlement(claims=run.claims, holder=WEB_1, after=after)], at)


def failed(parts: Parts) -> int:
    """Return how many jobs failed by the error."""
    return sum(figures.get("e:shop.Broken", 0) for part in parts.values() for figures in part.values())


@contextmanager
def listened(store: Store) -> Iterator[list[str]]:
    """Listen to the statements of a store."""
    raw: sqlite3.Connection | None = store._engine._raw  # type: ignore[attr-defined]
    said: list[str] = []
    assert raw is not None
    raw.set_trace_callback(said.append)
    yield said
    raw.set_trace_callback(None)


@on_both
def test_a_minute_has_numbers_by_queue_and_an_hour_those_of_all_queues(store: Store) -> None:
    at = store.now() - timedelta(minutes=5)
    fail(store, "mail", at)
    fail(store, "reports", at)
    figures = RecentFigures(store)

    eventually(lambda: failed(figures.minutes(store.now())) == 2)

    now = store.now()
    [part] = figures.minutes(now).values()
    numbers = {"added": 1, "failed": 1, "e:shop.Broken": 1, "x:shop.Broken: no answer": 1}
    assert part == {("mail", "app:Mail"): numbers, ("reports", "app:Mail"): numbers}
    hours = RecentFigures(store).hours(now - timedelta(hours=1), now)
    assert [figures for part in hours.values() for figures in part.items()] == [
        (("", "app:Mail"), dict.fromkeys(numbers, 2))
    ]
    [runs] = [figures for part in figures.runs(now).values() for figures in part.values()]
    assert (runs["ran"], runs["longest_run"]) == (4000, 2000)


@on_both
def test_the_same_hour_yesterday_is_read_once_a_minute(store: Store) -> None:
    now, day = store.now(), timedelta(days=1)
    for ago in (timedelta(minutes=5), day + timedelta(minutes=5), day + timedelta(minutes=5)):
        fail(store, "mail", now - ago)
    figures = RecentFigures(store)

    eventually(lambda: len(store.history(Step.MINUTE, now - 2 * day, now)) == 2)

    [(_, whole)] = [figures for part in figures.yesterday(now).values() for figures in part.items() if figures[1]]
    assert (whole["failed"], whole["x:"], whole["waited"]) == (2, 2, 0)
    assert sum(part[WHOLE]["failed"] for part in figures.day(now).values()) in (1, 3)  # it begins with a whole hour
    assert [part[WHOLE]["failed"] for part in figures.last_hour(now).whole.values() if part[WHOLE]] == [1]
    fail(store, "mail", now - day - timedelta(minutes=1))
    minute = now - timedelta(seconds=now.second, microseconds=now.microsecond)
    assert figures.yesterday(minute) is figures.yesterday(now)


@on_both
def test_what_is_long_over_is_not_read_again(store: Store) -> None:
    for ago in (timedelta(hours=20), timedelta(minutes=50), timedelta(seconds=1)):
        fail(store, "mail", store.now() - ago)
    eventually(lambda: failed(store.history(Step.MINUTE, store.now() - timedelta(days=1), store.now())) == 3)
    figures, now = RecentFigures(store), store.now()
    day = timedelta(days=1)
    assert (failed(figures.minutes(now)), failed(figures.hours(now - day, now))) == (2, 3)

    for ago in (timedelta(hours=20), timedelta(minutes=50), timedelta(seconds=1)):
        fail(store, "mail", store.now() - ago)

    eventually(lambda: failed(figures.minutes(store.now())) == 3)
    assert failed(figures.minutes(store.now())) == 3
    later = store.now()
    assert failed(figures.hours(later - day, later)) in (4, 5)  # the hour of the second one may not be over
    assert failed(figures.hours(later - 2 * day, later)) == 6  # more than was read before


@on_both
def test_what_is_too_old_is_forgotten(store: Store) -> None:
    fail(store, "mail", store.now() - timedelta(minutes=50))
    eventually(lambda: failed(store.history(Step.MINUTE, store.now() - timedelta(days=1), store.now())) == 1)
    figures, now = RecentFigures(store), store.now()
    assert failed(figures.minutes(now)) == 1

    later = now + timedelta(minutes=30)

    assert failed(figures.minutes(later)) == 0
    begin = milliseconds(later - timedelta(hours=1))
    assert all(at >= begin for at in figures.minutes(later))


def test_an_outage_at_the_first_look_and_a_long_pause_make_the_next_look_no_longer(
    store: Store, tmp_path: Path
) -> None:
    fail(store, "mail", store.now() - timedelta(minutes=5))
    figures, now = RecentFigures(store), store.now()

    def looks(at: datetime) -> int:
        with listened(store) as said:
            assert failed(figures.minutes(at)) == (1 if at == now else 0)
        return sum("FROM history" in statement for statement in said)

    with closing(sqlite3.connect(tmp_path / "jobs.db")) as other:
        other.execute("ALTER TABLE turns RENAME TO away")
        with pytest.raises(StoreUnavailable):
            figures.minutes(now)
        other.execute("ALTER TABLE away RENAME TO turns")

    assert looks(now) <= 3
    assert looks(now + timedelta(days=30)) <= 3


def test_all_that_is_known_of_a_week_comes_from_one_read(store: Store) -> None:
    fail(store, "mail", store.now() - timedelta(hours=5))
    figures, now = RecentFigures(store), store.now()

    with listened(store) as said:
        usual, runs, day = figures.usual(now), figures.runs(now), figures.day(now)
        hours = figures.hours(now - timedelta(days=2), now)

    assert (failed(usual.numbers), failed(hours), len(usual.waits), len(runs), len(day)) == (1, 1, 1, 1, 1)
    assert sum("FROM history" in statement for statement in said) == 6  # the hours of a week, in portions
