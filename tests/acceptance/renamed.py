"""An error under another name than that of the module that defines it, and a job that raises it.

The clients of the tests do not import this module: a worker finds the name when it has loaded the job.
"""

from __future__ import annotations

from taskqueue import Job
from tests.acceptance.retrying import Refused as Declined

__all__ = ["Declined", "Declining"]


class Declining(Job):
    """Fails in its first attempt."""

    def start(self) -> int:
        if self.attempt == 1:
            raise Declined("not now")
        return self.attempt
