"""The place of a waiting job is found by a look at those before it, of which no more than a bound are counted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from taskqueue.insight.obstacles import MOST_BEFORE
from taskqueue.insight.why import why
from taskqueue.model.record import Holder
from taskqueue.store import Lease, Store
from taskqueue.store.mongodb import open_mongodb
from taskqueue.store.open import open_store
from tests.store.records import NOON, SECOND, a_record
from tests.store.test_claims_of_full_keys import examined
from tests.store.test_sqlite_costs import steps

ALONE = 5_000
"""Steps, or keys and documents, that the report about a job takes at most where none is before it."""


@pytest.fixture
def database(mongo_set: str) -> Iterator[Database[dict[str, Any]]]:
    with MongoClient[dict[str, Any]](mongo_set) as client:
        yield client[f"place-{os.getpid()}"]
        client.drop_database(f"place-{os.getpid()}")


def check(store: Store, cost: Callable[[Callable[[], object]], int]) -> None:
    """Ask for the place of the first and the last of many jobs, and of one between."""
    waiting = [a_record(ready_at=NOON + number * SECOND) for number in range(3 * MOST_BEFORE)]
    store.add(waiting)
    said: list[str] = []
    places = (0, 1, 1000, MOST_BEFORE, MOST_BEFORE + 1, -1)

    costs = [cost(lambda place=place: said.append(why(store, waiting[place].id))) for place in places]  # type: ignore[misc]

    words = ["it is the next", "1 stands before it", "1,000 stand before it", f"{MOST_BEFORE:,} stand before it"]
    words += [f"more than {MOST_BEFORE:,} stand before it"] * 2
    assert [word for word, text in zip(words, said, strict=True) if f"priority 0, {word}." not in text] == []
    assert costs[0] < ALONE
    assert costs[-1] < 1.2 * costs[-2] + ALONE


def test_of_a_backlog_of_another_queue_a_bound_is_counted(tmp_path: Path) -> None:
    holder = Holder(seat="web-1", incarnation="a1")
    with closing(open_store(f"sqlite://{tmp_path}/jobs.db?synchronous=normal")) as store:
        store.add([a_record(queue="mail", ready_at=NOON) for _ in range(3 * MOST_BEFORE)])
        waiting = a_record(queue="billing", ready_at=NOON + SECOND)
        store.add([waiting])
        now = store.now()
        lease = Lease(name="seat:web-1", holder=holder, since=now, until=now + 60 * SECOND, about={"order": "strict"})
        store.acquire(lease, now)
        said: list[str] = []

        cost = steps(store, lambda: said.append(why(store, waiting.id)))

    assert f"more than {MOST_BEFORE:,} jobs of other queues stand before it." in said[0]
    assert cost < 30 * MOST_BEFORE  # to count all of them takes more than 60


def test_the_place_of_a_job_takes_sqlite_steps_for_those_before_it(tmp_path: Path) -> None:
    with closing(open_store(f"sqlite://{tmp_path}/jobs.db?synchronous=normal")) as store:
        check(store, lambda call: steps(store, call))


def test_the_place_of_a_job_has_mongodb_examine_those_before_it(database: Database[dict[str, Any]]) -> None:
    with closing(open_mongodb(database)) as store:
        check(store, lambda call: examined(database, call))
