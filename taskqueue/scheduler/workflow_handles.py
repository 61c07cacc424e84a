"""The handles on a workflow, of the blocking client and of asyncio: its members, and the operations on all of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from taskqueue.errors import JobNotFound
from taskqueue.model.ids import WORKFLOW_TAG, JobId
from taskqueue.model.schedules import Duration
from taskqueue.scheduler.async_handles import AsyncProcess
from taskqueue.scheduler.calls import Calls, all_of, answered, awaited
from taskqueue.scheduler.process import Process
from taskqueue.scheduler.snapshot import JobSnapshot
from taskqueue.scheduler.wait import timeout_of

Handle = TypeVar("Handle", bound=JobSnapshot)


class WorkflowSnapshot(Generic[Handle]):
    """The members of one workflow, in the order of their levels, as they were when last looked at."""

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
        """The result of each member, None of one that is not known to be DONE."""
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
        return f"<{type(self).__name__} {self.id} {self.progress:.0f}% of {self._number} jobs>"

    @property
    def _number(self) -> int:
        return len(self.processes) + len(self._unknown)

    def _has_ended(self, process: Handle) -> bool:
        return process.is_final or process.id in self._pruned

    def _refresh(self) -> Calls[None]:
        now = {process.id: process for process in (yield members(self._client, self.id))}
        self._pruned.update(process.id for process in self.processes if process.id not in now)
        self.processes = [now.get(process.id, process) for process in self.processes]

    def _wait(self, timeout: Duration | None, raise_on_error: bool) -> Calls[None]:
        seconds = timeout_of("timeout", timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            there = [process for process in self.processes if process.id not in self._pruned]
            try:
                yield self._client.wait_for(there, timeout=left, raise_on_error=raise_on_error)
            except JobNotFound as gone:  # it has ended, and was pruned before it was looked at
                self._pruned.add(JobId(str(gone.id)))
                yield from self._refresh()
            else:
                return

    def _cancel(self, reason: str) -> Calls[None]:
        for process in reversed((yield members(self._client, self.id))):  # without pruned ones
            if process.is_pending:
                yield process.cancel(reason)
        yield from self._refresh()


class Workflow(WorkflowSnapshot[Process]):
    """The members of one workflow, in the order of their levels, as they were when last looked at."""

    def refresh(self) -> Workflow:
        """Look at all members again and return this; one that was pruned stays as it was."""
        answered(self._refresh())
        return self

    def wait(self, timeout: Duration | None = None, raise_on_error: bool = False) -> Workflow:
        """Wait until all members have ended and return this; see ``Scheduler.wait_for``."""
        answered(self._wait(timeout, raise_on_error))
        return self

    def cancel(self, reason: str = "") -> Workflow:
        """Cancel all members that are pending, the last ones first, and return this."""
        answered(self._cancel(reason))
        return self


class AsyncWorkflow(WorkflowSnapshot[AsyncProcess]):
    """A ``Workflow`` whose operations are awaited."""

    async def refresh(self) -> AsyncWorkflow:
        """Look at all members again and return this; one that was pruned stays as it was."""
        await awaited(self._refresh())
        return self

    async def wait(self, timeout: Duration | None = None, raise_on_error: bool = False) -> AsyncWorkflow:
        """Wait until all members have ended and return this; see ``Scheduler.wait_for``."""
        await awaited(self._wait(timeout, raise_on_error))
        return self

    async def cancel(self, reason: str = "") -> AsyncWorkflow:
        """Cancel all members that are pending, the last ones first, and return this."""
        await awaited(self._cancel(reason))
        return self


def members(client: Any, first: JobId) -> Any:
    """Return the call that gives the members that are in the store."""
    return all_of(client.get_jobs({"tags": f"{WORKFLOW_TAG}{first}"}))


def _missing(first: JobId, processes: Sequence[JobSnapshot]) -> Iterator[JobId]:
    """Yield the members that are known by others alone."""
    there = {process.id for process in processes}
    for id in (first, *(id for process in processes for id in process.depends_on)):
        if id not in there:
            yield id


def _levels(processes: Sequence[Handle]) -> list[list[Handle]]:
    """Return the members by their distance from the first level."""
    depths: dict[JobId, int] = {}
    levels: list[list[Handle]] = []
    for process in processes:
        depth = max((depths[id] + 1 for id in process.depends_on if id in depths), default=0)
        depths[process.id] = depth
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
