"""Words for workflows: jobs that run one behind the other or side by side, added together, with one handle.

A workflow is its members: jobs with one tag in common, which depend on those of the level before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import iscoroutinefunction
from itertools import islice
from typing import TYPE_CHECKING, Any

from taskqueue.errors import InvalidJob, InvalidOption, JobNotFound
from taskqueue.execution.declared_options import declared, known
from taskqueue.model.ids import JobId
from taskqueue.model.options import named, validators
from taskqueue.model.schedules import Duration
from taskqueue.scheduler.process import Process

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from taskqueue.model.options.table import JobOptions
    from taskqueue.scheduler.scheduler import Scheduler

TAG = "workflow:"
"""How the tag begins that all members have; the id of the first member follows."""

MOST_BESIDE = 1000
"""The most members of a level that another one waits for."""

_OURS = ("id", "depends_on", "on_dependency_failure")


class Workflow:
    """The members of one workflow, in the order of their levels, as they were when last looked at."""

    def __init__(self, scheduler: Scheduler, processes: Sequence[Process]) -> None:
        self._scheduler = scheduler
        self.processes = list(processes)

    @property
    def id(self) -> JobId:
        """The id of the first member, by which ``find`` finds the workflow again."""
        return self.processes[0].id

    @property
    def results(self) -> list[Any]:
        """The result of each member, None of one that is not DONE."""
        return [process.result for process in self.processes]

    @property
    def result(self) -> Any:
        """The result of the last member, None if it is not DONE."""
        return self.processes[-1].result

    @property
    def progress(self) -> float:
        """How far all members are together, 0 to 100; a member that has ended counts as 100."""
        reached = sum(100.0 if process.is_final else process.progress for process in self.processes)
        return reached / len(self.processes)

    @property
    def is_final(self) -> bool:
        """Whether all members have ended."""
        return all(process.is_final for process in self.processes)

    @property
    def is_done(self) -> bool:
        """Whether all members have ended with success."""
        return all(process.is_done for process in self.processes)

    def refresh(self) -> Workflow:
        """Look at all members again and return this; one that was pruned stays as it was."""
        now = {process.id: process for process in _members(self._scheduler, self.id)}
        self.processes = [now.get(process.id, process) for process in self.processes]
        return self

    def wait(self, timeout: Duration | None = None, raise_on_error: bool = False) -> Workflow:
        """Wait until all members have ended and return this; see ``Scheduler.wait_for``."""
        self._scheduler.wait_for(self.processes, timeout=timeout, raise_on_error=raise_on_error)
        return self

    def cancel(self, reason: str = "") -> Workflow:
        """Cancel all members that are pending, the last ones first, and return this."""
        for process in reversed(list(_members(self._scheduler, self.id))):  # not those that were pruned
            if process.is_pending:
                process.cancel(reason)
        return self.refresh()

    def drawing(self) -> str:
        """Return the workflow as lines of text: for each level its classes, and how many jobs have which status."""
        return "\n".join(
            f"{'   ' * (depth - 1)}{'└─ ' if depth else ''}{line}"
            for depth, level in enumerate(_levels(self.processes))
            for line in _lines(level)
        )

    def __repr__(self) -> str:
        return f"<Workflow {self.id} {self.progress:.0f}% of {len(self.processes)} jobs>"


def chain(scheduler: Scheduler, *members: Any, on_failure: str = "cancel", **options: Unpack[JobOptions]) -> Workflow:
    """Add jobs that run one behind the other, in one step; a list among them is a level whose jobs run side by side.

    A member is ``job``, ``(job, data)`` or ``(job, data, options)``. Each one begins when all of the level before it
    are DONE, and finds their results in ``self.dependencies``. ``on_failure`` is the ``on_dependency_failure`` of
    all, and ``options`` are those of each member that does not set them itself. Nothing is added if one is invalid.
    """
    levels = [member if isinstance(member, list) else [member] for member in members]
    return _add(scheduler, levels, {"on_dependency_failure": on_failure, **options})


def group(
    scheduler: Scheduler,
    members: Iterable[Any],
    *,
    then: Any = None,
    on_failure: str = "cancel",
    **options: Unpack[JobOptions],
) -> Workflow:
    """Add jobs that run side by side, in one step, and ``then`` one (or a list) behind them; see ``chain``."""
    levels = [list(members)] if then is None else [list(members), then if isinstance(then, list) else [then]]
    return _add(scheduler, levels, {"on_dependency_failure": on_failure, **options})


def map(
    scheduler: Scheduler,
    job: Any,
    items: Iterable[Any],
    *,
    batch: int | None = None,
    then: Any = None,
    on_failure: str = "cancel",
    **options: Unpack[JobOptions],
) -> Workflow:
    """Add a job for each item, which is its data; with ``batch`` for each list of so many. See ``group``."""
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise InvalidOption(f"batch={batch!r}: pass a number of items, 1 or more")
    data = iter(items)
    pieces = data if batch is None else iter(lambda: list(islice(data, batch)), [])
    return group(scheduler, [(job, piece) for piece in pieces], then=then, on_failure=on_failure, **options)


def find(scheduler: Scheduler, id: JobId | str) -> Workflow:
    """Return the workflow with this id, or that a member with this id belongs to; raise ``JobNotFound``."""
    member = scheduler.get_job(id)
    first = workflow_of(member.tags)
    if first is None:
        raise JobNotFound(member.id, "the job is no member of a workflow")
    return Workflow(scheduler, list(_members(scheduler, first)))


def workflow_of(tags: Iterable[str]) -> JobId | None:
    """Return the id of the workflow that a job with these tags is a member of; None if it is of none."""
    named = (tag.removeprefix(TAG) for tag in tags if tag.startswith(TAG))
    return next((JobId(name) for name in named if JobId.is_valid(name)), None)


def _add(scheduler: Scheduler, levels: Sequence[Sequence[Any]], options: Mapping[str, Any]) -> Workflow:
    """Add all members in one step, each one depending on all of the level before."""
    if iscoroutinefunction(scheduler.add_jobs):
        raise TypeError(
            f"a workflow takes a Scheduler, not {scheduler!r}: asyncio.to_thread(workflows.chain, Scheduler(), …)"
        )
    if not levels or not all(levels):
        raise InvalidJob("a workflow has a level without jobs: pass at least one job for each level")
    for level in levels[:-1]:
        if len(level) > MOST_BESIDE:
            raise InvalidJob(
                f"{len(level):,} jobs run side by side before another, at most {MOST_BESIDE:,} can: "
                "give each more to do, for instance with map(…, batch=100)"
            )
    ids = sorted(JobId() for level in levels for _ in level)  # in the order in which they are found again
    given, first = iter(ids), ids[0]
    entries: list[Any] = []
    before: list[JobId] = []
    for level in levels:
        here = list(islice(given, len(level)))
        entries += [_entry(member, id, before, first, options) for member, id in zip(level, here, strict=True)]
        before = here
    return Workflow(scheduler, scheduler.add_jobs(entries))


def _entry(member: Any, id: JobId, before: Sequence[JobId], first: JobId, options: Mapping[str, Any]) -> Any:
    """Return what ``add_jobs`` takes for a member."""
    parts = member if isinstance(member, tuple) else (member,)
    if not 1 <= len(parts) <= 3 or not all(isinstance(one, Mapping) for one in parts[2:]):
        raise InvalidJob(f"a member of a workflow is {member!r}: pass job, (job, data) or (job, data, options)")
    defaults: tuple[Any, ...] = (None, None, {})
    job, data, own = (*parts, *defaults[len(parts) :])
    for name in _OURS:
        if name in own or (name == "id" and name in options):
            raise InvalidOption(f"{name}={own.get(name, options.get(name))!r}: a workflow sets it itself: leave it out")
    of_job = {**declared(known(job)), **options, **own}
    if of_job.get("unique") is not None:
        raise InvalidOption(
            f"unique={of_job['unique']!r}: the members behind it would wait for another job where one of this key is "
            "pending: leave it out"
        )
    every = [*named("tags", of_job.get("tags", ()), validators.tags), f"{TAG}{first}"]
    behind = {"depends_on": list(before)} if before else {}
    return job, data, {**options, **own, **behind, "id": id, "tags": every}


def _members(scheduler: Scheduler, first: JobId) -> Iterator[Process]:
    return scheduler.get_jobs({"tags": f"{TAG}{first}"})


def _levels(processes: Sequence[Process]) -> list[list[Process]]:
    """Return the members by their distance from the first level."""
    depths: dict[JobId, int] = {}
    levels: list[list[Process]] = []
    for process in processes:
        depth = max((depths[id] + 1 for id in process.depends_on if id in depths), default=0)
        depths[process.id] = depth
        levels += [[] for _ in range(depth + 1 - len(levels))]
        levels[depth].append(process)
    return levels


def _lines(level: Sequence[Process]) -> Iterator[str]:
    """Yield a line for each class of a level."""
    for job in dict.fromkeys(process.job for process in level):
        statuses = Counter(process.status.name for process in level if process.job == job)
        number = sum(statuses.values())
        if number == 1:
            [only] = (process for process in level if process.job == job)
            yield f"{job} {only.status.name} {only.id}"
        else:
            yield f"{number} × {job} {', '.join(f'{many} {name}' for name, many in sorted(statuses.items()))}"
