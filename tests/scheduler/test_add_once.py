"""add_job_once (PTS-12 with X-19): one pending job for equal class and data, changed ones replaced in one step."""

from __future__ import annotations

import os
import traceback
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from taskqueue import Scheduler, Status
from taskqueue.errors import InvalidOption
from taskqueue.model.lifecycle.outcomes import Done
from taskqueue.model.record import Cause
from taskqueue.store import Store
from tests.forking import fork
from tests.scheduler.jobs import Echo, Mail
from tests.scheduler.playing import begin, end, play, take


def test_the_same_class_and_data_twice_is_one_job(scheduler: Scheduler) -> None:
    first = scheduler.add_job_once(Echo, {"a": 1, "b": {"c": 2, "d": 3}})

    assert scheduler.add_job_once(Echo, {"b": {"d": 3, "c": 2}, "a": 1}) == first
    assert len(list(scheduler.get_jobs())) == 1


def test_other_data_or_another_class_are_other_jobs(scheduler: Scheduler) -> None:
    first = scheduler.add_job_once(Echo, {"to": "a"})

    assert scheduler.add_job_once(Echo, {"to": "b"}) != first
    assert scheduler.add_job_once(Mail, {"to": "a"}) != first
    assert scheduler.get_job(first.id).is_waiting


@pytest.mark.parametrize("data", [None, 1, "a", [1, {"b": 2}], {"a": 1, "b.c": {"d": 2.5, "e": None}}])
def test_a_job_that_was_added_by_add_job_counts(scheduler: Scheduler, data: Any) -> None:  # PTS-12
    scheduler.add_job(Mail, data)
    scheduler.add_job(Echo, {"other": data})
    first = scheduler.add_job(Echo, data)

    assert scheduler.add_job_once(Echo, data) == first
    assert scheduler.add_job_once(Echo, data, priority=0) == first


@pytest.mark.parametrize("data", [(1, 1), (1, 2)], ids=["equal data", "other data"])
def test_a_later_call_with_a_time_of_its_own_moves_a_unique_job(scheduler: Scheduler, data: tuple[int, int]) -> None:
    soon = datetime(2100, 1, 1, tzinfo=timezone.utc)
    first = scheduler.add_job_once(Echo, data[0], unique="page", at=soon)
    second = scheduler.add_job_once(Echo, data[1], unique="page", at=soon + timedelta(seconds=2))

    [pending] = scheduler.get_jobs({"status": Status.POSTPONED.name})
    assert (pending, pending.data, pending.ready_at) == (second, data[1], soon + timedelta(seconds=2))
    assert (first.refresh().status, first.cause) == (Status.CANCELED, Cause.REPLACED)


def test_one_that_counts_whatever_its_data_counts_for_its_data_too(scheduler: Scheduler) -> None:
    first = scheduler.add_job_once(Echo, 1, ignore_data=True)

    assert scheduler.add_job_once(Echo, 1) == first
    second = scheduler.add_job_once(Echo, 2)
    assert second != first
    assert scheduler.add_job_once(Echo, 2, ignore_data=True) in (first, second)


def test_a_changed_job_takes_the_place_of_all_that_are_equal(scheduler: Scheduler, store: Store) -> None:
    running = scheduler.add_job(Echo, 1)
    take(store)
    waiting = [scheduler.add_job(Echo, 1) for _ in range(2)]

    changed = scheduler.add_job_once(Echo, 1, priority=3)

    assert {process.refresh().cause for process in waiting} == {Cause.REPLACED}
    assert (running.refresh().is_processing, changed.waiting_for) == (True, (running.id,))
    assert scheduler.add_job_once(Echo, 1, priority=3) == changed


def test_after_the_end_it_is_added_again(scheduler: Scheduler, store: Store) -> None:
    first = scheduler.add_job_once(Echo, 1)
    play(store)

    assert scheduler.add_job_once(Echo, 1) != first


def test_changed_options_replace_a_waiting_job(scheduler: Scheduler) -> None:
    first = scheduler.add_job_once(Echo, 1, retry=1)
    second = scheduler.add_job_once(Echo, 1, retry=2)

    assert second != first
    assert (first.refresh().status, first.cause) == (Status.CANCELED, Cause.REPLACED)
    assert list(scheduler.get_jobs()) == [second]


def test_options_that_the_second_call_does_not_name_do_not_count(scheduler: Scheduler) -> None:
    first = scheduler.add_job_once(Echo, 1, at="+1 hour", retry=3, priority=2)

    assert scheduler.add_job_once(Echo, 1, retry=3) == first
    assert scheduler.add_job_once(Echo, 1) == first


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({"timeout": 90}, {"timeout": "1.5 min"}),
        ({"tags": ["a", "b"]}, {"tags": {"b", "a"}}),
        ({"at": "2100-01-01 01:00:00 Europe/Berlin"}, {"at": "2100-01-01T00:00:00Z"}),
        ({}, {"retry": 0, "priority": 0, "on_crash": "retry", "at": "now", "force_spawn": False, "expires": None}),
        ({"retry": 3, "retry_interval": "5m"}, {"retry": 3, "retry_interval": 300.0}),
    ],
)
def test_notation_does_not_count(scheduler: Scheduler, options: dict[str, Any], same: dict[str, Any]) -> None:
    assert scheduler.add_job_once(Echo, 1, **options) == scheduler.add_job_once(Echo, 1, **same)


def test_ignored_data_replace_the_job_of_the_class(scheduler: Scheduler) -> None:
    first = scheduler.add_job_once(Echo, {"page": 1}, ignore_data=True)

    assert scheduler.add_job_once(Echo, {"page": 1}, ignore_data=True) == first
    second = scheduler.add_job_once(Echo, {"page": 2}, ignore_data=True)
    assert first.refresh().is_canceled
    assert list(scheduler.get_jobs()) == [second]


def test_a_key_of_ones_own_says_which_jobs_are_equal(scheduler: Scheduler) -> None:
    first = scheduler.add_job_once(Echo, {"page": 1}, unique="scan")

    assert scheduler.add_job_once(Echo, {"page": 1}, unique="scan") == first
    assert scheduler.add_job_once(Mail, {"to": "a"}, unique="scan") != first
    assert first.refresh().is_canceled


def test_a_running_job_is_left_to_finish_and_the_new_one_waits_behind_it(scheduler: Scheduler, store: Store) -> None:
    first = scheduler.add_job_once(Echo, 1)
    [running] = take(store)
    second = scheduler.add_job_once(Echo, 1, priority=5)

    assert (second.status, second.cause) == (Status.POSTPONED, Cause.BEHIND)
    assert first.refresh().is_processing
    assert "asked to cancel" not in first.why()
    assert str(first.id) in second.why()
    assert scheduler.add_job_once(Echo, 1, priority=5) == second
    end(store, begin(store, running), Done())
    assert second.refresh().is_waiting


def test_a_running_job_can_be_asked_to_end(scheduler: Scheduler, store: Store) -> None:
    first = scheduler.add_job_once(Echo, 1)
    take(store)
    second = scheduler.add_job_once(Echo, 1, priority=5, replace_running="cancel")

    assert second.is_postponed
    assert "Its end was requested (replaced by another add_job_once)" in first.why()


def test_what_becomes_of_a_running_job_is_after_or_cancel(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidOption, match="replace_running='kill': pass 'after' or 'cancel'"):
        scheduler.add_job_once(Echo, replace_running="kill")  # type: ignore[arg-type]


def test_an_unchanged_running_job_is_returned(scheduler: Scheduler, store: Store) -> None:
    first = scheduler.add_job_once(Echo, 1)
    take(store)

    assert scheduler.add_job_once(Echo, 1) == first


def test_eight_processes_at_once_add_one_job(url: str) -> None:  # PW-5
    assert (
        _at_once(url, lambda scheduler, number: [scheduler.add_job_once(Echo, {"same": True}) for _ in range(20)]) == 1
    )


def test_eight_processes_that_change_it_leave_one_job(url: str) -> None:  # PW-6
    change = lambda scheduler, number: [
        scheduler.add_job_once(Echo, {"same": True}, priority=turn % 20 - number) for turn in range(20)
    ]

    assert _at_once(url, change) == 1


def _at_once(url: str, act: Any) -> int:
    """Have eight processes act when all are ready, and return how many jobs are pending then."""
    with Scheduler(url) as scheduler:
        scheduler.stats()
        ready, tell_ready = os.pipe()
        go, tell_go = os.pipe()
        children = []
        for number in range(8):
            child = fork()
            if child == 0:
                status = 1
                try:
                    os.close(tell_go)
                    os.write(tell_ready, b".")
                    os.read(go, 1)
                    act(scheduler, number)
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(status)
            children.append(child)
        read = b""
        while len(read) < 8:
            read += os.read(ready, 8)
        os.close(tell_go)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
        for descriptor in (ready, tell_ready, go):
            os.close(descriptor)
        return len(list(scheduler.get_jobs()))
