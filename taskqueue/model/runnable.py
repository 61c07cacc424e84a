"""Refuses classes and functions that a worker could not run, when a job is added."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from taskqueue.errors import InvalidJob
from taskqueue.model.job import Job, TaskFunction
from taskqueue.model.stepwise import StepwiseJob

_BY_NAME = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def check(job: Any) -> None:
    """Raise ``InvalidJob`` for a class or task that a worker could not run."""
    if isinstance(job, TaskFunction):
        _check_function(job.__qualname__, job.function)
    else:
        _check_class(job)


def check_arguments(task: TaskFunction[..., Any], data: Any) -> None:
    """Raise ``InvalidJob`` for data that the function of a task could not be called with."""
    if data is not None and not isinstance(data, Mapping):
        raise InvalidJob(
            f"data of {task.__qualname__} is {data!r}: pass a mapping, its keys are the function's arguments"
        )
    try:
        inspect.signature(task.function).bind(**(data or {}))
    except TypeError as refused:
        raise InvalidJob(f"{task.__qualname__}() cannot be called with this data: {refused}") from None


def _check_class(kind: type[Job]) -> None:
    work = "iterate" if issubclass(kind, StepwiseJob) else "start"
    method = getattr(kind, work)
    if method in (Job.start, StepwiseJob.iterate):
        raise InvalidJob(f"{kind.__qualname__} has no {work}(): define it, it does the work")
    _check_function(f"{kind.__qualname__}.{work}", method)
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):  # made by a tool that hides its signature
        return
    needed = [one.name for one in parameters if one.default is one.empty and one.kind in _BY_NAME]
    if needed:
        raise InvalidJob(
            f"{kind.__qualname__}() needs {', '.join(map(repr, needed))}, and a worker makes it without arguments: "
            "pass it as data, which is self.data in the job"
        )


def _check_function(name: str, function: Callable[..., Any]) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidJob(
            f"{name} is a generator, which would run none of it: return a value, and see self.each for loops"
        )
