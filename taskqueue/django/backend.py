"""The backend for Django's Tasks framework, named in the setting ``TASKS``: ``taskqueue.django.backend.TaskBackend``.

A task is enqueued when the transaction of its caller on the default database has been committed, at once outside of a
transaction or with ``"ENQUEUE_ON_COMMIT": False``. ``OPTIONS`` are options of jobs, such as ``retry`` and ``timeout``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.utils import timezone

from taskqueue.django.framework import BaseTaskBackend, base, exceptions, normalize_json, signals
from taskqueue.django.results import crashes, result_of, worker_id
from taskqueue.errors import JobNotFound, TaskqueueError
from taskqueue.model.ids import JobId
from taskqueue.model.job import Fail, Job
from taskqueue.model.options.table import OPTIONS
from taskqueue.scheduler.process import Process
from taskqueue.scheduler.scheduler import Scheduler

LEVELS = 5
"""Priorities of Django that are one priority of taskqueue: -100 to 100 become 20 to -20, where lower runs sooner."""

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
            id=str(JobId()),
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
        if self._on_commit and connections[DEFAULT_DB_ALIAS].in_atomic_block:
            transaction.on_commit(lambda: self._add(result))
        else:
            self._add(result)
        return result

    def get_result(self, result_id: str) -> base.TaskResult:
        """Return the result with this id; raise ``TaskResultDoesNotExist``."""
        try:
            process = self.scheduler.get_job(result_id)
        except JobNotFound as error:
            raise exceptions.TaskResultDoesNotExist(result_id) from error
        if process.job != f"{__name__}:TaskJob":
            raise exceptions.TaskResultDoesNotExist(result_id)
        return result_of(process)

    def check(self, **_: Any) -> Iterable[CheckMessage]:
        """Return what is wrong with the settings of the backend."""
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

    def _add(self, result: base.TaskResult) -> None:
        """Add the job, and tell the receivers of the signal; in immediate mode first, since the job runs when added."""
        runs_now = self.scheduler._may_run_now  # noqa: SLF001 - applications need not ask it
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
            TaskJob,
            data,
            id=result.id,
            queue=task.queue_name,
            crash_retries=self.options.get("crash_retries", OPTIONS["crash_retries"].default) + 1,
            priority=-priority // LEVELS if priority > 0 else -(priority // LEVELS),
            at=timezone.make_aware(at) if at is not None and timezone.is_naive(at) else at,
        )
        _refresh(result, result_of(process))
        if not runs_now:
            self._announce(result)

    def _announce(self, result: base.TaskResult) -> None:
        if result.enqueued_at is None:
            object.__setattr__(result, "enqueued_at", timezone.now())
        signals.task_enqueued.send(type(self), task_result=result)


class TaskJob(Job):
    """Runs a task of the framework in a worker, and sends its signals there.

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
        """Tell that the task has finished."""
        self._send_finished()

    def on_last_failure(self, error: Exception) -> None:
        """Tell that the task has finished; receivers find its error as the one that is being handled."""
        try:
            raise error
        except type(error):
            self._send_finished()

    def _send_finished(self) -> None:
        result = result_of(self.scheduler.get_job(self.id))
        signals.task_finished.send(type(result.task.get_backend()), task_result=result)


def _running(process: Process) -> base.TaskResult:
    """Return the result of the task that runs here; the store may learn of the start of this run later."""
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
