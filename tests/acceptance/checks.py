"""Predicates that the acceptance tests give to real nodes; what they did goes to files, as for jobs."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from taskqueue import Interrupted, Job
from tests.acceptance.work import write_line


def is_there(job: Job, file: str) -> bool:
    """Write a line, and tell whether there is such a file."""
    write_line(job.data["file"], f"asked {job.id}")
    return Path(file).exists()


def stands_at(job: Job, gate: str) -> bool:
    """Write a line, stand at the gate, and say yes once it was opened."""
    write_line(job.data["file"], f"asked {job.id}")
    return bool(Path(gate).read_text())


def clings_to(job: Job, gate: str) -> bool:
    """Stand at the gate whatever comes."""
    write_line(job.data["file"], f"asked {job.id}")
    while True:
        with suppress(Interrupted):
            Path(gate).read_text()


def tells_where(job: Job) -> bool:
    """Write down the process that asks, and say yes."""
    write_line(job.data["file"], f"asked in {os.getpid()}")
    return True


def kills(job: Job) -> bool:
    """End the worker."""
    write_line(job.data["file"], f"asked {job.id}")
    os.kill(os.getpid(), signal.SIGKILL)
    return True
