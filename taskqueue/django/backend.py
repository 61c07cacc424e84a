"""The backend for Django's Tasks framework, named in the setting ``TASKS``: ``taskqueue.django.backend.TaskBackend``.

A task is enqueued with the transaction of its caller on the default database: within it if the store is in this
database, otherwise after its commit; at once outside of a transaction or with ``"ENQUEUE_ON_COMMIT": False``.
``OPTIONS`` are options of jobs, such as ``retry`` and ``timeout``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import django
from django.apps import apps
from django.core.checks import CheckMessage, Error
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone
from django.utils.module_loading import import_string

from taskqueue.errors import InvalidOption, JobNotFound, StoreUnavailable, TaskqueueError
from taskqueue.execution.loader import ADAPTERS
from taskqueue.model.ids import new_id
from taskqueue.model.job import Fail, Job
from taskqueue.model.options.table import OPTIONS
from taskqueue.model.record import Attempt, Failure, Status
from taskqueue.scheduler.process import Process
from taskqueue.scheduler.scheduler import Scheduler

if django.VERSION >= (6, 0):
    from django.tasks import base, exceptions, signals
    from django.tasks.backends.base import BaseTaskBackend
    from django.utils.json import normalize_json
else:
    from django_tasks import base, exceptions, signals
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.utils import normalize_json

LEVELS = 5
"""How many priorities of Django map to one of taskqueue: -100 to 100 become 20 to -20, where lower runs sooner."""

_schedulers: dict[str, Scheduler] = {}
"""The scheduler for each set of options, for all threads: Django makes a backend for each thread."""


class TaskBackend(BaseTaskBackend):
    """Enqueues tasks as jobs of taskqueue, and reads their results from its store."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self._on_commit = params.get("ENQUEUE_ON_COMMIT", True)

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of the tasks; raise ``InvalidOption`` for a wrong value in ``OPTIONS``."""
        key = repr(sorted(self.options.items()))
        if key not in _schedulers:
            _schedulers.setdefault(key, Scheduler(**self.options))
        return _schedulers[key]

    def enqueue(self, task: base.Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> base.TaskResult:
        """Add a job that runs the task, once the transaction of the caller has been committed; return its result."""
        self.validate_task(task)
        result = base.TaskResult(
            task=task,
            id=str(new_id()),
            status=base.TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        connection = connections[DEFAULT_DB_ALIAS]
        if not (self._on_commit and connection.in_atomic_block):
            self._add(result)
        elif not self._is_added_within(connection, result):
            transaction.on_commit(lambda: self._add(result))
        return result

    def get_result(self, result_id: str) -> base.TaskResult:
        """Return the result with this id; raise ``TaskResultDoesNotExist``."""
        try:
            process = self.scheduler.get_job(result_id)
        except JobNotFound as error:
            raise exceptions.TaskResultDoesNotExist(result_id) from error
        task = process.data.get("task") if isinstance(process.data, dict) else None
        if not isinstance(task, str) or process.job != job_path(task):
            raise exceptions.TaskResultDoesNotExist(result_id)
        return result_of(process)

    def check(self, **_: Any) -> Iterable[CheckMessage]:
        """Return the problems in the settings of the backend."""
        if not apps.is_installed("taskqueue.django"):
            yield Error(
                f"TASKS[{self.alias!r}] enqueues to taskqueue, which is not installed",
                hint="Add 'taskqueue.django' to INSTALLED_APPS.",
                id="taskqueue.E002",
            )
        try:
            self.scheduler  # noqa: B018 - it checks the options
        except TaskqueueError as error:
            yield Error(f"TASKS[{self.alias!r}]['OPTIONS']: {error}", id="taskqueue.E003")

    def _is_added_within(self, connection: BaseDatabaseWrapper, result: base.TaskResult) -> bool:
        """Add the job in the open transaction, and return whether it is there.

        It is not there if the store is in another database, or this connection's user may not add jobs.
        """
        if connection.vendor != "postgresql" or self.scheduler._is_immediate:  # noqa: SLF001 - as below
            return False
        try:
            self._add(result, session=connection)
        except (InvalidOption, StoreUnavailable):
            return False
        return True

    def _add(self, result: base.TaskResult, session: BaseDatabaseWrapper | None = None) -> None:
        """Add the job, and send the signal; in immediate mode first, since the job runs when added."""
        runs_now = self.scheduler._is_immediate  # noqa: SLF001 - applications need not ask it
        if runs_now:
            self._announce(result)
        task, priority, at = result.task, result.task.priority, result.task.run_after
        data = {
            "task": task.module_path,
            "args": result.args,
            "kwargs": result.kwargs,
            "backend": self.alias,
            "priority": priority,
            "run_after": None if at is None else at.isoformat(),
        }
        process = self.scheduler.add_job(
            job_path(task.module_path),
            data,
            id=result.id,
            queue=task.queue_name,
            crash_retries=self.options.get("crash_retries", OPTIONS["crash_retries"].default) + 1,
            priority=-priority // LEVELS if priority > 0 else -(priority // LEVELS),
            at=timezone.make_aware(at) if at is not None and timezone.is_naive(at) else at,
            session=session,
        )
        _refresh(result, result_of(process))
        if session is not None:
            transaction.on_commit(lambda: self._announce(result))
        elif not runs_now:
            self._announce(result)

    def _announce(self, result: base.TaskResult) -> None:
        if result.enqueued_at is None:
            object.__setattr__(result, "enqueued_at", timezone.now())
        signals.task_enqueued.send(type(self), task_result=result)


def job_path(task: str) -> str:
    """Return the path of the jobs of a task with this path of a module, which is what the loader finds."""
    module, _, name = task.rpartition(".")
    return f"{module}:{name}"


class TaskJob(Job):
    """Runs the task that its path names in a worker, and sends its signals there.

    A task whose worker has died too often fails in one more run, which does not call it and sends the signal.
    """

    def start(self) -> Any:
        """Call the task, and return what it returns as JSON."""
        process = self.scheduler.get_job(self.id)
        if crashes(process) == process.options["crash_retries"]:
            raise Fail("the worker of the task died in each attempt")
        result = _running(process)
        task = result.task
        signals.task_started.send(type(task.get_backend()), task_result=result)
        context = [base.TaskContext(task_result=result)] if task.takes_context else []
        return normalize_json(task.call(*context, *result.args, **result.kwargs))

    def on_success(self) -> None:
        """Send the signal that the task has finished."""
        self._send_finished()

    def on_last_failure(self, error: Exception) -> None:
        """Send the signal that the task has finished; receivers find its error as the one that is being handled."""
        try:
            raise error
        except type(error):
            self._send_finished()

    def _send_finished(self) -> None:
        result = result_of(self.scheduler.get_job(self.id))
        signals.task_finished.send(type(result.task.get_backend()), task_result=result)


def _running(process: Process) -> base.TaskResult:
    """Return the result of the task that is running here; the store may learn later that this run has started."""
    result, now = result_of(process), timezone.now()
    if result.status == base.TaskResultStatus.RUNNING:
        result.worker_ids.pop()
    object.__setattr__(result, "status", base.TaskResultStatus.RUNNING)
    object.__setattr__(result, "started_at", result.started_at or now)
    object.__setattr__(result, "last_attempted_at", now)
    result.worker_ids.append(worker_id(process.node or "", os.getpid()))
    return result


def _refresh(result: base.TaskResult, now: base.TaskResult) -> None:
    """Give the result, which is frozen for applications, the state of another one."""
    for name in base.TASK_REFRESH_ATTRS:
        object.__setattr__(result, name, getattr(now, name))


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
    """Return how many runs ended because their worker or node died."""
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
        imported = import_string(path)
    except ImportError:
        return NO_CLASS
    return path if isinstance(imported, type) and issubclass(imported, BaseException) else NO_CLASS


ADAPTERS[base.Task] = TaskJob
