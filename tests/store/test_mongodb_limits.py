"""What only the limits of a MongoDB store have: uses that a process renews until its claim has ended."""

from __future__ import annotations

from taskqueue.model.lifecycle.outcomes import HandedBack
from taskqueue.model.limits import Limit, lane
from taskqueue.model.record import Record
from taskqueue.store.mongodb.limits import Freed
from taskqueue.store.mongodb.store import MongoStore
from tests.store.records import HOUR, LEASE, NOON, WEB_1, WEB_2, a_record, claim, settle


def one_at_once() -> Record:
    return a_record(lane=lane([Limit(1)], "app:Mail", None))


def test_what_an_earlier_claim_has_left_does_not_end_the_renewal_of_a_newer_one(mongo_store: MongoStore) -> None:
    mongo_store.add([one_at_once()])
    [first] = claim(mongo_store).records
    settle(mongo_store, first, HandedBack())
    [again] = claim(mongo_store).records
    mongo_store._limit_use.release([Freed(id=first.id, claims=first.claims, lane=first.lane or "", began_at=None)])
    mongo_store.add([one_at_once()])

    mongo_store.renew(WEB_1, NOON + HOUR, {})

    assert (again.id, again.claims) == (first.id, 2)
    assert claim(mongo_store, holder=WEB_2, now=NOON + 2 * LEASE).records == []
