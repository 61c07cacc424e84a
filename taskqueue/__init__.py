"""Background jobs for Python teams: never lost, always stoppable, and they tell you why."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskqueue.model.analytics import Analytics
    from taskqueue.model.control import Control
    from taskqueue.model.job import Fail, Interrupted, Job, JobTimeout, Retry, Snooze, task
    from taskqueue.model.limit import Limit, Rate
    from taskqueue.model.readiness import Check
    from taskqueue.model.record import Status
    from taskqueue.model.retry import ExponentialRetry, FixedRetry
    from taskqueue.model.schedule import Again, Cron, Custom, Every
    from taskqueue.model.stepwise import StepwiseJob
    from taskqueue.scheduler.event import Event
    from taskqueue.scheduler.process import Process
    from taskqueue.scheduler.schedule import Schedule
    from taskqueue.scheduler.scheduler import Scheduler
    from taskqueue.scheduler.shell import ShellJob

__all__ = [
    "Again",
    "Analytics",
    "Check",
    "Control",
    "Cron",
    "Custom",
    "Event",
    "Every",
    "ExponentialRetry",
    "Fail",
    "FixedRetry",
    "Interrupted",
    "Job",
    "JobTimeout",
    "Limit",
    "Process",
    "Rate",
    "Retry",
    "Schedule",
    "Scheduler",
    "ShellJob",
    "Snooze",
    "Status",
    "StepwiseJob",
    "task",
]

_FILES = {
    "Analytics": "taskqueue.model.analytics",
    "Control": "taskqueue.model.control",
    "ExponentialRetry": "taskqueue.model.retry",
    "Fail": "taskqueue.model.job",
    "FixedRetry": "taskqueue.model.retry",
    "Interrupted": "taskqueue.model.job",
    "Job": "taskqueue.model.job",
    "JobTimeout": "taskqueue.model.job",
    "Limit": "taskqueue.model.limit",
    "Process": "taskqueue.scheduler.process",
    "Rate": "taskqueue.model.limit",
    "Retry": "taskqueue.model.job",
    "Again": "taskqueue.model.schedule",
    "Cron": "taskqueue.model.schedule",
    "Custom": "taskqueue.model.schedule",
    "Check": "taskqueue.model.readiness",
    "Event": "taskqueue.scheduler.event",
    "Every": "taskqueue.model.schedule",
    "Schedule": "taskqueue.scheduler.schedule",
    "Scheduler": "taskqueue.scheduler.scheduler",
    "ShellJob": "taskqueue.scheduler.shell",
    "Snooze": "taskqueue.model.job",
    "Status": "taskqueue.model.record",
    "StepwiseJob": "taskqueue.model.stepwise",
    "task": "taskqueue.model.job",
}
"""Where each public name is defined; its file is imported when the name is first used."""


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module 'taskqueue' has no attribute {name!r}")
    value = getattr(import_module(_FILES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
