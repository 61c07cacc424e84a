"""What only the limits of a MongoDB store have: uses that a process renews until its claim has ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo.database import Database

from taskqueue.model.lifecycle.outcomes import HandedBack
from taskqueue.model.limits import Limit, lane
from taskqueue.model.record import Record
from taskqueue.store.mongodb import open_mongodb
from taskqueue.store.mongodb.limits import Freed
from taskqueue.store.mongodb.store import MongoStore
from tests.servers import PATIENCE, emptied, with_database
from tests.store.records import HOUR, LEASE, NOON, WEB_1, WEB_2, a_record, claim, settle


@pytest.fixture
def store(mongo_set: str, mongo_database: Database[dict[str, Any]]) -> Iterator[MongoStore]:
    name = f"{mongo_database.name}-limits"
    emptied(mongo_set, name)
    opened = open_mongodb(f"{with_database(mongo_set, name)}&timeoutMS={PATIENCE * 1000:.0f}")
    assert isinstance(opened, MongoStore)
    yield opened
    opened.close()


def one_at_once() -> Record:
    return a_record(lane=lane([Limit(1)], "app:Mail", None))


def test_what_an_earlier_claim_has_left_does_not_end_the_renewal_of_a_newer_one(store: MongoStore) -> None:
    store.add([one_at_once()])
    [first] = claim(store).records
    settle(store, first, HandedBack())
    [again] = claim(store).records
    store._limit_use.release([Freed(id=first.id, claims=first.claims, lane=first.lane or "", began_at=None)])
    store.add([one_at_once()])

    store.renew(WEB_1, NOON + HOUR, {})

    assert (again.id, again.claims) == (first.id, 2)
    assert claim(store, holder=WEB_2, now=NOON + 2 * LEASE).records == []
