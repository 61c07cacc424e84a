"""Limits hold inside the claim, for all nodes together (LZQ-10, X-22): never one job more than declared."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from threading import Lock
from typing import Any

import pytest
from bson import ObjectId

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.continuation import Phase
from taskqueue.model.lifecycle.outcomes import CheckFailed, Done, Failed, HandedBack, NotReady, Stepped
from taskqueue.model.lifecycle.recovered_copy import copy
from taskqueue.model.lifecycle.settle import lost
from taskqueue.model.limits import LEEWAY, Declared, Limit, Rate, lane, limit_keys_of, with_concurrency
from taskqueue.model.query import PENDING
from taskqueue.model.record import Cause, Dependency, Holder, OnFailure, Options, Record, Status
from taskqueue.model.retry import FixedRetry
from taskqueue.store import ClaimRequest, Note, Settlement, Store
from taskqueue.store.bell import WORK
from tests.store.conftest import Opener
from tests.store.fair import ordered
from tests.store.records import (
    BROKEN,
    HOUR,
    LEASE,
    MINUTE,
    NOON,
    SECOND,
    WEB_1,
    WEB_2,
    a_record,
    behind,
    claim,
    finished,
    ids,
    kept,
    rings,
    running,
    settle,
)


@pytest.fixture(params=["fair", pytest.param("strict", marks=pytest.mark.long)])
def store(request: pytest.FixtureRequest, opener: Opener) -> Store:
    """Return an empty store, whose claims are in either order."""
    return ordered(opener(), request.param)


COUNTED = MINUTE + timedelta(seconds=LEEWAY)
"""How long a rate of so many a minute counts a start."""


def limited(*limits: Declared, data: object = None, job: str = "app:Mail", **fields: object) -> Record:
    """Return a record with limits."""
    return a_record(job=job, lane=lane(limits, job, data), **fields)


def test_what_limits_a_job_is_kept(store: Store) -> None:
    added = limited(Limit(5, by="bucket"), Rate(100, per=60), data={"bucket": "a"})

    assert store.add([added]) == [added]
    assert kept(store, added.id) == added


def test_a_claim_takes_no_more_than_the_limit(store: Store) -> None:
    records = [limited(Limit(2)) for _ in range(5)]
    store.add(records)

    first = claim(store, 9).records
    assert ids(first) == ids(records[:2])
    assert claim(store, 9, holder=WEB_2).records == []

    settle(store, first[0])
    assert ids(claim(store, 9, holder=WEB_2).records) == [records[2].id]


def test_one_certain_job_is_claimed_within_its_limits(store: Store) -> None:
    first, other, unlimited = limited(Limit(1)), limited(Limit(1)), a_record()
    store.add([first, other, unlimited])

    taken = store.claim_one(other.id, WEB_1, NOON, NOON + LEASE)
    assert taken is not None
    assert (taken, taken.holder, taken.claims) == (kept(store, other.id), WEB_1, 1)
    assert store.claim_one(other.id, WEB_2, NOON, NOON + LEASE) is None
    assert store.claim_one(first.id, WEB_2, NOON, NOON + LEASE) is None
    assert ids(claim(store, 9, holder=WEB_2).records) == [unlimited.id]

    settle(store, taken)
    assert store.claim_one(first.id, WEB_2, NOON, NOON + LEASE) is not None


def test_one_certain_job_is_not_claimed_when_it_is_late_or_has_to_wait(store: Store) -> None:
    late = a_record(expires_at=NOON - SECOND)
    later = a_record(status=Status.POSTPONED, ready_at=NOON + HOUR)
    store.add([late, later])

    assert store.claim_one(late.id, WEB_1, NOON, NOON + LEASE) is None
    assert store.claim_one(later.id, WEB_1, NOON, NOON + LEASE) is None
    assert store.claim_one(JobId(), WEB_1, NOON, NOON + LEASE) is None


def test_of_many_who_claim_one_job_one_gets_it(opener: Opener) -> None:
    stores = [opener() for _ in range(4)]
    wanted = limited(Limit(2))
    stores[0].add([wanted])
    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(lambda store: store.claim_one(wanted.id, WEB_1, NOON, NOON + LEASE), stores))

    assert len([one for one in taken if one is not None]) == 1


def test_a_limit_counts_for_each_value_of_its_key(store: Store) -> None:
    records = [limited(Limit(1, by="bucket"), data={"bucket": name}) for name in ("a", "a", "b", "b")]
    store.add(records)

    assert ids(claim(store, 9).records) == [records[0].id, records[2].id]


def test_jobs_of_several_classes_share_a_limit_by_its_name(store: Store) -> None:
    shared = Limit(2, name="api")
    records = [limited(shared, job=f"app:Job{number}") for number in range(3)]
    store.add(records)

    assert ids(claim(store, 9).records) == ids(records[:2])


def test_all_limits_of_a_job_hold_together(store: Store) -> None:
    both = (Limit(3), Limit(2, by="bucket"))
    records = [limited(*both, data={"bucket": name}) for name in ("a", "a", "a", "b", "b")]
    store.add(records)

    taken = claim(store, 9).records
    assert ids(taken) == [records[0].id, records[1].id, records[3].id]
    assert store.limit_usage([slot.key for slot in limit_keys_of(records[0].lane)], NOON) == dict(
        zip([slot.key for slot in limit_keys_of(records[0].lane)], [3, 2], strict=True)
    )


def test_waiting_jobs_are_counted_by_lane(store: Store) -> None:
    kinds = [limited(Limit(1, by="bucket"), data={"bucket": name}) for name in ("a", "b")]
    later = limited(Limit(1), status=Status.POSTPONED, cause=Cause.SCHEDULED, ready_at=NOON + HOUR)
    records = [replace(kind, id=ObjectId()) for kind in (kinds[0], kinds[0], kinds[1])]
    store.add([*records, later, a_record()])

    assert store.waiting_lanes(100) == {kinds[0].lane: 2, kinds[1].lane: 1}
    assert sum(store.waiting_lanes(2).values()) == 2
    claim(store, 9)
    assert store.waiting_lanes(100) == {kinds[0].lane: 1}


@pytest.mark.parametrize("last", ["first", "second", "license"])
def test_limits_and_dependencies_of_a_job_hold_together(store: Store, last: str) -> None:
    license_ = Limit(1, name="license")
    runs = {name: running(store, a_record()) for name in ("first", "second")}
    runs["license"] = running(store, limited(license_))
    edges = tuple(Dependency(id=runs[name].id, on_failure=OnFailure.CANCEL) for name in ("first", "second"))
    awaited = tuple(edge.id for edge in edges)
    job = behind(*awaited, depends_on=edges, cause=Cause.BEHIND, lane=lane((license_, Limit(2)), "app:Mail", None))
    store.add([job])

    for name in sorted(runs, key=lambda name: name == last):
        assert claim(store, 9).records == []
        settle(store, runs[name])

    assert ids(claim(store, 9).records) == [job.id]


def test_a_full_lane_lets_others_pass_and_keeps_its_order(store: Store) -> None:
    first = limited(Limit(1))
    blocked = limited(Limit(1), priority=-20)
    store.add([first])
    [run] = claim(store).records
    free = [a_record() for _ in range(2)]
    store.add([blocked, *free])

    assert ids(claim(store, 9).records) == ids(free)
    settle(store, run)
    assert ids(claim(store, 9).records) == [blocked.id]


def test_limited_and_other_jobs_are_taken_in_one_order(store: Store) -> None:
    records = [
        limited(Limit(9), ready_at=NOON + number * SECOND) if number % 2 else a_record(ready_at=NOON + number * SECOND)
        for number in range(6)
    ]
    store.add(records)

    assert ids(claim(store, 4, now=NOON + HOUR).records) == ids(records[:4])
    assert ids(claim(store, 4, now=NOON + HOUR).records) == ids(records[4:])


def test_chosen_queues_and_own_children_keep_to_limits_too(store: Store) -> None:
    mail = [limited(Limit(3), queue="mail", options=Options(force_spawn=number == 2)) for number in range(3)]
    other = limited(Limit(3), queue="other")
    store.add([*mail, other])

    assert ids(claim(store, 1, queues={"mail": None}).records) == [mail[0].id]
    assert ids(claim(store, 9, queues={"mail": 1}).records) == [mail[1].id]
    assert ids(claim(store, 9, forced=9, queues={"mail": 5}).records) == [mail[2].id]
    assert claim(store, 9, queues={"other": 5}).records == []


@pytest.mark.parametrize("outcome", [HandedBack(), Failed(failure=BROKEN), Done()])
def test_every_end_of_a_run_frees_its_place(store: Store, outcome: HandedBack | Failed | Done) -> None:
    store.add([limited(Limit(1), options=Options(retry=FixedRetry(times=1, interval=60))), limited(Limit(1))])
    [run] = claim(store).records
    settle(store, run, outcome)

    assert len(claim(store, 9).records) == 1
    assert claim(store, 9).records == []


def test_a_lost_run_frees_its_place_when_it_is_taken_back(store: Store) -> None:
    store.add([limited(Limit(1)), limited(Limit(1))])
    claim(store)
    [expired] = store.expired(NOON + LEASE, 9)
    assert expired.holder is not None
    after = lost(expired, NOON + LEASE)
    store.settle([Settlement(claims=expired.claims, holder=expired.holder, after=after)], NOON + LEASE)

    assert len(claim(store, 9, now=NOON + LEASE).records) == 1


def test_a_place_is_kept_as_long_as_its_lease_is_renewed(store: Store) -> None:
    store.add([limited(Limit(1)), limited(Limit(1))])
    claim(store)
    for minute in range(1, 4):
        store.renew(WEB_1, NOON + minute * MINUTE + LEASE, {})

    assert claim(store, 9, holder=WEB_2, now=NOON + 3 * MINUTE).records == []


def test_a_place_that_becomes_free_rings(opener: Opener) -> None:
    store, listening = opener(), opener()
    store.add([limited(Limit(1)), limited(Limit(1))])
    [run] = claim(store).records
    bell = listening.bell(WORK)

    settle(store, run)

    assert rings(bell)
    bell.close()


def begin(store: Store, record: Record, at: datetime) -> None:
    """Tell when a claimed record began."""
    assert record.holder is not None
    store.note(record.holder, {record.id: Note(started_at=at, loaded_at=at)})


def test_a_rate_counts_starts_in_any_window(store: Store) -> None:
    records = [limited(Rate(2, per=60)) for _ in range(5)]
    store.add(records)
    taken = claim(store, 9)
    assert ids(taken.records) == ids(records[:2])
    begin(store, taken.records[0], NOON + 10 * SECOND)
    begin(store, taken.records[1], NOON + 40 * SECOND)

    for run in taken.records:
        settle(store, changed_start(store, run), Done(), NOON + 41 * SECOND)
    early = claim(store, 9, now=NOON + 70 * SECOND)
    assert (early.records, early.next_at) == ([], NOON + 10 * SECOND + COUNTED)
    assert ids(claim(store, 9, now=NOON + 10 * SECOND + COUNTED).records) == [records[2].id]
    full = claim(store, 9, now=NOON + 100 * SECOND)  # the first start is over, and none but the second ends soon
    assert (full.records, full.next_at) == ([], NOON + 40 * SECOND + COUNTED)
    assert ids(claim(store, 9, now=NOON + 40 * SECOND + COUNTED).records) == [records[3].id]


def changed_start(store: Store, run: Record) -> Record:
    """Return the run with the start that the store knows."""
    return replace(run, started_at=kept(store, run.id).started_at)


def test_the_starts_that_a_rate_counts_say_when_they_count_no_more(store: Store) -> None:
    store.add([limited(Rate(3, per=60), Limit(9, by="to")) for _ in range(3)])
    runs = claim(store, 9).records
    begin(store, runs[0], NOON + 40 * SECOND)
    begin(store, runs[1], NOON + 10 * SECOND)
    rate, limit = sorted(limit_keys_of(runs[0].lane), key=lambda limit_key: limit_key.per is None)

    ends = [NOON + 10 * SECOND + COUNTED, NOON + 40 * SECOND + COUNTED]
    assert store.rate_ends(rate.key, NOON + 41 * SECOND, 9) == ends  # the third one has not begun
    assert store.rate_ends(rate.key, NOON + 41 * SECOND, 1) == ends[:1]
    assert store.rate_ends(rate.key, ends[0], 9) == ends[1:]
    assert store.rate_ends(limit.key, NOON + 41 * SECOND, 9) == []


def test_a_rate_is_counted_from_the_start_and_not_from_the_claim(store: Store) -> None:
    store.add([limited(Rate(1, per=60)) for _ in range(3)])
    [run] = claim(store).records
    store.renew(WEB_1, NOON + 10 * MINUTE, {})

    waiting = claim(store, now=NOON + 5 * MINUTE)  # claimed long ago, and not begun yet
    assert waiting.records == []
    assert waiting.next_at is not None
    begin(store, run, NOON + 5 * MINUTE)
    assert claim(store, now=NOON + 6 * MINUTE).records == []
    assert len(claim(store, now=NOON + 5 * MINUTE + COUNTED).records) == 1  # though the first one still runs


def test_a_rate_does_not_count_from_before_the_class_is_loaded(store: Store) -> None:
    store.add([limited(Rate(1, per=60)) for _ in range(2)])
    [run] = claim(store).records
    store.renew(WEB_1, NOON + HOUR, {run.id: Note(started_at=NOON)})  # and the class takes ten minutes to load

    assert claim(store, now=NOON + 9 * MINUTE).records == []
    begin(store, run, NOON + 10 * MINUTE)
    assert claim(store, now=NOON + 11 * MINUTE).records == []
    assert len(claim(store, now=NOON + 10 * MINUTE + COUNTED).records) == 1


def test_a_rate_counts_a_start_for_its_period_at_most_after_the_clock_was_set_back(store: Store) -> None:
    store.add([limited(Rate(1, per=60), ready_at=NOON - HOUR) for _ in range(2)])
    [run] = claim(store).records
    begin(store, run, NOON)
    settle(store, changed_start(store, run), Done())
    set_back = NOON - 10 * MINUTE

    full = claim(store, now=set_back)
    assert full.records == []
    assert full.next_at is not None
    assert full.next_at <= set_back + COUNTED
    assert claim(store, now=set_back + 30 * SECOND).records == []
    assert len(claim(store, now=set_back + COUNTED).records) == 1


def test_a_claim_that_never_began_counts_for_no_rate(store: Store) -> None:
    store.add([limited(Rate(1, per=60))])
    [run] = claim(store).records
    settle(store, run, HandedBack())

    assert len(claim(store).records) == 1


@pytest.mark.parametrize("outcome", [HandedBack(), NotReady(reason="closed"), CheckFailed(failure=BROKEN)])
def test_a_claim_that_never_began_counts_for_no_rate_after_a_run_that_did(
    store: Store, outcome: HandedBack | NotReady | CheckFailed
) -> None:
    store.add([limited(Rate(2, per=60), options=Options(retry=FixedRetry(times=5, interval=0)))])
    [run] = claim(store).records
    begin(store, run, NOON)
    settle(store, changed_start(store, run), Failed(failure=BROKEN))
    [again] = claim(store, now=NOON + 2 * SECOND).records
    settle(store, again, outcome, NOON + 3 * SECOND)

    [third] = claim(store, now=NOON + 30 * SECOND).records  # one place is left by the only start
    begin(store, third, NOON + 30 * SECOND)
    settle(store, changed_start(store, third), Failed(failure=BROKEN), NOON + 31 * SECOND)
    assert claim(store, now=NOON + 59 * SECOND).records == []


@pytest.mark.parametrize("is_canceled", [False, True])
def test_a_step_counts_as_a_start(store: Store, is_canceled: bool) -> None:
    stepwise = limited(Rate(1, per=60))
    store.add([stepwise, limited(Rate(1, per=60))])
    [run] = claim(store).records
    if is_canceled:
        store.cancel(run.id, "enough", NOON)
    settle(store, replace(run, started_at=NOON), Stepped(phase=Phase.RUNNING))

    assert claim(store, 9, now=NOON + MINUTE).records == []
    assert len(claim(store, 9, now=NOON + COUNTED).records) == 1


def test_a_retry_counts_as_a_start(store: Store) -> None:
    store.add([limited(Rate(1, per=60), options=Options(retry=FixedRetry(times=5, interval=0)))])
    [run] = claim(store).records
    begin(store, run, NOON)
    settle(store, changed_start(store, run), Failed(failure=BROKEN))

    assert claim(store, now=NOON + MINUTE).records == []
    assert len(claim(store, now=NOON + COUNTED).records) == 1


def test_a_lost_run_may_have_begun_and_counts(store: Store) -> None:
    store.add([limited(Rate(1, per=60)), limited(Rate(1, per=60))])
    claim(store)
    lose(store)

    assert claim(store, 9, now=NOON + LEASE + MINUTE).records == []
    assert len(claim(store, 9, now=NOON + LEASE + COUNTED).records) == 1


def test_a_run_that_was_lost_while_its_class_was_loaded_may_have_begun_and_counts(store: Store) -> None:
    store.add([limited(Rate(1, per=60)) for _ in range(2)])
    [run] = claim(store).records
    store.note(WEB_1, {run.id: Note(started_at=NOON)})
    lose(store)

    assert claim(store, 9, now=NOON + LEASE + MINUTE).records == []
    assert len(claim(store, 9, now=NOON + LEASE + COUNTED).records) == 1


def test_a_lost_run_counts_from_when_it_began_if_that_is_known(store: Store) -> None:
    store.add([limited(Rate(1, per=60)) for _ in range(2)])
    [run] = claim(store).records
    begin(store, run, NOON)
    lose(store)

    assert claim(store, 9, now=NOON + MINUTE).records == []
    assert len(claim(store, 9, now=NOON + COUNTED).records) == 1


def lose(store: Store) -> None:
    """End the only claim as lost, with its lease."""
    [expired] = store.expired(NOON + LEASE, 9)
    assert expired.holder is not None
    after = lost(expired, NOON + LEASE)
    loss = Settlement(claims=expired.claims, holder=expired.holder, after=after, is_unseen=True)
    assert store.settle([loss], NOON + LEASE) == {expired.id}


@pytest.mark.parametrize("is_asked_to_end", [True, False])
def test_a_lost_run_counts_also_if_its_job_is_canceled(store: Store, is_asked_to_end: bool) -> None:
    store.add([limited(Rate(1, per=60)) for _ in range(2)])
    [run] = claim(store).records
    if is_asked_to_end:
        store.cancel(run.id, "enough", NOON)
    lose(store)
    store.cancel(run.id, "enough", NOON + LEASE)

    assert kept(store, run.id).status is Status.CANCELED
    assert claim(store, 9, now=NOON + LEASE + MINUTE).records == []
    assert len(claim(store, 9, now=NOON + LEASE + COUNTED).records) == 1


def test_what_is_over_is_removed_with_the_events(store: Store) -> None:
    store.add([limited(Rate(1, per=60))])
    [run] = claim(store).records
    begin(store, run, NOON)
    settle(store, changed_start(store, run))
    [slot] = limit_keys_of(run.lane)

    store.prune({}, NOON + HOUR, 100)

    assert store.limit_usage([slot.key], NOON) == {slot.key: 0}


def test_many_nodes_never_take_more_together(opener: Opener) -> None:
    """X-22: claimers at once, and at no moment more than the limit."""
    nodes = [(opener(), Holder(seat=f"web-{number}", incarnation=f"a{number}")) for number in range(4)]
    nodes[0][0].add([limited(Limit(3, by="bucket"), data={"bucket": number % 2}) for number in range(60)])

    running: Counter[str] = Counter()
    most: list[int] = []
    lock = Lock()

    def work(store: Store, holder: Holder) -> int:
        done = 0
        patience = time.monotonic() + 60
        while time.monotonic() < patience and store.count(PENDING):
            runs = claim(store, 8, holder=holder).records
            with lock:
                running.update(run.lane for run in runs)
                most.append(max(running.values(), default=0))
            for run in runs:
                with lock:
                    running[run.lane] -= 1
                done += len(settle(store, run))
        return done

    with ThreadPoolExecutor(len(nodes)) as threads:
        settled = list(threads.map(lambda node: work(*node), nodes))

    assert sum(settled) == 60
    assert max(most) == 3


def test_a_noisy_key_does_not_starve_others(store: Store) -> None:
    store.add([limited(Limit(2, by="customer"), data={"customer": "noisy"}) for _ in range(200)])
    noisy = claim(store, 50).records
    quiet = [limited(Limit(2, by="customer"), data={"customer": name}) for name in "abc"]
    store.add(quiet)

    assert len(noisy) == 2
    assert ids(claim(store, 50).records) == ids(quiet)


def test_more_lanes_than_one_look_takes_are_all_served(store: Store) -> None:
    store.add([limited(Limit(1, by="key"), data={"key": number}) for number in range(60)])

    taken = 0
    for _ in range(200):
        taken += len(claim(store, 7).records)
        if taken >= 60:
            break

    assert taken == 60


@pytest.mark.parametrize("demand", [pytest.param(1, marks=pytest.mark.long), 200])
def test_no_job_waits_behind_full_lanes_for_an_event(store: Store, demand: int) -> None:
    """A node that has room claims again when the last claim says, if nothing else happens."""
    full, free = 1050, 30  # each claim looks at a thousand lanes, one by one
    store.add([limited(Limit(1, by="key"), data={"key": f"full {n % full}"}) for n in range(2 * full)])
    now = NOON
    taken = claim_all(store, 2 * full, now)
    assert len(taken) == full
    store.add([limited(Limit(1, by="key"), data={"key": f"open {n}"}) for n in range(free)])
    store.add([limited(Limit(1, by="key"), data={"key": "~"})])

    assert len(claim_all(store, demand, now)) == free + 1


def claim_all(store: Store, demand: int, now: datetime) -> list[Record]:
    """Return what a node gets that claims while it gets all it asks for, and else when it is to come back."""
    taken: list[Record] = []
    fruitless = 0
    while fruitless < 5:
        answer = claim(store, demand, now=now)
        taken += answer.records
        fruitless = 0 if answer.records else fruitless + 1
        if len(answer.records) < demand and not answer.has_more:
            if answer.next_at is None:
                break
            assert answer.next_at <= now + SECOND
            now = max(now, answer.next_at)
    return taken


def test_a_job_that_is_moved_to_another_queue_takes_its_limits_along(store: Store) -> None:
    first, second = limited(Limit(1)), limited(Limit(1))
    store.add([first, second])
    for before in (first, second):
        assert store.update(before, replace(before, queue="other"), NOON)

    assert claim(store, 9, queues={"default": None}).records == []
    assert ids(claim(store, 9, queues={"other": None}).records) == [first.id]


def test_a_copy_of_a_limited_job_has_its_limits(store: Store) -> None:
    ended = finished(store, limited(Limit(1)))

    assert copy(ended, ObjectId(), None, NOON).lane == ended.lane


def concurrent(job: str = "app:Mail", at_once: int = 2, *limits: Declared, **fields: Any) -> Record:
    """Return a record of a class of which one worker runs so many jobs at once."""
    return a_record(
        job=job,
        lane=with_concurrency(lane(limits, job, None), job, at_once),
        options=Options(concurrency=at_once),
        **fields,
    )


def claim_beside_pool(store: Store, rooms: Mapping[str, int], holder: Holder = WEB_1) -> list[ObjectId]:
    """Claim up to 9 records beside the pool for a node with this room, and return their ids."""
    request = ClaimRequest(pooled=0, forced=9, rooms=rooms)
    return ids(store.claim(holder, request, NOON, NOON + LEASE).records)


def test_jobs_of_a_class_with_concurrency_are_taken_for_the_room_of_the_node(store: Store) -> None:
    mails, posts = [concurrent() for _ in range(7)], [concurrent("app:Post", 3) for _ in range(5)]
    store.add([*mails, *posts])

    assert claim(store, 9).records == []  # they take no slot of the pool
    assert claim_beside_pool(store, {}) == ids([*mails[:2], *posts[:3]])
    assert claim_beside_pool(store, {"app:Mail": 1, "app:Post": 0}) == ids(mails[2:3])
    assert claim_beside_pool(store, {"app:Mail": 9, "app:Post": 1}, WEB_2) == ids([*mails[3:], posts[3]])


def test_concurrency_and_limits_of_a_job_hold_together(store: Store) -> None:
    records = [concurrent("app:Mail", 5, Limit(3)) for _ in range(5)]
    store.add(records)

    assert kept(store, records[0].id) == records[0]
    assert claim_beside_pool(store, {"app:Mail": 2}) == ids(records[:2])
    assert claim_beside_pool(store, {"app:Mail": 5}, WEB_2) == ids(records[2:3])
    assert claim_beside_pool(store, {}) == []


def test_one_certain_job_with_concurrency_is_claimed(store: Store) -> None:
    [added] = store.add([concurrent()])

    taken = store.claim_one(added.id, WEB_1, NOON, NOON + LEASE)
    assert taken is not None
    assert settle(store, taken) == {added.id}


def test_the_only_open_lane_among_many_full_ones_is_found(store: Store) -> None:
    lanes = [lane([Limit(1, by="customer")], "app:Mail", {"customer": number}) for number in range(601)]
    store.add([a_record(lane=one) for one in lanes[:600]])
    taken = 0
    while taken < 600:
        taken += len(claim(store, 600).records)
    open_one = a_record(lane=lanes[600])
    store.add([a_record(lane=one) for one in lanes[:600]] + [open_one])

    assert ids(claim(store, 8).records) == [open_one.id]
