"""Settles a record: applies the outcome of a run or a step, a failure by its retry policy, or the loss of a claim."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace as replaced
from datetime import datetime, timedelta

from taskqueue.errors import InvalidOption, assert_never
from taskqueue.model.conditions import FAILED_CHECKS, NotReadyState
from taskqueue.model.exception_names import known_names, timed_out_names
from taskqueue.model.lifecycle.claim_end import began_at, end_as, put_back, run_later
from taskqueue.model.lifecycle.continuation import CLEAN_UP_LIMIT, CLEAN_UPS, PHASES, Continuation, Phase
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
from taskqueue.model.lifecycle.pending import canceled
from taskqueue.model.options.apply_declared import as_declared
from taskqueue.model.promise import with_wait
from taskqueue.model.record import (
    ATTEMPTS_KEPT,
    Attempt,
    CancelRequest,
    Cause,
    Failure,
    OnCrash,
    Record,
    Status,
    replace,
)
from taskqueue.model.retry import NO_RETRY, AskWorker, GiveUp, Refusal, RetryIn, Situation, strictest
from taskqueue.model.schedules import moment_of
from taskqueue.model.serializer import clean
from taskqueue.model.timestamps import whole


def ended(record: Record, outcome: Outcome, run: Run, now: datetime) -> Record:
    """Return the PROCESSING record after ``outcome``."""
    if isinstance(outcome, Done) and record.course is None and outcome.reports is None:
        done = _done_at_once(record, outcome.result, run, now)
        return done if record.options.begin_within is None else with_wait(record, done, outcome, run)
    tried = _with_attempt(record, outcome, run, now)
    if isinstance(outcome, Interrupted):
        outcome = _as_it_counts(record, outcome)
    if record.course is not None and record.phase is Phase.FAILING and isinstance(outcome, _CLEANED):
        after = after_clean_up(tried, outcome, now)
    else:
        after = _settled(tried, outcome, run, now)
    started_at = None if isinstance(outcome, _CHECKED) else run.started_at or record.started_at
    if started_at is not None and after.started_at is not started_at:
        after = replace(after, started_at=started_at)
    if record.options.begin_within is not None:
        after = with_wait(record, after, outcome, run)
    return after if record.cancel is None else obeying(after, record.cancel, now)


def obeying(after: Record, cancel: CancelRequest | None, now: datetime) -> Record:
    """Return ``after``, canceled if it would run again despite a cancel request."""
    if cancel is None or after.status.is_final or after.phase is Phase.FAILING:
        return after
    return canceled(replace(after, cancel=cancel), cancel.reason, now)


def lost(record: Record, now: datetime) -> Record:
    """Return the record of a lost claim: its node died, or was silent until the lease ended."""
    if record.holder is None or record.started_at is None:
        return obeying(put_back(record, Cause.LOST, now), record.cancel, now)
    is_early = record.ready_at is not None and now < record.ready_at
    what = "disappeared before its lease expired" if is_early else "was silent until its lease expired"
    message = f"node {record.holder.seat} {what}; progress was {record.progress:.4g} %"
    failure = Failure(type="taskqueue.NodeLost", message=message)
    run = Run(node=record.holder.seat, started_at=record.started_at)
    return ended(record, Crashed(failure=failure), run, now)


def time_limit(record: Record) -> float | None:
    """Return how many seconds a run of the record may take; None for no bound."""
    if record.phase is Phase.FAILING:
        return record.options.timeout or CLEAN_UP_LIMIT
    return record.options.timeout


def _settled(  # noqa: C901 - one case for each outcome
    record: Record, outcome: Outcome, run: Run, now: datetime
) -> Record:
    match outcome:
        case Done(result=result, reports=reports):
            done = record if reports is None else with_reports(record, reports)
            return _done(done, result, record.attempts, record.started_at, whole(now))
        case Failed() | TimedOut() | Stalled():
            return after_failure(record, outcome, run, now)
        case GivenUp(failure=failure):
            return end_as(replace(record, failures=record.failures + 1), Status.FAILED, Cause.FAILED, now, failure)
        case Snoozed(seconds=seconds):
            return run_later(record, Cause.SNOOZED, timedelta(seconds=seconds), now)
        case NotReady() | CheckFailed():
            return _unready(record, outcome, now)
        case Stepped():
            return after_step(record, outcome, now)
        case Awaiting(ids=ids):
            return replace(
                record, status=Status.POSTPONED, cause=Cause.CHILDREN, ready_at=None, waiting_for=ids, holder=None
            )
        case Canceled():
            return _obedient(record, now)
        case Interrupted():
            return _interrupted(record, outcome, now)
        case HandedBack():
            return put_back(record, Cause.HANDED_BACK, now)
        case Crashed(failure=failure):
            return after_crash(record, failure, now)
        case Declared(options=options):
            return as_declared(record, options, now)
        case Unloadable(failure=failure, retry_for=retry_for):
            return after_failed_load(record, failure, retry_for, now)
        case Unreadable(failure=failure):
            return end_as(record, Status.FAILED, Cause.UNREADABLE, now, failure)
    return assert_never(outcome)


def _done(
    record: Record, result: str | None, attempts: tuple[Attempt, ...], started_at: datetime | None, ended_at: datetime
) -> Record:
    return replace(
        record,
        status=Status.DONE,
        cause=Cause.RETURNED,
        ready_at=None,
        holder=None,
        waiting_for=(),
        started_at=started_at,
        ended_at=ended_at,
        error=None,
        result=result,
        progress=100.0,
        attempts=attempts,
    )


def _done_at_once(record: Record, result: str | None, run: Run, now: datetime) -> Record:
    """Return the record after the outcome of most jobs, with its attempt, in half the time of ``_settled`` (2 us)."""
    at = whole(now)
    attempt = Attempt(
        record.attempt, record.claims, run.node, at, Done.__name__, run.pid, run.started_at, None, run.exit,
        run.peak_memory, run.stack,
    )  # fmt: skip
    attempts = (*record.attempts, attempt)[-ATTEMPTS_KEPT:]
    return _done(record, result, attempts, run.started_at or record.started_at, at)


_CLEANED = (Done, Failed, GivenUp, TimedOut, Stalled, Canceled, Crashed)
"""The outcomes of a run of ``clean_up`` that show whether it has ended."""


def _obedient(record: Record, now: datetime) -> Record:
    reason = record.cancel.reason if record.cancel else ""
    return end_as(record, Status.CANCELED, Cause.CANCELED, now, Failure(type="Canceled", message=reason or "canceled"))


_CHECKED = (NotReady, CheckFailed, Declared)
"""The outcomes of checks before a run, which has not started."""


def _unready(record: Record, outcome: NotReady | CheckFailed, now: datetime) -> Record:
    """Return the record before it is asked again; after too many checks that failed in a row it has failed."""
    before = record.unready or NotReadyState(times=0, errors=0, reason="")
    record = replace(record, started_at=began_at(record))
    match outcome:
        case NotReady(reason=reason):
            asked, error = NotReadyState(times=before.times + 1, errors=0, reason=clean(reason)), record.error
        case CheckFailed(failure=failure):
            said = f"the check failed: {failure.message}"
            asked, error = NotReadyState(times=before.times + 1, errors=before.errors + 1, reason=clean(said)), failure
    if asked.errors >= FAILED_CHECKS:
        return end_as(record, Status.FAILED, Cause.CHECK_FAILED, now, error)
    later = run_later(record, Cause.NOT_READY, timedelta(seconds=asked.pause), now)
    return replace(later, error=error, course=replaced(record.course or Continuation(), unready=asked))


def _ready(record: Record) -> Record:
    """Return the record without its "not ready" state."""
    if record.unready is None:
        return record
    course = replaced(record.course or Continuation(), unready=None)
    return replace(record, course=course if course.has_begun else None)


def _as_it_counts(record: Record, outcome: Interrupted) -> Outcome:
    """Return the outcome; a second interruption in a row without a request of node or manager is a crash.

    A single one is how an operator ends a worker. A job that sends SIGTERM to its worker would come back forever.
    """
    if outcome.failure is None or not _has_come_no_further(record):
        return outcome
    message = f"{outcome.failure.message}, as in the previous run"
    return Crashed(failure=replaced(outcome.failure, message=message))


def _has_come_no_further(record: Record) -> bool:
    """Return whether the last thing that happened to the job, apart from stops, was an unrequested interruption.

    A finished step, and a loop that has continued, leave no attempt.
    """
    if moved_on(record) is not record:
        return False
    for back, attempt in enumerate(reversed(record.attempts), start=1):
        if attempt.outcome != Interrupted.__name__:
            return False
        if attempt.error is not None:
            return record.phase is None or attempt.claims == record.claims - back
    return False


def _interrupted(record: Record, outcome: Interrupted, now: datetime) -> Record:
    if record.options.on_crash is OnCrash.FAIL:
        message = "the run was interrupted, and on_crash='fail' forbids another"
        failure = Failure(type="taskqueue.Interrupted", message=message)
        return end_as(record, Status.FAILED, Cause.INTERRUPTED, now, failure)
    return put_back(record if outcome.failure is None else moved_on(record), Cause.INTERRUPTED, now)


_UNTOLD = (HandedBack, Stepped, Unreadable, *_CHECKED)
"""The outcomes of claims that were no attempts."""


def _with_attempt(record: Record, outcome: Outcome, run: Run, now: datetime) -> Record:
    """Return the record with the run among its last attempts; claims that never started leave no trace."""
    if isinstance(outcome, _UNTOLD):
        return record
    if record.course is not None:
        record = _ready(record)
    attempt = Attempt(
        number=record.attempt,
        claims=record.claims,
        node=run.node,
        pid=run.pid,
        started_at=run.started_at,
        ended_at=whole(now),
        outcome=type(outcome).__name__,
        error=getattr(outcome, "failure", None),
        exit=run.exit,
        peak_memory=run.peak_memory,
        stack=run.stack,
    )
    attempts = (*record.attempts, attempt)[-ATTEMPTS_KEPT:]
    return replace(record, attempts=attempts, started_at=run.started_at or record.started_at)


CLEAN_UP_PAUSES = tuple(timedelta(seconds=seconds) for seconds in (1, 10, 60, 600))
"""The pause after each failed ``clean_up``."""


def after_step(record: Record, outcome: Stepped, now: datetime) -> Record:
    """Return the record before its next step; failures and crashes of this step no longer count."""
    course = record.course or Continuation()
    if outcome.phase not in PHASES[course.phase]:
        return _out_of_step(record, course.phase, outcome.phase, now)
    following = replaced(
        course,
        phase=outcome.phase,
        steps=course.steps + (course.phase is Phase.RUNNING),
        reports=outcome.reports or course.reports,
        failures=record.failures,
        crashes=record.crashes,
        crashed_at=None,
    )
    state = outcome.state or record.state
    later = run_later(record, Cause.STEPPED, timedelta(0), now)
    return replace(later, course=following, state=state, cursor=None, error=None)


def _out_of_step(record: Record, before: Phase | None, after: Phase, now: datetime) -> Record:
    """Return the record as failed: its worker reported an impossible step, so another version of taskqueue ran it."""
    at = "a job that had no steps yet" if before is None else f"the phase {before.value!r}"
    message = (
        f"its worker reported the phase {after.value!r}, which does not follow {at}: "
        "do node and worker run the same version?"
    )
    failed = replace(record, failures=record.failures + 1)
    return end_as(failed, Status.FAILED, Cause.FAILED, now, Failure(type="taskqueue.InvalidStep", message=message))


def with_reports(record: Record, reports: str | None) -> Record:
    """Return the record with state and reports of its last step."""
    if record.course is None or reports is None:
        return record
    return replace(record, course=replaced(record.course, reports=reports))


def after_clean_up(
    record: Record, outcome: Done | Failed | GivenUp | TimedOut | Stalled | Canceled | Crashed, now: datetime
) -> Record:
    """Return the record at its end, or before another try to clean up."""
    course = record.course
    assert course is not None
    assert course.ends_as is not None
    if isinstance(outcome, Done):
        record = with_reports(record, outcome.reports)
        return end_as(record, Status(course.ends_as), Cause(course.ends_because), now, record.error)
    if isinstance(outcome, Canceled):
        return end_as(record, Status.CANCELED, Cause.CANCELED, now, record.error)
    course = replaced(course, clean_ups=course.clean_ups + 1)
    record = replace(record, course=course)
    if course.clean_ups >= CLEAN_UPS:
        first = f"; before that: {record.error.message}" if record.error else ""
        failure = replaced(outcome.failure, message=f"clean_up() failed: {outcome.failure.message}{first}")
        return end_as(record, Status.FAILED, Cause.CLEAN_UP_FAILED, now, failure)
    return run_later(record, Cause.CLEAN_UP, CLEAN_UP_PAUSES[course.clean_ups - 1], now)


CRASH_PAUSES = (timedelta(0), timedelta(seconds=1), timedelta(seconds=10))
"""The pause after the first, second and every later crash."""

UNLOADABLE_PAUSES = (timedelta(seconds=1), timedelta(minutes=1))
"""The first and the longest pause between attempts to load a class."""


def situation(record: Record, now: datetime, outcome: Failed | TimedOut | Stalled | None, chance: float) -> Situation:
    """Return the situation for a retry policy after this outcome; without an outcome, as if the attempt failed now."""
    failure = None if outcome is None else outcome.failure
    timed_out = isinstance(outcome, TimedOut | Stalled)
    names = () if failure is None else known_names((failure.type, *failure.bases))
    return Situation(
        failures=record.counted_failures + 1,
        created_at=record.created_at,
        due_at=_due_at(record),
        now=now,
        errors=timed_out_names(names) if timed_out else names,
        message="" if failure is None else failure.message,
        timed_out=timed_out,
        chance=chance,
    )


def in_parts(situation: Situation, outcome: Failed | TimedOut | Stalled) -> Iterable[Situation]:
    """Yield the situation with each error that the policy is asked about, several for an exception group."""
    parts = outcome.parts if isinstance(outcome, Failed) else ()
    if not parts:
        yield situation
    for part in parts:
        yield replaced(situation, errors=known_names((part.type, *part.bases)), message=part.message)


def is_last_attempt(record: Record, now: datetime) -> bool:
    """Return whether a failure of the current attempt will end the job, as far as its policy can tell in advance."""
    retry = record.options.retry
    return retry == NO_RETRY or retry.is_last(situation(record, now, None, 0.0))


def _due_at(record: Record) -> datetime:
    """Return when the job was first due: at the time that the call named, if that was later than the call."""
    at = record.given.get("at")
    try:
        return record.created_at if at is None else max(record.created_at, moment_of(at, record.created_at))
    except InvalidOption:  # in a time zone, or in words, known to the adding host but not to this one
        return record.created_at


def after_failure(record: Record, outcome: Failed | TimedOut | Stalled, run: Run, now: datetime) -> Record:
    """Return the record after a failed attempt, as its retry policy decides."""
    decision = outcome.decision or _decided(record, outcome, run, now)
    failure = outcome.failure
    record = replace(record, failures=record.failures + 1)
    match decision:
        case RetryIn(after=after, queue=queue):
            delay = outcome.delay if isinstance(outcome, Failed) else None
            later = run_later(record, Cause.RETRY, timedelta(seconds=after if delay is None else delay), now)
            return replace(later, error=failure, queue=queue or record.queue)
        case GiveUp(refusal=refusal, reason=reason):
            said = replaced(failure, message=f"{failure.message} ({reason})") if reason else failure
            status = Status.FAILED if isinstance(outcome, Failed) else Status.TIMEOUT
            return end_as(record, status, _cause_of(refusal, outcome, record.counted_failures), now, said)
    return assert_never(decision)


def _decided(record: Record, outcome: Failed | TimedOut | Stalled, run: Run, now: datetime) -> RetryIn | GiveUp:
    """Return the decision of the record's policy; give up if only a worker can ask it."""
    if not isinstance(outcome, Failed) and not record.options.retry_on_timeout:
        return GiveUp()
    asked = in_parts(situation(record, now, outcome, run.chance), outcome)
    decision = strictest(map(record.options.retry.decide, asked))
    if isinstance(decision, AskWorker):
        reason = f"its retry policy {decision.path} was not asked: the worker that would have asked it had died"
        return GiveUp(refusal=Refusal.UNDECIDED, reason=reason)
    return decision


def _cause_of(refusal: Refusal, outcome: Failed | TimedOut | Stalled, failures: int) -> Cause:
    if refusal is not Refusal.SPENT:
        return Cause(refusal.value)
    match outcome:
        case TimedOut():
            return Cause.TIMED_OUT
        case Stalled():
            return Cause.STALLED
    return Cause.EXHAUSTED if failures > 1 else Cause.FAILED


def after_crash(record: Record, failure: Failure, now: datetime) -> Record:
    """Return the record after its process died: the crash budget decides whether it runs again."""
    record = replace(moved_on(record), crashes=record.crashes + 1)
    if record.options.on_crash is OnCrash.FAIL or record.counted_crashes > record.options.crash_retries:
        return end_as(record, Status.FAILED, Cause.CRASHED, now, failure)
    pause = CRASH_PAUSES[min(record.counted_crashes, len(CRASH_PAUSES)) - 1]
    again = run_later(record, Cause.CRASHED, pause, now) if pause else put_back(record, Cause.CRASHED, now)
    return replace(again, error=failure)


def moved_on(record: Record) -> Record:
    """Return the record without its crashes so far, if one of its loops has continued since the last crash."""
    course = record.course or Continuation()
    if record.cursor is None or record.cursor == course.crashed_at:
        return record
    return replace(record, course=replaced(course, crashes=record.crashes, crashed_at=record.cursor))


def after_failed_load(record: Record, failure: Failure, retry_for: timedelta, now: datetime) -> Record:
    """Return the record before another try to load its class, or failed if that has taken too long."""
    since = record.unloadable_since or whole(now)
    if now - since >= retry_for:
        return end_as(record, Status.FAILED, Cause.UNLOADABLE, now, failure)
    first, longest = UNLOADABLE_PAUSES
    pause = min(first * 2 ** min(record.unloadable_times, 20), longest, since + retry_for - now)
    tried = replace(record, unloadable_since=since, unloadable_times=record.unloadable_times + 1, error=failure)
    tried = replace(tried, started_at=record.started_at or began_at(record))
    return run_later(tried, Cause.UNLOADABLE, pause, now)
