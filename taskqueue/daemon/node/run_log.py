"""The log lines of runs: info of one that is done or interrupted, warning of a failed attempt, error of a final one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime

from taskqueue.model.log_fields import RunRecord
from taskqueue.model.record import Attempt, Cause, Failure, Record, Status
from taskqueue.model.wording import span

runs = logging.getLogger("taskqueue.runs")
"""Logs each run; runs that neither succeeded nor failed are logged at debug."""

MESSAGE_LIMIT = 200
"""Characters of an error's message."""

_AGAIN: Mapping[Cause, str] = {
    Cause.RETRY: "it runs again",
    Cause.CRASHED: "it runs again",
    Cause.UNLOADABLE: "it is tried again",
    Cause.NOT_READY: "it is asked again",
    Cause.CLEAN_UP: "it cleans up",
}


class RunEnded(RunRecord):
    """The log record of a run that has ended; ``after`` is the job's record then."""

    __slots__ = ("after",)

    after: Record


def log_run(after: Record, now: datetime, *, crashed_beside: bool = False) -> None:
    """Log a run that led to the record ``after``, with the fields of the run and the traceback of its error.

    ``crashed_beside`` says that its worker had another run, of which the crash was logged.
    """
    last = after.attempts[-1] if after.attempts else None
    took = None if last is None else _took(last)
    level, message = _line(after, now, _run(last, took), crashed_beside=crashed_beside)
    if not runs.isEnabledFor(level):
        return
    record = RunEnded(runs.name, level, __file__, 0, message, (), None, "log_run")
    record.after = after
    record.__dict__.update(
        job_id=str(after.id),
        job=after.job,
        queue=after.queue,
        attempt=after.attempt if last is None else last.number,
        meta=after.meta,
        status=after.status.name,
        cause=after.cause.value,
        took=took,
    )
    if level == logging.ERROR and after.error is not None and after.error.traceback:
        record.exc_text = after.error.traceback.rstrip()
    runs.handle(record)


def fields(record: Record) -> dict[str, object]:
    """Return the fields of a log line about the job, as the lines of its runs have them."""
    return {
        "job_id": str(record.id),
        "job": record.job,
        "queue": record.queue,
        "attempt": record.attempt,
        "meta": record.meta,
    }


def _line(after: Record, now: datetime, run: str, *, crashed_beside: bool) -> tuple[int, str]:
    """Return the level and the message, which ends with ``run``."""
    if after.status is Status.DONE:
        return logging.INFO, f"{after.job} is done{run}"
    if after.cause is Cause.INTERRUPTED and not after.status.is_final:
        error = after.attempts[-1].error if after.attempts else None
        if error is None:
            return logging.INFO, f"{after.job} was interrupted; it runs again{run}"
        return logging.WARNING, f"{after.job} was interrupted: {_first_line(error)}; it runs again{run}"
    follows = _follows(after, now)
    if follows is not None and crashed_beside and not after.status.is_final:
        return logging.INFO, f"{after.job} crashed with the same worker; {follows}{run}"
    if follows is None:
        return logging.DEBUG, f"{after.job} is {after.status.name} ({after.cause.value})"
    level = logging.ERROR if after.status.is_final else logging.WARNING
    return level, f"{after.job} {_error(after.error)}; {follows}{run}"


def _run(last: Attempt | None, took: float | None) -> str:
    """Return in words which attempt the run was, and how many seconds it took."""
    if last is None:
        return ""
    return f" (attempt {last.number})" if took is None else f" (attempt {last.number}, {span(took)})"


def _took(last: Attempt) -> float | None:
    """Return how long the run took: at least 0, although its start and its end come from two clocks."""
    return None if last.started_at is None else max(0.0, (last.ended_at - last.started_at).total_seconds())


def _follows(after: Record, now: datetime) -> str | None:
    if after.status in (Status.FAILED, Status.TIMEOUT):
        return f"it ends as {after.status.name} ({after.cause.value})"
    if after.cause not in _AGAIN or after.ready_at is None:
        return None
    if after.cause is Cause.NOT_READY and not (after.unready and after.unready.errors):
        return None
    if after.cause is Cause.CLEAN_UP and after.course and after.course.ends_as == Status.CANCELED:
        return None
    pause = (after.ready_at - now).total_seconds()
    return f"{_AGAIN[after.cause]} {f'in {span(pause)}' if pause > 0 else 'at once'}"


def _error(error: Failure | None) -> str:
    if error is None:
        return "failed"
    first = _first_line(error)
    return f"failed with {error.type}: {first}" if first else f"failed with {error.type}"


def _first_line(error: Failure) -> str:
    return error.message.strip().partition("\n")[0][:MESSAGE_LIMIT]
