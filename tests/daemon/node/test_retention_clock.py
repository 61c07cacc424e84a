"""A clock of the store that is set forward, while nodes work or while none does, removes no young job."""

from __future__ import annotations

import pytest

from taskqueue.daemon.node.figures import Figures
from taskqueue.daemon.node.maintenance import Retention
from taskqueue.daemon.settings import Settings
from taskqueue.model.query import EVERYTHING
from taskqueue.model.record import Record
from taskqueue.store import Store
from tests.daemon.node.conftest import SetClock
from tests.store.records import a_record

DAY = 86_400.0


def ended_now(store: Store, clock: SetClock) -> Record:
    """Return a record of the store that ended at this moment."""
    [added] = store.add([a_record()])
    canceled = store.cancel(added.id, "", clock.now())
    assert canceled is not None
    return canceled


def pruned(store: Store, retention: Retention) -> int:
    """Prune, and return how many records are left."""
    retention.prune()
    return len(store.find(EVERYTHING))


def leading(store: Store, clock: SetClock) -> Retention:
    """Return what a node prunes by that has just acquired its seat, and keeps canceled jobs for five days."""
    retention = Retention(store, Settings(name="a", keep_failed=5 * DAY), Figures(), lambda: clock.elapsed)
    retention.begin()
    return retention


def test_jobs_are_removed_when_their_time_has_passed(clock: SetClock, store: Store) -> None:
    retention = leading(store, clock)
    ended_now(store, clock)

    clock.elapsed += 5 * DAY
    assert pruned(store, retention) == 1
    clock.elapsed += 1
    assert pruned(store, retention) == 0


def test_a_clock_that_is_set_forward_makes_no_job_old(
    clock: SetClock, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    retention = leading(store, clock)
    ended_now(store, clock)
    assert pruned(store, retention) == 1

    clock.set_by(6 * DAY)
    assert pruned(store, retention) == 1
    [warning] = [line for line in caplog.messages if "set forward" in line]
    assert "ended jobs are kept 6 d longer," in warning

    ended_now(store, clock)  # it ends when the clock shows the wrong time
    clock.elapsed += 5 * DAY + 1
    assert pruned(store, retention) == 1


def test_a_node_that_starts_with_a_clock_that_is_ahead_removes_no_young_job(clock: SetClock, store: Store) -> None:
    ended_now(store, clock)
    clock.set_by(6 * DAY)

    retention = leading(store, clock)
    assert pruned(store, retention) == 1

    clock.elapsed += 5 * DAY + 1
    assert pruned(store, retention) == 0


def test_a_clock_that_was_behind_when_its_node_started_counts_after_a_week(
    clock: SetClock, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    retention = leading(store, clock)
    clock.set_by(1000 * DAY)
    assert pruned(store, retention) == 0
    assert "correct it if it is wrong; the new time counts in 7 d" in caplog.text
    ended_now(store, clock)

    clock.elapsed += 7 * DAY - 1
    assert pruned(store, retention) == 1
    clock.elapsed += 1
    retention.prune()
    assert pruned(store, retention) == 0


def test_a_clock_that_is_set_right_again_counts_as_before(clock: SetClock, store: Store) -> None:
    retention = leading(store, clock)
    clock.set_by(6 * DAY)
    assert pruned(store, retention) == 0
    clock.set_by(-6 * DAY)
    ended_now(store, clock)

    clock.elapsed += 5 * DAY + 1
    assert pruned(store, retention) == 0


def test_jobs_that_ended_by_a_clock_that_was_ahead_do_not_set_the_time(clock: SetClock, store: Store) -> None:
    clock.set_by(6 * DAY)
    ended_now(store, clock)
    clock.set_by(-6 * DAY)

    retention = leading(store, clock)
    ended_now(store, clock)
    clock.elapsed += 5 * DAY + 1
    assert pruned(store, retention) == 1
