"""The log lines of runs: at debug of each one, and of one that failed its error, what follows, and the job."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime

from taskqueue.model.record import Cause, Failure, Record, Status
from taskqueue.model.wording import span

log = logging.getLogger(__name__)

runs = logging.getLogger("taskqueue.runs")
"""Gets each run at debug, with the record after it as ``after``."""

MESSAGE_LIMIT = 200
"""Characters of an error's message."""

_AGAIN: Mapping[Cause, str] = {
    Cause.RETRY: "it runs again",
    Cause.CRASHED: "it runs again",
    Cause.UNLOADABLE: "it is tried again",
    Cause.NOT_READY: "it is asked again",
    Cause.CLEAN_UP: "it cleans up",
}


def log_run(after: Record) -> None:
    """Log a run, whatever became of it."""
    runs.debug(
        "%s is %s (%s): job %s", after.job, after.status.name, after.cause.value, after.id, extra={"after": after}
    )


def log_failure(after: Record, now: datetime) -> None:
    """Log what went wrong in a run, if anything did; ``after`` is the record after it."""
    line = failure_line(after, now)
    if line is not None:
        log.info("%s", line)


def failure_line(after: Record, now: datetime) -> str | None:
    """Return the line for the record after a run; None if nothing went wrong."""
    follows = _follows(after, now)
    return None if follows is None else f"{after.job} {_error(after.error)}; {follows}: job {after.id}"


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
    first = error.message.strip().partition("\n")[0][:MESSAGE_LIMIT]
    type = error.type.removeprefix("builtins.")
    return f"failed with {type}: {first}" if first else f"failed with {type}"
