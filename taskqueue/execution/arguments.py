"""The data of a function with ``@task``: the keyword arguments that it is called with."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from taskqueue.errors import InvalidJob
from taskqueue.model.job import Task


def check(task: Task[..., Any], data: Any) -> None:
    """Raise ``InvalidJob`` for data that the function could not be called with."""
    if data is not None and not isinstance(data, Mapping):
        raise InvalidJob(
            f"data of {task.__qualname__} is {data!r}: pass a mapping, its keys are the function's arguments"
        )
    try:
        inspect.signature(task.function).bind(**(data or {}))
    except TypeError as refused:
        raise InvalidJob(f"{task.__qualname__}() cannot be called with this data: {refused}") from None
