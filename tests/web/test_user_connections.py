"""Each user with calls has a connection to the store of their own."""

from __future__ import annotations

from contextlib import ExitStack
from copy import copy

import pytest

from taskqueue import Scheduler
from taskqueue.errors import StoreUnavailable
from taskqueue.web.user_shares import MOST_CONNECTIONS, UserConnections
from tests.scheduler.jobs import Echo


def test_users_have_connections_of_their_own_which_end_with_the_dashboard(url: str) -> None:
    with Scheduler(url) as scheduler:
        connections = UserConnections(scheduler)
        with ExitStack() as calls:
            ana, again, bob = [calls.enter_context(connections.of(name)) for name in ("ana", "ana", "bob")]
            assert ana is again
            assert len({ana, bob, scheduler}) == 3
            others = [calls.enter_context(connections.of(f"user {number}")) for number in range(MOST_CONNECTIONS)]
            assert [one is scheduler for one in others] == [False] * (MOST_CONNECTIONS - 2) + [True] * 2
            ana.add_job(Echo, 1)
            assert bob.count_jobs() == scheduler.count_jobs() == 1
        with connections.of("cid") as reused:
            assert reused in (ana, bob, *others)
            connections.end()
            assert reused.count_jobs() == 1  # it ends with the call
        for ended in (ana, bob, reused):
            with pytest.raises(StoreUnavailable, match="it was closed"):
                ended.count_jobs()
        assert scheduler.count_jobs() == 1


@pytest.mark.parametrize("url", ["mongodb"], indirect=True)
def test_a_store_that_takes_calls_at_once_has_one_client(scheduler: Scheduler) -> None:
    with UserConnections(scheduler).of("ana") as ana:
        assert ana is scheduler


def test_a_scheduler_whose_jobs_run_at_once_has_one_store() -> None:
    with Scheduler(immediate=True) as scheduler:
        assert copy(scheduler) is scheduler


def test_a_copy_opens_the_same_file_in_another_folder(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("first"))
    with Scheduler("jobs.db") as scheduler:
        scheduler.add_job(Echo, 1)
        monkeypatch.chdir(tmp_path_factory.mktemp("second"))
        with copy(scheduler) as other:
            assert other is not scheduler
            assert other.count_jobs() == 1
