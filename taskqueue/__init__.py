"""Background jobs for Python teams: never lost, always stoppable, and they tell you why."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskqueue.execution.run_hooks import RunOutcome
    from taskqueue.execution.shell_job import CommandFailed, ShellJob
    from taskqueue.model.analytics import Analytics
    from taskqueue.model.conditions import Check
    from taskqueue.model.controls import Control
    from taskqueue.model.history import HistoryEntry
    from taskqueue.model.job import Fail, Interrupted, Job, JobTimeout, Retry, RunningJob, Snooze, current_job
    from taskqueue.model.limits import Limit, Rate
    from taskqueue.model.options.table import ClassOptions, JobOptions, ScheduleEntry
    from taskqueue.model.record import Status
    from taskqueue.model.schedules import Again, Cron, Custom, Every
    from taskqueue.model.stepwise import StepwiseJob
    from taskqueue.scheduler import workflows
    from taskqueue.scheduler.async_handles import AsyncEvent, AsyncProcess, AsyncSchedule
    from taskqueue.scheduler.async_scheduler import AsyncScheduler
    from taskqueue.scheduler.declared_schedules import ScheduleChanges, schedule
    from taskqueue.scheduler.event import Event
    from taskqueue.scheduler.job_meta import NewJob
    from taskqueue.scheduler.process import Process
    from taskqueue.scheduler.schedule import Schedule
    from taskqueue.scheduler.scheduler import Scheduler
    from taskqueue.scheduler.task import Task, task, warn_direct_calls

__all__ = [
    "Again",
    "Analytics",
    "AsyncEvent",
    "AsyncProcess",
    "AsyncSchedule",
    "AsyncScheduler",
    "Check",
    "ClassOptions",
    "CommandFailed",
    "Control",
    "Cron",
    "Custom",
    "Event",
    "Every",
    "Fail",
    "HistoryEntry",
    "Interrupted",
    "Job",
    "JobOptions",
    "JobTimeout",
    "Limit",
    "NewJob",
    "Process",
    "Rate",
    "Retry",
    "RunOutcome",
    "RunningJob",
    "Schedule",
    "ScheduleChanges",
    "ScheduleEntry",
    "Scheduler",
    "ShellJob",
    "Snooze",
    "Status",
    "StepwiseJob",
    "Task",
    "current_job",
    "schedule",
    "task",
    "warn_direct_calls",
    "workflows",
]

_FILES = {
    "Analytics": "taskqueue.model.analytics",
    "ClassOptions": "taskqueue.model.options.table",
    "AsyncEvent": "taskqueue.scheduler.async_handles",
    "AsyncProcess": "taskqueue.scheduler.async_handles",
    "AsyncSchedule": "taskqueue.scheduler.async_handles",
    "AsyncScheduler": "taskqueue.scheduler.async_scheduler",
    "CommandFailed": "taskqueue.execution.shell_job",
    "JobOptions": "taskqueue.model.options.table",
    "Control": "taskqueue.model.controls",
    "Fail": "taskqueue.model.job",
    "HistoryEntry": "taskqueue.model.history",
    "Interrupted": "taskqueue.model.job",
    "Job": "taskqueue.model.job",
    "JobTimeout": "taskqueue.model.job",
    "Limit": "taskqueue.model.limits",
    "NewJob": "taskqueue.scheduler.job_meta",
    "Process": "taskqueue.scheduler.process",
    "Rate": "taskqueue.model.limits",
    "Retry": "taskqueue.model.job",
    "Again": "taskqueue.model.schedules",
    "Cron": "taskqueue.model.schedules",
    "Custom": "taskqueue.model.schedules",
    "Check": "taskqueue.model.conditions",
    "Event": "taskqueue.scheduler.event",
    "Every": "taskqueue.model.schedules",
    "RunOutcome": "taskqueue.execution.run_hooks",
    "RunningJob": "taskqueue.model.job",
    "Schedule": "taskqueue.scheduler.schedule",
    "ScheduleChanges": "taskqueue.scheduler.declared_schedules",
    "ScheduleEntry": "taskqueue.model.options.table",
    "Scheduler": "taskqueue.scheduler.scheduler",
    "ShellJob": "taskqueue.execution.shell_job",
    "Snooze": "taskqueue.model.job",
    "Status": "taskqueue.model.record",
    "StepwiseJob": "taskqueue.model.stepwise",
    "Task": "taskqueue.scheduler.task",
    "current_job": "taskqueue.model.job",
    "schedule": "taskqueue.scheduler.declared_schedules",
    "task": "taskqueue.scheduler.task",
    "warn_direct_calls": "taskqueue.scheduler.task",
    "workflows": "taskqueue.scheduler.workflows",
}
"""Where each public name is defined, or the module that it is; its file is imported when the name is first used."""


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        from taskqueue.model.other_systems import OF_MODULE

        if name in OF_MODULE:  # `from taskqueue import` would take the place of the words of an AttributeError
            raise ImportError(f"taskqueue has no {name}: {OF_MODULE[name]}", name=name)
        raise AttributeError(f"module 'taskqueue' has no attribute {name!r}")
    module = import_module(_FILES[name])
    value = module if name == "workflows" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
