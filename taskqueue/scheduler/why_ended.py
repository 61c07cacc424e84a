"""Sentences about the end of a job and of its runs, for *why*."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

from taskqueue.model.conditions import FAILED_CHECKS
from taskqueue.model.record import Attempt, Cause, Failure, OnCrash, Record
from taskqueue.model.retry import NO_RETRY
from taskqueue.model.stack import latest
from taskqueue.model.wording import at, local, size, span, times

_SELF_EXPLAINING = (Cause.CANCELED, Cause.EXPIRED, Cause.DEPENDENCY, Cause.DUPLICATE, Cause.REPLACED)

_ENDS: Mapping[Cause, str] = {
    Cause.RETURNED: "start() returned",
    Cause.INTERRUPTED: "its run was interrupted, and on_crash='fail' forbids another",
    Cause.UNLOADABLE: "it could not be loaded for as long as its node goes on trying (--unroutable-after)",
    Cause.CLEAN_UP_FAILED: "it was to clean up before its end, and that failed again and again",
    Cause.CHECK_FAILED: f"its checks failed {FAILED_CHECKS} times in a row, so its readiness is unknown",
    Cause.UNREADABLE: "a part of its record, or its data, could not be read by the node that took it",
    Cause.REPLACED: "a changed job was added in its place (add_job_once)",
}

_RETRY_ENDS: Mapping[Cause, Callable[[Record], str]] = {
    Cause.FAILED: lambda _: "its attempt failed",
    Cause.EXHAUSTED: lambda record: f"attempt {record.failures + record.crashes} failed too",
    Cause.NOT_RETRIABLE: lambda _: "its error is of no type that is retried",
    Cause.UNDECIDED: lambda _: "its attempt failed, its retry policy could not decide",
    Cause.TIMED_OUT: lambda record: f"its last attempt took longer than {span(record.options.timeout or 0)}",
    Cause.STALLED: lambda record: (
        f"its last attempt gave no sign of progress for {span(record.options.stall_timeout or 0)}"
    ),
}


def end_of(record: Record) -> str:
    options = record.options
    message = record.error.message if record.error is not None else ""
    match record.cause:
        case Cause.FAILED if record.attempts and record.attempts[-1].outcome == "GivenUp":
            return "it failed for good (Fail, or a result that cannot be kept), whatever attempts were left"
        case cause if cause in _RETRY_ENDS:
            has = "it has" if options.retry == NO_RETRY else "its policy is:"
            return f"{_RETRY_ENDS[cause](record)}, and {has} {options.retry}"
        case Cause.UNLOADABLE if record.error is not None and record.error.type == "taskqueue.InvalidOption":
            return "the options that its class declares cannot be"
        case Cause.UNLOADABLE if record.unloadable_times == 0:
            return "its node could not load it, and tries that once only (taskqueue run, --unroutable-after 0)"
        case Cause.REPLACED if record.error is not None and record.error.type == "Canceled":
            return f"it was added by its path, and {message}"
        case Cause.CRASHED if options.on_crash is OnCrash.FAIL:
            return "its run vanished, and on_crash='fail' forbids another"
        case Cause.CRASHED:
            return f"{vanished(record)}, and crash_retries is {options.crash_retries}"
        case Cause.CANCELED:
            return f"it was canceled{f' ({message})' if message not in ('', 'canceled') else ''}"
        case Cause.EXPIRED:
            return f"it {message}"
        case Cause.DEPENDENCY | Cause.DUPLICATE:
            return f"it was canceled: {message}"
    return _ENDS[record.cause]


def vanished(record: Record) -> str:
    """Say how often its run vanished; an interruption that counts as that is one that no node asked for."""
    is_interruption = record.attempts and record.attempts[-1].outcome == "Interrupted"
    how = "vanished, or was ended again by a SIGTERM that no node sent," if is_interruption else "vanished"
    return f"its run {how} {times(record.counted_crashes)}"


def ended(record: Record, now: datetime) -> Iterator[str]:
    when = "at a time that its record does not say" if record.ended_at is None else at(record.ended_at, now)
    yield f"It ended {when}: {end_of(record)}."
    yield from last_error(record.error if record.cause not in _SELF_EXPLAINING else None)


def unknown(error: Failure) -> str:
    """Return a sentence on the names in the retry policy that no module which its process had loaded has."""
    names = ", ".join(error.unknown_names)
    return f"Its retry policy names {names}: no module that was loaded when it failed has an exception of that name"


WAY_OUT_OF_UNKNOWN = "check the spelling, and whether the job imports the module"


def last_error(error: Failure | None) -> Iterator[str]:
    if error is not None:
        yield f"Its last error: {error.type}: {error.message}"
        if error.unknown_names:
            yield f"{unknown(error)}: {WAY_OUT_OF_UNKNOWN}."


def ended_runs(record: Record) -> Iterator[str]:
    if record.attempts:
        yield "Runs that have ended:"
        yield from (f"  {_attempt(attempt)}" for attempt in record.attempts)
        stack = record.attempts[-1].stack
        if stack:
            yield f"Where the last of them was when it was ended: {latest(stack, record.job) or stack}"
            yield f"The stack it had then: `taskqueue show {record.id}`"


def _attempt(attempt: Attempt) -> str:
    parts = [f"{local(attempt.ended_at)}, attempt {attempt.number} on node {attempt.node}"]
    if attempt.pid is not None:
        parts[0] += f" (pid {attempt.pid})"
    took = (
        "" if attempt.started_at is None else f" after {span((attempt.ended_at - attempt.started_at).total_seconds())}"
    )
    parts.append(f"{attempt.outcome}{took}")
    is_named = attempt.error is not None and attempt.exit in attempt.error.message
    if attempt.exit and not is_named:
        parts.append(f"its worker {'was ' if attempt.exit.startswith('killed') else ''}{attempt.exit}")
    if attempt.peak_memory is not None and not is_named:
        parts.append(f"{size(attempt.peak_memory)} at most")
    error = f": {attempt.error.type}: {attempt.error.message}" if attempt.error is not None else ""
    return ", ".join(parts) + error
