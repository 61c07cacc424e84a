"""The scheduler of the web application, which writes into each job for which customer it works."""

from contextvars import ContextVar

from taskqueue import NewJob, Scheduler

customer = ContextVar("customer", default="staff")
"""Set by the web application for each request: requests share neither a thread nor a context."""


def before_add(new: NewJob) -> None:
    """Name the customer in the meta of the job.

    Jobs that this job adds in a worker inherit it, and each line that they log has it. Tags are not inherited.
    """
    new.meta.setdefault("customer", customer.get())


# Without an address it uses the store of TASKQUEUE_URL, and in a test the store of that test.
scheduler = Scheduler(before_add=before_add)
