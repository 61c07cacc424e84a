"""The tally is exact whatever happens to jobs, and does not walk those that wait."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from taskqueue.model.analytics import Due
from taskqueue.model.controls import Control, Kind
from taskqueue.model.job_filter import PARTS_OF_POSTPONED, part_of_postponed
from taskqueue.model.lifecycle.outcomes import Failed, HandedBack
from taskqueue.model.query import PENDING, parse
from taskqueue.model.record import Cause, Options, Record, Status, changed
from taskqueue.model.retry import FixedRetry
from taskqueue.store import Store
from taskqueue.store.mongodb.counts import FEW as AT_ONCE
from taskqueue.store.mongodb.counts import CountReads, Counts, Tally
from taskqueue.store.mongodb.store import MongoStore
from taskqueue.store.open import open_store
from taskqueue.store.relational.counts import FEW, RowCounts
from tests.servers import PATIENCE, with_database
from tests.store.conftest import Opener
from tests.store.records import (
    BROKEN,
    HOUR,
    MINUTE,
    NOON,
    SECOND,
    a_record,
    all_kept,
    behind,
    claim,
    forced,
    postponed,
    running,
    settle,
    settlement,
)
from tests.store.test_sqlite_costs import steps

MANY = FEW + 5


def counted(store: Store) -> dict[tuple[str, Status], int]:
    """Return the tally as it is by looking at each record."""
    return dict(Counter((one.queue, one.status) for one in all_kept(store)))


def tally(store: Store) -> dict[tuple[str, Status], int]:
    """Return the tally without what is 0."""
    return {key: records for key, records in store.tally().items() if records}


def test_the_tally_follows_jobs_through_their_lives(store: Store) -> None:
    def is_exact() -> bool:
        return tally(store) == counted(store) != {}

    retried = Options(retry=FixedRetry(times=1, interval=60))
    store.add([a_record(queue=queue, options=retried) for queue in ("a", "b") for _ in range(MANY)])
    store.add([postponed(NOON + HOUR), forced(queue="a"), a_record(expires_at=NOON + MINUTE)])
    assert is_exact()
    first, second, *runs = [replace(run, started_at=NOON) for run in claim(store, 9).records]
    store.add([behind(first.id, queue="b")])
    assert is_exact()
    store.settle([settlement(run) for run in runs], NOON + SECOND)
    store.settle([settlement(first, Failed(failure=BROKEN)), settlement(second, HandedBack())], NOON + SECOND)
    assert is_exact()
    [moved, canceled, *_] = [one for one in all_kept(store) if one.status is Status.WAITING]
    assert store.update(moved, changed(moved, queue="c"), NOON)
    store.cancel(canceled.id, "", NOON)
    claim(store, 2, now=NOON + 2 * HOUR)
    assert is_exact()
    store.prune({Status.DONE: NOON + HOUR}, NOON, 3)
    store.add([a_record(queue="b") for _ in range(3)])
    assert is_exact()
    store.flush()
    store.add([a_record(queue="d") for _ in range(MANY)])
    assert tally(store) == {("d", Status.WAITING): MANY}


def test_the_tally_follows_what_another_process_ends_and_removes(opener: Opener) -> None:
    one, other = opener(), opener()

    def end(number: int, at: datetime) -> None:
        other.add([a_record(queue=queue, ready_at=at - HOUR) for queue in ("a", "b") for _ in range(number // 2)])
        runs = claim(other, number, now=at).records
        other.settle([settlement(run, now=at) for run in runs], at)

    def is_exact() -> bool:
        return tally(one) == counted(other)

    end(20, NOON)
    end(20, NOON + HOUR)
    assert is_exact()
    assert other.prune({Status.DONE: NOON + MINUTE}, NOON, 5) == 5  # of those that were counted once for all
    assert is_exact()
    assert other.prune({Status.DONE: NOON + 2 * HOUR}, NOON, 20) == 20  # and of later ones
    assert is_exact()
    end(AT_ONCE + 2, NOON + 2 * HOUR)  # more than are counted at each look
    assert is_exact()
    end(20, NOON + 3 * HOUR)
    assert is_exact()
    other.flush()
    end(2, NOON)
    assert is_exact()


def test_ended_jobs_are_counted_in_portions(mongo_set: str) -> None:
    url = with_database(mongo_set, f"portions-{os.getpid()}")
    with closing(open_store(f"{url}&timeoutMS={PATIENCE * 1000:.0f}")) as store:
        assert isinstance(store, MongoStore)
        store.add([a_record(queue=queue, ready_at=NOON) for queue in ("a", "b") for _ in range(20)])
        for number in range(10):
            runs = claim(store, 4).records
            at = NOON + number * HOUR
            store.settle([settlement(run, now=at) for run in runs], at)

        counting = Tally(store._connection, portion=3)
        assert store._queries.state_reader.read(counting.read) == counted(store)
        store.flush()


def test_a_process_that_starts_continues_from_the_stored_count(mongo_set: str) -> None:
    url = with_database(mongo_set, f"stored-{os.getpid()}")
    with closing(open_store(f"{url}&timeoutMS={PATIENCE * 1000:.0f}")) as store:
        assert isinstance(store, MongoStore)
        store.add([a_record(queue=queue, ready_at=NOON) for queue in ("a", "b") for _ in range(AT_ONCE // 2)])
        for at, number in ((NOON, AT_ONCE - 10), (NOON + HOUR, 10)):
            store.settle([settlement(run, now=at) for run in claim(store, number).records], at)
        while store.tidy_history(NOON, 10):
            pass
        assert store.prune({Status.DONE: NOON + MINUTE}, NOON, 5) == 5
        settle(store, running(store, a_record(queue="c", ready_at=NOON)), now=NOON + HOUR)

        with MongoClient[dict[str, Any]](url) as client:
            database = client.get_default_database()
            database.command("profile", 2)
            by_queue = store._queries.state_reader.read(Tally(store._connection).read)
            database.command("profile", 0)
            commands = database["system.profile"].find({"ns": f"{database.name}.taskqueue_jobs"})
            assert sum(command.get("keysExamined", 0) for command in commands) < AT_ONCE // 4
            database["system.profile"].drop()

        assert by_queue == counted(store)
        store.flush()


def test_removals_of_long_ago_are_forgotten_and_the_counts_stay_exact(mongo_set: str) -> None:
    url = with_database(mongo_set, f"forgotten-{os.getpid()}")
    with closing(open_store(f"{url}&timeoutMS={PATIENCE * 1000:.0f}")) as store:
        assert isinstance(store, MongoStore)
        store.add([a_record(queue=queue, ready_at=NOON) for queue in ("a", "b") for _ in range(6)])
        store.settle([settlement(run, now=NOON) for run in claim(store, 12).records], NOON)
        settle(store, running(store, a_record(queue="c")), now=NOON + HOUR)  # behind those that are counted once
        collections, counting = store._connection.collections, Tally(store._connection)
        in_one_state = store._queries.state_reader.read

        def remove(queue: str, number: int, now: datetime) -> None:
            first = collections.jobs.find({"queue": queue}, {"_id": True}).limit(number)
            collections.jobs.delete_many({"_id": {"$in": [one["_id"] for one in first]}})
            Tally(store._connection).note_removed(Status.DONE, [queue] * number, NOON, now)
            assert in_one_state(counting.read) == counted(store)

        assert in_one_state(counting.read) == counted(store)
        remove("a", 2, NOON)
        remove("b", 1, NOON + HOUR)
        assert collections.facts.count_documents({"_id": {"$regex": "^removed [0-9]"}}) == 2
        remove("b", 1, NOON + 25 * HOUR)
        while store.tidy_history(NOON + 25 * HOUR, 100):
            pass
        counting = Tally(store._connection)
        assert in_one_state(counting.read) == counted(store)
        assert collections.facts.count_documents({"_id": {"$regex": "^removed [0-9]"}}) == 1
        remove("a", 3, NOON + 26 * HOUR)
        store.flush()


def test_a_retry_in_another_queue_is_counted_there(store: Store) -> None:
    store.add([a_record(queue=queue, ready_at=NOON + SECOND) for queue in ("a", "b") for _ in range(MANY)])
    run = running(store, a_record(queue="a"))
    after = settlement(run, HandedBack())

    store.settle([after._replace(after=changed(after.after, queue="b"))], NOON)

    assert tally(store) == {("a", Status.WAITING): MANY, ("b", Status.WAITING): MANY + 1}


def test_postponed_jobs_are_counted_by_why_and_when_they_are_due(store: Store) -> None:
    failed = {"cause": Cause.RETRY, "failures": 1}
    records = [
        *(postponed(NOON + minutes * MINUTE, cause=Cause.SCHEDULED) for minutes in (5, 59, 60)),
        postponed(NOON + 5 * MINUTE, **failed),
        postponed(NOON + 5 * MINUTE, cause=Cause.SNOOZED, failures=2),
        postponed(NOON + 3 * HOUR, cause=Cause.LOST),
        postponed(NOON + 30 * HOUR, cause=Cause.UNLOADABLE, failures=1),
    ]
    store.add([*records, a_record(), behind(records[0].id)])

    due, blocked = store.postponed(100)

    assert due == {
        Due(Cause.SCHEDULED, False, NOON): 2,
        Due(Cause.SCHEDULED, False, NOON + HOUR): 1,
        Due(Cause.RETRY, True, NOON): 1,
        Due(Cause.SNOOZED, True, NOON): 1,
        Due(Cause.LOST, False, NOON + 3 * HOUR): 1,
        Due(Cause.UNLOADABLE, True, NOON + 30 * HOUR): 1,
    }
    words: Counter[str] = Counter(blocked=blocked)
    for of_hour, number in due.items():
        words[part_of_postponed(of_hour.cause, of_hour.has_failed)] += number
    assert words == {word: store.count(parse(query)) for word, query in PARTS_OF_POSTPONED.items()}
    assert {of_hour.hour for of_hour in store.postponed(4).due} == {NOON}


def test_the_oldest_of_a_queue_is_the_first_to_be_claimed(store: Store) -> None:
    store.add([a_record(queue="a", ready_at=NOON + MINUTE), a_record(queue="a", ready_at=NOON + SECOND)])
    store.add([forced(queue="b", ready_at=NOON), a_record(queue="b", ready_at=NOON + SECOND, priority=-3)])
    store.add([postponed(NOON - HOUR, queue="c")])
    store.set_control(Control(kind=Kind.PAUSE, name="b", since=NOON, by="ann"))

    since: dict[str, datetime] = dict(store.waiting_since())

    assert since == {"a": NOON + SECOND, "b": NOON}


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite://{tmp_path}/jobs.db?synchronous=normal")) as opened:
        yield opened


def test_a_job_that_is_claimed_while_jobs_are_counted_is_counted(embedded: Store, tmp_path: Path) -> None:
    embedded.add([a_record()])
    raw = embedded._engine._raw  # type: ignore[attr-defined]
    claimed: list[Record] = []

    def claim_between_statements(statement: str) -> None:
        if "min(queue)" in statement and not claimed:
            claimed.extend(claim(other).records)

    with closing(open_store(f"sqlite://{tmp_path}/jobs.db")) as other:
        raw.set_trace_callback(claim_between_statements)
        assert embedded.count(PENDING) == 1
        assert len(claimed) == 1
        raw.set_trace_callback(None)
        assert embedded.tally() == {("default", Status.PROCESSING): 1}


def test_what_others_write_while_jobs_are_counted_is_not_seen(mongo_set: str) -> None:
    url = with_database(mongo_set, f"one-state-{os.getpid()}")
    with closing(open_store(f"{url}&timeoutMS={PATIENCE * 1000:.0f}")) as store:
        assert isinstance(store, MongoStore)
        store.add([a_record(queue=queue) for queue in ("a", "b")])

        def count_around_a_claim(reads: CountReads) -> tuple[Counts, Counts]:
            waiting = reads.waiting_jobs()
            assert len(claim(store, 2).records) == 2
            return waiting, reads.by_queue({"status": int(Status.PROCESSING)})

        waiting, claimed = store._queries.state_reader.read(count_around_a_claim)

        assert waiting == {("a", Status.WAITING): 1, ("b", Status.WAITING): 1}
        assert claimed == {}
        assert tally(store) == {("a", Status.PROCESSING): 1, ("b", Status.PROCESSING): 1}
        store.flush()


def test_a_server_alone_counts_without_one_state(mongo_standalone: str) -> None:
    url = with_database(mongo_standalone, f"counts-{os.getpid()}")
    with closing(open_store(f"{url}?timeoutMS={PATIENCE * 1000:.0f}")) as store:
        store.add([a_record(), postponed(NOON + HOUR)])

        assert tally(store) == counted(store)
        assert (store.present(NOON).queued, store.present(NOON).postponed) == (1, 1)
        store.flush()


def test_counting_does_not_walk_what_waits(embedded: Store) -> None:
    embedded.add([a_record() for _ in range(FEW + 1)])
    embedded.tidy_history(NOON, 1)
    embedded.tally(), embedded.present(NOON), embedded.waiting_since()  # statements are prepared once
    few = [steps(embedded, call) for call in (embedded.tally, embedded.waiting_since)]
    embedded.add([a_record() for _ in range(2 * RowCounts.APART + FEW)])
    embedded.add([a_record() for _ in range(2 * RowCounts.APART + FEW)])

    assert embedded.tally() == {("default", Status.WAITING): 4 * RowCounts.APART + 3 * FEW + 1}
    assert embedded.present(NOON).queued == 4 * RowCounts.APART + 3 * FEW + 1
    uncounted = 20 * RowCounts.APART
    assert steps(embedded, embedded.tally) < few[0] + uncounted
    assert steps(embedded, embedded.waiting_since) < few[1] + 20


def test_many_queues_are_counted_as_few_are(store: Store) -> None:
    since = {f"customer-{number}": NOON - number * SECOND for number in range(40)}
    store.add([a_record(queue=queue, ready_at=at) for queue, at in since.items()])
    store.add([a_record(queue=queue) for queue in since])
    store.add([forced(queue="customer-5", ready_at=NOON - HOUR)])

    counted = {(queue, Status.WAITING): 3 if queue == "customer-5" else 2 for queue in since}
    assert store.tally() == counted
    assert store.waiting_since() == {**since, "customer-5": NOON - HOUR}


def test_single_adds_are_counted_now_and_then(embedded: Store) -> None:
    for _ in range(3):
        embedded.add([a_record() for _ in range(RowCounts.APART - 1)])
        embedded.add([a_record()])

    assert uncounted(embedded) < RowCounts.APART


def uncounted(store: Store) -> int:
    """Return how many rows are behind the last counted one."""
    raw: sqlite3.Connection = store._engine._raw  # type: ignore[attr-defined]
    [rows] = raw.execute("SELECT count(*) FROM jobs WHERE rowid > (SELECT number FROM counted)").fetchone()
    return int(rows)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE counted SET job = 'another', number = number - 7",
        "DELETE FROM jobs WHERE rowid > 1500",
        "UPDATE tally SET records = 'x' WHERE status = -1",
        "UPDATE tally SET records = 3 WHERE status = -1",
    ],
)
def test_a_damaged_tally_is_counted_anew(embedded: Store, damage: str) -> None:
    embedded.add([a_record() for _ in range(RowCounts.APART)])
    embedded.tidy_history(NOON, 1)
    raw: sqlite3.Connection = embedded._engine._raw  # type: ignore[attr-defined]
    raw.execute(damage)

    for _ in range(2):
        assert tally(embedded) == counted(embedded)
        embedded.tidy_history(NOON, 1)
        embedded.add([a_record() for _ in range(3)])
