"""The public API: adds jobs, reads them, waits for them."""

from taskqueue.scheduler.process import Process
from taskqueue.scheduler.scheduler import Scheduler

__all__ = ["Process", "Scheduler"]
