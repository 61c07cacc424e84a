"""Functions for workflows: jobs that run one after the other or in parallel, added together, with one handle.

A workflow is its members: jobs with one tag in common, which depend on those of the level before. Each word takes a
``Scheduler``, or an ``AsyncScheduler`` and is awaited then.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from inspect import iscoroutinefunction
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from taskqueue.errors import InvalidJob, InvalidOption, JobNotFound
from taskqueue.execution.declared_options import declared, known
from taskqueue.model.ids import WORKFLOW_TAG, JobId
from taskqueue.model.job import Job, TaskFunction
from taskqueue.model.options import named, validators
from taskqueue.model.received import ALL, ONE, Received, taken_out
from taskqueue.model.shown_text import as_code
from taskqueue.scheduler.calls import Calls, answered, awaited
from taskqueue.scheduler.workflow_handles import AsyncWorkflow, Workflow, members

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from taskqueue.model.options.table import Effect, JobOptions
    from taskqueue.scheduler.async_scheduler import AsyncScheduler
    from taskqueue.scheduler.scheduler import Scheduler

__all__ = ["RESULT", "RESULTS", "AsyncWorkflow", "Workflow", "chain", "find", "group", "map", "workflow_of"]

MOST_BESIDE = 1000
"""The most members of a level that another one waits for."""

RESULT: Any = Received(ONE)
"""In the data of a member: the result of the only job of the level before, which is put there when the member runs."""

RESULTS: Any = Received(ALL)
"""In the data of a member: the list of the results of the level before."""

_OURS = ("id", "depends_on", "on_dependency_failure")
_SHAPES = "job, (job, data) or (job, data, options)"

Runnable: TypeAlias = type[Job[Any, Any]] | TaskFunction[..., Any] | str
Member: TypeAlias = (
    "Runnable | tuple[Runnable] | tuple[Runnable, object] | tuple[Runnable, object, JobOptions | Mapping[str, object]]"
)
"""A job to be added: itself, with its data, or with its data and options."""

Added: TypeAlias = Coroutine[Any, Any, AsyncWorkflow]


@overload
def chain(
    scheduler: Scheduler,
    *members: Member | Sequence[Member],
    on_failure: Effect = "cancel",
    **options: Unpack[JobOptions],
) -> Workflow: ...


@overload
def chain(
    scheduler: AsyncScheduler,
    *members: Member | Sequence[Member],
    on_failure: Effect = "cancel",
    **options: Unpack[JobOptions],
) -> Added: ...


def chain(scheduler: Any, *members: Any, on_failure: Any = "cancel", **options: Any) -> Any:
    """Add jobs that run one after the other, in one step; a list among them is a level whose jobs run in parallel.

    A member is ``job``, ``(job, data)`` or ``(job, data, options)``. Each one begins when all of the level before it
    are DONE, and finds their results in ``self.dependencies``, or in its data where ``RESULT`` or ``RESULTS`` stands.
    ``on_failure`` is the ``on_dependency_failure`` of all, and ``options`` are those of each member that does not set
    them itself. Nothing is added if one is invalid.
    """
    levels = [member if isinstance(member, list) else [member] for member in members]
    return _done(scheduler, _added(scheduler, levels, {"on_dependency_failure": on_failure, **options}))


@overload
def group(
    scheduler: Scheduler,
    members: Iterable[Member],
    *,
    then: Member | Sequence[Member] | None = None,
    on_failure: Effect = "cancel",
    **options: Unpack[JobOptions],
) -> Workflow: ...


@overload
def group(
    scheduler: AsyncScheduler,
    members: Iterable[Member],
    *,
    then: Member | Sequence[Member] | None = None,
    on_failure: Effect = "cancel",
    **options: Unpack[JobOptions],
) -> Added: ...


def group(scheduler: Any, members: Any, *, then: Any = None, on_failure: Any = "cancel", **options: Any) -> Any:
    """Add jobs that run in parallel, in one step, and ``then`` one (or a list) after them; see ``chain``."""
    if isinstance(members, str | type) or not isinstance(members, Iterable):
        raise InvalidJob(f"members={as_code(members)}: pass a list of members, each {_SHAPES}")
    if isinstance(members, tuple) and any(isinstance(part, Mapping) for part in members):
        raise InvalidJob(f"members={as_code(members)} is one member: pass a list of members, [(job, data), …]")
    levels = [members] if then is None else [members, then if isinstance(then, list) else [then]]
    return _done(scheduler, _added(scheduler, levels, {"on_dependency_failure": on_failure, **options}))


@overload
def map(
    scheduler: Scheduler,
    job: Runnable,
    items: Iterable[object],
    *,
    batch: int | None = None,
    then: Member | Sequence[Member] | None = None,
    on_failure: Effect = "cancel",
    **options: Unpack[JobOptions],
) -> Workflow: ...


@overload
def map(
    scheduler: AsyncScheduler,
    job: Runnable,
    items: Iterable[object],
    *,
    batch: int | None = None,
    then: Member | Sequence[Member] | None = None,
    on_failure: Effect = "cancel",
    **options: Unpack[JobOptions],
) -> Added: ...


def map(
    scheduler: Any,
    job: Any,
    items: Any,
    *,
    batch: Any = None,
    then: Any = None,
    on_failure: Any = "cancel",
    **options: Any,
) -> Any:
    """Add a job for each item, which is its data; with ``batch``, for each list of that many. See ``group``."""
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise InvalidOption(f"batch={as_code(batch)}: pass a number of items, 1 or more")
    if not isinstance(items, Iterable):
        raise InvalidJob(
            f"items={as_code(items)}: pass a list, or what can be iterated over: a job is added for each item"
        )
    data = iter(items)
    pieces = data if batch is None else iter(lambda: list(islice(data, batch)), [])
    return group(scheduler, ((job, piece) for piece in pieces), then=then, on_failure=on_failure, **options)


@overload
def find(scheduler: Scheduler, id: JobId | str) -> Workflow: ...


@overload
def find(scheduler: AsyncScheduler, id: JobId | str) -> Added: ...


def find(scheduler: Any, id: JobId | str) -> Any:
    """Return the workflow with this id, or that a member with this id belongs to; raise ``JobNotFound``."""
    return _done(scheduler, _found(scheduler, id))


def workflow_of(tags: Iterable[str]) -> JobId | None:
    """Return the id of the workflow that a job with these tags is a member of; None if it is of none."""
    named = (tag.removeprefix(WORKFLOW_TAG) for tag in tags if tag.startswith(WORKFLOW_TAG))
    return next((JobId(name) for name in named if JobId.is_valid(name)), None)


def _done(scheduler: Any, calls: Calls[Any]) -> Any:
    return awaited(calls) if _is_async(scheduler) else answered(calls)


def _is_async(scheduler: Any) -> bool:
    add_jobs = getattr(scheduler, "add_jobs", None)
    if isinstance(scheduler, type) or not callable(add_jobs):
        raise TypeError(
            f"{as_code(scheduler)} is not a scheduler: pass a Scheduler or an AsyncScheduler before the jobs"
        )
    return iscoroutinefunction(add_jobs)


def _added(scheduler: Any, levels: Iterable[Iterable[Any]], options: Mapping[str, Any]) -> Calls[Any]:
    """Add all members in one step; in asyncio the thread that adds them makes them."""
    processes = yield scheduler.add_jobs(_entries(levels, options))
    return _handle(scheduler, processes[0].id, processes)


def _found(scheduler: Any, id: JobId | str) -> Calls[Any]:
    member = yield scheduler.get_job(id)
    first = workflow_of(member.tags)
    if first is None:
        raise JobNotFound(member.id, "the job is not a member of a workflow")
    return _handle(scheduler, first, (yield members(scheduler, first)))


def _handle(scheduler: Any, first: JobId, processes: Sequence[Any]) -> Any:
    return (AsyncWorkflow if _is_async(scheduler) else Workflow)(scheduler, first, processes)


def _entries(levels: Iterable[Iterable[Any]], options: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the ``add_jobs`` entry of each member, which depends on all of the level before."""
    every = [list(level) for level in levels]
    if not every or not all(every):
        raise InvalidJob("a workflow has a level without jobs: pass at least one job for each level")
    for level in every[:-1]:
        if len(level) > MOST_BESIDE:
            raise InvalidJob(
                f"{len(level):,} jobs run side by side before another, at most {MOST_BESIDE:,} can: "
                "give each more to do, for instance with map(…, batch=100)"
            )
    ids = sorted(JobId() for level in every for _ in level)  # in the order in which they are found again
    given, first = iter(ids), ids[0]
    before: list[JobId] = []
    for level in every:
        here = list(islice(given, len(level)))
        for member, id in zip(level, here, strict=True):
            yield _entry(member, id, before, first, options)
        before = here


def _entry(member: Any, id: JobId, before: Sequence[JobId], first: JobId, options: Mapping[str, Any]) -> Any:
    """Return the ``add_jobs`` entry of a member."""
    parts = member if isinstance(member, tuple) else (member,)
    if not 1 <= len(parts) <= 3 or not all(isinstance(one, Mapping) for one in parts[2:]):
        raise InvalidJob(f"a member of a workflow is {as_code(member)}: pass {_SHAPES}")
    defaults: tuple[Any, ...] = (None, None, {})
    job, data, own = (*parts, *defaults[len(parts) :])
    data, received = taken_out(data)
    if received and not before:
        raise InvalidJob(f"{member!r} is in the first level, and no other gives it a result: pass the data itself")
    if received:
        own = {"receives": received, **own}
    for name in _OURS:
        if name in own or (name == "id" and name in options):
            raise InvalidOption(f"{name}={own.get(name, options.get(name))!r}: a workflow sets it itself: leave it out")
    of_job = {**declared(known(job)), **options, **own}
    if of_job.get("unique") is not None:
        raise InvalidOption(
            f"unique={of_job['unique']!r}: if a job with this key is pending, later members would wait for a job that "
            "is not added: leave it out"
        )
    every = [*named("tags", of_job.get("tags", ()), validators.tags), f"{WORKFLOW_TAG}{first}"]
    behind = {"depends_on": list(before)} if before else {}
    return job, data, {**options, **own, **behind, "id": id, "tags": every}
