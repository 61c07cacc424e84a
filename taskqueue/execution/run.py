"""The value of one run: what the code that runs a job needs from the claimed record, in a worker or in the caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

import msgspec

from taskqueue.model import conditions
from taskqueue.model.lifecycle import continuation
from taskqueue.model.lifecycle.recovered_copy import key_of
from taskqueue.model.lifecycle.settle import is_last_attempt, situation, time_limit
from taskqueue.model.limits import has_rate
from taskqueue.model.record import Failure, Record
from taskqueue.model.retry import NO_RETRY, asks_a_class, named_errors
from taskqueue.model.timestamps import milliseconds


class Run(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """A claim to run; in a node, also the message to its manager and worker."""

    id: str
    claims: int
    job: str
    data: str
    state: str | None
    attempt: int
    is_last: bool
    timeout: float | None
    force_spawn: bool
    stall_timeout: float | None = None
    """Seconds that may pass without progress or a checkpoint."""
    retry: dict[str, Any] | None = None
    """The question for a custom retry policy (``execution.retries``); None if there is no such policy."""
    error: dict[str, Any] | None = None
    """The fields of the previous failure, without traceback; None at the first attempt."""
    continuation: dict[str, Any] | None = None
    """State carried over from the previous run (``model.lifecycle.continuation``); None if there is none."""
    position: str | None = None
    """The positions of the loops of ``each``."""
    condition: dict[str, Any] | None = None
    """The condition that must hold before the run (``model.conditions``); None if there is none."""
    not_before: float | None = None
    """Earliest start in seconds of CLOCK_MONOTONIC, for a job claimed before it is due."""
    undeclared: bool = False
    """Whether the job was added by path: the worker then first reports the options that its class declares, if any."""
    queue: str = ""
    """The queue, for log lines."""
    receives: tuple[str, ...] = ()
    """The parts of the data that are results of its dependencies (``model.received``)."""
    concurrency: int = 1
    """How many jobs of the class one worker runs concurrently."""
    meta: dict[str, str] | None = None
    """The mapping of text that travels with the job; None if there is none."""
    key: str | None = None
    """The idempotency key for outside effects; None if it is the id."""
    has_rate: bool = False
    """Whether a rate counts its start: if so, the worker reports the loading of the class, however short it is."""
    error_names: tuple[str, ...] = ()
    """The exception names in the retry policy, which the worker looks up if the run fails."""


def run_of(record: Record, now: datetime, not_before: float | None = None) -> Run:
    """Return the run of a claimed record, with only the fields that it needs.

    ``not_before`` is the earliest start on the monotonic clock.
    """
    options = record.options
    condition = None if options.ready is None or record.phase is not None else options.ready
    retries = options.retry != NO_RETRY
    return Run(
        id=str(record.id),
        claims=record.claims,
        job=record.job,
        data=record.data,
        state=record.state,
        attempt=record.attempt,
        is_last=not retries or is_last_attempt(record, now),
        timeout=options.timeout if record.course is None else time_limit(record),
        force_spawn=options.force_spawn,
        stall_timeout=options.stall_timeout,
        retry=question_document(record, now) if retries else None,
        error=None if record.error is None else asdict(replace(record.error, traceback="")),
        continuation=None if record.course is None else continuation.document(record.course),
        position=record.cursor,
        condition=None if condition is None else conditions.document(condition),
        not_before=not_before,
        undeclared=options.undeclared,
        queue=record.queue,
        receives=options.receives if record.depends_on else (),
        concurrency=options.concurrency,
        meta=(dict(record.meta) or None) if record.given else None,
        key=key_of(record),
        has_rate=bool(record.lane) and has_rate(record.lane),
        error_names=named_errors(options.retry) if retries else (),
    )


def question_document(record: Record, now: datetime) -> dict[str, Any] | None:
    """Return the question for a worker as plain JSON values; None if the policy needs no user class."""
    retry = record.options.retry
    if not asks_a_class(retry):
        return None
    before = situation(record, now, None, 0.0)
    return {
        "policy": retry.document(),
        "failures": before.failures,
        "created_at": milliseconds(before.created_at),
        "due_at": milliseconds(before.due_at),
        "now": milliseconds(before.now),
        "retry_on_timeout": record.options.retry_on_timeout,
    }


def failure_of(fields: Mapping[str, Any]) -> Failure:
    """Return the failure that these fields of a message describe."""
    lists = {name: tuple(fields.get(name, ())) for name in ("bases", "unknown_names")}
    return Failure(**{**fields, **lists})
