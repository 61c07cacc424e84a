"""A job that runs a task of Django's Tasks framework, as the result that the framework shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from django.utils.module_loading import import_string

from taskqueue.django.framework import base
from taskqueue.model.record import Attempt, Failure, Status
from taskqueue.scheduler.process import Process

UNCOUNTED = ("Interrupted", "HandedBack", "Snoozed")
"""Outcomes of runs that do not count as attempts."""

CRASHED = "Crashed"

NO_CLASS = "taskqueue.errors.JobFailed"
"""The exception class of an attempt that ended without one that can be imported: its worker was killed, say."""


def result_of(process: Process) -> base.TaskResult:
    """Return the result of a job that runs a task."""
    data: Mapping[str, Any] = process.data
    attempts = list(_attempts(process))
    result = base.TaskResult(
        task=task_of(data, process.queue),
        id=str(process.id),
        status=_status(process),
        enqueued_at=process.created_at,
        started_at=attempts[0].started_at if attempts else process.started_at,
        finished_at=process.ended_at,
        last_attempted_at=process.started_at,
        args=data["args"],
        kwargs=data["kwargs"],
        backend=data["backend"],
        errors=list(_errors(process, attempts)),
        worker_ids=[worker_id(attempt.node, attempt.pid) for attempt in attempts],
    )
    if process.is_processing and process.node is not None and result.status == base.TaskResultStatus.RUNNING:
        result.worker_ids.append(worker_id(process.node, None))
    object.__setattr__(result, "_return_value", process.result)
    return result


def task_of(data: Mapping[str, Any], queue: str) -> Any:
    """Return the task as it was when it was enqueued."""
    run_after = data["run_after"]
    return import_string(data["task"]).using(
        priority=data["priority"],
        queue_name=queue,
        run_after=None if run_after is None else datetime.fromisoformat(run_after),
        backend=data["backend"],
    )


def worker_id(node: str, pid: int | None) -> str:
    """Return the id of a worker: its node, and its process id if that is known."""
    return node if pid is None else f"{node}:{pid}"


def crashes(process: Process) -> int:
    """Return how many runs ended with their worker or node."""
    return sum(attempt.outcome == CRASHED for attempt in process.attempts)


def _attempts(process: Process) -> Iterator[Attempt]:
    """Yield the ended runs of the task, without the run after the last crash, which only reports the end."""
    crashed = 0
    for attempt in process.attempts:
        if crashed == process.options["crash_retries"]:
            return
        crashed += attempt.outcome == CRASHED
        if attempt.started_at is not None and attempt.outcome not in UNCOUNTED:
            yield attempt


def _status(process: Process) -> base.TaskResultStatus:
    if process.is_processing and process.started_at is not None:
        return base.TaskResultStatus.RUNNING
    if process.is_pending:
        return base.TaskResultStatus.READY
    return base.TaskResultStatus.SUCCESSFUL if process.status is Status.DONE else base.TaskResultStatus.FAILED


def _errors(process: Process, attempts: list[Attempt]) -> Iterator[base.TaskError]:
    """Yield the error of each attempt; of a job that failed without one, the error of the job."""
    failures = [attempt.error for attempt in attempts if attempt.error is not None]
    if not failures and process.error is not None and process.is_final:
        failures = [process.error]
    for failure in failures:
        lines = failure.traceback or f"{failure.type}: {failure.message}"
        yield base.TaskError(exception_class_path=_class_path(failure), traceback=lines.rstrip("\n") + "\n")


def _class_path(failure: Failure) -> str:
    """Return the path under which the exception class of a failure is imported."""
    path = failure.type if "." in failure.type else f"builtins.{failure.type}"
    try:
        found = import_string(path)
    except ImportError:
        return NO_CLASS
    return path if isinstance(found, type) and issubclass(found, BaseException) else NO_CLASS
