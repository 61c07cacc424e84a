"""Functions that are jobs: the decorator ``task``, and how a task is added."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, TypeVar, overload

from taskqueue.errors import InvalidJob, InvalidOption
from taskqueue.model.job import Arguments, Returned, RunningJob, TaskFunction, current_job
from taskqueue.model.log_fields import CURRENT
from taskqueue.model.other_systems import OF_TASKS
from taskqueue.model.shown_text import as_code

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from taskqueue.model.options.table import ClassOptions, JobOptions
    from taskqueue.scheduler.async_handles import AsyncProcess
    from taskqueue.scheduler.async_scheduler import AsyncScheduler
    from taskqueue.scheduler.process import Process
    from taskqueue.scheduler.scheduler import Scheduler


Awaited = TypeVar("Awaited")

_warns_of_calls: ContextVar[bool] = ContextVar("_warns_of_calls", default=False)


@contextmanager
def warn_direct_calls() -> Iterator[None]:
    """Warn of each task that the block calls directly, outside of a job; for a middleware of a web application.

    ``send("ann")`` runs the task at once, in the caller, and adds no job: in a web request that is a mistake for
    ``send.add(scheduler, "ann")``. The warning is a ``RuntimeWarning``, which points to the call;
    ``send.function("ann")`` is without it.
    """
    token = _warns_of_calls.set(True)
    try:
        yield
    finally:
        _warns_of_calls.reset(token)


class AddsJobs(Generic[Arguments, Returned]):
    """A task, or a task with options of one job: what adds jobs that call it."""

    @overload
    def add(
        self: AddsJobs[Arguments, Coroutine[Any, Any, Awaited]],
        scheduler: Scheduler,
        /,
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Process[Awaited]: ...

    @overload
    def add(self, scheduler: Scheduler, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Process[Returned]: ...

    @overload
    def add(
        self: AddsJobs[Arguments, Coroutine[Any, Any, Awaited]],
        scheduler: AsyncScheduler,
        /,
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Coroutine[Any, Any, AsyncProcess[Awaited]]: ...

    @overload
    def add(
        self, scheduler: AsyncScheduler, /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Coroutine[Any, Any, AsyncProcess[Returned]]: ...

    def add(self, scheduler: Scheduler | AsyncScheduler, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Any:
        """Add a job that calls the function with these arguments, and return its ``Process``.

        The call is awaited with an ``AsyncScheduler``. Arguments are kept by name. Raises ``InvalidJob`` for arguments
        that the function does not take.
        """
        task, session, options = self._parts()
        if not hasattr(scheduler, "add_job") or isinstance(scheduler, type):
            raise TypeError(
                f"{task.__name__}.add() got {as_code(scheduler)} as its scheduler: "
                f"write {task.__name__}.add(scheduler, …)"
            )
        return scheduler.add_job(task, _named(task, args, kwargs), session=session, **options)

    def _parts(self) -> tuple[Task[Any, Any], object, JobOptions]:
        """Return the task, the session in whose transaction a job is added, and the options of the job."""
        raise AssertionError(self)  # both have one


class Task(AddsJobs[Arguments, Returned], TaskFunction[Arguments, Returned]):
    """A function that is also a job: ``send(…)`` calls it, ``send.add(scheduler, …)`` adds a job that calls it."""

    def __init__(
        self, function: Callable[Arguments, Returned], options: ClassOptions, takes_context: bool = False
    ) -> None:
        super().__init__(function, options)
        self.takes_context = takes_context
        if takes_context:
            self.__signature__ = _signature_of_data(function)

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        """Call the function here and now; one with ``context=True`` gets the job that calls it."""
        if _warns_of_calls.get() and CURRENT.get() is None:
            called = self.__name__
            warnings.warn(
                f"{called}() runs in this request, and no job is added: write {called}.add(scheduler, …), or "
                f"{called}.function(…) if it is meant to run here",
                RuntimeWarning,
                stacklevel=2,
            )
        if not self.takes_context:
            return self.function(*args, **kwargs)
        function: Any = self.function
        returned: Returned = function(current_job(), *args, **kwargs)
        return returned

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            called = self.__name__
            if name in self.__dict__.get("options", ()):
                raise AttributeError(f"task {called} has no attribute {name!r}: write {called}.options[{name!r}]")
            adding = f"to add a job write {called}.add(scheduler, …), with options {called}.using(…).add(scheduler, …)"
            raise AttributeError(f"task {called} has no attribute {name!r}: {OF_TASKS.get(name, adding)}")

    def using(self, *, session: object = None, **options: Unpack[JobOptions]) -> TaskCall[Arguments, Returned]:
        """Return the task with options for one job: ``send.using(queue="mail").add(scheduler, …)``.

        With ``session`` the job is part of its open transaction, as with ``add_job``.
        """
        return TaskCall(self, options, session)

    def _parts(self) -> tuple[Task[Any, Any], object, JobOptions]:
        return self, None, {}


class TaskCall(AddsJobs[Arguments, Returned]):
    """A task with the options of one job; it can be added any number of times."""

    def __init__(self, task: Task[Arguments, Returned], options: JobOptions, session: object = None) -> None:
        self._task = task
        self._options = options
        self._session = session

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            adding = f"{self._task.__name__}.using(…).add(scheduler, …)"
            raise AttributeError(f"a task with options has no attribute {name!r}: to add a job write {adding}")

    def _parts(self) -> tuple[Task[Any, Any], object, JobOptions]:
        return self._task, self._session, self._options


def _named(task: Task[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by name; arguments that do not fit are refused when the job is added."""
    if not args:
        return kwargs
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(task).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind in kinds]
    if len(args) > len(names) or not kwargs.keys().isdisjoint(names[: len(args)]):
        try:
            inspect.signature(task).bind(*args, **kwargs)
        except TypeError as refused:
            raise TypeError(f"{task.__name__}() cannot be called with these arguments: {refused}") from None
        raise TypeError(f"{task.__name__}() takes *args, which have no names to be kept by: pass a list")
    return {**dict(zip(names, args, strict=False)), **kwargs}


@overload
def task(function: Callable[Arguments, Returned], /) -> Task[Arguments, Returned]: ...


@overload
def task(
    *, context: Literal[False] = False, **options: Unpack[ClassOptions]
) -> Callable[[Callable[Arguments, Returned]], Task[Arguments, Returned]]: ...


@overload
def task(
    *, context: Literal[True], **options: Unpack[ClassOptions]
) -> Callable[[Callable[Concatenate[RunningJob, Arguments], Returned]], Task[Arguments, Returned]]: ...


def task(
    function: Callable[..., Any] | None = None, /, *, context: bool = False, **options: Unpack[ClassOptions]
) -> Any:
    """Make a function a job: ``@task`` or ``@task(retry=5, queue="mail")``; the data is its arguments by name.

    With ``context=True`` the function gets the running job, a ``RunningJob``, as its first argument. Raises
    ``InvalidJob`` for a lambda, a nested function or a generator, which no worker could import or run, and
    ``InvalidOption`` for a wrong option.
    """
    if not isinstance(context, bool):
        raise InvalidOption(f"task(context={as_code(context)}): pass True or False")
    if function is not None:
        if not callable(function):
            raise InvalidOption(f"task({as_code(function)}): pass a function; options go by name, @task(queue='mail')")
        return _declared(function, options, context)
    return lambda decorated: _declared(decorated, options, context)


def _declared(function: Callable[..., Any], options: ClassOptions, context: bool) -> Task[..., Any]:
    from taskqueue.model import runnable  # imports the options, which a program without tasks needs not
    from taskqueue.model.options import check_declared

    runnable.check_declared(function)
    if not context and next(iter(inspect.signature(function).parameters), "") == "self":
        raise InvalidJob(
            f"task {function.__qualname__} has a parameter self, which nothing passes: write @task(context=True) for a "
            "function that gets its job, or leave out self and call current_job()"
        )
    declared = Task(function, options, context)
    check_declared(declared, function)
    return declared


def _signature_of_data(function: Callable[..., Any]) -> inspect.Signature:
    """Return the parameters after the first, which gets the job; raise ``InvalidJob`` if nothing can take it."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    first = parameters[0] if parameters else None
    if first is None or first.kind in (first.KEYWORD_ONLY, first.VAR_KEYWORD):
        raise InvalidJob(
            f"task {function.__qualname__} has context=True, but its function has no parameter for the job: "
            f"write def {function.__name__}(job, …), or leave out context=True"
        )
    if first.kind is first.VAR_POSITIONAL:
        return signature
    return signature.replace(parameters=parameters[1:])
