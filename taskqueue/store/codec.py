"""Encodes and decodes the parts of a record that all stores write alike: options, attempts, failures, events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from taskqueue.model.options.readers import stated_options
from taskqueue.model.options.table import OPTIONS
from taskqueue.model.reading import text
from taskqueue.model.record import RUN_FIELDS, Attempt, Cause, Failure, Options, Record, Status
from taskqueue.model.retry import policy
from taskqueue.model.serializer import clean

_FIRST = frozenset(
    ("retry", "timeout", "stall_timeout", "retry_on_timeout", "crash_retries", "on_crash", "force_spawn")
)
"""The options that are in every record. This is part of the stored form: options that are new are not among them."""

_DEFAULTS = stated_options(Options())


def options_fields(options: Options) -> dict[str, Any]:
    """Return the options as plain values, without options that were added later and have their defaults."""
    stated = stated_options(options)
    fields = {name: value for name, value in stated.items() if name in _FIRST or value != _DEFAULTS[name]}
    return {**fields, "undeclared": True} if options.undeclared else fields


def options_of(fields: Mapping[str, Any]) -> Options:
    """Return the options of such values; raise ``LookupError`` or ``InvalidOption`` where a value cannot be read."""
    checks: dict[str, Callable[[Any], Any]] = {name: OPTIONS[name].check for name in RUN_FIELDS} | {"retry": policy}
    read = {name: check(fields[name]) for name, check in checks.items() if name in _FIRST or name in fields}
    return Options(**read, undeclared=fields.get("undeclared", False))


def failure_fields(failure: Failure) -> dict[str, Any]:
    """Return the failure as plain values, with texts that every store can hold."""
    fields: dict[str, Any] = {
        "type": clean(failure.type),
        "message": clean(failure.message),
        "traceback": clean(failure.traceback),
        "bases": [clean(base) for base in failure.bases],
    }
    if failure.unknown_names:
        fields["unknown_names"] = [clean(name) for name in failure.unknown_names]
    return fields


def failure_of(fields: Mapping[str, Any]) -> Failure:
    """Return the failure of such values."""
    return Failure(
        type=text(fields["type"]),
        message=text(fields["message"]),
        traceback=text(fields["traceback"]),
        bases=tuple(map(text, fields["bases"])),
        unknown_names=tuple(map(text, fields.get("unknown_names", ()))),
    )


def attempt_fields(attempt: Attempt, time: Callable[[datetime], Any]) -> dict[str, Any]:
    """Return the attempt as plain values; ``time`` gives the form of its times."""
    fields = {
        "number": attempt.number,
        "claims": attempt.claims,
        "node": attempt.node,
        "pid": attempt.pid,
        "started_at": None if attempt.started_at is None else time(attempt.started_at),
        "ended_at": time(attempt.ended_at),
        "outcome": attempt.outcome,
    }
    if attempt.error is not None:
        fields["error"] = failure_fields(attempt.error)
    if attempt.exit:
        fields["exit"] = clean(attempt.exit)
    if attempt.peak_memory is not None:
        fields["peak_memory"] = attempt.peak_memory
    if attempt.stack:
        fields["stack"] = clean(attempt.stack)
    return fields


def attempt_of(fields: Mapping[str, Any], time: Callable[[Any], datetime]) -> Attempt:
    """Return the attempt of such values."""
    error, started_at = fields.get("error"), fields.get("started_at")
    return Attempt(
        number=fields["number"],
        claims=fields["claims"],
        node=fields["node"],
        pid=fields.get("pid"),
        started_at=None if started_at is None else time(started_at),
        ended_at=time(fields["ended_at"]),
        outcome=fields["outcome"],
        error=None if error is None else failure_of(error),
        exit=fields.get("exit", ""),
        peak_memory=fields.get("peak_memory"),
        stack=text(fields.get("stack", "")),
    )


_EVENTS = tuple(status.name.lower() for status in Status)
_RETRIED = (Cause.RETRY, Cause.CRASHED)


def event_name(after: Record) -> str:
    """Return the name of the event of the record's present status."""
    if after.status < Status.PROCESSING and after.cause in _RETRIED:
        return "retried"
    return _EVENTS[after.status]


def event_id(job: object, claims: int, name: str, at: int) -> str:
    """Return the id of an event of a job, the same whenever it is recorded; progress is known by its milliseconds."""
    return f"{job}:{claims}:{name}:{at}" if name == "progress" else f"{job}:{claims}:{name}"
