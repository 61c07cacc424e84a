"""Every error that taskqueue raises on purpose, as one tree sorted by whose turn it is to act."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn

__all__ = [
    "CheckpointRefused",
    "ConfigError",
    "CursorTooOld",
    "DataTooLarge",
    "DuplicateId",
    "InvalidJob",
    "InvalidOption",
    "InvalidQuery",
    "JobFailed",
    "JobNotFound",
    "KeyTaken",
    "NoCurrentJob",
    "ScheduleNotFound",
    "SchemaMismatch",
    "StackUnavailable",
    "StoreContended",
    "StoreReplaced",
    "StoreUnavailable",
    "TaskqueueError",
    "TooManyRuns",
    "Unreadable",
    "WaitDeadlock",
    "WaitTimeout",
    "WrongStatus",
]


class TaskqueueError(Exception):
    """Root of all errors of taskqueue."""


class InvalidJob(TaskqueueError, ValueError):
    """The arguments cannot become a job; nothing was stored."""


class InvalidOption(InvalidJob):
    """An option is unknown, or its value has the wrong type or range."""


class InvalidQuery(TaskqueueError, ValueError):
    """A query uses a field, an operator or a value that the filter language does not have."""


class DataTooLarge(InvalidJob):
    """Data, a result, a checkpoint or a message exceeds the size that the store accepts."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(
            f"{what} is {size:,} bytes, at most {limit:,} are kept: store it elsewhere and pass a reference"
        )
        self.size = size
        self.limit = limit


class DuplicateId(InvalidJob):
    """A job with this id exists already and is another job."""

    def __init__(self, id: object) -> None:
        super().__init__(f"job {id} already exists with another class or other data: pass another id, or none")
        self.id = id


class KeyTaken(InvalidJob):
    """Another job has the unique key of one added with ``on_duplicate="raise"``, or of one to be recovered."""

    def __init__(
        self,
        key: object,
        id: object,
        job: str,
        status: str,
        until: datetime | None,
        way_out: str = "add the job later, or leave out on_duplicate='raise' to get that one",
    ) -> None:
        period = "" if until is None else f", until {until:%Y-%m-%d %H:%M:%S} UTC at least"
        super().__init__(f"unique={key!r}: job {id} ({job}, {status}) has this key{period}: {way_out}")
        self.key = key
        self.id = id


class JobNotFound(TaskqueueError, LookupError):
    """No job has this id: it never existed, or retention has removed it."""

    def __init__(
        self, id: object, reason: str = "it was never added to this store, or it ended and was pruned"
    ) -> None:
        super().__init__(f"there is no job {id}: {reason}")
        self.id = id


class ScheduleNotFound(TaskqueueError, LookupError):
    """No schedule has this name."""

    def __init__(self, name: object, hint: str = "") -> None:
        super().__init__(f"there is no schedule {name}{hint or ': define it, or look at the list of schedules'}")
        self.name = name


class WrongStatus(TaskqueueError):
    """The job is in a status in which this cannot be done with it."""

    def __init__(self, id: object, status: str, can: str) -> None:
        super().__init__(f"job {id} is {status}: a job can {can}")
        self.id = id
        self.status = status


class StackUnavailable(TaskqueueError):
    """The stack of a running job cannot be read now."""

    def __init__(self, id: object, reason: str) -> None:
        super().__init__(f"the stack of job {id} cannot be read: {reason}")
        self.id = id


class CursorTooOld(TaskqueueError, LookupError):
    """Events after this cursor have been pruned already; start again without a cursor."""

    def __init__(self, cursor: object) -> None:
        super().__init__(
            f"events after cursor {cursor!r} are no longer kept: read the jobs again and listen without a cursor"
        )


class WaitTimeout(TaskqueueError, TimeoutError):
    """A wait ended before all jobs did."""

    def __init__(
        self, open_jobs: Sequence[object], timeout: float, unread: int = 0, store: str = "", nodes: str = ""
    ) -> None:
        named = ", ".join(str(job) for job in open_jobs[:5])
        more = f" and {len(open_jobs) - 5:,} more" if len(open_jobs) > 5 else ""
        late = f" ({unread:,} of them could not be read in time, and may have ended)" if unread else ""
        where = f" (store {store})" if store else ""
        super().__init__(
            f"still open after {timeout:g} s: {named}{more}{late}; `taskqueue why ID` says what each waits for{where}"
            + (f". {nodes}" if nodes else "")
        )
        self.open_jobs = tuple(open_jobs)


class WaitDeadlock(TaskqueueError):
    """A running job waits for itself, or for a job that cannot run because such waits hold all its workers."""

    def __init__(self, id: object, awaited: object, reason: str, way_out: str) -> None:
        whom = "itself" if str(id) == str(awaited) else f"job {awaited}"
        super().__init__(f"job {id} waits for {whom}, {reason}: {way_out}")
        self.id = id
        self.awaited = awaited


class TooManyRuns(TaskqueueError):
    """Jobs that run in the caller never come to an end: they add, snooze or retry themselves."""

    def __init__(self, most: int, job: str, runs: int) -> None:
        super().__init__(
            f"{most:,} more runs than there were pending jobs, {runs:,} of them of {job}, and jobs are still pending: "
            "if a job adds, snoozes or retries itself without end, run it on a node; else pass a larger max_runs to "
            "run_pending"
        )
        self.job = job
        self.runs = runs


class JobFailed(TaskqueueError):
    """A job that was waited for ended without success; carries its error, as far as it is known."""

    def __init__(self, id: object, status: str, error: Any) -> None:
        reason = f": {error.type}: {error.message}" if error is not None else ""
        super().__init__(f"job {id} ended as {status}{reason}")
        self.id = id
        self.status = status
        self.error = error


class NoCurrentJob(TaskqueueError, RuntimeError):
    """``current_job()`` was called outside of a job."""


class CheckpointRefused(TaskqueueError):
    """The state passed to ``checkpoint`` cannot be kept."""


class Unreadable(TaskqueueError, ValueError):
    """A kept value cannot be read by this version of taskqueue, or on this host."""


class ConfigError(TaskqueueError):
    """A setting of the node, the command line or the environment is wrong."""


class StoreUnavailable(TaskqueueError):
    """The store cannot be used now; nothing acknowledged was lost."""

    def __init__(
        self, store: str, reason: str, way_out: str, *, held_by: int | None = None, only_reads: bool = False
    ) -> None:
        super().__init__(f"store {store}: {reason}: {way_out}")
        self.store = store
        self.reason = reason
        self.held_by = held_by
        """The process of this host that blocks all other writers, if that is the cause and it is known."""

        self.only_reads = only_reads
        """Whether writes alone fail, as on a full disk, so that an answer to a read does not end the outage."""


class StoreContended(StoreUnavailable):
    """Other processes changed the same job or schedule each time that this call tried to; it changed nothing."""

    def __init__(self, store: str, what: str, tries: int) -> None:
        super().__init__(store, f"{what} was changed by other processes during each of {tries} tries", "try again")
        self.what = what
        self.tries = tries


class StoreReplaced(StoreUnavailable):
    """A file of the store was replaced while it was open: this process must open the store again."""


class SchemaMismatch(StoreUnavailable):
    """The store has a schema that this version of taskqueue does not work with: migrate it, or upgrade taskqueue."""

    def __init__(self, store: str, found: int, known: int) -> None:
        problem = f"has schema version {found}, this taskqueue knows version {known}"
        way_out = (
            "run `taskqueue migrate`" if found < known else "upgrade taskqueue here to the version that migrated it"
        )
        super().__init__(store, problem, way_out)
        self.found = found
        self.known = known


def naive_time(moment: datetime) -> InvalidOption:
    """Return the error for a time without zone."""
    return InvalidOption(
        f"{moment.isoformat()} has no time zone: pass an aware datetime, e.g. with tzinfo=timezone.utc"
    )


def assert_never(value: NoReturn) -> NoReturn:
    """Raise for a value that the type checker has ruled out, without importing ``typing_extensions``."""
    raise AssertionError(f"unexpected {value!r}")
