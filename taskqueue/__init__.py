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

_NAMES = {
    "taskqueue.execution.run_hooks": ("RunOutcome",),
    "taskqueue.execution.shell_job": ("CommandFailed", "ShellJob"),
    "taskqueue.model.analytics": ("Analytics",),
    "taskqueue.model.conditions": ("Check",),
    "taskqueue.model.controls": ("Control",),
    "taskqueue.model.history": ("HistoryEntry",),
    "taskqueue.model.job": ("Fail", "Interrupted", "Job", "JobTimeout", "Retry", "RunningJob", "Snooze", "current_job"),
    "taskqueue.model.limits": ("Limit", "Rate"),
    "taskqueue.model.options.table": ("ClassOptions", "JobOptions", "ScheduleEntry"),
    "taskqueue.model.record": ("Status",),
    "taskqueue.model.schedules": ("Again", "Cron", "Custom", "Every"),
    "taskqueue.model.stepwise": ("StepwiseJob",),
    "taskqueue.scheduler.async_handles": ("AsyncEvent", "AsyncProcess", "AsyncSchedule"),
    "taskqueue.scheduler.async_scheduler": ("AsyncScheduler",),
    "taskqueue.scheduler.declared_schedules": ("ScheduleChanges", "schedule"),
    "taskqueue.scheduler.event": ("Event",),
    "taskqueue.scheduler.job_meta": ("NewJob",),
    "taskqueue.scheduler.process": ("Process",),
    "taskqueue.scheduler.schedule": ("Schedule",),
    "taskqueue.scheduler.scheduler": ("Scheduler",),
    "taskqueue.scheduler.task": ("Task", "task", "warn_direct_calls"),
    "taskqueue.scheduler.workflows": ("workflows",),
}
"""The public names of each module, or the module itself; it is imported when one of them is first used."""

_FILES = {name: module for module, names in _NAMES.items() for name in names}


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
