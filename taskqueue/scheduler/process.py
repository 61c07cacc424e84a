"""The public handle on one job: its record as last read, and its operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic

from taskqueue.model.ids import JobId
from taskqueue.model.record import Record
from taskqueue.model.schedules import Duration
from taskqueue.scheduler.snapshot import JobSnapshot

if TYPE_CHECKING:
    from typing_extensions import Self, TypeVar

    from taskqueue.model.log_lines import LogLine
    from taskqueue.scheduler.scheduler import Scheduler

    Result = TypeVar("Result", default=Any)
else:  # typing_extensions takes long to import
    from typing import TypeVar

    Result = TypeVar("Result")


class Process(JobSnapshot, Generic[Result]):
    """One job as it was when last read: only ``refresh``, ``wait`` and ``cancel`` read it again.

    Times are aware UTC datetimes.
    """

    _silence: object | None = None

    def __init__(
        self, scheduler: Scheduler, record: Record, *, existed: bool = False, silence: object | None = None
    ) -> None:
        """``silence`` is the listener's in which the job was added: ``wait`` need not read the job first."""
        self._scheduler = scheduler
        self.snapshot = record
        self.existed = existed
        if silence is not None:
            self._silence = silence

    if TYPE_CHECKING:

        @property
        def result(self) -> Result: ...

    @property
    def children(self) -> list[Process]:
        """The child jobs of this one, read now, without pruned jobs."""
        return list(self._scheduler.get_jobs({"parent": self.id}))

    @property
    def dependencies(self) -> dict[JobId, Any]:
        """The result of each job in ``depends_on``, None for one without success; read now, without pruned jobs.

        For a recovered job it is the result of its last copy.
        """
        return results(self._scheduler, self.depends_on)

    def refresh(self) -> Self:
        """Read the job again and return this; raise ``JobNotFound`` if it was removed."""
        self.snapshot = self._scheduler.get_job(self.id).snapshot
        return self

    def wait(self, timeout: Duration | None = None, raise_on_error: bool = False) -> Self:
        """Wait for the final status and return this; see ``Scheduler.wait_for``."""
        self._scheduler.wait_for([self], timeout=timeout, raise_on_error=raise_on_error)
        return self

    def cancel(self, reason: str = "") -> Self:
        """Cancel the job and return this; see ``Scheduler.cancel_job``."""
        self.snapshot = self._scheduler.cancel_job(self.id, reason).snapshot
        return self

    def logs(self) -> list[LogLine]:
        """Return the log lines that are kept with the job, read now; see ``Scheduler.logs``."""
        return self._scheduler.logs(self.id)

    def stack(self) -> str:
        """Return where the running job is, asked of its node now; see ``Scheduler.stack``."""
        return self._scheduler.stack(self.id)

    def why(self) -> str:
        """Say in sentences why the job is in its current state."""
        return self._scheduler.why(self.id)


def results(client: Scheduler, ids: Sequence[JobId]) -> dict[JobId, Any]:
    """Return the results of these jobs as ``received.sources`` finds them."""
    from taskqueue.model.received import sources  # few jobs depend on others

    steps = sources(ids)
    try:
        wanted = next(steps)
        while True:
            wanted = steps.send(list(client.get_jobs({"id": {"$in": wanted}})))
    except StopIteration as end:
        return {id: handle.result for id, handle in end.value.items()}
