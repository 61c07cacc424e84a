"""The ends of a batch share one entry of effects, and whatever happens none is written without it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, TypeAlias

import pytest
from bson import ObjectId
from pymongo.database import Database

from taskqueue.model.history import Step, entries
from taskqueue.model.query import parse
from taskqueue.model.record import Record, Status
from taskqueue.store import OLDEST, Store
from taskqueue.store.mongodb import open_mongodb
from taskqueue.store.mongodb.effects import Effect, effects_of
from taskqueue.store.mongodb.settlements import LEAST_SHARED, share, statements
from tests.servers import PATIENCE, emptied, with_database
from tests.store.records import HOUR, NOON, a_record, behind, claim, settlement

Document: TypeAlias = dict[str, Any]

LATER = NOON + 2 * HOUR
JOBS = LEAST_SHARED + 2


@pytest.fixture
def database(mongo_set: str, mongo_database: Database[Document]) -> Database[Document]:
    """Return a database of our own without documents."""
    own = mongo_database.client[f"{mongo_database.name}-batches"]
    emptied(mongo_set, own.name)
    return own


@pytest.fixture
def url(mongo_set: str, database: Database[Document]) -> str:
    return f"{with_database(mongo_set, database.name)}&timeoutMS={PATIENCE * 1000:.0f}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_mongodb(url)) as opened:
        yield opened


def a_batch(store: Store) -> list[Record]:
    """Add and claim a batch."""
    store.add([a_record() for _ in range(JOBS)])
    return list(claim(store, JOBS).records)


def an_awaited_batch(store: Store) -> list[Record]:
    """Claim a batch, for each job of which another one waits."""
    runs = a_batch(store)
    store.add([behind(run.id) for run in runs])
    return runs


def shared_by(runs: list[Record]) -> Mapping[Any, Effect]:
    """Return the effects of these ends as they are kept by a settle."""
    token = ObjectId()
    ends = [settlement(run).after for run in runs]
    return share({one.id: effects_of(one, token, NOON, claimed=True) for one in ends})


def told(store: Store) -> list[ObjectId]:
    """Return the jobs whose end was told, in order."""
    return sorted(one.job_id for one in store.events(OLDEST)[0] if one.ended and one.job_id)


def counted(store: Store) -> int:
    return sum(one.done for one in entries(store.history(Step.MINUTE, NOON - HOUR, NOON + HOUR), Step.MINUTE))


def leftovers(database: Database[Document]) -> int:
    return database["taskqueue_jobs"].count_documents({"after.at": {"$exists": True}})


def test_one_entry_is_cleared_for_a_batch(url: str, database: Database[Document]) -> None:
    with closing(open_mongodb(url)) as store:
        runs = a_batch(store)
        database.command("profile", 2)
        assert store.settle([settlement(run) for run in runs], NOON) == {run.id for run in runs}
        store.events(None)
        database.command("profile", 0)

    profile = database["system.profile"]
    [clearing] = profile.find({"op": "update", "command.u.$pull.after": {"$exists": True}})
    profile.drop()
    assert clearing["nMatched"] == 1
    assert leftovers(database) == 0


@pytest.mark.parametrize("statements_done", [1, 2])
def test_ends_that_a_server_wrote_before_it_died_within_the_command_are_completed(
    store: Store, database: Database[Document], statements_done: int
) -> None:
    runs = an_awaited_batch(store)
    ends = statements([settlement(run) for run in runs], shared_by(runs))
    database["taskqueue_jobs"].bulk_write(ends[:statements_done], ordered=True)

    assert store.repair(LATER) > 0

    done = [run.id for run in runs][: None if statements_done == 2 else 1]
    assert {one.id for one in store.find(parse({"status": "DONE"}))} == set(done)
    assert told(store) == sorted(done)
    assert store.count(parse({"status": int(Status.WAITING)})) == len(done)  # those that waited for them
    assert (leftovers(database), store.repair(LATER)) == (0, 0)


@pytest.mark.parametrize("lost", [0, LEAST_SHARED])
def test_one_lost_claim_of_a_batch_refuses_one_end(store: Store, database: Database[Document], lost: int) -> None:
    runs = an_awaited_batch(store)
    store.settle([settlement(runs[lost])], NOON)

    accepted = store.settle([settlement(run) for run in runs], NOON)

    assert accepted == {run.id for index, run in enumerate(runs) if index != lost}
    assert told(store) == sorted(run.id for run in runs)
    assert counted(store) == JOBS
    assert store.count(parse({"status": int(Status.WAITING)})) == JOBS
    assert leftovers(database) == 0


def test_a_removed_job_of_a_batch_stays_removed_and_refuses_no_other_end(
    store: Store, database: Database[Document]
) -> None:
    runs = an_awaited_batch(store)
    database["taskqueue_jobs"].delete_one({"_id": runs[0].id})

    assert store.settle([settlement(run) for run in runs], NOON) == {run.id for run in runs[1:]}

    assert told(store) == sorted(run.id for run in runs[1:])
    assert store.count(parse({"id": runs[0].id})) == 0
    assert (leftovers(database), store.repair(LATER)) == (0, 0)


def test_a_repair_of_ends_that_their_writer_counts_counts_none_of_them_twice(
    url: str, store: Store, database: Database[Document]
) -> None:
    with closing(open_mongodb(url)) as writer:
        runs = a_batch(writer)
        writer.settle([settlement(run) for run in runs], NOON)
        writer.events(None)
        left = effects_of(settlement(runs[0]).after, ObjectId(), NOON, claimed=True)
        change = {"$push": {"after": left.entry()}}  # as if its clearing had been lost
        database["taskqueue_jobs"].update_one({"_id": runs[0].id}, change)

        assert store.repair(LATER) == 1

    assert (leftovers(database), counted(store)) == (0, JOBS)


def test_jobs_of_a_batch_stay_until_their_entry_was_carried_out(store: Store, database: Database[Document]) -> None:
    runs = a_batch(store)
    ends = statements([settlement(run) for run in runs], shared_by(runs))
    database["taskqueue_jobs"].bulk_write(ends, ordered=True)

    assert store.prune({Status.DONE: LATER}, NOON - HOUR, 100) == 0

    store.repair(LATER)
    assert store.prune({Status.DONE: LATER}, NOON - HOUR, 100) == JOBS
