"""Claims are held as long as they are renewed; seats and the lead by one incarnation at a time."""

from __future__ import annotations

from bson import ObjectId

from taskqueue.model.lifecycle.outcomes import HandedBack
from taskqueue.model.lifecycle.settle import lost
from taskqueue.store import ClaimState, Lease, Note, Settlement, Store
from taskqueue.store.bell import CONTROLS
from tests.store.conftest import Opener
from tests.store.records import (
    HOUR,
    LEASE,
    MINUTE,
    NOON,
    SECOND,
    WEB_1,
    WEB_1_AGAIN,
    WEB_2,
    a_record,
    claim,
    finished,
    ids,
    kept,
    rings,
    running,
    settle,
)


def a_lease(holder: object = WEB_1, **fields: object) -> Lease:
    return Lease(**{"name": "lead", "holder": holder, "since": NOON, "until": NOON + MINUTE, **fields})  # type: ignore[arg-type]


def test_a_renewal_extends_every_claim_of_its_holder_and_says_what_it_holds(store: Store) -> None:
    store.add([a_record() for _ in range(3)])
    mine = claim(store, 2).records
    [other] = claim(store, holder=WEB_2).records

    renewal = store.renew(WEB_1, NOON + HOUR, {})

    assert renewal.claims == {run.id: ClaimState(claims=1) for run in mine}
    assert [kept(store, run.id).ready_at for run in mine] == [NOON + HOUR] * 2
    assert kept(store, other.id).ready_at == NOON + LEASE
    assert renewal.others_end_at == NOON + LEASE


def test_a_renewal_without_claims_brings_nothing_down(store: Store) -> None:
    store.add([a_record()])

    renewal = store.renew(WEB_1, NOON + HOUR, {})

    assert (renewal.claims, renewal.others_end_at) == ({}, None)


def test_a_claim_that_was_lost_is_not_renewed(store: Store) -> None:
    run = running(store, a_record())
    settle(store, run, HandedBack())
    claim(store, holder=WEB_2)

    assert store.renew(WEB_1, NOON + HOUR, {run.id: Note(progress=50.0)}).claims == {}

    assert kept(store, run.id).progress == 0


def test_a_restarted_node_does_not_renew_the_claims_of_its_dead_predecessor(store: Store) -> None:
    run = running(store, a_record())

    renewal = store.renew(WEB_1_AGAIN, NOON + HOUR, {})

    assert (renewal.claims, renewal.others_end_at) == ({}, NOON + LEASE)
    assert kept(store, run.id).ready_at == NOON + LEASE


def test_notes_are_written_down_with_a_renewal(store: Store) -> None:
    run = running(store, a_record())
    note = Note(started_at=NOON, progress=33.3, progress_message="page 3", progress_at=NOON + SECOND, state="[3]")

    store.renew(WEB_1, NOON + HOUR, {run.id: note})

    noted = kept(store, run.id)
    assert (noted.started_at, noted.progress, noted.progress_message) == (NOON, 33.3, "page 3")
    assert (noted.progress_at, noted.state, noted.ready_at) == (NOON + SECOND, "[3]", NOON + HOUR)


def test_notes_are_written_down_without_extending_anything(store: Store) -> None:
    run = running(store, a_record())

    store.note(WEB_1, {run.id: Note(state='{"line":7}')})

    assert (kept(store, run.id).state, kept(store, run.id).ready_at) == ('{"line":7}', NOON + LEASE)


def test_a_note_leaves_what_it_does_not_mention(store: Store) -> None:
    run = running(store, a_record())
    store.note(
        WEB_1,
        {run.id: Note(started_at=NOON, progress=50.0, progress_message="half", progress_at=NOON, state="[1]")},
    )

    store.note(WEB_1, {run.id: Note()})
    store.note(WEB_1, {run.id: Note(state="[2]")})

    noted = kept(store, run.id)
    assert (noted.started_at, noted.progress, noted.progress_message, noted.state) == (NOON, 50.0, "half", "[2]")


def test_notes_of_others_and_on_unknown_jobs_are_ignored(store: Store) -> None:
    run = running(store, a_record())
    ended = finished(store, a_record())

    store.note(WEB_2, {run.id: Note(progress=50.0)})
    store.note(WEB_1_AGAIN, {run.id: Note(progress=50.0)})
    store.note(WEB_1, {ended.id: Note(progress=50.0, state="1"), ObjectId(): Note(progress=50.0)})

    assert kept(store, run.id).progress == 0
    assert kept(store, ended.id) == ended


def test_a_checkpoint_survives_the_claim(store: Store) -> None:
    run = running(store, a_record())
    store.note(WEB_1, {run.id: Note(state="[7]")})
    [present] = [kept(store, run.id)]
    settle(store, present, HandedBack())

    [again] = claim(store, holder=WEB_2).records

    assert again.state == "[7]"


def test_records_whose_lease_has_ended_are_found(opener: Opener) -> None:
    store, other = opener(), opener()
    first, second = running(store, a_record()), running(store, a_record(), now=NOON + SECOND)
    finished(store, a_record())
    store.add([a_record()])

    assert other.expired(NOON + LEASE - SECOND, 10) == []
    assert ids(other.expired(NOON + LEASE, 10)) == [first.id]
    assert set(ids(other.expired(NOON + HOUR, 10))) == {first.id, second.id}
    assert len(other.expired(NOON + HOUR, 1)) == 1


def test_what_other_incarnations_of_a_seat_hold_is_found(store: Store) -> None:
    old = running(store, a_record(), WEB_1)
    running(store, a_record(), WEB_1_AGAIN)
    running(store, a_record(), WEB_2)

    assert ids(store.orphaned("web-1", WEB_1_AGAIN.incarnation, 10)) == [old.id]
    assert store.orphaned("web-3", "x", 10) == []
    assert len(store.orphaned("web-1", "new", 1)) == 1


def test_what_one_incarnation_holds_is_found(store: Store) -> None:
    old = running(store, a_record(), WEB_1)
    new = running(store, a_record(), WEB_1_AGAIN)
    running(store, a_record(), WEB_2)

    assert ids(store.held(WEB_1, 10)) == [old.id]
    assert ids(store.held(WEB_1_AGAIN, 10)) == [new.id]
    running(store, a_record(), WEB_1)
    assert len(store.held(WEB_1, 1)) == 1


def test_who_holds_claims_at_a_seat_is_found_once(store: Store) -> None:
    for holder in (WEB_1, WEB_1, WEB_1_AGAIN, WEB_2):
        running(store, a_record(), holder)
    finished(store, a_record())

    found = store.holders([WEB_1.seat, "nowhere"])

    assert len(found) == 2
    assert set(found) == {WEB_1, WEB_1_AGAIN}
    assert store.holders([]) == []


def test_a_free_lease_is_taken(store: Store) -> None:
    lease = a_lease(about={"host": "büro", "pid": 1})

    assert store.acquire(lease, NOON) == lease
    assert store.leases() == [lease]


def test_a_lease_that_is_held_is_returned_as_it_is(opener: Opener) -> None:
    one, other = opener(), opener()
    held = one.acquire(a_lease(), NOON)

    assert other.acquire(a_lease(WEB_2, until=NOON + HOUR), NOON + MINUTE - SECOND) == held
    assert other.leases() == [held]


def test_a_holder_renews_its_lease_and_holds_it_since_the_beginning(store: Store) -> None:
    store.acquire(a_lease(), NOON)

    renewed = store.acquire(a_lease(since=NOON + SECOND, until=NOON + HOUR, about={"pid": 2}), NOON + SECOND)

    assert (renewed.since, renewed.until, renewed.about) == (NOON, NOON + HOUR, {"pid": 2})
    assert store.leases() == [renewed]


def test_a_lease_that_is_taken_rings(store: Store, opener: Opener) -> None:
    bell = opener().bell(CONTROLS)
    store.acquire(a_lease(), NOON)
    assert rings(bell)
    store.acquire(a_lease(WEB_2, until=NOON + 2 * HOUR), NOON + HOUR)
    assert rings(bell)
    bell.close()


def test_a_lease_that_is_over_is_free(store: Store) -> None:
    store.acquire(a_lease(), NOON)
    taken = a_lease(WEB_2, since=NOON + MINUTE, until=NOON + HOUR)

    assert store.acquire(taken, NOON + MINUTE) == taken


def test_another_incarnation_of_a_seat_is_another_holder(store: Store) -> None:
    held = store.acquire(a_lease(), NOON)

    assert store.acquire(a_lease(WEB_1_AGAIN), NOON) == held


def test_who_let_a_lease_run_out_cannot_renew_or_resign_that_of_the_next_holder(store: Store) -> None:
    store.acquire(a_lease(), NOON)
    taken = store.acquire(a_lease(WEB_1_AGAIN, since=NOON + MINUTE, until=NOON + HOUR), NOON + MINUTE)

    assert store.acquire(a_lease(until=NOON + 2 * HOUR), NOON + MINUTE) == taken
    store.resign("lead", WEB_1)

    assert store.leases() == [taken]
    assert taken.holder == WEB_1_AGAIN


def test_a_lease_that_was_resigned_is_free(store: Store) -> None:
    store.acquire(a_lease(), NOON)

    store.resign("lead", WEB_2)
    assert len(store.leases()) == 1

    store.resign("lead", WEB_1)
    assert store.leases() == []
    assert store.acquire(a_lease(WEB_2), NOON).holder == WEB_2


def test_leases_of_different_names_do_not_meet(store: Store) -> None:
    seat, lead = a_lease(name="seat:web-1"), a_lease(WEB_2, name="lead")

    store.acquire(seat, NOON)
    store.acquire(lead, NOON)

    assert sorted(store.leases(), key=lambda lease: lease.name) == [lead, seat]


def test_a_claim_that_is_renewed_while_another_takes_it_for_lost_stays(store: Store) -> None:
    run = running(store, a_record())
    [late] = store.expired(NOON + LEASE, 10)
    loss = Settlement(claims=run.claims, holder=WEB_1, after=lost(late, NOON + LEASE), lease_end=late.ready_at)

    store.renew(WEB_1, NOON + HOUR, {})

    assert store.settle([loss], NOON + LEASE) == set()
    assert kept(store, run.id).ready_at == NOON + HOUR
    assert store.settle([loss._replace(lease_end=NOON + HOUR)], NOON + HOUR) == {run.id}
