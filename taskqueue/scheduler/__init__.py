"""What an application calls: adding jobs, looking at them, waiting for them."""

from taskqueue.scheduler.process import Process
from taskqueue.scheduler.scheduler import Scheduler

__all__ = ["Process", "Scheduler"]
