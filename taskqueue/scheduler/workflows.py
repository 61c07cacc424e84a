"""Functions for workflows: jobs that run one after the other or in parallel, added together, with one handle.

A workflow is its members: jobs with one tag in common, which depend on those of the level before. Each function takes a
``Scheduler``, or an ``AsyncScheduler`` and is then awaited.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from inspect import iscoroutinefunction
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, cast, overload

from taskqueue.errors import InvalidJob, InvalidOption, InvalidQuery, JobNotFound
from taskqueue.execution.declared_options import declared, known
from taskqueue.model.ids import WORKFLOW_TAG, JobId, new_id
from taskqueue.model.job import Job, TaskFunction
from taskqueue.model.lifecycle.recovered_copy import last_copy, origin_of, origins_of
from taskqueue.model.options import named, validators
from taskqueue.model.other_systems import OF_WORKFLOWS
from taskqueue.model.received import ALL, ONE, Received, taken_out
from taskqueue.model.schedules import Duration
from taskqueue.model.shown_text import as_code
from taskqueue.model.wording import percent
from taskqueue.scheduler.async_handles import AsyncProcess
from taskqueue.scheduler.changes import workflow_member
from taskqueue.scheduler.process import JobSnapshot, Process, id_of
from taskqueue.scheduler.wait import timeout_of

if TYPE_CHECKING:
    from typing_extensions import Never, Unpack

    from taskqueue.model.options.table import Effect, JobOptions
    from taskqueue.model.workflow import WorkflowSummary
    from taskqueue.scheduler.async_scheduler import AsyncScheduler
    from taskqueue.scheduler.scheduler import Scheduler

Handle = TypeVar("Handle", bound=JobSnapshot)


class WorkflowSnapshot(Generic[Handle]):
    """The members of one workflow, in the order of their levels, as they were when last read."""

    def __init__(self, client: Any, id: JobId, processes: Iterable[Handle]) -> None:
        self._client = client
        self._id = id
        self.processes = list(processes)
        self._unknown = list(dict.fromkeys(_missing(id, self.processes)))
        self._pruned: set[JobId] = set()

    @property
    def id(self) -> JobId:
        """The id of the first member, by which ``find`` finds the workflow again."""
        return self._id

    @property
    def results(self) -> list[Any]:
        """The result of each member, None if the member is not known to be DONE."""
        return [process.result for process in self.processes]

    @property
    def result(self) -> Any:
        """The result of the last member, None if it is not known to be DONE."""
        return self.processes[-1].result

    @property
    def pruned(self) -> list[JobId]:
        """The ids of the members that had ended and were removed from the store; their results may not be known."""
        return [*self._unknown, *(process.id for process in self.processes if process.id in self._pruned)]

    @property
    def progress(self) -> float:
        """How far all members are together, 0 to 100; a member that has ended counts as 100."""
        reached = sum(100.0 if self._has_ended(process) else process.progress for process in self.processes)
        return (reached + 100.0 * len(self._unknown)) / self._number

    @property
    def is_final(self) -> bool:
        """Whether all members have ended; one that was pruned has."""
        return all(self._has_ended(process) for process in self.processes)

    @property
    def is_done(self) -> bool:
        """Whether all members are known to have ended with success."""
        return not self._unknown and all(process.is_done for process in self.processes)

    def drawing(self) -> str:
        """Return the workflow as lines of text: for each level its classes, and how many jobs have which status."""
        drawn = [
            f"{'   ' * (depth - 1)}{'└─ ' if depth else ''}{line}"
            for depth, level in enumerate(_levels(self.processes))
            for line in _lines(level)
        ]
        return "\n".join([*drawn, *([f"pruned: {len(self.pruned)}"] if self.pruned else [])])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {percent(self.progress / 100)} of {self._number} jobs>"

    @property
    def _number(self) -> int:
        return len(self.processes) + len(self._unknown)

    def _has_ended(self, process: Handle) -> bool:
        return process.is_final or process.id in self._pruned

    def _renew(self, stored: Iterable[Handle]) -> None:
        """Take the members as they are in the store now; members that are not there were pruned."""
        now = {id: process for process in stored for id in _ids(process)}
        self._pruned.update(process.id for process in self.processes if process.id not in now)
        self.processes = [now.get(process.id, process) for process in self.processes]

    def _not_pruned(self) -> list[Handle]:
        return [process for process in self.processes if process.id not in self._pruned]

    def _note_gone(self, error: JobNotFound) -> None:
        """Note a member that had ended and was pruned before a wait looked at it."""
        self._pruned.add(JobId(str(error.id)))


class Workflow(WorkflowSnapshot[Process]):
    """The members of one workflow, in the order of their levels, as they were when last read."""

    def refresh(self) -> Workflow:
        """Read all members again and return this; one that was pruned stays as it was."""
        self._renew(members(self._client, self.id))
        return self

    def wait(self, timeout: Duration | None = None, raise_on_error: bool = False) -> Workflow:
        """Wait until all members have ended and return this; see ``Scheduler.wait_for``."""
        remaining = _remaining(timeout)
        while True:
            try:
                self._client.wait_for(self._not_pruned(), timeout=remaining(), raise_on_error=raise_on_error)
            except JobNotFound as error:
                self._note_gone(error)
                self.refresh()
            else:
                return self

    def recover(self) -> Workflow:
        """Run the failed part again, as copies in the place of its members; return this (``recover_workflow``)."""
        self._client.recover_workflow(self.id)
        return self.refresh()

    def cancel(self, reason: str = "") -> Workflow:
        """Cancel all members that are pending, the last ones first, and return this."""
        _cancel(self._client, self.id, reason)
        return self.refresh()


class AsyncWorkflow(WorkflowSnapshot[AsyncProcess]):
    """A ``Workflow`` whose operations are awaited."""

    async def refresh(self) -> AsyncWorkflow:
        """Read all members again and return this; one that was pruned stays as it was."""
        self._renew(_latest([process async for process in self._client.get_jobs(_query(self.id))]))
        return self

    async def wait(self, timeout: Duration | None = None, raise_on_error: bool = False) -> AsyncWorkflow:
        """Wait until all members have ended and return this; see ``Scheduler.wait_for``."""
        remaining = _remaining(timeout)
        while True:
            try:
                await self._client.wait_for(self._not_pruned(), timeout=remaining(), raise_on_error=raise_on_error)
            except JobNotFound as error:
                self._note_gone(error)
                await self.refresh()
            else:
                return self

    async def recover(self) -> AsyncWorkflow:
        """Run the failed part again, as copies in the place of its members; return this (``recover_workflow``)."""
        await self._client.recover_workflow(self.id)
        return await self.refresh()

    async def cancel(self, reason: str = "") -> AsyncWorkflow:
        """Cancel all members that are pending, the last ones first, and return this."""
        await self._client.in_thread(_cancel, self._client.blocking, self.id, reason)
        return await self.refresh()


def members(client: Scheduler, first: JobId) -> list[Process]:
    """Return the members that are in the store, the last copy of one that was recovered in its place."""
    return _latest(client.get_jobs(_query(first)))


def _latest(processes: Iterable[Handle]) -> list[Handle]:
    """Return the members, the last copy of one that was recovered in its place."""
    stored = {process.id: process for process in processes}
    records = {id: process.snapshot for id, process in stored.items()}
    return [stored[last_copy(id, records)] for id, record in records.items() if origin_of(record) not in stored]


def _ids(process: JobSnapshot) -> tuple[JobId, ...]:
    """Return the id of a member, and the ids of the jobs of which it is a copy."""
    return process.id, *origins_of(process.snapshot)


def _query(first: JobId) -> Mapping[str, Any]:
    return {"workflow": first}


def _cancel(client: Scheduler, first: JobId, reason: str) -> None:
    """Cancel the members that are pending, the last ones first."""
    for process in reversed(members(client, first)):
        if process.is_pending:
            process.cancel(reason)


def _remaining(timeout: Duration | None) -> Callable[[], float | None]:
    """Return a function that returns how many seconds of the timeout are left."""
    seconds = timeout_of("timeout", timeout)
    deadline = None if seconds is None else time.monotonic() + seconds
    return lambda: None if deadline is None else max(0.0, deadline - time.monotonic())


def _missing(first: JobId, processes: Sequence[JobSnapshot]) -> Iterator[JobId]:
    """Yield the members that are known only from others."""
    there = {id for process in processes for id in _ids(process)}
    for id in (first, *(id for process in processes for id in process.depends_on)):
        if id not in there:
            yield id


def _levels(processes: Sequence[Handle]) -> list[list[Handle]]:
    """Return the members by their distance from the first level."""
    depths: dict[JobId, int] = {}
    levels: list[list[Handle]] = []
    for process in processes:
        depth = max((depths[id] + 1 for id in process.depends_on if id in depths), default=0)
        depths |= dict.fromkeys(_ids(process), depth)
        levels += [[] for _ in range(depth + 1 - len(levels))]
        levels[depth].append(process)
    return levels


def _lines(level: Sequence[JobSnapshot]) -> Iterator[str]:
    """Yield a line for each class of a level."""
    for job in dict.fromkeys(process.job for process in level):
        statuses = Counter(process.status.name for process in level if process.job == job)
        number = sum(statuses.values())
        if number == 1:
            [only] = (process for process in level if process.job == job)
            yield f"{job} {only.status.name} {only.id}"
        else:
            yield f"{number} × {job} {', '.join(f'{many} {name}' for name, many in sorted(statuses.items()))}"


__all__ = ["RESULT", "RESULTS", "AsyncWorkflow", "Workflow", "chain", "find", "group", "map", "recent"]

MOST_RECENT = 1000
"""The most workflows that ``recent`` returns at once."""

MOST_BESIDE = 1000
"""Maximum number of members of a level that another one waits for."""

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

Added = TypeVar("Added", covariant=True)  # noqa: PLC0105 - messages show the name


class Adding(Protocol[Added]):
    """A ``Scheduler``, whose workflows are returned, or an ``AsyncScheduler``, whose workflows are awaited."""

    def workflow_added(self) -> Added:
        """For type checkers alone."""


def chain(
    scheduler: Adding[Added],
    *members: Member | Sequence[Member],
    on_failure: Effect = "cancel",
    **options: Unpack[JobOptions],
) -> Added:
    """Add jobs that run one after the other, in one step; a list among them is a level whose jobs run in parallel.

    A member is ``job``, ``(job, data)`` or ``(job, data, options)``. Each one starts when all of the level before it
    are DONE, and finds their results in ``self.dependencies``, or in its data where ``RESULT`` or ``RESULTS`` stands.
    ``on_failure`` is the ``on_dependency_failure`` of all, and ``options`` are those of each member that does not set
    them itself. Nothing is added if one is invalid.
    """
    levels = [member if isinstance(member, list) else [member] for member in members]
    return _added(scheduler, levels, {"on_dependency_failure": on_failure, **options})


def group(
    scheduler: Adding[Added],
    members: Iterable[Member],
    *more: Never,
    then: Member | Sequence[Member] | None = None,
    on_failure: Effect = "cancel",
    **options: Unpack[JobOptions],
) -> Added:
    """Add jobs that run in parallel, in one step, and ``then`` one (or a list) after them; see ``chain``."""
    if more:
        raise InvalidJob("group() takes its members as one list: group(scheduler, [(job, data), …])")
    if isinstance(members, str | type) or not isinstance(members, Iterable):
        raise InvalidJob(f"members={as_code(members)}: pass a list of members, each {_SHAPES}")
    if isinstance(members, tuple) and any(isinstance(part, Mapping) for part in members):
        raise InvalidJob(f"members={as_code(members)} is one member: pass a list of members, [(job, data), …]")
    levels = [members] if then is None else [members, then if isinstance(then, list) else [then]]
    return _added(scheduler, levels, {"on_dependency_failure": on_failure, **options})


def map(
    scheduler: Adding[Added],
    job: Runnable,
    items: Iterable[object],
    *,
    batch: int | None = None,
    then: Member | Sequence[Member] | None = None,
    on_failure: Effect = "cancel",
    **options: Unpack[JobOptions],
) -> Added:
    """Add a job for each item, which is its data; with ``batch``, for each list of that many. See ``group``."""
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise InvalidOption(f"batch={as_code(batch)}: pass a number of items, 1 or more")
    if not isinstance(items, Iterable):
        raise InvalidJob(f"items={as_code(items)}: pass a list, or another iterable: a job is added for each item")
    data = iter(items)
    pieces = data if batch is None else iter(lambda: list(islice(data, min(batch, sys.maxsize))), [])
    return group(scheduler, ((job, piece) for piece in pieces), then=then, on_failure=on_failure, **options)


@overload
def find(scheduler: Scheduler, id: JobId | str) -> Workflow: ...


@overload
def find(scheduler: AsyncScheduler, id: JobId | str) -> Coroutine[Any, Any, AsyncWorkflow]: ...


def find(scheduler: Any, id: JobId | str) -> Any:
    """Return the workflow with this id, or that a member with this id belongs to; raise ``JobNotFound``."""
    if _is_async(scheduler):
        return _found(scheduler, id)
    connections = scheduler._connections  # noqa: SLF001 - the store of a scheduler is for this layer
    member = workflow_member(connections.store, id_of(id, connections))
    first = member.workflow or member.id
    return Workflow(scheduler, first, members(scheduler, first))


@overload
def recent(scheduler: Scheduler, limit: int = 20, *, after: JobId | str | None = None) -> list[WorkflowSummary]: ...


@overload
def recent(
    scheduler: AsyncScheduler, limit: int = 20, *, after: JobId | str | None = None
) -> Coroutine[Any, Any, list[WorkflowSummary]]: ...


def recent(scheduler: Any, limit: int = 20, *, after: JobId | str | None = None) -> Any:
    """Return up to ``limit`` workflows (1 to 1,000), the newest first, with the state and the number of their jobs.

    ``after`` is the id of the last workflow of the previous page: each page is as fast as the first. Raises
    ``InvalidQuery``.
    """
    if _is_async(scheduler):
        return scheduler.in_thread(recent, scheduler.blocking, limit, after=after)
    if type(limit) is not int or not 0 < limit <= MOST_RECENT:
        raise InvalidQuery(f"limit={as_code(limit)}: pass how many workflows to return, from 1 to {MOST_RECENT:,}")
    if after is not None and not JobId.is_valid(after):
        raise InvalidQuery(f"after={as_code(after)}: pass the id of a workflow, which has 24 hexadecimal digits")
    upto = None if after is None else JobId(f"{max(int(str(after), 16) - 1, 0):024x}")
    return scheduler._connections.store.workflows(upto, limit)  # noqa: SLF001


def summary(scheduler: Scheduler, id: JobId | str) -> WorkflowSummary:
    """Return the state of the workflow with this id, or that a member with this id belongs to.

    Raises ``JobNotFound``.
    """
    connections = scheduler._connections  # noqa: SLF001
    member = workflow_member(connections.store, id_of(id, connections))
    for workflow in connections.store.workflows(member.workflow, 1):
        if workflow.id == member.workflow:
            return workflow
    raise JobNotFound(member.id, "the members of its workflow cannot be read, or were removed just now")


def _is_async(scheduler: Any) -> bool:
    add_jobs = getattr(scheduler, "add_jobs", None)
    if isinstance(scheduler, type) or not callable(add_jobs):
        raise TypeError(
            f"{as_code(scheduler)} is not a scheduler: pass a Scheduler or an AsyncScheduler before the jobs"
        )
    return iscoroutinefunction(add_jobs)


def _added(scheduler: Adding[Added], levels: Iterable[Iterable[Any]], options: Mapping[str, Any]) -> Added:
    """Add all members in one step; in asyncio the thread that adds them makes them."""
    client: Any = scheduler
    is_async = _is_async(client)
    added = client.add_jobs(_entries(levels, options))
    return cast("Added", _awaited(client, added) if is_async else Workflow(client, added[0].id, added))


async def _awaited(scheduler: AsyncScheduler, added: Awaitable[list[AsyncProcess]]) -> AsyncWorkflow:
    processes = await added
    return AsyncWorkflow(scheduler, processes[0].id, processes)


async def _found(scheduler: AsyncScheduler, id: JobId | str) -> AsyncWorkflow:
    workflow: Workflow = await scheduler.in_thread(find, scheduler.blocking, id)
    processes = [AsyncProcess(scheduler, process.snapshot) for process in workflow.processes]
    return AsyncWorkflow(scheduler, workflow.id, processes)


def _entries(levels: Iterable[Iterable[Any]], options: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the ``add_jobs`` entry of each member, which depends on all of the level before."""
    every = [list(level) for level in levels]
    if not every or not all(every):
        raise InvalidJob("a workflow has a level without jobs: pass at least one job for each level")
    for level in every[:-1]:
        if len(level) > MOST_BESIDE:
            raise InvalidJob(
                f"{len(level):,} jobs would run side by side before another one, and at most {MOST_BESIDE:,} can: "
                "give each more to do, for instance with map(…, batch=100)"
            )
    ids = sorted(new_id() for level in every for _ in level)  # in the order in which they are found again
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
    if not 1 <= len(parts) <= 3 or not all(isinstance(part, Mapping) for part in parts[2:]):
        raise InvalidJob(f"a member of a workflow is {as_code(member)}: pass {_SHAPES}")
    defaults: tuple[Any, ...] = (None, None, {})
    job, data, own = (*parts, *defaults[len(parts) :])
    data, received = taken_out(data)
    if received and not before:
        raise InvalidJob(f"{member!r} is in the first level, where no job gives it a result: pass the data itself")
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


if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> Any:
        way = OF_WORKFLOWS.get(name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{f': {way}' if way else ''}")
