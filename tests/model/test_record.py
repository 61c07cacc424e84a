"""Ranks, times and statuses of records."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from datetime import datetime, timedelta, timezone

import pytest
from bson import ObjectId
from hypothesis import given
from hypothesis import strategies as st

from taskqueue.model.record import PRIORITY_STEP, Record, Status, changed, rank_of
from taskqueue.model.timestamps import EPOCH, milliseconds, moment, whole

NOW = datetime(2026, 7, 1, 12, tzinfo=timezone.utc)
RECORD = Record(id=ObjectId(), job="app:Mail", created_at=NOW, ready_at=NOW)
MOMENTS = st.datetimes(
    datetime.fromisoformat("1900-01-01"),
    datetime.fromisoformat("9000-01-01"),
    timezones=st.sampled_from([timezone.utc, timezone(timedelta(hours=5.5))]),
)


def test_statuses_have_the_numbers_of_the_ancestor() -> None:  # PTS-6
    assert [status.name for status in Status] == [
        "WAITING",
        "POSTPONED",
        "PROCESSING",
        "DONE",
        "FAILED",
        "CANCELED",
        "TIMEOUT",
    ]
    assert [int(status) for status in Status] == list(range(7))


def test_a_status_is_pending_or_final() -> None:
    assert [status for status in Status if status.is_pending] == [0, 1, 2]
    assert [status for status in Status if status.is_final] == [3, 4, 5, 6]


@given(moment_=MOMENTS)
def test_a_time_survives_as_whole_milliseconds(moment_: datetime) -> None:
    kept = moment(milliseconds(moment_))

    assert kept == whole(moment_)
    assert kept <= moment_ < kept + timedelta(milliseconds=1)
    assert whole(kept) == kept
    assert kept.tzinfo is timezone.utc


@given(ready_at=MOMENTS, priority=st.integers(-20, 20))
def test_a_lower_priority_number_runs_sooner_and_an_hour_is_worth_a_step(ready_at: datetime, priority: int) -> None:
    rank = rank_of(ready_at, priority)

    assert rank_of(ready_at, priority + 1) > rank
    assert rank_of(ready_at + timedelta(hours=1), priority) == rank_of(ready_at, priority + 1)
    assert moment(rank) - priority * PRIORITY_STEP == whole(ready_at)


def test_a_record_has_the_rank_of_its_time() -> None:
    assert RECORD.at_rank().rank == milliseconds(NOW)
    assert replace(RECORD, priority=1).at_rank().rank == milliseconds(NOW) + 3_600_000


def test_a_record_without_a_time_keeps_its_rank() -> None:
    assert replace(RECORD, ready_at=None, rank=5).at_rank().rank == 5


def test_the_present_attempt_is_counted_from_one() -> None:
    assert RECORD.attempt == 1
    assert replace(RECORD, failures=2, crashes=1).attempt == 4


def test_a_changed_record_is_the_one_that_replace_makes() -> None:
    assert changed(RECORD, status=Status.DONE, claims=3) == replace(RECORD, status=Status.DONE, claims=3)
    assert RECORD.status is Status.WAITING


def test_a_record_cannot_be_changed_in_place() -> None:
    for record in (RECORD, changed(RECORD, claims=1)):
        with pytest.raises(FrozenInstanceError):
            record.claims = 2  # type: ignore[misc]


def test_the_epoch_is_zero() -> None:
    assert (milliseconds(EPOCH), moment(0)) == (0, EPOCH)
    assert milliseconds(EPOCH - timedelta(microseconds=1)) == -1
