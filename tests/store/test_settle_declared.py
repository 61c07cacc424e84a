"""A claim settled with what the class of the job declares: its queue, limits and key are those of the class."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bson import ObjectId

from taskqueue.model.lifecycle.outcomes import Declared
from taskqueue.model.limits import Limit, Rate, lane, limit_keys_of
from taskqueue.model.record import Cause, OnCrash, Options, Record, Status, changed
from taskqueue.model.retry import FixedRetry
from taskqueue.model.schedules.origin import Series
from taskqueue.store import Store
from tests.store.records import HOUR, MINUTE, NOON, SECOND, WEB_2, a_record, claim, kept, running, settlement

SHARED = "shop:Mail"
EVERYTHING: dict[str, Any] = {
    "retry": 5,
    "retry_interval": 7,
    "timeout": 90,
    "on_crash": "fail",
    "priority": -2,
    "queue": "mail",
    "tags": ["a", "b"],
    "unique": "only",
    "limits": ["2 by=to"],
    "expires": "+2 hours",
    "interval": 60,
    "max_runs": 3,
}


def test_all_that_a_class_declares_is_kept(store: Store) -> None:
    run = running(store, unknown(tags=("mine",), given={"tags": ["mine"]}))

    assert declare(store, run, EVERYTHING) == {run.id}

    after = kept(store, run.id)
    assert (after.status, after.cause, after.ready_at, after.holder) == (Status.WAITING, Cause.ADDED, NOON, None)
    assert (after.queue, after.priority, after.tags, after.unique) == ("mail", -2, ("mine",), "only")
    assert after.options == Options(retry=FixedRetry(times=5, interval=7), timeout=90, on_crash=OnCrash.FAIL)
    assert after.lane == lane([Limit(2, by="to")], SHARED, {"to": "x"})
    assert after.expires_at == NOON + 2 * HOUR
    assert isinstance(after.origin, Series)
    assert after.attempts == ()
    [again] = claim(store, now=NOON + SECOND, queues={"mail": None}).records
    assert (again.id, again.claims, again.attempt) == (run.id, 2, 1)
    assert not claim(store, now=NOON + SECOND).records


def test_a_time_that_a_class_declares_is_waited_for(store: Store) -> None:
    run = running(store, unknown())

    declare(store, run, {"at": "+1 minute"})

    assert kept(store, run.id).status is Status.POSTPONED
    assert not claim(store, now=NOON + 59 * SECOND).records
    assert [one.id for one in claim(store, now=NOON + MINUTE).records] == [run.id]


def test_a_job_whose_class_has_a_key_that_another_pending_job_has_ends(store: Store) -> None:
    first = a_record(unique="only", queue="mail")
    store.add([first])
    run = running(store, unknown(id=ObjectId(), ready_at=NOON - HOUR))

    assert declare(store, run, {"unique": "only", "limits": ["1"]}) == {run.id}

    after = kept(store, run.id)
    assert (after.status, after.cause) == (Status.CANCELED, Cause.REPLACED)
    assert after.error is not None
    assert str(first.id) in after.error.message
    assert kept(store, first.id).unique == "only"


def test_one_whose_key_is_free_keeps_others_out(store: Store) -> None:
    run = running(store, unknown())
    declare(store, run, {"unique": "only"})

    [holder] = store.add([a_record(unique="only")])

    assert holder.id == run.id


def test_the_places_of_the_limit_that_it_was_claimed_under_are_free_again(store: Store) -> None:
    default, own = lane([Limit(1, name="api"), Rate(1, 60, name="calls")], SHARED, None), lane([Limit(1)], SHARED, None)
    run = running(store, unknown(lane=default))
    keys = [slot.key for slot in (*limit_keys_of(default), *limit_keys_of(own))]
    assert sum(store.limit_usage(keys, NOON + SECOND).values()) == 2

    declare(store, run, {"limits": [1]})

    assert sum(store.limit_usage(keys, NOON + SECOND).values()) == 0
    assert [one.id for one in claim(store, now=NOON + 2 * SECOND).records] == [run.id]
    assert store.limit_usage(keys, NOON + 2 * SECOND) == {key: int(key == keys[-1]) for key in keys}


def test_one_that_somebody_asked_to_cancel_is_canceled(store: Store) -> None:
    run = running(store, unknown())
    store.cancel(run.id, "enough", NOON)

    assert declare(store, run, {"queue": "mail", "unique": "only"}) == {run.id}

    after = kept(store, run.id)
    assert (after.status, after.cause) == (Status.CANCELED, Cause.CANCELED)


def test_a_claim_that_was_lost_declares_nothing(store: Store) -> None:
    run = running(store, unknown())
    [again] = [replace(run, holder=WEB_2)]

    assert declare(store, again, {"queue": "mail"}) == set()
    assert kept(store, run.id).queue == "default"
    assert declare(store, run, {"queue": "mail"}) == {run.id}
    assert declare(store, run, {"queue": "mails"}) == set()
    assert kept(store, run.id).queue == "mail"


def test_several_at_once_are_settled_beside_others(store: Store) -> None:
    runs = [running(store, unknown()) for _ in range(3)]
    done = running(store, a_record())
    defined = [settlement(run, Declared(options={"queue": "mail"}))._replace(defined=run) for run in runs]

    accepted = store.settle([*defined, settlement(done)], NOON + SECOND)

    assert accepted == {done.id, *(run.id for run in runs)}
    assert len(claim(store, 9, now=NOON + 2 * SECOND, queues={"mail": None}).records) == 3


def unknown(**fields: Any) -> Record:
    """Return a record that was added by its path."""
    return a_record(**{"job": SHARED, "data": '{"to":"x"}', "options": Options(undeclared=True), **fields})


def declare(store: Store, run: Record, options: dict[str, Any]) -> set[ObjectId]:
    """Settle the claim with what the class of the job declares."""
    one = settlement(changed(run, started_at=None), Declared(options=options))
    return store.settle([one._replace(defined=run)], NOON + SECOND)
