"""Releases are marked, and errors that come after one are new since it: every store keeps a bounded number of marks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taskqueue.errors import InvalidOption
from taskqueue.insight.failure_groups import Trend
from taskqueue.insight.releases import KEPT_FOR, Release, releases_of
from taskqueue.scheduler import releases
from taskqueue.scheduler.failure_states import KEPT_BY
from taskqueue.scheduler.operations import StoreOperations
from taskqueue.store import Lease, Store
from tests.nodes import eventually
from tests.store.conftest import Opener
from tests.store.records import WEB_1
from tests.store.test_failure_states import fail, findings, group

MINUTE = timedelta(minutes=1)


def names(store: Store) -> list[str]:
    """Return the names of the marked releases."""
    return [release.name for release in releases_of(store.leases())]


def keep(store: Store, name: str, ago: timedelta) -> None:
    """Keep the mark of a release of some time ago."""
    now = store.now()
    release = Release(name=name, at=now - ago, by="ann")
    store.acquire(Lease(name=release.key, holder=KEPT_BY, since=release.at, until=now, about=release.about), now)


def test_a_release_is_marked_once_by_several_hosts_and_again_after_a_rollback(opener: Opener) -> None:
    one, other = StoreOperations(opener()), StoreOperations(opener())
    store = opener()

    first = one.mark_release("v42", by="ann")
    assert other.mark_release(" v42 ", by="bob") == first
    assert (first.name, first.by) == ("v42", "ann")
    eventually(lambda: store.now() > first.at)
    one.mark_release("v43")
    eventually(lambda: store.now() > releases_of(store.leases())[-1].at)
    again = other.mark_release("v42")

    assert again.at > first.at
    assert names(store) == ["v42", "v43", "v42"]
    assert other.unmark_release("v42")
    assert not one.unmark_release("v42")
    assert names(store) == ["v43"]


def test_a_forgotten_release_is_marked_since_a_time_before(store: Store) -> None:
    operations = StoreOperations(store)
    operations.mark_release("v43")

    v42 = operations.mark_release("v42", "20m", by="ann")

    assert store.now() - v42.at >= 20 * MINUTE
    assert operations.mark_release("v42", store.now() - 10 * MINUTE) == v42
    assert names(store) == ["v42", "v43"]
    for at in ("+5m", store.now() + MINUTE, "91d"):
        with pytest.raises(InvalidOption, match=r"at=.*: pass a time of the last 90 days, or how long ago: '20m'"):
            operations.mark_release("v44", at)
    with pytest.raises(InvalidOption, match="at='soon' is not a time: pass how long ago"):
        operations.mark_release("v44", "soon")


def test_an_error_that_comes_after_a_release_is_new_since_it(store: Store) -> None:
    keep(store, "v41", timedelta(days=2))
    fail(store)
    keep(store, "v42", MINUTE)
    eventually(lambda: findings(store))

    judged = group(store)

    assert (judged.trend, judged.release and judged.release.name) == (Trend.NEW, "v42")
    [says] = findings(store)
    assert says.startswith("shop:MakeInvoice fails with a new error since release v42, first at ")


def test_marks_survive_a_flush_and_are_bounded_in_number_and_age(store: Store) -> None:
    keep(store, "outdated", KEPT_FOR + MINUTE)
    for number in range(releases.MOST):
        keep(store, f"v{number}", MINUTE * (releases.MOST - number))

    StoreOperations(store).mark_release("latest")
    store.flush()

    assert names(store) == [*(f"v{number}" for number in range(1, releases.MOST)), "latest"]


def test_a_mark_that_cannot_be_read_is_left_out(store: Store) -> None:
    now = store.now()
    store.acquire(Lease(name="release:1:v1", holder=WEB_1, since=now, until=now, about={"name": "v1"}), now)

    StoreOperations(store).mark_release("v42")

    assert names(store) == ["v42"]


@pytest.mark.parametrize("name", ["", "  ", "x" * 65, "a\nb", None, 42])
def test_what_can_be_no_name_of_a_release_is_refused(store: Store, name: Any) -> None:
    operations = StoreOperations(store)
    for operation in (operations.mark_release, operations.unmark_release):
        with pytest.raises(InvalidOption, match=r"release=.*: pass the name of a release, 1 to 64 printable"):
            operation(name)
    assert names(store) == []
