"""The turns of queues: shares by priority that hold over time, and no queue that starves or saves up turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskqueue.model.record import Record
from taskqueue.store.queue_shares import FEW, MOST_SEEN, STEP, STRICT, First, QueueShares, Turns, cost_of, in_turn
from tests.store.records import HOUR, NOON, SECOND, a_record

PRIORITIES = st.integers(-20, 20)
Job = tuple[str, First]


def backlog(queue: str, priority: int = 0, since: datetime = NOON) -> Iterator[Record]:
    """Return a backlog that has no end."""
    while True:
        yield a_record(queue=queue, priority=priority, ready_at=since)


def first_of(record: Record) -> First:
    return First(record.priority, record.rank, record.id)


class Node:
    """Claims one job after the other, one a second, of queues with backlogs."""

    def __init__(self) -> None:
        self.shares = QueueShares()
        self.now = NOON

    def claim(self, *waiting: Iterator[Record], most: int = 1) -> list[str]:
        """Return the queues of so many claims of one job each."""
        heads = {head.queue: (head, rest) for rest in waiting for head in islice(rest, 1)}
        taken: list[str] = []
        for _ in range(most):
            found = in_turn(
                {queue: [head] for queue, (head, _) in heads.items()}, first_of, self.shares, lambda _: True
            )
            record = next(found)
            assert list(self.shares.count([record], self.now)) == [record]
            heads[record.queue] = (next(heads[record.queue][1]), heads[record.queue][1])
            taken.append(record.queue)
            self.now += SECOND
        return taken


def test_queues_of_equal_priority_take_turns() -> None:
    taken = Node().claim(*map(backlog, ("mail", "report", "invoice")), most=300)

    assert all(set(taken[at : at + 3]) == {"mail", "report", "invoice"} for at in range(0, 300, 3))


@settings(max_examples=20)
@given(st.lists(PRIORITIES, min_size=2, max_size=4))
def test_shares_are_weighted_as_by_nice(priorities: list[int]) -> None:
    taken = Counter(Node().claim(*(backlog(str(number), one) for number, one in enumerate(priorities)), most=400))

    weights = [STEP**-priority for priority in priorities]
    for number, weight in enumerate(weights):
        assert abs(taken[str(number)] - 400 * weight / sum(weights)) <= len(priorities)


def test_an_endless_stream_of_the_most_urgent_leaves_the_least_urgent_one_of_7524_runs() -> None:
    taken = Node().claim(backlog("urgent", -20), backlog("slow", 20), most=7524 * 7 // 2)

    assert taken.count("slow") == 3


def test_an_idle_queue_is_next_after_the_run_of_a_backlog_of_its_priority() -> None:
    node = Node()
    node.claim(backlog("mail"), most=1000)

    assert node.claim(backlog("mail"), backlog("invoice", since=node.now), most=2) == ["invoice", "mail"]


@pytest.mark.parametrize("backlogs", [1, 2, 40])
def test_an_urgent_job_of_an_idle_queue_is_next_whatever_the_backlogs_are_owed(backlogs: int) -> None:
    mails = [f"mail-{number}" for number in range(backlogs)]
    for before in range(0, 3 * backlogs, max(1, backlogs // 8)):
        node = Node()
        node.claim(*map(backlog, mails), most=before)
        assert node.claim(*map(backlog, mails), backlog("invoice", -20, node.now)) == ["invoice"]


@pytest.mark.parametrize("queues", [200, pytest.param(1000, marks=pytest.mark.long)])
def test_many_jobs_of_little_urgency_do_not_pass_an_urgent_backlog(queues: int) -> None:
    node = Node()
    node.claim(backlog("urgent", -20), most=10)
    others = [backlog(f"customer-{number}", 20, node.now) for number in range(queues)]

    assert set(node.claim(backlog("urgent", -20), *others, most=queues)) == {"urgent"}


def test_a_queue_that_was_idle_has_saved_no_turns() -> None:
    node = Node()
    node.claim(backlog("mail"), backlog("report"), most=2)
    node.claim(backlog("mail"), most=1000)

    assert node.claim(backlog("mail"), backlog("report", since=node.now), most=100).count("report") == 50


def test_a_queue_that_was_alone_owes_no_turns() -> None:
    node = Node()
    node.claim(backlog("mail", 20), most=1000)

    assert node.claim(backlog("mail", 20), backlog("report", 20, node.now), most=100).count("mail") == 50


def test_a_queue_that_was_paused_has_saved_one_run_at_most() -> None:
    node = Node()
    node.claim(backlog("mail"), most=1000)

    assert 50 <= node.claim(backlog("mail"), backlog("paused"), most=100).count("paused") <= 51


def test_an_endless_row_of_idle_queues_does_not_keep_a_backlog_out() -> None:
    node = Node()
    taken: list[str] = []
    for number in range(300):
        taken += node.claim(backlog("mail"), backlog(f"customer-{number}", since=node.now))

    assert taken.count("mail") >= 99


@pytest.mark.parametrize("priority", [0, -20])
def test_an_endless_row_of_new_queues_whose_jobs_are_of_the_past_does_not_keep_a_backlog_out(priority: int) -> None:
    node = Node()
    node.claim(backlog("mail", priority), most=100)
    taken: list[str] = []
    for number in range(300):
        new = backlog(f"customer-{number}", priority, NOON - 1000 * HOUR)
        taken += node.claim(backlog("mail", priority), new)

    assert taken.count("mail") >= 99


@pytest.mark.parametrize("before", [0, 10, 1000, 5000])
@pytest.mark.parametrize("waited", [1000, 0])
def test_the_least_urgent_queue_waits_for_7524_of_the_most_urgent_runs_at_most(before: int, waited: int) -> None:
    node = Node()
    urgent = backlog("urgent", -20)
    node.claim(urgent, most=before)
    slow = backlog("slow", 20, node.now - waited * HOUR)

    assert "slow" in node.claim(urgent, slow, most=7524)


def test_what_was_seen_and_taken_by_other_nodes_is_forgotten() -> None:
    node = Node()
    for number in range(5 * FEW):
        node.claim(backlog("mail", 20), backlog(f"customer-{number}", 20, node.now), most=1)

    assert node.shares.kept <= 3 * FEW


def test_queues_of_which_a_node_gets_nothing_are_not_kept() -> None:
    shares, mail = QueueShares(), First(0, 0, 0)
    for claim in range(3):
        trial = shares.trial()
        for number in range(MOST_SEEN):
            trial.end_of(f"customer-{claim}-{number}", mail)

    assert shares.trial().now == 0
    assert shares.kept <= 2 * MOST_SEEN + 1


def test_many_queues_that_are_seen_together_wait_from_then_on() -> None:
    node, queues = Node(), [f"customer-{number}" for number in range(2 * FEW)]
    for queue in queues:
        node.shares.end_of(queue, First(0, 0, 0))
    node.claim(backlog("mail"), most=10)

    assert {node.shares.end_of(queue, First(0, 0, 0)) for queue in queues} == {1}


@given(st.lists(st.tuples(st.sampled_from("abc"), PRIORITIES), min_size=1, max_size=30), st.integers(0, 20))
def test_one_claim_of_many_takes_what_many_claims_of_one_take(jobs: list[tuple[str, int]], before: int) -> None:
    shares, other = Node(), Node()
    for node in (shares, other):
        node.claim(backlog("a"), backlog("b", 5), most=before)
    records = [
        a_record(queue=queue, priority=priority, ready_at=NOON - number * SECOND)
        for number, (queue, priority) in enumerate(jobs)
    ]
    records.sort(key=lambda record: (record.rank, record.id))

    counted = list(shares.shares.count(records, NOON))
    left, singly = list(records), []
    while left:
        waiting = {name: [one for one in left if one.queue == name] for name in "abc"}
        singly.append(next(in_turn(waiting, first_of, other.shares, lambda _: True)))
        other.shares.count([singly[-1]], NOON)
        left.remove(singly[-1])

    assert [record.id for record in counted] == [record.id for record in singly]
    assert shares.shares.now == pytest.approx(other.shares.now)


@given(st.lists(st.tuples(st.sampled_from("abc"), PRIORITIES, st.integers(0, 9)), max_size=30))
def test_the_strict_order_is_by_rank_and_id_alone(jobs: list[tuple[str, int, int]]) -> None:
    firsts = [(queue, First(priority, rank, number)) for number, (queue, priority, rank) in enumerate(jobs)]
    waiting: dict[str, list[Job]] = {}
    for job in sorted(firsts, key=lambda job: job[1][1:]):
        waiting.setdefault(job[0], []).append(job)

    found = list(in_turn(waiting, lambda job: job[1], STRICT, lambda _: True))

    assert found == sorted(firsts, key=lambda job: job[1][1:])


def test_a_job_that_does_not_fit_costs_its_queue_nothing() -> None:
    mails = list(islice(backlog("mail"), 6))
    waiting = {"mail": mails, "report": list(islice(backlog("report"), 6))}

    found = in_turn(waiting, first_of, QueueShares(), lambda record: record not in mails[:4])

    assert Counter(record.queue for record in islice(found, 4)) == {"mail": 2, "report": 2}


def test_a_claim_charges_a_trial_of_the_shares_alone() -> None:
    shares = QueueShares()

    assert len(list(in_turn({"mail": islice(backlog("mail"), 6)}, first_of, shares, lambda _: True))) == 6
    assert (shares.now, shares.end_of("mail", first_of(next(backlog("mail"))))) == (0, 1)


def test_ties_go_by_rank_and_id() -> None:
    older, newer = a_record(queue="newer", ready_at=NOON + SECOND), a_record(queue="older")
    waiting = {"b": [older], "a": [newer]}

    found = in_turn(waiting, first_of, QueueShares(), lambda _: True)

    assert list(found) == sorted([older, newer], key=lambda record: record.rank)


@pytest.mark.parametrize("damaged", [None, "high", [1], 2.5, 10**9])
def test_a_damaged_priority_counts_as_that_of_an_ordinary_job(damaged: object) -> None:
    assert cost_of(damaged) == cost_of(0)


def test_shares_forget_what_was_long_ago() -> None:
    node = Node()
    for number in range(5 * FEW):
        node.claim(backlog(f"customer-{number}", since=node.now))

    assert node.shares.kept <= 3 * FEW
    taken = node.claim(backlog("mail", since=NOON), backlog("invoice", since=node.now), most=20)
    assert 9 <= taken.count("invoice") <= 10


Change = tuple[str, str, int, int]
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["put", "pop", "charge", "drop"]), st.sampled_from("abcd"), PRIORITIES, st.integers(0, 5)
    ),
    max_size=60,
)


@given(CHANGES)
def test_turns_that_are_kept_agree_with_a_search_of_all_queues(changes: Sequence[Change]) -> None:
    shares, kept = QueueShares(), Turns()
    firsts: dict[str, First] = {}
    for number, (change, queue, priority, rank) in enumerate(changes):
        if change == "put":
            firsts[queue] = First(priority, rank, number)
            kept.put(queue, firsts[queue], shares)
        elif change == "charge":
            shares.charge(queue, First(priority, rank, number))
        elif change == "drop":
            firsts.pop(queue, None)
            kept.drop(queue)
        else:
            expected = min(
                ((shares.end_of(name, first), first.rank, first.id, name) for name, first in firsts.items()),
                default=None,
            )
            popped = kept.pop(shares)
            assert (popped and popped[0]) == (expected and expected[-1])
            if popped is not None:
                assert firsts.pop(popped[0]) == popped[1]


@given(st.lists(st.tuples(PRIORITIES, st.integers(0, 3_600)), min_size=1, max_size=8), PRIORITIES)
def test_jobs_of_one_queue_count_together_as_they_do_one_by_one(jobs: list[tuple[int, int]], other: int) -> None:
    def after(*earlier: int) -> QueueShares:
        shares = QueueShares()
        for priority in earlier:
            shares.count([a_record(queue="report", priority=priority, ready_at=NOON)], NOON)
        return shares

    records = [
        a_record(queue="mail", priority=priority, ready_at=NOON + seconds * SECOND) for priority, seconds in jobs
    ]
    together, one_by_one = after(other, other), after(other, other)

    together.count(records, NOON)
    for record in records:
        one_by_one.charge("mail", first_of(record))

    assert together.now == pytest.approx(one_by_one.now)
    probe = First(0, 0, 0)
    assert together.end_of("mail", probe) == pytest.approx(one_by_one.end_of("mail", probe))
