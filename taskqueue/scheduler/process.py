"""A job as it was when it was last read, the public handle on it, and how callers name jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic

from taskqueue.errors import InvalidOption
from taskqueue.execution.declared_options import known_types
from taskqueue.insight.records import id_named
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.recovered_copy import copy_of, origin_of, scheduled_time_of
from taskqueue.model.options import named as option
from taskqueue.model.options import validators
from taskqueue.model.options.new_record import in_force
from taskqueue.model.other_systems import OF_PROCESSES, missing
from taskqueue.model.record import Attempt, Cause, Failure, Record, Status
from taskqueue.model.schedules import Duration
from taskqueue.model.serializer import decode

if TYPE_CHECKING:
    from taskqueue.scheduler.connection import Connections

if TYPE_CHECKING:
    from typing_extensions import Self, TypeVar

    from taskqueue.model.log_lines import LogLine
    from taskqueue.scheduler.scheduler import Scheduler

    Result = TypeVar("Result", default=Any)
else:  # typing_extensions takes long to import
    from typing import TypeVar

    Result = TypeVar("Result")


class JobSnapshot:
    """The last read state of a job; nothing here reads the store. Times are aware UTC datetimes."""

    snapshot: Record
    """The record when last read."""
    existed: bool
    """Whether the add call found this existing job, with the same id, unique key, or class and data."""

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name, OF_PROCESSES)

    @property
    def id(self) -> JobId:
        """The job's id, the same from ``add_job`` to its final outcome."""
        return self.snapshot.id

    @property
    def id_text(self) -> str | None:
        """The text that was passed as ``id``, such as ``invoice-7``; None if none was."""
        return self.snapshot.id_text

    @property
    def job(self) -> str:
        """The import path of the class or function that runs."""
        return self.snapshot.job

    @property
    def data(self) -> Any:
        """The data passed to ``add_job``, a copy each time, of the type that the job declares if imported."""
        data = decode(self.snapshot.data)
        if self.snapshot.options.receives and self.snapshot.depends_on:
            return data  # parts of it are received when it runs
        types = known_types(self.snapshot.job)
        return data if types is None else types.decoded(data)

    @property
    def options(self) -> Mapping[str, Any]:
        """All effective options, from the call, the class, the scheduler or the defaults, as JSON values."""
        return in_force(self.snapshot)

    @property
    def status(self) -> Status:
        """The state, a ``Status`` rather than text: compare it with ``Status.DONE``, or ask ``is_done``."""
        return self.snapshot.status

    @property
    def cause(self) -> Cause:
        """Why the job is in this state, in one word; ``why()`` says it in sentences."""
        return self.snapshot.cause

    @property
    def queue(self) -> str:
        """The queue."""
        return self.snapshot.queue

    @property
    def priority(self) -> int:
        """From -20 to 20; a lower number runs sooner."""
        return self.snapshot.priority

    @property
    def tags(self) -> tuple[str, ...]:
        """The words to find the job by, sorted."""
        return self.snapshot.tags

    @property
    def meta(self) -> Mapping[str, str]:
        """The small mapping of text that is passed on with the job; a copy each time."""
        return dict(self.snapshot.meta)

    @property
    def scheduled_time(self) -> datetime | None:
        """The time for which a schedule started the job, or the job that it is a copy of; None without a schedule."""
        return scheduled_time_of(self.snapshot)

    @property
    def recovered_from(self) -> JobId | None:
        """The id of the job that this one is a copy of (``recover_job``); None if it is not a copy."""
        return origin_of(self.snapshot)

    @property
    def recovered_as(self) -> JobId | None:
        """The id of the last copy that was made of this job; None if it was not recovered."""
        return copy_of(self.snapshot)

    @property
    def progress(self) -> float:
        """How far the job is, 0 to 100."""
        return self.snapshot.progress

    @property
    def progress_message(self) -> str:
        """The message of the last progress."""
        return self.snapshot.progress_message

    @property
    def phase(self) -> str | None:
        """The phase of a ``StepwiseJob``: ``starting``, ``running``, ``ending`` or ``failing``; None for other jobs."""
        return None if self.snapshot.phase is None else self.snapshot.phase.value

    @property
    def reports(self) -> Any:
        """The reports of a ``StepwiseJob`` after its last step, a copy each time; None for other jobs."""
        course = self.snapshot.course
        return None if course is None or course.phase is None else decode(course.reports)

    @property
    def result(self) -> Any:
        """The return value of ``start()``, of the type that the job declares if imported; None until DONE."""
        if self.snapshot.result is None:
            return None
        types = known_types(self.snapshot.job)
        result = decode(self.snapshot.result)
        return result if types is None or types.result is None else types.result.decode(result, "result")

    @property
    def error(self) -> Failure | None:
        """The last error as ``type``, ``message``, ``traceback`` and ``bases``; None if there is none."""
        return self.snapshot.error

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The last 20 runs that have ended, the latest at the end."""
        return self.snapshot.attempts

    @property
    def attempt(self) -> int:
        """The number of the current attempt, or else of the next one; interrupted and snoozed runs are not counted."""
        return self.snapshot.attempt

    @property
    def node(self) -> str | None:
        """The name of the node that has the job, while it is PROCESSING."""
        return None if self.snapshot.holder is None else self.snapshot.holder.seat

    @property
    def created_at(self) -> datetime:
        """When the job was added."""
        return self.snapshot.created_at

    @property
    def ready_at(self) -> datetime | None:
        """WAITING: since when it may run; POSTPONED: when it will; PROCESSING: when its lease ends unless renewed."""
        return self.snapshot.ready_at

    @property
    def started_at(self) -> datetime | None:
        """When the current or the last attempt started to run."""
        return self.snapshot.started_at

    @property
    def ended_at(self) -> datetime | None:
        """When the job reached its final status."""
        return self.snapshot.ended_at

    @property
    def expires_at(self) -> datetime | None:
        """When it is too late to start the job; None means never."""
        return self.snapshot.expires_at

    @property
    def parent(self) -> JobId | None:
        """The id of the parent job."""
        return self.snapshot.parent

    @property
    def depends_on(self) -> tuple[JobId, ...]:
        """The ids of the jobs that must end before this one; ``waiting_for`` has the ones that have not ended yet."""
        return tuple(dependency.id for dependency in self.snapshot.depends_on)

    @property
    def waiting_for(self) -> tuple[JobId, ...]:
        """The ids of the jobs that this one still waits for."""
        return self.snapshot.waiting_for

    @property
    def is_waiting(self) -> bool:
        """Whether the job could run now."""
        return self.status is Status.WAITING

    @property
    def is_postponed(self) -> bool:
        """Whether the job will be able to run later."""
        return self.status is Status.POSTPONED

    @property
    def is_processing(self) -> bool:
        """Whether a node has the job."""
        return self.status is Status.PROCESSING

    @property
    def is_pending(self) -> bool:
        """Whether the job has no final outcome yet."""
        return self.status.is_pending

    @property
    def is_final(self) -> bool:
        """Whether the job has its outcome and will not run again."""
        return self.status.is_final

    @property
    def is_done(self) -> bool:
        """Whether the job has ended with success."""
        return self.status is Status.DONE

    @property
    def is_failed(self) -> bool:
        """Whether the job has failed for good."""
        return self.status is Status.FAILED

    @property
    def is_canceled(self) -> bool:
        """Whether the job was canceled."""
        return self.status is Status.CANCELED

    @property
    def is_timeout(self) -> bool:
        """Whether the job has ended because its last attempt took too long."""
        return self.status is Status.TIMEOUT

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobSnapshot) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.job} {self.status.name}>"


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
        ids_to_read = next(steps)
        while True:
            ids_to_read = steps.send(list(client.get_jobs({"id": {"$in": ids_to_read}})))
    except StopIteration as end:
        return {id: handle.result for id, handle in end.value.items()}


def listed(processes: Iterable[object] | object) -> Iterable[object]:
    """Return the handles or ids; a single one counts as a list of one."""
    is_one = isinstance(processes, JobSnapshot | JobId | str)
    return processes if isinstance(processes, Iterable) and not is_one else [processes]


def named(processes: Iterable[object] | object, connections: Connections) -> list[tuple[JobId, object]]:
    """Return each handle or id together with its id; the store is asked for the ids of texts."""
    return [(id_of(process, connections), process) for process in listed(processes)]


def is_looked_up(process: object) -> bool:
    """Return whether the store is asked for the id of this."""
    return isinstance(process, str) and not JobId.is_valid(process)


def id_of(process: object, connections: Connections) -> JobId:
    """Return the id of a handle, of an ``ObjectId``, of its 24 digits, or of its text, for which the store is asked.

    Raises ``JobNotFound`` for other text, and ``InvalidOption`` for other values.
    """
    if type(process) is JobId:  # may be called for millions
        return process
    if isinstance(process, JobSnapshot):
        return process.id
    if isinstance(process, str):
        return JobId(process) if JobId.is_valid(process) else id_named(connections.store, process)
    checked_id: JobId | None = option("id", process, validators.job_id)
    if checked_id is None:
        raise InvalidOption("a job's id is missing: pass a Process, an ObjectId or its 24 hexadecimal digits")
    return checked_id
