"""Seats and the lead: one holder each, free at once when the last process of a holder on this host is gone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from taskqueue.daemon import seat
from taskqueue.daemon.election import LEAD, Election
from taskqueue.daemon.seat import Seat, SeatLock, held_by
from taskqueue.errors import ConfigError
from taskqueue.model.record import Holder
from taskqueue.store import Lease, Store
from taskqueue.store.opening import open_store

TTL = timedelta(seconds=30)
FIRST = Holder(seat="web-1", incarnation="first")
SECOND = Holder(seat="web-1", incarnation="second")
HERE = {"machine": seat.machine(), "host": "here", "pid": 7}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(str(tmp_path / "jobs.db"))
    yield store
    store.close()


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[tuple[SeatLock, SeatLock]]:
    pair = (SeatLock(str(tmp_path), "web-1"), SeatLock(str(tmp_path), "web-1"))
    yield pair
    for lock in pair:
        lock.close()


def test_a_free_seat_is_taken_and_kept(store: Store, locks: tuple[SeatLock, SeatLock]) -> None:
    ours = Seat(store, FIRST, TTL, locks[0])

    assert ours.sit(HERE, store.now()).is_ours
    began = ours.lease
    assert ours.renew(HERE, store.now() + TTL / 2).is_ours
    assert began is not None
    assert ours.lease is not None
    assert ours.lease.since == began.since
    assert ours.lease.until > began.until


def test_a_seat_whose_holder_lives_is_not_taken(store: Store, locks: tuple[SeatLock, SeatLock]) -> None:
    Seat(store, FIRST, TTL, locks[0]).sit(HERE, store.now())

    standing = Seat(store, SECOND, TTL, locks[1]).sit(HERE, store.now())

    assert not standing.is_ours
    assert standing.lease.holder == FIRST
    assert "here, pid 7" in held_by(standing.lease)


def test_a_seat_whose_holder_is_gone_from_this_host_is_taken_before_its_lease_ends(
    store: Store, locks: tuple[SeatLock, SeatLock]
) -> None:
    Seat(store, FIRST, TTL, locks[0]).sit(HERE, store.now())
    locks[0].close()

    assert Seat(store, SECOND, TTL, locks[1]).sit(HERE, store.now()).is_ours


def test_a_holder_on_another_host_is_waited_for_until_its_lease_ends(
    store: Store, locks: tuple[SeatLock, SeatLock]
) -> None:
    Seat(store, FIRST, TTL, locks[0]).sit({"machine": "elsewhere"}, store.now())
    ours = Seat(store, SECOND, TTL, locks[1])

    assert not ours.sit(HERE, store.now()).is_ours
    assert ours.sit(HERE, store.now() + 2 * TTL).is_ours


def test_a_lock_file_that_was_removed_while_held_frees_no_seat(store: Store, tmp_path: Path) -> None:
    held = SeatLock(str(tmp_path), "web-1")
    Seat(store, FIRST, TTL, held).sit(HERE, store.now())
    held.path.unlink()
    new = SeatLock(str(tmp_path), "web-1")
    second = Seat(store, SECOND, TTL, new)

    assert not second.sit(HERE, store.now()).is_ours
    held.close()
    assert not second.sit(HERE, store.now()).is_ours
    assert second.sit(HERE, store.now() + 2 * TTL).is_ours
    new.close()


def test_a_seat_that_was_taken_without_its_lock_is_free_when_its_lease_ends_and_not_before(
    store: Store, locks: tuple[SeatLock, SeatLock]
) -> None:
    first = Seat(store, FIRST, TTL, locks[0])
    assert locks[1].take()  # what is left of a holder whose lease is over
    assert first.sit(HERE, store.now()).is_ours
    locks[1].release()

    assert not Seat(store, SECOND, TTL, locks[1]).sit(HERE, store.now()).is_ours
    assert first.renew(HERE, store.now()).is_ours
    assert not locks[1].take()


def test_who_stands_by_keeps_no_lock(store: Store, locks: tuple[SeatLock, SeatLock]) -> None:
    Seat(store, FIRST, TTL, locks[0]).sit({"machine": "elsewhere"}, store.now())
    locks[0].release()

    Seat(store, SECOND, TTL, locks[1]).sit(HERE, store.now())

    assert locks[0].take()


@pytest.mark.parametrize(
    ("url", "other"),
    [
        ("sqlite:///x/jobs.db", "sqlite:///x/jobs.db?mode=0660"),
        ("mongodb://a:1,b:2/jobs", "mongodb://user:secret@B:2,A:1/jobs?replicaSet=rs0"),
        ("mongodb://a/jobs?taskqueue.prefix=x", "mongodb://a/jobs?w=1&taskqueue.prefix=x"),
    ],
)
def test_two_addresses_of_one_store_have_one_lock(url: str, other: str) -> None:
    first, second, elsewhere = SeatLock(url, "web-1"), SeatLock(other, "web-1"), SeatLock(f"{url}2", "web-1")

    assert first.identity == second.identity != elsewhere.identity
    for lock in (first, second, elsewhere):
        lock.close()


def test_a_resigned_seat_is_free(store: Store, locks: tuple[SeatLock, SeatLock]) -> None:
    first = Seat(store, FIRST, TTL, locks[0])
    first.sit({"machine": "elsewhere"}, store.now())

    first.resign()

    assert first.lease is None
    assert Seat(store, SECOND, TTL, locks[1]).sit(HERE, store.now()).is_ours


def test_a_lock_is_shared_by_inheriting_its_descriptor(locks: tuple[SeatLock, SeatLock]) -> None:
    assert locks[0].take()
    inherited = os.dup(locks[0].fileno())
    locks[0].close()
    locks[0].close()

    assert not locks[1].take()
    os.close(inherited)
    assert locks[1].take()


def test_lock_files_go_where_the_service_manager_says(
    tmp_path: Path, locks: tuple[SeatLock, SeatLock], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    lock = SeatLock("sqlite:///x", "a")
    lock.close()

    assert lock.path.parent == tmp_path / "taskqueue"
    assert lock.path.parent.stat().st_mode & 0o777 == 0o700


def test_a_folder_for_locks_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taskqueue").write_text("in the way")
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))

    with pytest.raises(ConfigError, match="lock"):
        SeatLock("sqlite:///x", "a")


def test_a_folder_for_locks_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taskqueue").mkdir()
    os.chown(tmp_path / "taskqueue", 12345, 12345)
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))

    with pytest.raises(ConfigError, match="another user"):
        SeatLock("sqlite:///x", "a")


def test_one_of_two_leads_and_the_other_knows_when_it_may_try_again(store: Store) -> None:
    first, second = Election(store, FIRST, TTL), Election(store, SECOND, TTL)

    first.run(store.now())
    second.run(store.now())

    assert (first.leads, second.leads) == (True, False)
    assert first.others_until is None
    assert second.others_until is not None


def test_a_resigned_lead_passes_on(store: Store) -> None:
    first, second = Election(store, FIRST, TTL), Election(store, SECOND, TTL)
    first.run(store.now())

    first.resign()
    second.run(store.now())

    assert (first.leads, second.leads) == (False, True)


def test_a_lead_that_was_taken_away_is_noticed_with_the_next_renewal(store: Store) -> None:
    first = Election(store, FIRST, TTL)
    first.run(store.now())
    [lease] = [lease for lease in store.leases() if lease.name == LEAD]
    store.resign(LEAD, FIRST)
    store.acquire(replace(lease, holder=SECOND), store.now())

    first.run(store.now())

    assert not first.leads


def test_a_lead_without_time_left_is_not_trusted(store: Store) -> None:
    brief = Election(store, FIRST, timedelta(seconds=0.5))
    brief.run(store.now())

    assert not brief.leads


def test_a_lease_tells_who_holds_it_even_when_it_says_little(store: Store) -> None:
    bare = Lease(name="seat:x", holder=FIRST, since=store.now(), until=store.now())

    assert "an unknown host" in held_by(bare)
