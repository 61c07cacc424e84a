"""What the manager is told of a claim: all that a worker needs for the run, and nothing else of the record."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import datetime

from taskqueue.daemon.protocol.messages import Run
from taskqueue.execution.custom_retry import question_document
from taskqueue.model import conditions
from taskqueue.model.lifecycle import continuation
from taskqueue.model.lifecycle.failure import is_last_attempt
from taskqueue.model.lifecycle.settle import time_limit
from taskqueue.model.record import Record


def run_message(record: Record, now: datetime, not_before: float | None = None) -> Run:
    """Return the message for a claimed record, to be begun not before a time of the monotonic clock."""
    options = record.options
    condition = options.ready if record.phase is None else None
    return Run(
        id=str(record.id),
        claims=record.claims,
        job=record.job,
        data=record.data,
        state=record.state,
        attempt=record.attempt,
        is_last=is_last_attempt(record, now),
        timeout=time_limit(record),
        force_spawn=options.force_spawn,
        stall_timeout=options.stall_timeout,
        retry=question_document(record, now),
        error=None if record.error is None else asdict(replace(record.error, traceback="")),
        continuation=None if record.course is None else continuation.document(record.course),
        position=record.cursor,
        condition=None if condition is None else conditions.document(condition),
        not_before=not_before,
        undeclared=options.undeclared,
    )
