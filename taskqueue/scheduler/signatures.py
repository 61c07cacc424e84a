"""The types of a job that a scheduler adds: data and result follow from it.

The methods are not overloaded: a checker then names the one argument that is wrong, in one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from taskqueue.model.job import Data, Job

if TYPE_CHECKING:
    from taskqueue.model.options.table import JobOptions
    from taskqueue.scheduler.process import Result

Returned = TypeVar("Returned", covariant=True)  # noqa: PLC0105 - messages show the name


class Returning(Protocol[Returned]):
    """A function with ``@task``, sync or async, whose job has this result."""

    def result_of_job(self) -> Returned:
        """For type checkers alone."""


if TYPE_CHECKING:
    Addable: TypeAlias = type[Job[Data, Result]] | Returning[Result] | str
    """A class of jobs, a function with ``@task``, or the path of one of them, whose data and result may be anything."""

    Entry: TypeAlias = (
        tuple[type[Job[Any, Any]] | Returning[object] | str, object]
        | tuple[type[Job[Any, Any]] | Returning[object] | str, object, JobOptions]
    )
    """A job of ``add_jobs`` with its data and options; jobs of several classes may be added at once."""

Running: TypeAlias = Literal["after", "cancel"]
