"""Background jobs for Python teams: never lost, always stoppable, and they tell you why."""

from taskqueue.model.job import Fail, Interrupted, Job, JobTimeout, Retry, Snooze, task
from taskqueue.model.record import Status

__all__ = [
    "Fail",
    "Interrupted",
    "Job",
    "JobTimeout",
    "Process",
    "Retry",
    "Scheduler",
    "ShellJob",
    "Snooze",
    "Status",
    "task",
]
