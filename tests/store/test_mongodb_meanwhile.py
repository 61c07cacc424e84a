"""What another writer does between two statements of one call: neither loses what the other was told is done."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any, TypeAlias

import pytest
from bson import ObjectId
from pymongo.collection import Collection
from pymongo.database import Database

from taskqueue.model.lifecycle.outcomes import Declared
from taskqueue.model.options.update import revised
from taskqueue.model.record import Options, Record, Status
from taskqueue.store import Store
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import moving
from taskqueue.store.mongodb.store import MongoStore
from taskqueue.store.mongodb.url import parse
from tests.store.preceded import Document, PrecededConnection
from tests.store.records import (
    HOUR,
    NOON,
    WEB_2,
    a_record,
    behind,
    claim,
    finished,
    ids,
    kept,
    now_cursor,
    running,
    settle,
    settlement,
    told,
)

Act: TypeAlias = Callable[[], object]

ONE, TWO, THREE, FOUR = (ObjectId(f"{number:024x}") for number in range(1, 5))


class Door:
    """Lets another writer of jobs act once, right before the next call with a name."""

    collection = "jobs"

    def __init__(self) -> None:
        self._awaited: str | None = None
        self._act: Act = list

    def before(self, write: str, act: Act) -> None:
        self._awaited, self._act = write, act

    @property
    def used(self) -> bool:
        return self._awaited is None

    def precede(self, write: str, *_: Any) -> None:
        if write == self._awaited:
            self._awaited = None
            self._act()


@pytest.fixture
def door() -> Door:
    return Door()


@pytest.fixture
def opened(mongo_url: str) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def mine(mongo_url: str, door: Door, opened: ExitStack) -> Store:
    connection = PrecededConnection(parse(mongo_url))
    store = opened.enter_context(closing(MongoStore(connection)))
    connection.other = door
    return store


@pytest.fixture
def theirs(mongo_url: str, opened: ExitStack) -> MongoStore:
    return opened.enter_context(closing(MongoStore(Connection(parse(mongo_url)))))


@pytest.fixture
def jobs(mongo_url: str, opened: ExitStack) -> Collection[Document]:
    return opened.enter_context(closing(Connection(parse(mongo_url)))).collections.jobs


@pytest.mark.parametrize("seed", range(6))
def test_a_claim_that_lost_some_to_another_comes_back_at_once_for_the_rest(
    mine: Store, theirs: Store, door: Door, seed: int
) -> None:
    random.seed(seed)
    mine.add([a_record() for _ in range(20)])
    door.before("update_many", lambda: claim(theirs, 5, holder=WEB_2))

    first = claim(mine, 8)

    assert door.used
    assert (len(first.records), first.next_at) == (3, NOON)
    assert len(claim(mine, 8).records) == 8
    assert len(claim(mine, 8).records) == 4
    last = claim(mine, 8)
    assert (last.records, last.next_at) == ([], None)


def test_what_its_owner_changes_while_a_job_is_released_stays(mine: Store, theirs: Store, door: Door) -> None:
    run = running(mine, a_record(id=ONE))
    mine.add([behind(ONE, id=TWO), behind(ONE, id=THREE)])

    def change() -> None:
        two, three = kept(theirs, TWO), kept(theirs, THREE)
        assert theirs.update(two, revised(two, {"queue": "slow", "priority": 7}, None, NOON), NOON)
        assert theirs.update(three, revised(three, {"at": NOON + HOUR}, None, NOON), NOON)

    cursor = now_cursor(mine)
    door.before("bulk_write", change)
    settle(mine, run)

    assert door.used
    two, three = kept(mine, TWO), kept(mine, THREE)
    assert (two.status, two.queue, two.priority, two.rank) == (Status.WAITING, "slow", 7, two.at_rank().rank)
    assert (three.status, three.ready_at, three.waiting_for) == (Status.POSTPONED, NOON + HOUR, ())
    assert sorted(told(mine, cursor)) == ["done", "waiting"]


def agrees(store: Store, jobs: Collection[Document], id: ObjectId) -> bool:
    """Return whether the document has the derived fields of its record."""
    document = jobs.find_one({"_id": id})
    assert document is not None
    whole = moving(kept(store, id))
    return all(document.get(name) == whole[name] for name in ("due", "expires", "rank"))


def test_a_job_whose_wait_ends_while_its_owner_moves_it_is_not_due_too_early(
    mine: Store, theirs: Store, jobs: Collection[Document], door: Door
) -> None:
    run = running(mine, a_record(id=ONE))
    mine.add([behind(ONE, id=TWO, ready_at=NOON + HOUR)])
    before = kept(mine, TWO)
    door.before("update_one", lambda: settle(theirs, run))

    assert not mine.update(before, revised(before, {"at": NOON + 3 * HOUR}, None, NOON), NOON)
    assert door.used
    before = kept(mine, TWO)
    assert mine.update(before, revised(before, {"at": NOON + 3 * HOUR}, None, NOON), NOON)
    assert agrees(theirs, jobs, TWO)
    assert claim(mine, now=NOON + 2 * HOUR).records == []


def test_a_job_whose_key_is_cleared_while_its_owner_moves_it_is_not_due_too_early(
    mine: Store, theirs: Store, jobs: Collection[Document], door: Door
) -> None:
    read: list[Record] = []
    door.before("bulk_write", lambda: read.append(kept(theirs, ONE)))
    mine.add([a_record(id=ONE, unique="k", status=Status.POSTPONED, ready_at=NOON + HOUR)])
    [before] = read

    assert not theirs.update(before, revised(before, {"at": NOON + 3 * HOUR}, None, NOON), NOON)
    assert agrees(theirs, jobs, ONE)


@pytest.mark.parametrize("outdated", ["due", "expires", "lane"])
def test_an_update_writes_derived_fields_that_disagree_anew(
    mine: Store, theirs: Store, jobs: Collection[Document], outdated: str
) -> None:
    record = a_record(id=ONE, status=Status.POSTPONED, ready_at=NOON + HOUR, expires_at=NOON + 9 * HOUR)
    mine.add([record])
    jobs.update_one({"_id": ONE}, {"$set": {outdated: NOON}})

    assert mine.update(record, revised(record, {"at": NOON + 3 * HOUR}, None, NOON), NOON)
    assert agrees(theirs, jobs, ONE)


def test_a_key_that_its_holder_has_just_left_goes_to_the_job_whose_class_declares_it(
    mine: Store, theirs: Store, door: Door
) -> None:
    other = running(theirs, a_record(unique="only"))
    run = running(mine, a_record(options=Options(undeclared=True)))
    declared = settlement(run, Declared(options={"unique": "only"}))._replace(defined=run)
    door.before("find_one", lambda: settle(theirs, other))

    assert mine.settle([declared], NOON) == {run.id}

    assert door.used
    after = kept(mine, run.id)
    assert (after.status, after.unique) == (Status.WAITING, "only")


def test_a_job_that_its_owner_moves_while_it_is_canceled_keeps_the_change(
    mine: Store, theirs: Store, door: Door
) -> None:
    [before] = mine.add([a_record(id=ONE)])
    moved = revised(before, {"queue": "slow", "priority": 7}, None, NOON)
    door.before("bulk_write", lambda: theirs.update(before, moved, NOON))

    mine.cancel(ONE, "not needed", NOON)

    assert door.used
    after = kept(mine, ONE)
    assert (after.status, after.queue, after.priority, after.rank) == (Status.CANCELED, "slow", 7, moved.rank)


def test_a_job_that_is_canceled_while_it_is_released_stays_canceled(mine: Store, theirs: Store, door: Door) -> None:
    run = running(mine, a_record(id=ONE))
    mine.add([behind(ONE, id=TWO)])

    cursor = now_cursor(mine)
    door.before("bulk_write", lambda: theirs.cancel(TWO, "not needed", NOON))
    settle(mine, run)

    assert door.used
    assert kept(mine, TWO).status is Status.CANCELED
    assert sorted(told(mine, cursor)) == ["canceled", "done"]


def test_a_job_that_takes_the_key_of_a_running_one_before_its_successor_waits(
    mine: Store, theirs: Store, door: Door
) -> None:
    old = running(mine, a_record(id=ONE, unique="k"))
    quicker = a_record(id=TWO, unique="k", data='"b"')
    door.before("insert_one", lambda: theirs.add([quicker]))

    assert mine.replace(a_record(id=THREE, unique="k", data='"c"'), old, None, NOON) is None

    assert door.used
    assert (kept(theirs, TWO).status, kept(theirs, TWO).waiting_for) == (Status.POSTPONED, (ONE,))
    assert claim(theirs, 9, holder=WEB_2).records == []
    [present] = mine.add([a_record(id=THREE, unique="k", data='"c"')])
    assert present == kept(theirs, TWO)
    successor = mine.replace(a_record(id=THREE, unique="k", data='"c"'), present, None, NOON)
    assert successor is not None
    assert (successor.status, successor.waiting_for) == (Status.POSTPONED, (ONE,))
    assert claim(theirs, 9, holder=WEB_2).records == []
    settle(mine, old)
    assert ids(claim(theirs, 9, holder=WEB_2, now=NOON + HOUR).records) == [THREE]


def test_a_job_added_in_a_transaction_waits_too_when_it_takes_the_key_of_a_running_one(
    mine: Store, theirs: MongoStore, door: Door, mongo_database: Database[Document]
) -> None:
    old = running(mine, a_record(id=ONE, unique="k"))

    def add() -> None:
        with mongo_database.client.start_session() as session, session.start_transaction():
            theirs.within(session).add([a_record(id=TWO, unique="k")])

    door.before("insert_one", add)

    assert mine.replace(a_record(id=THREE, unique="k"), old, None, NOON) is None

    assert door.used
    assert (kept(mine, TWO).status, kept(mine, TWO).waiting_for) == (Status.POSTPONED, (ONE,))


def test_a_job_whose_key_may_be_anothers_is_not_claimed_before_somebody_has_looked(
    mine: Store, theirs: Store, door: Door
) -> None:
    claimed: list[Record] = []
    door.before("bulk_write", lambda: claimed.extend(claim(theirs, 9, holder=WEB_2).records))

    [added] = mine.add([a_record(id=ONE, unique="k")])

    assert door.used
    assert claimed == []
    assert kept(theirs, ONE) == added
    assert ids(claim(theirs, 9, holder=WEB_2).records) == [ONE]


def test_a_job_in_doubt_is_looked_at_before_it_is_replaced(mine: Store, theirs: Store, door: Door) -> None:
    new = a_record(id=TWO, unique="k")
    door.before("bulk_write", lambda: _replaced_by(theirs, ONE, new))

    mine.add([a_record(id=ONE, unique="k")])

    assert door.used
    assert kept(theirs, ONE).status is Status.CANCELED
    assert kept(theirs, TWO) == new


def _replaced_by(store: Store, id: ObjectId, new: Record) -> None:
    assert store.replace(new, kept(store, id), None, NOON) is None
    assert store.replace(new, kept(store, id), None, NOON) == new


def test_jobs_that_two_nodes_remove_at_once_are_counted_as_removed_once(mine: Store, theirs: Store, door: Door) -> None:
    for _ in range(3):
        finished(mine, a_record())
    finished(mine, a_record(), now=NOON + HOUR)
    done = ("default", Status.DONE)
    assert mine.tally() == {done: 4}

    def prune(store: Store) -> int:
        return store.prune({Status.DONE: NOON + HOUR / 2}, NOON, 100)

    removed: list[int] = []
    door.before("delete_many", lambda: removed.append(prune(theirs)))
    removed.append(prune(mine))

    assert door.used
    assert removed == [3, 0]
    assert mine.tally() == theirs.tally() == {done: 1}


def test_a_job_whose_queue_is_damaged_is_removed_with_the_others(
    mine: Store, mongo_database: Database[Document]
) -> None:
    for id in (ONE, TWO):
        finished(mine, a_record(id=id))
    mongo_database["taskqueue_jobs"].update_one({"_id": ONE}, {"$set": {"queue": {"a": 1}}})

    assert mine.prune({Status.DONE: NOON + HOUR}, NOON, 100) == 2
