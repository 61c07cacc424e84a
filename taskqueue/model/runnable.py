"""Refuses classes and functions that a worker could not run, when a job is added."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from taskqueue.errors import InvalidJob, InvalidOption
from taskqueue.model import other_systems
from taskqueue.model.job import Job, TaskFunction
from taskqueue.model.job_path import check_name
from taskqueue.model.job_types import data_parameter
from taskqueue.model.options import declared
from taskqueue.model.options.table import OPTIONS
from taskqueue.model.shown_text import as_code
from taskqueue.model.stepwise import StepwiseJob
from taskqueue.model.wording import or_nearest

_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

_WITH_ERROR = ("on_failure", "on_last_failure", "clean_up")
_CALLED = ("start", "is_ready", "on_success", "finalize", "initialize", "iterate", "complete", *_WITH_ERROR)
"""The methods of jobs that a worker calls; some of them with an error."""


def check(job: Any) -> None:
    """Raise ``InvalidJob`` for a class or task that a worker could not run."""
    if not isinstance(job, TaskFunction):  # a task was checked when it was declared
        _check_class(job)


def check_declared(function: Callable[..., Any]) -> None:
    """Raise ``InvalidJob`` for what ``@task`` decorates if no worker could import or run it."""
    name = getattr(function, "__qualname__", None)
    if name is None or isinstance(function, type):
        raise InvalidJob(
            f"{as_code(function)} is not a function: write it with def and @task, or write a subclass of Job"
        )
    check_name(name, "function")
    _check_function(name, function)


def options_of(job: Any) -> Mapping[str, Any]:
    """Return the options on the class or the task; other classes, whose methods can be jobs, have none."""
    if isinstance(job, TaskFunction):
        return declared(job, job.function)
    return declared(job, job.start) if isinstance(job, type) and issubclass(job, Job) else {}


def check_arguments(task: TaskFunction[..., Any], data: Any) -> None:
    """Raise ``InvalidJob`` for data that the function of a task could not be called with."""
    if data is not None and not isinstance(data, Mapping):
        raise InvalidJob(
            f"data of {task.__qualname__} is {data!r}: pass a mapping whose keys are the function's arguments"
        )
    given = data or {}
    arguments = _arguments(task)
    if arguments.needed <= given.keys() <= arguments.accepted:
        return
    try:
        arguments.signature.bind(**given)
    except TypeError as refused:
        unknown = [name for name in given if name not in arguments.accepted]
        raise InvalidJob(
            f"{task.__qualname__}() cannot be called with this data: {refused}{_meant(task, unknown, arguments)}"
        ) from None


def _meant(task: TaskFunction[..., Any], unknown: Sequence[str], arguments: _Arguments) -> str:
    """Return the similar argument, or the way to pass options, for arguments that the task does not take."""
    meant = [name if name in OPTIONS else other_systems.OPTIONS.get(name) for name in unknown]
    if not meant:
        return ""
    if None in meant:
        return or_nearest(unknown[meant.index(None)], arguments.accepted)
    options = ", ".join(f"{name}=…" for name in meant)
    return f"; options of one job go before it: {task.__name__}.using({options}).add(scheduler, …)"


def _check_class(kind: type[Job]) -> None:
    work = "iterate" if issubclass(kind, StepwiseJob) else "start"
    method = getattr(kind, work)
    if method in (Job.start, StepwiseJob.iterate):
        raise InvalidJob(f"{kind.__qualname__} has no {work}(): define it to do the work")
    _check_function(f"{kind.__qualname__}.{work}", method)
    base = StepwiseJob if issubclass(kind, StepwiseJob) else Job
    for name in _CALLED:
        if hasattr(base, name) and getattr(kind, name) is not getattr(base, name):
            _check_method(kind, name)
    _warn_of_attributes(kind)
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):  # made by a tool that hides its signature
        return
    needed = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind in _BY_NAME
    ]
    if needed:
        raise InvalidJob(
            f"{kind.__qualname__}() needs {', '.join(map(repr, needed))}, but a worker creates it without arguments: "
            "pass it as data, which is self.data in the job"
        )


def _check_method(kind: type[Job], name: str) -> None:
    """Raise ``InvalidJob`` if a worker cannot call the method of the class."""
    method = getattr(kind, name)
    is_bound = isinstance(inspect.getattr_static(kind, name), staticmethod | classmethod)
    try:
        parameters = list(inspect.signature(method).parameters.values())[0 if is_bound else 1 :]
    except (TypeError, ValueError):  # made by a tool that hides its signature
        return
    passed = "the error" if name in _WITH_ERROR else ""
    if name == "start" and data_parameter(kind) is not None:
        passed = "the data"
    by_place = [parameter for parameter in parameters if parameter.kind in _BY_PLACE]
    if (
        name in _WITH_ERROR
        and not by_place
        and not any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    ):
        raise InvalidJob(
            f"{kind.__qualname__}.{name}() does not take the error that a worker passes: write {name}(self, error)"
        )
    first = by_place[:1] if passed else []
    needed = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind in _BY_NAME and parameter not in first
    ]
    if needed:
        raise InvalidJob(
            f"{kind.__qualname__}.{name}() needs {' and '.join(map(repr, needed))}, but a worker passes "
            f"{f'only {passed}' if passed else 'nothing'}: take {'it' if len(needed) == 1 else 'them'} from self.data, "
            "or write a function with @task, which gets its data as arguments"
        )


def _warn_of_attributes(kind: type[Job]) -> None:
    """Warn about attributes that look like options and are not: other systems declare options as class attributes."""
    declared: Any = kind.options  # any value: one that is not a mapping is refused later
    own = set(dir(kind)).difference(dir(Job), declared if isinstance(declared, Mapping) else ())
    for name in sorted(OPTIONS.keys() & own):
        value = inspect.getattr_static(kind, name)
        if not hasattr(value, "__get__") and _is_value(name, value):
            warnings.warn(
                f"{kind.__module__}.{kind.__qualname__}.{name} = {value!r} is an attribute, not an option of its jobs: "
                f"write options = {{{name!r}: {value!r}}}, or rename the attribute",
                stacklevel=2,
            )
    for name in sorted(own.intersection(other_systems.OF_CLASSES)):
        warnings.warn(
            f"{kind.__module__}.{kind.__qualname__}.{name} is an attribute, not an option of its jobs: did you mean "
            f"options = {{{other_systems.OPTIONS[name]!r}: …}}?",
            stacklevel=2,
        )


def _is_value(name: str, value: Any) -> bool:
    """Return whether the option can have the value."""
    with suppress(InvalidOption):
        OPTIONS[name].check(value)
        return True
    return False


def _check_function(name: str, function: Callable[..., Any]) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidJob(
            f"{name} is a generator, so none of its code would run: return a value; for loops, see self.each"
        )


class _Arguments(NamedTuple):
    """The arguments of the function of a task by their names; what ``**kwargs`` takes is left to the signature."""

    signature: inspect.Signature
    needed: frozenset[str]
    accepted: frozenset[str]


@functools.lru_cache(maxsize=512)
def _arguments(function: Callable[..., object]) -> _Arguments:
    """Return the arguments, found once: the signature and a call of its ``bind`` take half as long as an add."""
    signature = inspect.signature(function)
    single = [parameter for parameter in signature.parameters.values() if parameter.kind in _BY_NAME]
    return _Arguments(
        signature,
        needed=frozenset(parameter.name for parameter in single if parameter.default is parameter.empty),
        accepted=frozenset(
            parameter.name for parameter in single if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY
        ),
    )
