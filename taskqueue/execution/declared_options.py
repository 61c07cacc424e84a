"""The options that a class of jobs, or a function with ``@task``, declares."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from taskqueue.execution.loader import CannotLoad, load
from taskqueue.model.conditions import OWN, both
from taskqueue.model.conditions import declared as condition
from taskqueue.model.job import Job, TaskFunction
from taskqueue.model.job_path import PATH_SHAPE
from taskqueue.model.job_types import JobTypes, types_of
from taskqueue.model.main_module import main_module
from taskqueue.model.runnable import options_of


def known(job: Any) -> Any:
    """Return the job that a path names if this process has imported it, else the path; return other values unchanged.

    Nothing is imported here: a worker loads an unknown class.
    """
    if not isinstance(job, str):
        return job
    module_name, _, rest = job.partition(":")
    module = sys.modules.get("__main__" if module_name == main_module() else module_name)
    value = vars(module).get(rest.partition(".")[0]) if module is not None else None
    return value if isinstance(value, type | TaskFunction) else job


def known_types(path: str) -> JobTypes | None:
    """Return the types declared by the job that a path names, if this process has imported it."""
    return None if "." in path.partition(":")[2] else types_of(known(path))


def at_hand(job: Any) -> Any:
    """Return the job, which will run in this process; load it if it is a path, so that ``known`` finds it later."""
    if isinstance(job, str) and PATH_SHAPE.fullmatch(job):
        with suppress(CannotLoad):  # its run will report the error
            load(job)
    return job


def declared(job: Any) -> Mapping[str, Any]:
    """Return the options of a job that is added with its class or task, including the ``is_ready`` of a class."""
    has_condition = isinstance(job, type) and issubclass(job, Job) and job.is_ready is not Job.is_ready
    if not has_condition and getattr(job, "options", None) == {}:
        return {}
    options = options_of(job)
    if not has_condition:
        return options
    ready = options.get("ready")
    return {**options, "ready": OWN if ready is None else both(OWN, condition(ready))}
