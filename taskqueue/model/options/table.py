"""The table of options: a row with check, default, meaning and place in a record for each, and its type for callers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from enum import IntEnum
from typing import Any, Literal, Protocol, TypeAlias, TypedDict

from bson import ObjectId

from taskqueue.model.conditions import Condition
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.limits import MOST_CONCURRENT, Declared
from taskqueue.model.meta import checked_meta
from taskqueue.model.options import readers, validators
from taskqueue.model.record import RUN_FIELDS, OnCrash, OnFailure
from taskqueue.model.retry import RetryPolicy
from taskqueue.model.schedules import Again, Cron, Custom, Duration, Every, Moment, seconds_of
from taskqueue.model.schedules.series import FAILURES_LIMIT, interval, reference


class Scope(IntEnum):
    """The level that sets an option: a call for one job, a class for its own, a scheduler for all it adds."""

    ONE = 1
    CLASS = 2
    ALL = 3


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option: ``check`` returns the value as it is kept, or raises ``InvalidOption`` without naming the option."""

    check: Callable[[Any], Any]
    default: Any
    meaning: str
    scope: Scope = Scope.ALL
    """The widest level that may set it."""
    is_of_class: bool = False
    """It belongs to a class: a call may not set it."""
    read: readers.Reader = readers.RUN_OPTION
    """Reads it back from a record; by default it is a field of ``Record.options``."""


OPTIONS: Mapping[str, Option] = {
    "at": Option(
        check=validators.start,
        default=None,
        meaning="when to run: an aware datetime, unix seconds, a timedelta from now, 'now', '+1 hour' or ISO text with "
        "a zone",
        read=readers.GIVEN,
    ),
    "retry": Option(
        check=validators.retry,
        default=0,
        meaning="how many further attempts after a failure, -1 for no limit; or a retry policy",
        read=readers.RETRY,
    ),
    "retry_interval": Option(
        check=seconds_of,
        default=300.0,
        meaning="the pause between a failure and the next attempt: seconds or '5m'",
        read=readers.RETRY_INTERVAL,
    ),
    "retry_on": Option(
        check=validators.retry_on,
        default=(),
        meaning="retry only after these exceptions: classes or their dotted names, with subclasses; empty means all",
        read=readers.RETRY_ON,
    ),
    "retry_on_timeout": Option(
        check=validators.flag, default=True, meaning="whether to retry after a timeout or a stall, too"
    ),
    "timeout": Option(
        check=validators.timeout,
        default=None,
        meaning="how long one attempt may take: seconds or '5m'; None or 0 means no limit",
    ),
    "stall_timeout": Option(
        check=validators.timeout,
        default=None,
        meaning="how long an attempt may go without progress() or checkpoint(): seconds or '5m'; None or 0 means "
        "no limit",
    ),
    "priority": Option(
        check=validators.whole(-20, 20),
        default=0,
        meaning="from -20 to 20, lower first; a step outweighs an hour of waiting",
        read=readers.FIELD,
    ),
    "queue": Option(
        check=validators.queue,
        default="default",
        meaning="the name of its queue; nodes choose queues with --work-on",
        read=readers.FIELD,
    ),
    "tags": Option(check=validators.tags, default=(), meaning="words to find the job by", read=readers.FIELD),
    "unique": Option(
        check=validators.unique,
        default=None,
        meaning="a key that only one pending job can have; adding another with the same key returns that job",
        scope=Scope.CLASS,
        read=readers.KEY,
    ),
    "unique_for": Option(
        check=validators.period,
        default=None,
        meaning="how long the unique key stays taken, from the time at which the job may start, even after it has "
        "ended with success: seconds or '5m'",
        scope=Scope.CLASS,
        read=readers.OF_CALL,
    ),
    "on_duplicate": Option(
        check=validators.on_duplicate,
        default="return",
        meaning="if another job has the unique key: 'return' that job, 'replace' its data, 'extend' its time as "
        "well, or 'raise' KeyTaken",
        scope=Scope.CLASS,
        read=readers.OF_CALL,
    ),
    "force_spawn": Option(
        check=validators.flag, default=False, meaning="run it in a worker of its own, in addition to the pool"
    ),
    "concurrency": Option(
        check=validators.whole(1, MOST_CONCURRENT),
        default=1,
        meaning="for a class with async def start: how many of its jobs run at once, in one event loop of a worker in "
        "addition to the pool",
        scope=Scope.CLASS,
        is_of_class=True,
    ),
    "name": Option(
        check=validators.display_name,
        default=None,
        meaning="what lists, metrics and `why` call its jobs, in place of their import path: up to 64 characters",
        scope=Scope.CLASS,
        is_of_class=True,
    ),
    "begin_within": Option(
        check=validators.period,
        default=None,
        meaning="the promise of a class: how soon after its due time a job starts its first run: seconds or '5m'",
        scope=Scope.CLASS,
        is_of_class=True,
    ),
    "promise": Option(
        check=validators.promise,
        default=0.99,
        meaning="with begin_within: the share of the jobs of the class that start so soon, from 0.5 to 0.99999",
        scope=Scope.CLASS,
        is_of_class=True,
    ),
    "crash_retries": Option(
        check=validators.whole(0, validators.COUNT_LIMIT),
        default=3,
        meaning="how many further attempts after its worker or node died",
    ),
    "on_crash": Option(
        check=validators.on_crash,
        default=OnCrash.RETRY,
        meaning="after its worker or node died: 'retry' runs it again (at least once), 'fail' does not (at most once)",
    ),
    "depends_on": Option(
        check=validators.dependencies,
        default=(),
        meaning="jobs, or their ids, that must be DONE first; a mapping gives each job its on_dependency_failure; "
        "a list may also contain checks, as for ready",
        scope=Scope.ONE,
        read=readers.DEPENDS_ON,
    ),
    "on_dependency_failure": Option(
        check=validators.on_failure,
        default=OnFailure.CANCEL,
        meaning="if a job in depends_on ends without success: 'cancel' this job, 'ignore' the failure and run, or "
        "keep waiting ('wait')",
        read=readers.ON_DEPENDENCY_FAILURE,
    ),
    "receives": Option(
        check=validators.receives,
        default=(),
        meaning="data that comes from the jobs in depends_on when it runs: the 'result' of the only one, or "
        "'results' as a list; or the parts of the data that do: {'page': 'result'}, 'page=result'",
        scope=Scope.CLASS,
    ),
    "ready": Option(
        check=validators.ready,
        default=None,
        meaning="a condition asked before each run: Check(function), its path 'module:function', or '#method' of the "
        "job's class, joined with & | ~",
        read=readers.READY,
    ),
    "limits": Option(
        check=validators.limits,
        default=(),
        meaning="how many jobs may run at once or start per time: Limit(5), Limit(5, by='bucket'), Rate(100, per=60), "
        "or text: '5 by=bucket', '100/60 name=api'",
        read=readers.LIMITS,
    ),
    "parent": Option(
        check=validators.parent,
        default=None,
        meaning="the job, or its id, that this job is part of; canceling the parent cancels this job",
        scope=Scope.ONE,
        read=readers.FIELD,
    ),
    "meta": Option(
        check=checked_meta,
        default={},
        meaning="a small mapping of text that travels with the job, to its runs, retries, copies, children and the log",
        scope=Scope.ONE,
        read=readers.META,
    ),
    "id": Option(
        check=validators.new_id,
        default=None,
        meaning="the id of the job, or up to 64 characters that mean one for its class: 'invoice-7'; adding the same "
        "id again adds nothing",
        scope=Scope.ONE,
        read=readers.UNREAD,
    ),
    "expires": Option(
        check=validators.time,
        default=None,
        meaning="cancel it if it has not started by then, but let its retries run later: a time as for at; "
        "'+1 hour' counts from at",
        read=readers.GIVEN,
    ),
    "interval": Option(
        check=interval,
        default=None,
        meaning="run again this long after a run: seconds or '5m'; -1 means at once, None or 0 means never",
        read=readers.SERIES,
    ),
    "interval_reference": Option(
        check=reference,
        default="end",
        meaning="what the interval counts from: the 'end' or 'start' of a run, or a base time as for at",
        read=readers.SERIES,
    ),
    "until": Option(
        check=validators.time,
        default=None,
        meaning="do not run again after this time: a time as for at",
        read=readers.SERIES,
    ),
    "max_runs": Option(
        check=validators.optional(validators.whole(1, validators.COUNT_LIMIT)),
        default=None,
        meaning="how many runs in all, retries not counted; None means no limit",
        read=readers.SERIES,
    ),
    "stop_after_failures": Option(
        check=validators.optional(validators.whole(1, FAILURES_LIMIT)),
        default=None,
        meaning="stop the series after this many consecutive failures; None means never",
        read=readers.SERIES,
    ),
    "ignore_data": Option(
        check=validators.flag,
        default=False,
        meaning="for add_job_once only: compare jobs by class alone, not by data",
        read=readers.UNREAD,
    ),
}
"""Every option by its name; ``add_job``, classes, schedulers, the command line and the reference read this table."""


class HasId(Protocol):
    """A handle on a job, or a running job."""

    @property
    def id(self) -> ObjectId:
        """The id of the job."""


Related: TypeAlias = HasId | ObjectId | str
"""A job, named by a handle or by its id."""

When: TypeAlias = Moment | timedelta
"""A time, or a duration from now."""

Errors: TypeAlias = type[BaseException] | str
Ready: TypeAlias = Condition | str | Callable[..., object] | Mapping[str, Any]
Effect: TypeAlias = OnFailure | Literal["cancel", "ignore", "wait"]


class CommonOptions(TypedDict, total=False):
    """The types of the options that each level may set, and that the jobs of a schedule may have."""

    retry: int | RetryPolicy | Mapping[str, Any]
    retry_interval: Duration
    retry_on: Errors | Collection[Errors]
    retry_on_timeout: bool
    timeout: Duration | None
    stall_timeout: Duration | None
    priority: int
    queue: str
    tags: str | Collection[str]
    force_spawn: bool
    crash_retries: int
    on_crash: OnCrash | Literal["retry", "fail"]
    on_dependency_failure: Effect
    ready: Ready | None
    limits: Declared | int | str | Sequence[Declared | int | str]
    expires: When | None
    ignore_data: bool


class ScheduledOptions(CommonOptions, total=False):
    """The types of the options that the jobs of a schedule may have."""

    meta: Mapping[str, str] | Sequence[str]


Overlapping: TypeAlias = Literal["skip", "queue_one", "allow", "cancel_previous"]


class ScheduleOptions(ScheduledOptions, total=False):
    """The types of what defines a schedule besides its name and its job: its trigger, its rules, and ``data``."""

    data: Any
    every: Duration | Every | Again | None
    cron: str | Cron | None
    at: type | str | Custom | None
    tz: str | None
    overlap: Overlapping
    misfire: str
    grace: Duration
    until: When | None
    max_runs: int | None
    stop_after_failures: int | None


class _Job(TypedDict):
    """The required keys of an entry."""

    job: Any


class ScheduleEntry(ScheduleOptions, _Job):
    """The types of an entry of ``schedules``: the arguments of ``schedule`` by name, ``job`` among them."""


class SchedulerOptions(CommonOptions, total=False):
    """The types of the options that a scheduler may set for all its jobs."""

    at: When | None
    interval: Duration | None
    interval_reference: When
    until: When | None
    max_runs: int | None
    stop_after_failures: int | None


class OneClassOptions(SchedulerOptions, total=False):
    """The types of the options that one job, or all of a class, may have."""

    unique: str | None
    unique_for: Duration | None
    on_duplicate: Literal["return", "replace", "extend", "raise"]
    receives: str | Collection[str] | Mapping[str, Literal["result", "results"]]


class ClassOptions(OneClassOptions, total=False):
    """The types of the options that a class, or a function with ``@task``, may declare."""

    concurrency: int
    name: str | None
    begin_within: Duration | None
    promise: float


class JobOptions(OneClassOptions, total=False):
    """The types of the options of one job."""

    depends_on: Related | Ready | Collection[Related | Ready] | Mapping[Any, Effect]
    parent: Related | None
    meta: Mapping[str, str] | Sequence[str]
    id: ObjectId | str | None


RUNNING = tuple(name for name in OPTIONS if name in RUN_FIELDS and name not in ("retry", "ready"))
"""The options that are kept as they are among the ``Options`` of a record."""

CONSTANT = frozenset((*RUNNING, "retry", "retry_interval", "retry_on", "queue", "priority", "tags")) - {"receives"}
"""The options whose effect depends on neither the data of a job nor the time of adding it."""
