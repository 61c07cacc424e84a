"""Fair claims share a node's runs among queues, and leave alone what holds with either order."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from datetime import datetime

import pytest

from taskqueue.model.controls import Control, Kind
from taskqueue.model.lifecycle.outcomes import Failed
from taskqueue.model.limits import Limit, lane, with_concurrency
from taskqueue.model.record import Holder, Options, Record, changed
from taskqueue.model.retry import FixedRetry
from taskqueue.store import ClaimRequest, Store
from taskqueue.store.bell import WORK
from taskqueue.store.queue_shares import STRICT, First, QueueShares
from tests.nodes import eventually
from tests.store.conftest import Opener
from tests.store.records import (
    BROKEN,
    HOUR,
    LEASE,
    MINUTE,
    NOON,
    SECOND,
    WEB_2,
    a_record,
    claim,
    forced,
    ids,
    rings,
    settle,
)

MANY = 20
"""More queues than are asked one by one."""


class Node:
    """Claims for one node."""

    def __init__(self, store: Store, seat: str = "web-1", shares: QueueShares | None = None) -> None:
        self.store = store
        self.holder = Holder(seat=seat, incarnation=seat)
        self.shares = QueueShares() if shares is None else shares
        self.now = NOON + MINUTE

    def claim(self, most: int = 1, **demand: object) -> list[Record]:
        """Return the records of one claim, in the order of their turns."""
        request = ClaimRequest(pooled=most, shares=self.shares, **demand)  # type: ignore[arg-type]
        claim = self.store.claim(self.holder, request, self.now, self.now + LEASE)
        counted = self.shares.count(claim.records, self.now)
        self.now += SECOND
        return list(counted)

    def queues(self, claims: int, most: int = 1, **demand: object) -> list[str]:
        """Return the queues of the records of so many claims."""
        return [record.queue for _ in range(claims) for record in self.claim(most, **demand)]


@pytest.fixture(params=[1, 3])
def nodes(request: pytest.FixtureRequest, opener: Opener) -> list[Node]:
    """Return one node, or three."""
    return [Node(opener(), f"web-{number}") for number in range(request.param)]


@pytest.fixture(params=[2, MANY])
def others(request: pytest.FixtureRequest) -> list[str]:
    """Return the names of few queues, or of many."""
    return [f"customer-{number:02}" for number in range(request.param)]


def backlog(queue: str, records: int, priority: int = 0, since: datetime = NOON) -> list[Record]:
    return [a_record(queue=queue, priority=priority, ready_at=since) for _ in range(records)]


def test_an_urgent_job_of_an_idle_queue_is_claimed_before_the_next_of_a_backlog(nodes: list[Node]) -> None:
    nodes[0].store.add(backlog("mail", 60))
    for _ in range(3):
        assert {one for node in nodes for one in node.queues(1, 2)} == {"mail"}
    for node in nodes:
        invoice = a_record(queue="invoice", priority=-20, ready_at=node.now)
        node.store.add([invoice])
        assert ids(node.claim()) == [invoice.id]


@pytest.mark.parametrize("mails", [60, pytest.param(100_000, marks=pytest.mark.long)])
def test_a_job_of_an_idle_queue_is_claimed_before_the_next_of_a_backlog_of_its_priority(
    nodes: list[Node], mails: int
) -> None:
    for at in range(0, mails, 1000):
        nodes[0].store.add(backlog("mail", min(1000, mails - at)))
    for node in nodes:
        assert set(node.queues(3, 2)) == {"mail"}
        invoice = a_record(queue="invoice", ready_at=node.now)
        node.store.add([invoice])
        assert ids(node.claim()) == [invoice.id]


def test_an_endless_stream_of_urgent_jobs_does_not_starve_a_queue(nodes: list[Node]) -> None:
    slow = a_record(queue="slow", priority=20)
    nodes[0].store.add([slow, *backlog("urgent", 40 * len(nodes), -20)])
    assert {queue for node in nodes for queue in node.queues(3, 2)} == {"urgent"}
    run = First(priority=-20, rank=slow.rank, id=slow.id)
    for _ in range(7530):
        for node in nodes:
            node.shares.charge("urgent", run)

    assert slow.id in ids([record for node in nodes for record in node.claim(2)])


def test_an_endless_row_of_new_queues_with_jobs_of_the_past_does_not_starve_a_backlog(
    nodes: list[Node], others: list[str]
) -> None:
    nodes[0].store.add([record for queue in others for record in backlog(queue, 3)])
    taken: list[str] = []
    for number in range(3 * len(others)):
        for node in nodes:
            node.store.add([a_record(queue=f"new-{number}-{node.holder.seat}", ready_at=NOON - HOUR)])
            taken += node.queues(1)

    assert sum(queue in others for queue in taken) >= len(taken) // 4


def test_queues_get_shares_by_the_priority_of_their_first_jobs(nodes: list[Node], others: list[str]) -> None:
    store = nodes[0].store
    store.add([record for queue in others for record in backlog(queue, 12)])
    store.add(backlog("urgent", 12 * len(others), -3))

    taken = Counter(queue for _ in range(4 * len(others)) for node in nodes[:1] for queue in node.queues(1))

    urgent = 4 * len(others) * 1.25**3 / (1.25**3 + len(others))
    assert abs(taken["urgent"] - urgent) <= 2
    assert max(taken[queue] for queue in others) - min(taken[queue] for queue in others) <= 1


def test_one_claim_of_many_shares_its_slots(store: Store, others: list[str]) -> None:
    store.add([record for queue in others for record in backlog(queue, 9)])

    taken = Node(store).claim(4 * len(others))

    assert Counter(record.queue for record in taken) == dict.fromkeys(others, 4)
    assert [{record.queue for record in taken[at : at + len(others)]} for at in range(0, len(taken), len(others))] == [
        set(others)
    ] * 4


def test_a_queue_with_few_jobs_leaves_its_slots_to_the_others(store: Store, others: list[str]) -> None:
    store.add([*backlog(others[0], 100), *(record for queue in others[1:] for record in backlog(queue, 1))])

    taken = Counter(Node(store).queues(1, len(others) + 20))

    assert taken == {**dict.fromkeys(others, 1), others[0]: 21}


def test_all_jobs_are_claimed_once_by_nodes_that_share(nodes: list[Node], others: list[str]) -> None:
    records = [record for queue in others for record in backlog(queue, 7)]
    nodes[0].store.add(records)
    found: list[Record] = []
    for _ in range(1000):
        got = [record for node in nodes for record in node.claim(5)]
        found += got
        if not got:
            break

    assert sorted(ids(found)) == sorted(ids(records))


def test_jobs_of_one_queue_come_by_rank(store: Store, others: list[str]) -> None:
    records = [a_record(queue=queue, ready_at=NOON - number * SECOND) for number in range(5) for queue in others]
    store.add(records)
    node = Node(store)

    found = [record for _ in range(len(records)) for record in node.claim()]

    for queue in others:
        ranks = [record.rank for record in found if record.queue == queue]
        assert ranks == sorted(ranks)
        assert len(ranks) == 5


def test_the_strict_order_is_by_rank_over_all_queues(store: Store, others: list[str]) -> None:
    records = [a_record(queue=queue, ready_at=NOON - number * SECOND) for number, queue in enumerate(others * 3)]
    store.add(records)
    node = Node(store, shares=STRICT)

    found = [record for _ in range(len(records)) for record in node.claim()]

    assert ids(found) == ids(sorted(records, key=lambda record: record.rank))


def test_bounds_of_queues_hold(nodes: list[Node]) -> None:
    nodes[0].store.add([*backlog("mail", 9 * len(nodes)), *backlog("report", 9 * len(nodes))])

    for node in nodes:
        taken = node.claim(10, queues={"mail": None, "report": 2})
        assert Counter(record.queue for record in taken) == {"mail": 8, "report": 2}


def test_a_queue_whose_first_job_alone_is_urgent_gets_one_turn(nodes: list[Node], others: list[str]) -> None:
    for node in nodes:
        first = a_record(queue="mixed", priority=-20, ready_at=NOON - HOUR)
        rest = backlog("mixed", 20, 20, NOON - 30 * HOUR)
        plain = [record for queue in others for record in backlog(queue, 10)]
        node.store.add([first, *rest, *plain])

        taken = node.claim(11)

        assert taken[0].id == first.id
        assert {record.queue for record in taken[1:]} <= set(others)


def test_a_node_shares_among_its_own_queues(store: Store) -> None:
    store.add([*backlog("mail", 9), *backlog("report", 9), *backlog("other", 9, -20)])

    taken = Node(store).claim(6, queues={"mail": None, "report": None})

    assert Counter(record.queue for record in taken) == {"mail": 3, "report": 3}


def test_a_paused_queue_gets_no_share_and_has_saved_nothing(nodes: list[Node], others: list[str]) -> None:
    rounds = range(4)
    nodes[0].store.add([record for queue in others for record in backlog(queue, 20 * len(nodes))])
    for node in nodes:
        node.store.set_control(Control(kind=Kind.PAUSE, name=others[0], since=NOON, by="ann@web"))
        assert Counter(node.queues(1, len(rounds) * (len(others) - 1))) == dict.fromkeys(others[1:], len(rounds))

    for node in nodes:
        node.store.clear_control(Kind.PAUSE, others[0])  # each knows its own change at once
        taken = Counter(node.queues(1, len(rounds) * len(others)))
        assert len(rounds) <= taken[others[0]] <= len(rounds) + 1


def test_a_drained_node_claims_nothing(nodes: list[Node], others: list[str]) -> None:
    store = nodes[0].store
    store.add([record for queue in others for record in backlog(queue, 3 * len(nodes))])
    store.set_control(Control(kind=Kind.DRAIN, name="web-0", since=NOON, by="ann@web"))

    assert [len(node.claim(4)) for node in nodes] == [0, 4, 4][: len(nodes)]

    store.clear_control(Kind.DRAIN, "web-0")
    assert len(nodes[0].claim(4)) == 4


@pytest.mark.parametrize("is_fair", [True, False])
def test_limits_hold_with_either_order(nodes: list[Node], others: list[str], is_fair: bool) -> None:
    own = lane((Limit(2),), "app:Mail", None)
    limited = [a_record(queue=queue, lane=own) for queue in others for _ in range(5)]
    nodes[0].store.add([*limited, *(record for queue in others for record in backlog(queue, 3))])

    taken: list[Record] = []
    for node in nodes:
        node.shares = node.shares if is_fair else STRICT
        taken += node.claim(20)
    for node in nodes:
        taken += node.claim(6 * len(others))

    assert sum(record.lane != "" for record in taken) == 2
    assert len(taken) == 2 + 3 * len(others)


@pytest.mark.parametrize("is_fair", [True, False])
def test_classes_with_concurrency_get_the_room_of_the_node_with_either_order(
    nodes: list[Node], others: list[str], is_fair: bool
) -> None:
    own = with_concurrency("", "app:Mail", 4)
    options = Options(concurrency=4)
    count = 4 * len(nodes)
    mails = [a_record(job="app:Mail", lane=own, options=options, queue=queue) for queue in others for _ in range(count)]
    nodes[0].store.add([*mails, *(record for queue in others for record in backlog(queue, count))])

    for node in nodes:
        node.shares = node.shares if is_fair else STRICT
        taken = node.claim(2, forced=9)
        assert sum(record.lane == own for record in taken) == 4
        assert sum(record.lane == "" for record in taken) == 2
        assert sum(record.lane == own for record in node.claim(0, forced=9, rooms={"app:Mail": 0})) == 0


def test_a_full_limit_costs_its_queue_no_turns(store: Store) -> None:
    own = lane((Limit(1),), "app:Mail", None)
    store.add([a_record(queue="mail", lane=own, ready_at=NOON - SECOND) for _ in range(9)])
    store.add([*backlog("mail", 20), *backlog("report", 20)])

    assert Counter(Node(store).queues(1, 12)) == {"mail": 6, "report": 6}


def test_jobs_beside_the_pool_are_shared_too(store: Store, others: list[str]) -> None:
    store.add([forced(queue=queue) for queue in others for _ in range(6)])

    taken = Node(store).claim(0, forced=2 * len(others))

    assert Counter(record.queue for record in taken) == dict.fromkeys(others, 2)


def test_jobs_that_wait_again_come_in_the_turns_of_their_queues(store: Store, others: list[str]) -> None:
    store.add([record for queue in others for record in backlog(queue, 4)])
    node = Node(store)
    for record in node.claim(len(others)):
        settle(store, record, Failed(failure=BROKEN), node.now)
    assert Counter(node.queues(1, 3 * len(others))) == dict.fromkeys(others, 3)

    assert node.claim(100) == []


def test_a_node_that_listens_hears_of_new_queues(opener: Opener, others: list[str]) -> None:
    store, other = opener(), opener()
    with closing(store.bell(WORK)) as bell:
        store.add([record for queue in others for record in backlog(queue, 400 // len(others))])
        assert rings(bell)
        node, taken = Node(store), []
        taken += node.queues(2, 4)
        other.add([a_record(queue="invoice", priority=-20, ready_at=node.now)])

        def has_invoice() -> bool:
            taken.extend(node.queues(1, 4))
            return "invoice" in taken

        eventually(has_invoice)

    assert len(taken) < 400


def test_a_node_that_listens_takes_all_of_one_queue_and_of_others(opener: Opener) -> None:
    store, other = opener(), opener()
    with closing(store.bell(WORK)) as bell:
        store.add(backlog("mail", 30))
        assert rings(bell)
        node = Node(store)
        taken = node.queues(3, 4)
        other.add([*backlog("mail", 10), *backlog("report", 10)])

        def has_all() -> bool:
            taken.extend(node.queues(1, 4))
            return len(taken) == 50

        eventually(has_all)

    assert Counter(taken) == {"mail": 40, "report": 10}


def test_a_job_that_waits_again_alone_in_its_queue_is_not_overlooked(opener: Opener) -> None:
    store, other = opener(), opener()
    with closing(store.bell(WORK)) as bell:
        retried = a_record(queue="invoice", priority=-20, options=Options(retry=FixedRetry(1, 0.0)))
        other.add([retried])
        [run] = claim(other, 1, holder=WEB_2).records
        store.add([record for number in range(150) for record in backlog(f"customer-{number:03}", 10)])
        assert rings(bell)
        node = Node(store)
        taken = node.queues(1, 4)
        settle(other, changed(run, started_at=NOON), Failed(failure=BROKEN))

        def has_invoice() -> bool:
            node.now = NOON + MINUTE  # so that what is known of the queues never grows old
            taken.extend(node.queues(1, 4))
            return "invoice" in taken

        eventually(has_invoice)

    assert len(taken) < 1000
