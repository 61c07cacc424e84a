"""Settles failed runs: retry policy, crash budget, and retries of a class that cannot be loaded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace as replaced
from datetime import datetime, timedelta

from taskqueue.errors import InvalidOption, assert_never
from taskqueue.model.exception_names import known_names, timed_out_names
from taskqueue.model.lifecycle.claim_end import began_at, end_as, put_back, run_later
from taskqueue.model.lifecycle.continuation import Continuation
from taskqueue.model.lifecycle.outcomes import Failed, Run, Stalled, TimedOut
from taskqueue.model.record import Cause, Failure, OnCrash, Record, Status, replace
from taskqueue.model.retry import NO_RETRY, AskWorker, GiveUp, Refusal, RetryIn, Situation, strictest
from taskqueue.model.schedules import moment_of
from taskqueue.model.timestamps import whole

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
