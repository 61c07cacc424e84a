"""Conditions are values: joined, kept as JSON, told in words; and what the answers do to a record."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from taskqueue.errors import InvalidOption
from taskqueue.model import conditions, options
from taskqueue.model.conditions import FAILED_CHECKS, OWN, Check, Condition
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle import continuation, outcomes, pending, settle
from taskqueue.model.lifecycle.outcomes import Canceled, CheckFailed, Done, HandedBack, NotReady
from taskqueue.model.limits import Limit, Rate
from taskqueue.model.options import new_record
from taskqueue.model.record import Attempt, Cause, OnCrash, Options, Record, Status
from taskqueue.model.serializer import encode
from tests.model.lifecycle.test_pending import BROKEN, HOUR, LEASE, NOW, RUN, WEB, a_record

OPEN = Check("shop.checks:is_open", shop="berlin")
FULL = Check("shop.checks:Stock.is_full")


def checked(record: Record, outcome: outcomes.Outcome) -> Record:
    """Return the record after it was claimed and this was the outcome."""
    claimed = pending.claimed(pending.promoted(record), WEB, NOW + LEASE)
    return settle.ended(claimed, outcome, RUN, NOW)


def is_sunny(job: object) -> bool:
    return job is not None


class Weather:
    @staticmethod
    def is_dry(job: object) -> bool:
        return job is not None


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (OPEN, "shop.checks:is_open(shop='berlin')"),
        (OPEN & ~FULL, "shop.checks:is_open(shop='berlin') and not shop.checks:Stock.is_full()"),
        (
            ~(OPEN | FULL) & OWN,
            "not (shop.checks:is_open(shop='berlin') or shop.checks:Stock.is_full()) and #is_ready()",
        ),
        (OPEN & FULL & OWN, "shop.checks:is_open(shop='berlin') and shop.checks:Stock.is_full() and #is_ready()"),
        (OPEN | FULL | OWN, "shop.checks:is_open(shop='berlin') or shop.checks:Stock.is_full() or #is_ready()"),
    ],
)
def test_a_condition_is_told_in_words_and_survives_json(condition: Condition, words: str) -> None:
    kept = json.loads(json.dumps(conditions.document(condition)))

    assert str(condition) == words
    assert conditions.condition(kept) == conditions.declared(kept) == condition
    assert hash(conditions.condition(kept)) == hash(condition)


def test_a_function_is_kept_by_its_path() -> None:
    assert Check(is_sunny).predicate == "tests.model.test_conditions:is_sunny"
    assert Check(Weather.is_dry, wind=3).predicate == "tests.model.test_conditions:Weather.is_dry"


@pytest.mark.parametrize("predicate", ["nothing", "a:b:c", "#", "#a.b", 7, lambda job: True, Weather, None])
def test_what_is_no_predicate_is_refused(predicate: object) -> None:
    with pytest.raises(InvalidOption, match="predicate"):
        Check(predicate)  # type: ignore[arg-type]


def test_settings_are_plain_json() -> None:
    with pytest.raises(InvalidOption, match="shop:is_open are not plain JSON"):
        Check("shop:is_open", since=object())


def test_only_conditions_are_joined() -> None:
    with pytest.raises(InvalidOption, match="join checks"):
        OPEN & "shop:is_full"  # type: ignore[operator]


@pytest.mark.parametrize(
    "join",
    [
        lambda: Limit(5) | OPEN,  # type: ignore[arg-type]
        lambda: OPEN | Limit(5),  # type: ignore[operator]
        lambda: Rate(5, per=60) & OPEN,  # type: ignore[operator]
        lambda: OPEN & Rate(5, per=60),  # type: ignore[operator]
        lambda: 5 & Limit(5),  # type: ignore[operator]
        lambda: ~Limit(5),
        lambda: Check(Limit(5)),  # type: ignore[arg-type]
    ],
)
def test_a_limit_in_the_place_of_a_condition_is_refused_with_the_option_that_takes_it(
    join: Callable[[], object],
) -> None:
    with pytest.raises(InvalidOption, match=r"is a limit, not a condition: pass it in limits="):
        join()


@pytest.mark.parametrize(
    "document", [{}, {"check": "a:b", "more": 1}, {"all": []}, {"any": "a:b"}, {"not": "a:b"}, {"all": [{"check": 7}]}]
)
def test_what_is_no_document_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(InvalidOption):
        conditions.condition(document)


def test_a_job_may_depend_on_jobs_and_predicates() -> None:  # LZQ-7
    awaited = JobId()
    given = options.checked({"depends_on": [awaited, "#is_paid", OPEN], "ready": "shop.checks:is_open"})

    made = new_record.record(
        job="app:Mail", data=encode(None), options=options.merged(given, {}, {}), given=given, id=JobId(), now=NOW
    )

    assert [one.id for one in made.depends_on] == [awaited]
    assert made.options.ready == Check("shop.checks:is_open") & Check("#is_paid") & OPEN
    assert new_record.changed(made, given) == []
    assert new_record.changed(made, options.checked({"ready": OPEN})) == ["ready"]
    assert new_record.in_force(made)["ready"]["all"][1] == {"check": "#is_paid"}


@pytest.mark.parametrize("value", [{"check": "a:b"}, "a:b", is_sunny, OPEN, None])
def test_the_option_takes_every_form(value: object) -> None:
    [found] = options.checked({"ready": value}).values()

    assert found is None if value is None else conditions.is_condition(found)


def test_a_job_that_is_not_ready_waits_longer_each_time_and_nothing_is_counted() -> None:
    record = a_record(options=Options(ready=OPEN))
    pauses = []

    for _ in range(8):
        record = checked(record, NotReady(reason="closed"))
        assert record.ready_at is not None
        pauses.append((record.ready_at - NOW).total_seconds())

    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert (record.status, record.cause) == (Status.POSTPONED, Cause.NOT_READY)
    assert (record.failures, record.crashes, record.attempts, record.started_at) == (0, 0, (), None)
    assert (record.unready and record.unready.times, record.holder) == (8, None)
    assert (
        continuation.continuation_of(continuation.document(record.course or continuation.Continuation()))
        == record.course
    )


def test_it_expires_while_it_was_never_begun() -> None:
    record = checked(a_record(expires_at=NOW + HOUR), NotReady(reason="closed"))

    assert pending.is_late(record, NOW + HOUR)
    handed_back = checked(record, HandedBack())
    assert not (handed_back.course or continuation.Continuation()).has_begun


def test_it_stays_begun_if_it_ever_was() -> None:
    attempt = Attempt(number=1, claims=1, node="web-1", started_at=NOW - HOUR, ended_at=NOW, outcome="Failed")

    assert checked(a_record(attempts=(attempt,)), NotReady(reason="closed")).started_at == NOW - HOUR


def test_what_was_said_is_forgotten_when_it_has_run() -> None:
    record = checked(a_record(), NotReady(reason="closed"))

    done = checked(record, Done())

    assert (record.course, done.course) == (continuation.Continuation(unready=record.unready), None)


def test_checks_that_fail_too_often_in_a_row_fail_the_job() -> None:
    record = a_record()
    for _ in range(FAILED_CHECKS - 1):
        record = checked(record, CheckFailed(failure=BROKEN))
        assert (record.status, record.cause, record.error) == (Status.POSTPONED, Cause.NOT_READY, BROKEN)

    answered = checked(record, NotReady(reason="closed"))
    failed = checked(record, CheckFailed(failure=BROKEN))

    assert answered.unready is not None
    assert (answered.unready.times, answered.unready.errors) == (FAILED_CHECKS, 0)
    assert (failed.status, failed.cause, failed.error) == (Status.FAILED, Cause.CHECK_FAILED, BROKEN)
    assert (failed.failures, failed.attempts) == (0, ())


def test_a_claim_that_is_lost_during_a_check_counts_nowhere() -> None:
    claimed = pending.claimed(a_record(options=Options(on_crash=OnCrash.RETRY)), WEB, NOW + LEASE)

    assert settle.lost(replace(claimed), NOW + timedelta(minutes=1)).crashes == 0


def test_a_wish_to_cancel_is_obeyed_by_one_that_is_not_ready() -> None:
    claimed = pending.canceled(pending.claimed(a_record(), WEB, NOW + LEASE), "enough", NOW)

    assert settle.ended(claimed, NotReady(reason="closed"), RUN, NOW).status is Status.CANCELED
    assert settle.ended(claimed, Canceled(), RUN, NOW).status is Status.CANCELED
