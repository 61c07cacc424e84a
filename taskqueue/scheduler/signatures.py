"""The types of the methods that add jobs: data and result follow from the job, options from the table of options."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar, cast, overload

from taskqueue.model.job import Job, TaskFunction
from taskqueue.scheduler.process import Process

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from taskqueue.model.options.table import JobOptions

Data = TypeVar("Data")
Result = TypeVar("Result")
AsyncTask: TypeAlias = TaskFunction[..., Coroutine[Any, Any, Result]]
Arguments: TypeAlias = Mapping[str, Any] | None
Running: TypeAlias = Literal["after", "cancel"]


class AddJob(Protocol):
    """The type of ``Scheduler.add_job``."""

    @overload
    def __call__(
        self, /, job: type[Job[None, Result]], *, session: Any = None, **options: Unpack[JobOptions]
    ) -> Process[Result]: ...

    @overload
    def __call__(
        self, /, job: type[Job[Data, Result]], data: Data, *, session: Any = None, **options: Unpack[JobOptions]
    ) -> Process[Result]: ...

    @overload
    def __call__(
        self,
        /,
        job: AsyncTask[Result],
        data: Arguments = None,
        *,
        session: Any = None,
        **options: Unpack[JobOptions],
    ) -> Process[Result]: ...

    @overload
    def __call__(
        self,
        /,
        job: TaskFunction[..., Result],
        data: Arguments = None,
        *,
        session: Any = None,
        **options: Unpack[JobOptions],
    ) -> Process[Result]: ...

    @overload
    def __call__(
        self, /, job: str, data: Any = None, *, session: Any = None, **options: Unpack[JobOptions]
    ) -> Process[Any]: ...


class AddJobOnce(Protocol):
    """The type of ``Scheduler.add_job_once``."""

    @overload
    def __call__(
        self,
        /,
        job: type[Job[None, Result]],
        *,
        replace_running: Running = "after",
        **options: Unpack[JobOptions],
    ) -> Process[Result]: ...

    @overload
    def __call__(
        self,
        /,
        job: type[Job[Data, Result]],
        data: Data,
        *,
        replace_running: Running = "after",
        **options: Unpack[JobOptions],
    ) -> Process[Result]: ...

    @overload
    def __call__(
        self,
        /,
        job: AsyncTask[Result],
        data: Arguments = None,
        *,
        replace_running: Running = "after",
        **options: Unpack[JobOptions],
    ) -> Process[Result]: ...

    @overload
    def __call__(
        self,
        /,
        job: TaskFunction[..., Result],
        data: Arguments = None,
        *,
        replace_running: Running = "after",
        **options: Unpack[JobOptions],
    ) -> Process[Result]: ...

    @overload
    def __call__(
        self,
        /,
        job: str,
        data: Any = None,
        *,
        replace_running: Running = "after",
        **options: Unpack[JobOptions],
    ) -> Process[Any]: ...


class RunJob(Protocol):
    """The type of ``Scheduler.run_job``."""

    @overload
    def __call__(
        self, /, job: type[Job[None, Result]], *, reraise: bool = False, **options: Unpack[JobOptions]
    ) -> Process[Result]: ...

    @overload
    def __call__(
        self, /, job: type[Job[Data, Result]], data: Data, *, reraise: bool = False, **options: Unpack[JobOptions]
    ) -> Process[Result]: ...

    @overload
    def __call__(
        self,
        /,
        job: AsyncTask[Result],
        data: Arguments = None,
        *,
        reraise: bool = False,
        **options: Unpack[JobOptions],
    ) -> Process[Result]: ...

    @overload
    def __call__(
        self,
        /,
        job: TaskFunction[..., Result],
        data: Arguments = None,
        *,
        reraise: bool = False,
        **options: Unpack[JobOptions],
    ) -> Process[Result]: ...

    @overload
    def __call__(
        self, /, job: str, data: Any = None, *, reraise: bool = False, **options: Unpack[JobOptions]
    ) -> Process[Any]: ...


def add_job(method: Callable[..., Process[Any]]) -> AddJob:
    """Return the method; type checkers see it as ``AddJob``."""
    return cast(AddJob, method)


def add_job_once(method: Callable[..., Process[Any]]) -> AddJobOnce:
    """Return the method; type checkers see it as ``AddJobOnce``."""
    return cast(AddJobOnce, method)


def run_job(method: Callable[..., Process[Any]]) -> RunJob:
    """Return the method; type checkers see it as ``RunJob``."""
    return cast(RunJob, method)
