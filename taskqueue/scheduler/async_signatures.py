"""The types of the methods of ``AsyncScheduler`` that add jobs: those of ``signatures``, awaited."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, overload

from taskqueue.model.job import Job, TaskFunction
from taskqueue.scheduler.async_handles import AsyncProcess
from taskqueue.scheduler.signatures import Arguments, AsyncTask, Data, Result, Running

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from taskqueue.model.options.table import JobOptions

Handle: TypeAlias = Coroutine[Any, Any, AsyncProcess[Result]]


class AsyncAddJob(Protocol):
    """The type of ``AsyncScheduler.add_job``."""

    @overload
    def __call__(
        self, /, job: type[Job[None, Result]], *, session: Any = None, **options: Unpack[JobOptions]
    ) -> Handle[Result]: ...

    @overload
    def __call__(
        self, /, job: type[Job[Data, Result]], data: Data, *, session: Any = None, **options: Unpack[JobOptions]
    ) -> Handle[Result]: ...

    @overload
    def __call__(
        self,
        /,
        job: AsyncTask[Result],
        data: Arguments = None,
        *,
        session: Any = None,
        **options: Unpack[JobOptions],
    ) -> Handle[Result]: ...

    @overload
    def __call__(
        self,
        /,
        job: TaskFunction[..., Result],
        data: Arguments = None,
        *,
        session: Any = None,
        **options: Unpack[JobOptions],
    ) -> Handle[Result]: ...

    @overload
    def __call__(
        self, /, job: str, data: Any = None, *, session: Any = None, **options: Unpack[JobOptions]
    ) -> Handle[Any]: ...


class AsyncAddJobOnce(Protocol):
    """The type of ``AsyncScheduler.add_job_once``."""

    @overload
    def __call__(
        self,
        /,
        job: type[Job[None, Result]],
        *,
        replace_running: Running = "after",
        **options: Unpack[JobOptions],
    ) -> Handle[Result]: ...

    @overload
    def __call__(
        self,
        /,
        job: type[Job[Data, Result]],
        data: Data,
        *,
        replace_running: Running = "after",
        **options: Unpack[JobOptions],
    ) -> Handle[Result]: ...

    @overload
    def __call__(
        self,
        /,
        job: AsyncTask[Result],
        data: Arguments = None,
        *,
        replace_running: Running = "after",
        **options: Unpack[JobOptions],
    ) -> Handle[Result]: ...

    @overload
    def __call__(
        self,
        /,
        job: TaskFunction[..., Result],
        data: Arguments = None,
        *,
        replace_running: Running = "after",
        **options: Unpack[JobOptions],
    ) -> Handle[Result]: ...

    @overload
    def __call__(
        self,
        /,
        job: str,
        data: Any = None,
        *,
        replace_running: Running = "after",
        **options: Unpack[JobOptions],
    ) -> Handle[Any]: ...


class AsyncRunJob(Protocol):
    """The type of ``AsyncScheduler.run_job``."""

    @overload
    def __call__(
        self, /, job: type[Job[None, Result]], *, reraise: bool = False, **options: Unpack[JobOptions]
    ) -> Handle[Result]: ...

    @overload
    def __call__(
        self, /, job: type[Job[Data, Result]], data: Data, *, reraise: bool = False, **options: Unpack[JobOptions]
    ) -> Handle[Result]: ...

    @overload
    def __call__(
        self,
        /,
        job: AsyncTask[Result],
        data: Arguments = None,
        *,
        reraise: bool = False,
        **options: Unpack[JobOptions],
    ) -> Handle[Result]: ...

    @overload
    def __call__(
        self,
        /,
        job: TaskFunction[..., Result],
        data: Arguments = None,
        *,
        reraise: bool = False,
        **options: Unpack[JobOptions],
    ) -> Handle[Result]: ...

    @overload
    def __call__(
        self, /, job: str, data: Any = None, *, reraise: bool = False, **options: Unpack[JobOptions]
    ) -> Handle[Any]: ...


def add_job(method: Callable[..., Handle[Any]]) -> AsyncAddJob:
    """Return the method; type checkers see it as ``AsyncAddJob``."""
    return cast(AsyncAddJob, method)


def add_job_once(method: Callable[..., Handle[Any]]) -> AsyncAddJobOnce:
    """Return the method; type checkers see it as ``AsyncAddJobOnce``."""
    return cast(AsyncAddJobOnce, method)


def run_job(method: Callable[..., Handle[Any]]) -> AsyncRunJob:
    """Return the method; type checkers see it as ``AsyncRunJob``."""
    return cast(AsyncRunJob, method)
