"""Every transition in the table happens, no other one does, and what holds of a record holds after any life."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import product
from typing import Any, get_args

import pytest
from bson import ObjectId
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from taskqueue.model.conditions import FAILED_CHECKS, NotReadyState
from taskqueue.model.lifecycle import pending, settle
from taskqueue.model.lifecycle.continuation import PHASES, Continuation, Phase
from taskqueue.model.lifecycle.outcomes import (
    Awaiting,
    Canceled,
    CheckFailed,
    Crashed,
    Declared,
    Done,
    Failed,
    GivenUp,
    HandedBack,
    Interrupted,
    NotReady,
    Outcome,
    Run,
    Snoozed,
    Stalled,
    Stepped,
    TimedOut,
    Unloadable,
    Unreadable,
)
from taskqueue.model.lifecycle.settle import CRASH_PAUSES
from taskqueue.model.record import (
    ATTEMPTS_KEPT,
    CancelRequest,
    Cause,
    Dependency,
    Failure,
    Holder,
    OnCrash,
    Options,
    Record,
    Status,
    rank_of,
)
from taskqueue.model.retry import ExponentialRetry, FixedRetry, GiveUp, RetryIn, RetryPolicy
from tests.model.lifecycle.transitions import TRANSITIONS

NOW = datetime(2026, 7, 1, 12, tzinfo=timezone.utc)
LEASE = timedelta(seconds=30)
HOUR = timedelta(hours=1)
WEB = Holder(seat="web-1", incarnation="a")
RUN = Run(node="web-1", pid=7, started_at=NOW, exit="exit code 0", peak_memory=4096)
BROKEN = Failure(type="builtins.ValueError", message="no such address")
BEHIND = ObjectId()

OUTCOMES: dict[str, list[Outcome]] = {
    "Done": [Done(result="1")],
    "Failed": [
        Failed(failure=BROKEN),
        Failed(failure=BROKEN, delay=5),
        Failed(failure=BROKEN, delay=0),
        Failed(failure=BROKEN, decision=RetryIn(after=0, queue="slow")),
        Failed(failure=BROKEN, decision=GiveUp()),
    ],
    "GivenUp": [GivenUp(failure=BROKEN)],
    "Snoozed": [Snoozed(seconds=0), Snoozed(seconds=5)],
    "NotReady": [NotReady(reason="no file")],
    "CheckFailed": [CheckFailed(failure=BROKEN)],
    "Stepped": [Stepped(phase=Phase.STARTING)],
    "Awaiting": [Awaiting(ids=(ObjectId("65f0" * 6),))],
    "TimedOut": [TimedOut(failure=BROKEN), TimedOut(failure=BROKEN, decision=RetryIn(after=1))],
    "Stalled": [Stalled(failure=BROKEN), Stalled(failure=BROKEN, decision=GiveUp())],
    "Canceled": [Canceled()],
    "Interrupted": [Interrupted(), Interrupted(failure=BROKEN)],
    "HandedBack": [HandedBack()],
    "Crashed": [Crashed(failure=BROKEN)],
    "Declared": [Declared(options={"retry": 2}), Declared(options={"at": "+1 hour"}), Declared(options={"retry": "x"})],
    "Unloadable": [
        Unloadable(failure=BROKEN, retry_for=timedelta(0)),
        Unloadable(failure=BROKEN, retry_for=HOUR),
        Unloadable(failure=BROKEN, retry_for=timedelta(seconds=2)),
    ],
    "Unreadable": [Unreadable(failure=BROKEN)],
}
VERBS: dict[str, Callable[[Record], Record]] = {
    "promote": pending.promoted,
    "release": lambda record: pending.relieved(record, BEHIND, Status.FAILED, NOW),
    "claim": lambda record: pending.claimed(record, WEB, NOW + LEASE),
    "cancel": lambda record: pending.canceled(record, "enough", NOW),
    "give up": lambda record: pending.given_up(replace(record, error=BROKEN, waiting_for=()), "", NOW),
    "expire": lambda record: pending.expired(record, NOW),
    "update": lambda record: pending.planned(record, NOW, NOW),
}
POLICIES: list[RetryPolicy] = [FixedRetry(), FixedRetry(times=1), FixedRetry(times=-1, interval=0), ExponentialRetry()]


def a_record(status: Status = Status.WAITING, **given: Any) -> Record:
    """Return a record as it looks in a status."""
    looks: dict[str, Any] = {"id": ObjectId(), "job": "app:Mail", "created_at": NOW, "ready_at": NOW, "status": status}
    if status is Status.PROCESSING:
        looks |= {"holder": WEB, "claims": 1, "ready_at": NOW + LEASE, "cause": Cause.CLAIMED, "started_at": NOW}
        looks["rank"] = rank_of(NOW, 0)
    if status.is_final:
        looks |= {"ready_at": None, "ended_at": NOW}
    record = Record(**(looks | given))
    return record if status is Status.PROCESSING else record.at_rank()


def variants(status: Status) -> Iterator[Record]:
    """Return records of this status that differ in all that decides a transition."""
    histories = product((0, 1, 3), (0, 1, 3), OnCrash, POLICIES, (None, NOW - HOUR))
    for failures, crashes, on_crash, policy, unloadable_since in histories:
        record = a_record(
            status,
            failures=failures,
            crashes=crashes,
            options=Options(retry=policy, on_crash=on_crash),
            unloadable_since=unloadable_since,
            unloadable_times=failures,
            expires_at=NOW,
        )
        yield record
        if status is Status.PROCESSING:
            yield replace(record, rank=rank_of(NOW + HOUR, 0))
            unready = NotReadyState(times=FAILED_CHECKS, errors=FAILED_CHECKS - 1, reason="broken")
            yield replace(record, course=Continuation(unready=unready))
        if status is Status.POSTPONED:
            yield replace(record, waiting_for=(BEHIND,), ready_at=None)
            yield replace(record, waiting_for=(BEHIND,), ready_at=NOW + HOUR)
            yield replace(record, waiting_for=(BEHIND, ObjectId()))
            yield replace(record, waiting_for=(BEHIND,), depends_on=(Dependency(id=BEHIND),), ready_at=None)


def steps(verb: str) -> list[Callable[[Record], Record]]:
    """Return what a verb or the name of an outcome does to a record."""
    if verb == "update":
        return [VERBS[verb], lambda record: pending.planned(record, NOW + HOUR, NOW)]
    if verb in VERBS:
        return [VERBS[verb]]
    return [partial(_ended, outcome) for outcome in OUTCOMES[verb]]


def _ended(outcome: Outcome, record: Record) -> Record:
    return settle.ended(record, outcome, RUN, NOW)


@pytest.mark.parametrize(("status", "verb"), TRANSITIONS, ids=lambda part: getattr(part, "name", part))
def test_a_transition_leads_to_each_status_of_the_table_and_to_no_other(status: Status, verb: str) -> None:
    reached = {step(record).status for record in variants(status) for step in steps(verb)}

    assert reached == TRANSITIONS[status, verb]


def test_the_table_has_every_verb_and_every_outcome() -> None:
    assert {verb for _, verb in TRANSITIONS} == set(VERBS) | {outcome.__name__ for outcome in get_args(Outcome)}
    assert set(OUTCOMES) == {outcome.__name__ for outcome in get_args(Outcome)}


def test_every_status_can_be_reached_and_left_unless_it_is_final() -> None:
    reached = frozenset().union(*TRANSITIONS.values()) | {Status.WAITING, Status.POSTPONED}

    assert reached == set(Status)
    assert {status for status, _ in TRANSITIONS} == {status for status in Status if status.is_pending}


@pytest.mark.parametrize(
    "outcome", [each for name, some in OUTCOMES.items() for each in some if name != "Stepped"], ids=repr
)
def test_a_cancel_request_turns_what_would_run_again_into_canceled(outcome: Outcome) -> None:
    for record in variants(Status.PROCESSING):
        asked = replace(record, cancel=CancelRequest(requested_at=NOW, reason="wrong file"))

        without, after = settle.ended(record, outcome, RUN, NOW), settle.ended(asked, outcome, RUN, NOW)

        assert after.status is (without.status if without.status.is_final else Status.CANCELED)


@pytest.mark.parametrize("status", [status for status in Status if status.is_final])
def test_a_final_record_cannot_be_canceled(status: Status) -> None:
    record = a_record(status)

    assert pending.canceled(record, "too late", NOW) is record


def test_a_canceled_record_carries_the_reason() -> None:
    after = pending.canceled(a_record(), "wrong file", NOW)

    assert after.error == Failure(type="Canceled", message="wrong file")
    assert (after.cause, after.ended_at, after.ready_at) == (Cause.CANCELED, NOW, None)


def test_without_a_reason_the_last_error_stays() -> None:
    assert pending.canceled(a_record(error=BROKEN), "", NOW).error == BROKEN


@pytest.mark.parametrize("reason", ["", "no such shop"])
def test_a_job_that_is_given_up_keeps_its_last_error(reason: str) -> None:
    after = pending.given_up(a_record(Status.POSTPONED, error=BROKEN, failures=2, started_at=NOW), reason, NOW)

    assert (after.status, after.cause, after.ended_at, after.failures) == (Status.FAILED, Cause.GIVEN_UP, NOW, 2)
    assert after.error == replace(BROKEN, message=f"no such address{' (no such shop)' if reason else ''}")
    assert (after.started_at, after.ready_at) == (None, None)


@pytest.mark.parametrize(
    "record",
    [
        a_record(),
        a_record(Status.PROCESSING, error=BROKEN),
        a_record(Status.FAILED, error=BROKEN),
        a_record(Status.POSTPONED, error=BROKEN, waiting_for=(BEHIND,)),
        a_record(Status.POSTPONED, error=BROKEN, course=Continuation(phase=Phase.FAILING), cause=Cause.CLEAN_UP),
    ],
    ids=["new", "running", "ended", "blocked", "cleans up"],
)
def test_only_a_job_that_waits_to_run_again_is_given_up(record: Record) -> None:
    assert pending.given_up(record, "", NOW) is record


@pytest.mark.parametrize(
    ("phase", "cause", "status"),
    [
        (Phase.RUNNING, Cause.RETRY, Status.WAITING),
        (Phase.RUNNING, Cause.UNLOADABLE, Status.FAILED),
        (Phase.FAILING, Cause.UNLOADABLE, Status.FAILED),
    ],
)
def test_a_job_in_steps_that_is_given_up_cleans_up_if_its_class_can_be_loaded(
    phase: Phase, cause: Cause, status: Status
) -> None:
    record = a_record(Status.POSTPONED, error=BROKEN, cause=cause, course=Continuation(phase=phase))

    after = pending.given_up(record, "", NOW)

    assert (after.status, after.error) == (status, BROKEN)
    assert after.status.is_final or (after.course is not None and after.course.ends_because == Cause.GIVEN_UP)


def test_the_first_wish_to_cancel_stays() -> None:
    once = pending.canceled(a_record(Status.PROCESSING), "first", NOW)

    assert pending.canceled(once, "second", NOW + HOUR) == once


@pytest.mark.parametrize("times", [0, 1, 3])
def test_a_job_that_always_fails_runs_once_more_for_each_retry(times: int) -> None:  # PTS-9: N further attempts
    record = a_record(options=Options(retry=FixedRetry(times=times, interval=60)))
    runs = 0
    now = NOW
    while not record.status.is_final:
        record = pending.claimed(pending.promoted(record), WEB, now + LEASE)
        record = settle.ended(record, Failed(failure=BROKEN), RUN, now)
        runs += 1
        assert record.ready_at == (None if record.status.is_final else now + timedelta(seconds=60))
        now += HOUR

    assert (runs, record.failures, record.error) == (times + 1, times + 1, BROKEN)
    assert record.cause is (Cause.FAILED if times == 0 else Cause.EXHAUSTED)
    assert [attempt.number for attempt in record.attempts] == list(range(1, times + 2))


def test_an_endless_retry_never_ends() -> None:
    record = a_record(Status.PROCESSING, failures=10_000, options=Options(retry=FixedRetry(times=-1)))

    assert settle.ended(record, Failed(failure=BROKEN), RUN, NOW).status is Status.POSTPONED


def test_a_job_may_say_itself_when_it_runs_again() -> None:
    record = a_record(Status.PROCESSING, options=Options(retry=FixedRetry(times=1, interval=60)))

    assert settle.ended(record, Failed(failure=BROKEN, delay=5), RUN, NOW).ready_at == NOW + timedelta(seconds=5)
    assert settle.ended(record, Failed(failure=BROKEN, delay=0), RUN, NOW).status is Status.WAITING


def test_a_delay_is_no_further_attempt() -> None:
    assert settle.ended(a_record(Status.PROCESSING), Failed(failure=BROKEN, delay=5), RUN, NOW).status is Status.FAILED


def test_crashes_are_tried_again_at_once_then_later_and_count_apart() -> None:
    record = a_record(options=Options(crash_retries=3))
    pauses = []
    now = NOW
    for _ in range(3):
        record = settle.ended(pending.claimed(record, WEB, now + LEASE), Crashed(failure=BROKEN), RUN, now)
        assert record.ready_at is not None
        pauses.append(record.ready_at - now)
        now += HOUR

    assert pauses == list(CRASH_PAUSES)
    assert (record.crashes, record.failures, record.attempt) == (3, 0, 4)
    last = settle.ended(pending.claimed(record, WEB, now + LEASE), Crashed(failure=BROKEN), RUN, now)
    assert (last.status, last.cause, last.error) == (Status.FAILED, Cause.CRASHED, BROKEN)


def test_a_first_crash_does_not_send_a_job_behind_the_backlog() -> None:
    waiting = a_record(ready_at=NOW - HOUR)

    again = settle.ended(pending.claimed(waiting, WEB, NOW + LEASE), Crashed(failure=BROKEN), RUN, NOW)

    assert (again.status, again.rank) == (Status.WAITING, waiting.rank)


def test_an_at_most_once_job_is_never_run_again() -> None:
    record = a_record(Status.PROCESSING, options=Options(on_crash=OnCrash.FAIL))

    for outcome in (Crashed(failure=BROKEN), Interrupted()):
        assert settle.ended(record, outcome, RUN, NOW).status is Status.FAILED
    assert settle.lost(record, NOW).status is Status.FAILED
    assert settle.ended(record, HandedBack(), RUN, NOW).status is Status.WAITING


def test_an_interrupted_run_keeps_its_place_and_counts_nowhere() -> None:
    record = a_record(Status.PROCESSING, state="[7]", progress=50.0)

    after = settle.ended(record, Interrupted(), RUN, NOW + HOUR)

    assert (after.status, after.cause, after.rank) == (Status.WAITING, Cause.INTERRUPTED, record.rank)
    assert (after.failures, after.crashes, after.attempt, after.state) == (0, 0, 1, "[7]")
    assert [attempt.outcome for attempt in after.attempts] == ["Interrupted"]


SIGNALLED = Interrupted(failure=BROKEN)


def in_turn(record: Record, *outcomes: Outcome) -> list[Record]:
    """Return the record after each of these outcomes, an hour apart."""
    now, after = NOW, []
    for outcome in outcomes:
        record = pending.claimed(pending.promoted(record), WEB, now + LEASE)
        record = settle.ended(record, outcome, RUN, now)
        after.append(record)
        now += HOUR
    return after


def test_an_interruption_that_nobody_asked_for_counts_as_a_crash_only_after_another() -> None:
    after = in_turn(a_record(options=Options(crash_retries=3)), *[SIGNALLED] * 5)

    assert [record.crashes for record in after] == [0, 1, 2, 3, 4]
    assert [record.status for record in after] == [
        Status.WAITING,
        Status.WAITING,
        Status.POSTPONED,
        Status.POSTPONED,
        Status.FAILED,
    ]
    pauses = [record.ready_at - NOW - place * HOUR for place, record in enumerate(after[2:4], 2) if record.ready_at]
    assert pauses == list(CRASH_PAUSES[1:])
    assert (after[0].cause, after[-1].cause) == (Cause.INTERRUPTED, Cause.CRASHED)
    assert (after[0].error, after[-1].error) == (
        None,
        replace(BROKEN, message="no such address, as in the previous run"),
    )
    assert {attempt.outcome for attempt in after[-1].attempts} == {"Interrupted"}


def test_an_operator_may_end_the_worker_of_any_job_once() -> None:
    again, gone = in_turn(a_record(options=Options(crash_retries=0)), SIGNALLED, SIGNALLED)

    assert (again.status, again.attempt, gone.status) == (Status.WAITING, 1, Status.FAILED)


@pytest.mark.parametrize("between", [Interrupted(), HandedBack()], ids=repr)
def test_a_stop_between_two_interruptions_counts_nothing_and_resets_nothing(between: Outcome) -> None:
    after = in_turn(a_record(), SIGNALLED, between, between, SIGNALLED)

    assert [record.crashes for record in after] == [0, 0, 0, 1]


@pytest.mark.parametrize("between", [Snoozed(seconds=0), Crashed(failure=BROKEN)], ids=repr)
def test_what_else_happens_between_two_interruptions_makes_the_next_one_the_first(between: Outcome) -> None:
    after = in_turn(a_record(), SIGNALLED, between, SIGNALLED, SIGNALLED)

    assert after[2].crashes == after[1].crashes
    assert after[3].crashes == after[2].crashes + 1


def test_a_loop_that_has_gone_on_since_makes_an_interruption_the_first() -> None:
    record = a_record(cursor='{"":3}')
    [first] = in_turn(record, SIGNALLED)
    [further] = in_turn(replace(first, cursor='{"":4}'), SIGNALLED)
    [stuck] = in_turn(further, SIGNALLED)

    assert (first.crashes, further.crashes, stuck.crashes) == (0, 0, 1)


def test_a_claim_that_never_started_keeps_its_place_and_leaves_no_trace() -> None:
    waiting = a_record(priority=-2, ready_at=NOW - HOUR)
    claimed = pending.claimed(waiting, WEB, NOW + LEASE)

    for back in (settle.ended(claimed, HandedBack(), Run(node="web-1"), NOW), settle.lost(claimed, NOW)):
        assert (back.status, back.ready_at, back.rank) == (Status.WAITING, waiting.ready_at, waiting.rank)
        assert (back.attempts, back.failures, back.crashes, back.claims) == ((), 0, 0, 1)


@pytest.mark.parametrize("outcome", [HandedBack(), Interrupted(), Crashed(failure=BROKEN)], ids=repr)
def test_a_job_that_was_taken_before_its_time_waits_for_it_again(outcome: Outcome) -> None:
    later = a_record(Status.POSTPONED, ready_at=NOW + HOUR, priority=3)
    claimed = pending.claimed(later, WEB, NOW + LEASE)

    for back in (settle.ended(claimed, outcome, Run(node="web-1"), NOW), settle.lost(claimed, NOW)):
        assert (back.status, back.cause, back.ready_at) == (Status.POSTPONED, Cause.SCHEDULED, NOW + HOUR)
        assert (back.rank, back.holder) == (later.rank, None)
    assert settle.ended(claimed, outcome, Run(node="web-1"), NOW + HOUR).status is Status.WAITING


@pytest.mark.parametrize(
    ("lease_ends_at", "words"),
    [
        (NOW, "node web-1 was silent until its lease expired; progress was 0 %"),
        (NOW + HOUR, "node web-1 disappeared before its lease expired; progress was 0 %"),
    ],
)
def test_a_lost_run_says_whether_its_lease_had_ended(lease_ends_at: datetime, words: str) -> None:
    after = settle.lost(a_record(Status.PROCESSING, ready_at=lease_ends_at), NOW)

    assert after.error is not None
    assert after.error.message == words


def test_a_started_run_that_was_lost_has_crashed_with_its_evidence() -> None:
    after = settle.lost(a_record(Status.PROCESSING, progress=40.0), NOW + HOUR)

    assert (after.status, after.crashes) == (Status.WAITING, 1)
    assert after.error is not None
    assert after.error.type == "taskqueue.NodeLost"
    assert "40 %" in after.error.message
    assert after.attempts[0].started_at == NOW


def test_a_lost_claim_that_somebody_wants_canceled_is_canceled() -> None:
    asked = CancelRequest(requested_at=NOW)

    assert settle.lost(a_record(Status.PROCESSING, started_at=None, cancel=asked), NOW).status is Status.CANCELED
    assert settle.lost(a_record(Status.PROCESSING, cancel=asked), NOW).status is Status.CANCELED


def test_a_class_that_cannot_be_loaded_is_tried_with_growing_pauses_until_patience_ends() -> None:
    record = a_record()
    now, pauses = NOW, []
    while True:
        record = pending.claimed(pending.promoted(record), WEB, now + LEASE)
        record = settle.ended(record, Unloadable(failure=BROKEN, retry_for=HOUR), Run(node="web-1"), now)
        if record.ready_at is None:
            break
        pauses.append((record.ready_at - now).total_seconds())
        now = record.ready_at

    assert pauses[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert sum(pauses) == 3600
    assert (record.status, record.cause, record.failures, record.crashes) == (Status.FAILED, Cause.UNLOADABLE, 0, 0)


def test_an_expired_record_says_when_it_should_have_started() -> None:
    after = pending.expired(a_record(expires_at=NOW), NOW + HOUR)

    assert (after.status, after.cause) == (Status.CANCELED, Cause.EXPIRED)
    assert after.error is not None
    assert "2026-07-01 12:00:00" in after.error.message


def test_a_done_job_has_its_result_and_full_progress() -> None:
    after = settle.ended(a_record(Status.PROCESSING, error=BROKEN, progress=3.0), Done(result="[1]"), RUN, NOW)

    assert (after.result, after.progress, after.error, after.cause) == ("[1]", 100.0, None, Cause.RETURNED)


def test_a_failed_job_keeps_the_progress_it_had() -> None:
    after = settle.ended(a_record(Status.PROCESSING, progress=3.0), Failed(failure=BROKEN), RUN, NOW)

    assert after.progress == 3.0


def test_a_timeout_uses_up_an_attempt() -> None:
    after = settle.ended(a_record(Status.PROCESSING), TimedOut(failure=BROKEN), RUN, NOW)

    assert (after.status, after.cause, after.failures) == (Status.TIMEOUT, Cause.TIMED_OUT, 1)


def test_an_attempt_carries_what_is_known_of_the_run() -> None:
    [attempt] = settle.ended(a_record(Status.PROCESSING), Failed(failure=BROKEN), RUN, NOW + HOUR).attempts

    assert (attempt.number, attempt.claims, attempt.node, attempt.pid) == (1, 1, "web-1", 7)
    assert (attempt.started_at, attempt.ended_at, attempt.outcome) == (NOW, NOW + HOUR, "Failed")
    assert (attempt.error, attempt.exit, attempt.peak_memory) == (BROKEN, "exit code 0", 4096)


def test_only_the_last_attempts_are_kept() -> None:
    record = a_record(options=Options(retry=FixedRetry(times=-1, interval=0)))
    for _ in range(ATTEMPTS_KEPT + 5):
        record = settle.ended(pending.claimed(record, WEB, NOW + LEASE), Failed(failure=BROKEN), RUN, NOW)

    assert [attempt.number for attempt in record.attempts] == list(range(6, ATTEMPTS_KEPT + 6))


def test_a_record_behind_another_waits_for_it_and_for_its_own_time() -> None:
    at_once = pending.behind(a_record(), BEHIND)
    later = pending.behind(a_record(Status.POSTPONED, ready_at=NOW + HOUR), BEHIND)

    assert (at_once.status, at_once.ready_at, at_once.cause) == (Status.POSTPONED, None, Cause.BEHIND)
    assert (later.ready_at, later.waiting_for) == (NOW + HOUR, (BEHIND,))
    released = pending.released(at_once, BEHIND, NOW)
    assert (released.status, released.ready_at, released.rank) == (Status.WAITING, NOW, rank_of(NOW, 0))
    assert pending.released(later, BEHIND, NOW).cause is Cause.SCHEDULED
    assert pending.released(later, BEHIND, NOW + 2 * HOUR).status is Status.WAITING


def test_a_release_changes_nothing_else_of_a_record_that_has_ended() -> None:
    ended = a_record(Status.CANCELED)

    assert pending.released(ended, BEHIND, NOW) == ended


MOMENTS = st.datetimes(
    datetime.fromisoformat("2020-01-01"), datetime.fromisoformat("2035-01-01"), timezones=st.just(timezone.utc)
)


@given(now=MOMENTS, priority=st.integers(-20, 20), seconds=st.floats(0, 10 * 366 * 86_400))
def test_times_are_whole_milliseconds_and_ranks_follow_them(now: datetime, priority: int, seconds: float) -> None:
    record = a_record(Status.PROCESSING, priority=priority)

    after = settle.ended(record, Snoozed(seconds=seconds), RUN, now)

    assert after.ready_at is not None
    assert after.ready_at.microsecond % 1000 == 0
    assert abs(after.ready_at - now - timedelta(seconds=seconds)) <= timedelta(milliseconds=1)
    assert after.rank == rank_of(after.ready_at, priority)


class Life(RuleBasedStateMachine):
    """One job through any sequence of transitions that its status allows."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.record = a_record(
            priority=3, options=Options(retry=FixedRetry(times=5, interval=10)), expires_at=NOW + 1000 * HOUR
        )
        self.most = (0, 0, 0)

    def allowed(self, verb: str) -> bool:
        return (self.record.status, verb) in TRANSITIONS

    def become(self, after: Record) -> None:
        self.now += timedelta(milliseconds=1500)
        self.record = after

    @rule()
    def wait(self) -> None:
        self.now += timedelta(seconds=1)

    @precondition(lambda self: self.allowed("promote") and not self.record.waiting_for)
    @rule()
    def promote(self) -> None:
        self.become(pending.promoted(self.record))

    @precondition(lambda self: bool(self.record.waiting_for))
    @rule()
    def release(self) -> None:
        self.become(pending.relieved(self.record, self.record.waiting_for[0], Status.FAILED, self.now))

    @precondition(lambda self: self.allowed("claim"))
    @rule(started=st.booleans())
    def claim(self, started: bool) -> None:
        claimed = pending.claimed(self.record, WEB, self.now + LEASE)
        self.become(replace(claimed, started_at=self.now) if started else claimed)

    @precondition(lambda self: self.allowed("Done"))
    @rule(outcome=st.sampled_from([each for some in OUTCOMES.values() for each in some if not isinstance(each, Done)]))
    def end(self, outcome: Outcome) -> None:
        following = PHASES[self.record.phase] - {Phase.FAILING}
        if isinstance(outcome, Stepped):
            outcome = Stepped(phase=min(following)) if following else Interrupted()
        self.become(settle.ended(self.record, outcome, RUN, self.now))

    @precondition(lambda self: self.allowed("Done"))
    @rule()
    def lose(self) -> None:
        self.become(settle.lost(self.record, self.now))

    @precondition(lambda self: self.allowed("cancel") and len(self.record.attempts) > 3)
    @rule()
    def cancel(self) -> None:
        self.become(pending.canceled(self.record, "", self.now))

    @invariant()
    def counters_never_decrease(self) -> None:
        counters = (self.record.claims, self.record.failures, self.record.crashes)
        assert all(new >= old for new, old in zip(counters, self.most, strict=True))
        self.most = counters

    @invariant()
    def who_runs_is_held(self) -> None:
        assert (self.record.holder is not None) is (self.record.status is Status.PROCESSING)

    @invariant()
    def what_is_final_has_ended_and_has_no_time(self) -> None:
        final = self.record.status.is_final
        assert (self.record.ready_at is None) is (final or bool(self.record.waiting_for))
        assert not (final and self.record.waiting_for)
        assert not final or self.record.ended_at is not None

    @invariant()
    def what_waits_has_its_place(self) -> None:
        if self.record.status is Status.WAITING:
            assert self.record.ready_at is not None
            assert self.record.rank == rank_of(self.record.ready_at, self.record.priority)

    @invariant()
    def attempts_are_numbered_and_bounded(self) -> None:
        numbers = [attempt.number for attempt in self.record.attempts]
        assert numbers == sorted(numbers)
        assert len(numbers) <= ATTEMPTS_KEPT

    @invariant()
    def it_has_the_fields_of_a_record_and_no_others(self) -> None:
        assert set(self.record.__dict__) == {field.name for field in fields(Record)}


TestLife = Life.TestCase


@pytest.mark.parametrize(
    "outcome", [HandedBack(), Unloadable(failure=BROKEN, retry_for=timedelta(days=1))], ids=["back", "unloadable"]
)
@pytest.mark.parametrize("since", [NOW, NOW + HOUR], ids=["due", "early"])
def test_one_that_has_run_is_not_late_when_a_later_claim_comes_to_nothing(outcome: Outcome, since: datetime) -> None:
    ran = settle.ended(a_record(Status.PROCESSING, expires_at=NOW + HOUR), Snoozed(seconds=0), RUN, NOW)
    again = replace(pending.claimed(ran, WEB, NOW + LEASE), rank=rank_of(since, 0))

    for after in (settle.ended(again, outcome, Run(node="web-1"), NOW), settle.lost(again, NOW)):
        assert after.started_at == RUN.started_at
        assert not pending.is_late(after, NOW + 2 * HOUR)
