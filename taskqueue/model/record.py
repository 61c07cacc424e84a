"""The stored record of a job: frozen, with its parts and the names of its states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from datetime import datetime, timedelta
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from bson import ObjectId

from taskqueue.model.conditions import Condition, NotReadyState
from taskqueue.model.ids import ID_TEXT, WORKFLOW, JobId
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.lifecycle.continuation import Continuation, Phase
from taskqueue.model.meta import meta_in
from taskqueue.model.retry import NO_RETRY, RetryPolicy
from taskqueue.model.timestamps import MILLISECOND, milliseconds

if TYPE_CHECKING:  # an origin has triggers, which count in times as they are defined here
    from taskqueue.model.schedules.origin import Origin

ATTEMPTS_KEPT = 20
"""How many of a job's last attempts its record keeps."""

PRIORITY_STEP = timedelta(hours=1)
"""The waiting time that one step of priority is worth."""

RANK_A_PRIORITY = PRIORITY_STEP // MILLISECOND
"""What one step of the priority adds to the rank."""


class Status(IntEnum):
    """The seven states of a job; ``status <= PROCESSING`` means pending."""

    WAITING = 0
    POSTPONED = 1
    PROCESSING = 2
    DONE = 3
    FAILED = 4
    CANCELED = 5
    TIMEOUT = 6

    def __str__(self) -> str:
        return self.name

    def __format__(self, spec: str) -> str:
        return format(self.name, spec)

    @property
    def is_final(self) -> bool:
        """Return whether the job has its outcome and will not run again."""
        return self > Status.PROCESSING

    @property
    def is_pending(self) -> bool:
        """Return whether the job waits or runs."""
        return self <= Status.PROCESSING


class Cause(str, Enum):
    """Why a record is in its state: of a final one why it ended so, of a pending one why it is not running (again)."""

    __str__ = str.__str__

    ADDED = "added"
    SCHEDULED = "scheduled"
    BEHIND = "behind"
    RETRY = "retry"
    SNOOZED = "snoozed"
    NOT_READY = "not_ready"
    STEPPED = "stepped"
    CLEAN_UP = "clean_up"
    INTERRUPTED = "interrupted"
    HANDED_BACK = "handed_back"
    CRASHED = "crashed"
    LOST = "lost"
    UNLOADABLE = "unloadable"
    CLAIMED = "claimed"
    RETURNED = "returned"
    FAILED = "failed"
    EXHAUSTED = "exhausted"
    NOT_RETRIABLE = "not_retriable"
    UNDECIDED = "undecided"
    TIMED_OUT = "timed_out"
    STALLED = "stalled"
    CANCELED = "canceled"
    REPLACED = "replaced"
    DUPLICATE = "duplicate"
    EXPIRED = "expired"
    DEPENDENCY = "dependency"
    CHILDREN = "children"
    CLEAN_UP_FAILED = "clean_up_failed"
    CHECK_FAILED = "check_failed"
    GIVEN_UP = "given_up"
    UNREADABLE = "unreadable"


class OnCrash(str, Enum):
    """What follows if a started run vanishes: another run (at least once) or failure (at most once)."""

    __str__ = str.__str__

    RETRY = "retry"
    FAIL = "fail"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An error in words that need no import: dotted names of the class and its bases, message and traceback."""

    type: str
    message: str
    traceback: str = ""
    bases: tuple[str, ...] = ()
    unknown_names: tuple[str, ...] = ()
    """Names in the retry policy under which the process that ran the attempt had loaded no exception class."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The holder of a claim: the seat (a node's name) and the random incarnation of the process in it."""

    seat: str
    incarnation: str


@dataclass(frozen=True, kw_only=True)
class CancelRequest:
    """A request to end a running job, kept until its holder has acted on it."""

    requested_at: datetime
    reason: str = ""


class Attempt(NamedTuple):
    """One ended run of a job: node, times, and how it ended.

    A tuple, because one is made for every run, and that takes a third of the time.
    """

    number: int
    claims: int
    node: str
    ended_at: datetime
    outcome: str
    pid: int | None = None
    started_at: datetime | None = None
    error: Failure | None = None
    exit: str = ""
    peak_memory: int | None = None
    """The most resident memory of the worker, in bytes, when the worker ended with the run."""
    stack: str = ""
    """The code that the run executed just before it was stopped for a timeout or with its worker."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a job runs, decided when it was added."""

    retry: RetryPolicy = NO_RETRY
    timeout: float | None = None
    """Seconds one attempt may take."""
    stall_timeout: float | None = None
    """Seconds that may pass without progress or a checkpoint."""
    retry_on_timeout: bool = True
    """Whether ``retry`` is asked after an attempt that took too long or stalled."""
    crash_retries: int = 3
    on_crash: OnCrash = OnCrash.RETRY
    force_spawn: bool = False
    concurrency: int = 1
    """How many jobs of the class one worker runs at once."""
    name: str | None = None
    """What people call the jobs of the class; None means its import path."""
    begin_within: float | None = None
    """Seconds after its due time within which a job should start; None if its class promises nothing."""
    promise: float = 0.99
    """The share of the jobs of the class that start so soon."""
    ready: Condition | None = None
    """The condition of a run; None if there is none."""
    receives: tuple[str, ...] = ()
    """The parts of the data that are results of the jobs in ``depends_on`` (``model.received``)."""
    undeclared: bool = False
    """Added by an import path: the options that the class declares are not among these yet."""

    @property
    def is_beside_pool(self) -> bool:
        """Return whether it runs in a worker beside the pool."""
        return self.force_spawn or self.concurrency > 1


RUN_FIELDS = tuple(field.name for field in fields(Options) if field.name != "undeclared")
"""The options of a run by their names in ``add_job``."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """All facts about one job. Times are aware UTC in whole milliseconds; data, state and result Extended JSON text.

    ``ready_at`` is, by status: since when it may run; when it becomes WAITING; when its lease ends; empty.
    ``rank`` orders claims: ``ready_at`` in milliseconds since 1970 plus an hour for each step of priority.
    """

    id: JobId
    job: str
    """The import path of the job: ``module:Class``, ``module:function`` or ``module:Class.method``."""
    data: str = "null"
    queue: str = "default"
    priority: int = 0
    tags: tuple[str, ...] = ()
    unique: str | None = None
    options: Options = Options()
    given: Mapping[str, Any] = field(default_factory=dict)
    """The options of the call as plain JSON values, which ``add_job_once`` compares."""
    lane: str = ""
    """Its limit keys as one text (``model.limits``)."""
    parent: JobId | None = None
    """The job that this one is a part of."""
    depends_on: tuple[Dependency, ...] = ()
    """The jobs that must end before this one starts; ``waiting_for`` names the open ones."""
    origin: Origin | None = None
    """The series or schedule that the job belongs to, which decides the effects of its end."""
    created_at: datetime
    expires_at: datetime | None = None

    status: Status = Status.WAITING
    cause: Cause = Cause.ADDED
    ready_at: datetime | None
    rank: int = 0
    waiting_for: tuple[JobId, ...] = ()
    holder: Holder | None = None
    claims: int = 0
    failures: int = 0
    crashes: int = 0
    cancel: CancelRequest | None = None
    unloadable_since: datetime | None = None
    unloadable_times: int = 0

    started_at: datetime | None = None
    """When the current attempt, or else the last one, started to run."""
    ended_at: datetime | None = None
    progress: float = 0.0
    progress_message: str = ""
    progress_at: datetime | None = None
    state: str | None = None
    cursor: str | None = None
    """The positions of the loops of ``each``, as Extended JSON text."""
    course: Continuation | None = None
    """The state carried over from earlier runs."""
    result: str | None = None
    error: Failure | None = None
    attempts: tuple[Attempt, ...] = ()
    damage: str = ""
    """The unreadable fields, and why; they have their defaults. Never stored."""
    existed: bool = field(default=False, compare=False, repr=False)
    """Whether an add returns it because a job with the id of the new one was there before. Never stored."""
    waited: float | None = field(default=None, compare=False, repr=False)
    """If its first run has just ended, and its class promises when jobs begin: the seconds from due time to start.

    Infinite if it has just expired although it was due. Never stored.
    """

    @property
    def meta(self) -> Mapping[str, str]:
        """Return the mapping of text that is passed on with the job; empty if it is damaged."""
        return meta_in(self.given)

    @property
    def shown_job(self) -> str:
        """Return the name of its class for people: the declared one, or the import path."""
        return self.options.name or self.job

    @property
    def id_text(self) -> str | None:
        """Return the text that the application chose as its id; None if there is none, or it is damaged."""
        id_text = self.given.get(ID_TEXT)
        return id_text if type(id_text) is str else None

    @property
    def workflow(self) -> JobId | None:
        """Return the id of the workflow that the job is a member of; None if it is of none."""
        workflow_id = self.given.get(WORKFLOW)
        return JobId(workflow_id) if type(workflow_id) is str and JobId.is_valid(workflow_id) else None

    @property
    def attempt(self) -> int:
        """Return the number of the current attempt, or else of the next one, counted from 1."""
        return self.failures + self.crashes + 1

    @property
    def counted_failures(self) -> int:
        """Return how many failures count against the retry policy: not failures in steps that have ended."""
        return self.failures if self.course is None else self.failures - self.course.failures

    @property
    def counted_crashes(self) -> int:
        """Return how many crashes count against ``crash_retries``: not crashes after which the job continued."""
        return self.crashes if self.course is None else self.crashes - self.course.crashes

    @property
    def phase(self) -> Phase | None:
        """Return the phase of a job that runs in steps; None of others, and before it was first taken up."""
        return None if self.course is None else self.course.phase

    @property
    def unready(self) -> NotReadyState | None:
        """Return the last "not ready" answer; None if the job was ready, or was not asked."""
        return None if self.course is None else self.course.unready

    @property
    def tries(self) -> int:
        """Return how many attempts there were, a current one and a successful one included."""
        return self.failures + self.crashes + (self.status in (Status.PROCESSING, Status.DONE))

    @property
    def took(self) -> float | None:
        """Return the seconds of the last attempt, from its start to the end of the job; None unless it ended by it."""
        if self.status not in (Status.DONE, Status.FAILED, Status.TIMEOUT):
            return None
        if self.started_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.started_at).total_seconds()

    def at_rank(self) -> Record:
        """Return the record with the rank that its ``ready_at`` and priority give."""
        if self.ready_at is None:
            return self
        return changed(self, rank=rank_of(self.ready_at, self.priority))


def changed(record: Record, **fields: Any) -> Record:
    """Return the record with other values in some fields: ``dataclasses.replace``, which sets all fields one by one.

    A job's life takes a dozen such changes; measured, this takes a fifth of the time.
    """
    made = Record.__new__(Record)
    every = record.__dict__.copy()  # a display with ** takes a fifth longer
    every.update(fields)
    object.__setattr__(made, "__dict__", every)
    return made


if TYPE_CHECKING:  # the type checker checks the fields of ``dataclasses.replace`` alone
    from dataclasses import replace as replace  # noqa: PLC0414
else:
    replace = changed


def rank_of(ready_at: datetime, priority: int) -> int:
    """Return the rank in the queue: the lower, the sooner; waiting improves it, so that no job starves."""
    return milliseconds(ready_at) + priority * RANK_A_PRIORITY


def is_rank(rank: int, priority: int) -> bool:
    """Return whether a rank of this priority stands for a calendar time."""
    return -60_000_000_000_000 < rank < 250_000_000_000_000 and -10_000 < priority < 10_000


class OnFailure(str, Enum):
    """The effect of a failed dependency on a waiting job: end it, let it run, keep it waiting."""

    __str__ = str.__str__

    CANCEL = "cancel"
    IGNORE = "ignore"
    WAIT = "wait"


@dataclass(frozen=True, kw_only=True)
class Dependency:
    """A job that must end first."""

    id: ObjectId
    on_failure: OnFailure = OnFailure.CANCEL
