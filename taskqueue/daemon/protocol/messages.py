"""The messages between node, manager and worker, node hooks included; ``codec`` turns them into bytes."""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeAlias

import msgspec

from taskqueue.execution.run import Run

PROGRESS_EVERY = 0.5
"""Seconds between two messages with progress; the worker page always has the latest."""

POSITION_EVERY = 0.25
"""Seconds between two messages with the positions of loops."""

SIGNAL_IS_OURS_FOR = 2.0
"""Seconds after a SIGTERM of its manager in which a worker with many runs blames no stranger for another one."""

Key: TypeAlias = tuple[str, int]
"""Identifies a claim: the job's id and the number of the claim."""


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """What all messages are: values without cycles, so that no garbage collection looks at them."""


class StartPool(_Message, frozen=True):
    """Node to manager, first message: the node has its seat, start workers.

    ``url`` is the store that a job's own ``Scheduler`` opens, ``metrics`` the folder for the metrics of jobs.
    """

    url: str
    seat: str
    incarnation: str
    metrics: str = ""


class RunHook(_Message, frozen=True):
    """Node to manager to worker: call the node hook ``name``; reports about it have this id and claims 0.

    A hook with a ``source`` is not a function of the bootstrap file: ``APPLY_SCHEDULES`` applies the schedules that
    this module declares, ``CHECK_OUTBOX`` imports the outbox at this path, ``RELAY_OUTBOX`` and ``EMPTY_OUTBOX`` move
    its jobs to the store. Neither is ``WATCH``, which looks for findings and sends them to the receivers in ``data``.
    """

    id: str
    name: str
    source: str = ""
    data: str = "null"


class Stop(_Message, frozen=True):
    """Node to manager: end this run (``reason`` is cancel or lost), or hand it back if it has not started."""

    id: str
    claims: int
    reason: str


class TakeStack(_Message, frozen=True):
    """Node to manager: answer ``request`` with the stack of this run, which continues."""

    id: str
    claims: int
    request: str


class HandBack(_Message, frozen=True):
    """Node to manager: hand back up to ``most`` runs that no worker has started, the latest first.

    Runs with ``force_spawn`` do not count towards ``most``; all that have not started come back.
    """

    most: int


class LeaseExtended(_Message, frozen=True):
    """Node to manager: its claims hold until then, in seconds of CLOCK_BOOTTIME.

    Unless another such message comes, the manager ends all runs before that time.
    """

    until: float


class Shutdown(_Message, frozen=True):
    """Node to manager: start no more runs, hand back runs not started, and end running ones.

    ``mode`` is ``finish`` (give runs time to finish, then SIGTERM, then SIGKILL), ``quick`` (SIGTERM now, SIGKILL after
    the grace) or ``patient`` (wait until each run has ended by itself).
    """

    mode: str


class Unlock(_Message, frozen=True):
    """Node to manager: this process locks the store; kill the worker that it belongs to."""

    pid: int


class Recycle(_Message, frozen=True):
    """Node to manager: replace every worker after its current run, to load new code."""


class AssignSlots(_Message, frozen=True):
    """Manager to worker: the run slots, numbered from 1, for the runs that follow, in order."""

    numbers: list[int]


class CheckRuns(_Message, frozen=True):
    """Manager to worker, which started no run for a while: the number of runs sent to it since its fork.

    If fewer have arrived, a job has read messages in place of its worker, which exits; otherwise a worker with a
    single slot answers with ``Ready``.
    """

    given: int


class OutcomeSettled(_Message, frozen=True):
    """Node to manager to worker: the store accepted or refused the outcome; ``status`` is the job's new status."""

    id: str
    claims: int
    accepted: bool
    status: int


class Ready(_Message, frozen=True):
    """Worker to manager: ready for the next run, after its bootstrap or the hooks of its last run."""

    missed: int = 0
    """The number of a run received without a permit, which the worker did not start; 0 for none."""
    slot: int = 0
    """The run slot in which hooks have ended, numbered from 1; 0 for a worker with one."""


class NeedsReplacement(_Message, frozen=True):
    """Worker to manager: it starts no more runs and must be replaced, because of changes that this job left in it."""

    id: str
    job: str
    reason: str
    is_patient: bool = False
    """It starts runs until it is replaced, and asks again."""


class Started(_Message, frozen=True):
    """Worker to manager to node: a run starts, this many seconds after the boot of the host.

    Usually the worker sends none: the manager reads the start log and creates this message, and skips it for a run that
    ends at once. With ``checking`` the worker only checks the job's condition; the manager does not forward that. With
    ``loaded`` the job's own code runs from here: rates count that.
    """

    id: str
    claims: int
    pid: int
    at: float
    checking: bool = False
    loaded: bool = False


class Progressed(_Message, frozen=True):
    """Worker to manager to node: progress, state and position of a running job; None for each that is unchanged."""

    id: str
    claims: int
    at: float
    progress: float | None = None
    message: str = ""
    state: str | None = None
    position: str | None = None


class Logged(_Message, frozen=True):
    """Worker (or the manager for it) to node: the last log lines of a run, as stores keep them."""

    id: str
    claims: int
    lines: str


class WaitsFor(_Message, frozen=True):
    """Worker to manager to node: a run is blocked until these jobs have ended; none: it no longer is."""

    id: str
    claims: int
    awaited: list[str]


class Ended(_Message, frozen=True):
    """Worker (or the manager for it) to node: how a run ended.

    ``outcome`` is the name of a class of ``model.lifecycle.outcomes`` and ``fields`` its fields as plain values (see
    ``protocol.codec``).
    """

    id: str
    claims: int
    outcome: str
    fields: dict[str, Any]
    pid: int | None
    started_at: float | None
    took: float | None = None
    """Seconds from start to end, on the worker's monotonic clock."""
    exit: str = ""
    peak_memory: int | None = None
    confirm: bool = False
    """The worker waits for ``OutcomeSettled``, because the job's class has hooks."""
    stack: str = ""
    """The last stack of a run that was to end, from the manager."""


class StackTaken(_Message, frozen=True):
    """Manager to node: the stack that was asked for, or why there is none."""

    request: str
    stack: str
    why_not: str


class RunsHandedBack(_Message, frozen=True):
    """Manager to node: these runs, pairs of id and claims, were not started and come back."""

    runs: list[list[Any]]


class PoolStatus(_Message, frozen=True):
    """Manager to node: numbers of workers for titles and status texts: of the pool, forced and concurrent ones.

    ``shortage`` says why no worker can be started just now; empty if one can.
    """

    idle: int
    busy: int
    forced: int
    concurrent: int
    shortage: str = ""


class EndKind(Enum):
    """The kinds of reasons for which workers end, as the metrics count them."""

    ONE_JOB = "one_job"
    IDLE = "idle"
    SHUTDOWN = "shutdown"
    MAX_JOBS = "max_jobs"
    RELOAD = "reload"
    MAX_MEMORY = "max_memory"
    RUN_ENDED = "run_ended"
    OUT_OF_MEMORY = "out_of_memory"
    DIED = "died"
    OTHER = "other"


class WorkerChanged(_Message, frozen=True):
    """Manager to node: a worker was started, or has ended with ``exit``; ``reason`` says why if that is known."""

    pid: int
    exit: str = ""
    kind: EndKind = EndKind.DIED
    reason: str = ""
    job: str = ""
    """The id of the job that caused it."""


class StartupFailed(_Message, frozen=True):
    """Manager to node: workers repeatedly die before their first job, for ``reason``.

    With ``bootstrap`` the cause is a module to preload, or the bootstrap file, that cannot be imported.
    """

    reason: str
    bootstrap: bool = False


Message: TypeAlias = (
    StartPool
    | Run
    | RunHook
    | Stop
    | TakeStack
    | HandBack
    | LeaseExtended
    | Shutdown
    | Unlock
    | Recycle
    | AssignSlots
    | CheckRuns
    | OutcomeSettled
    | Ready
    | NeedsReplacement
    | Started
    | Progressed
    | Logged
    | WaitsFor
    | Ended
    | StackTaken
    | RunsHandedBack
    | PoolStatus
    | WorkerChanged
    | StartupFailed
)

changed = msgspec.structs.replace
"""Return the message with other values of these fields."""


NODE_STARTED = "node_started"
NODE_STOPPING = "node_stopping"
BECAME_LEADER = "became_leader"
STEPPED_DOWN = "stepped_down"
APPLY_SCHEDULES = "apply_schedules"
CHECK_OUTBOX = "check_outbox"
RELAY_OUTBOX = "relay_outbox"
EMPTY_OUTBOX = "empty_outbox"
WATCH = "notifications"

TIMEOUT = 60.0
"""Seconds that a hook may take, unless it is a relay or a watch."""

STALLS_AFTER = 30.0
"""Seconds that one look for notifications, or the delivery of one, may take."""

NO_CLAIM = 0
"""The claim number in messages about a hook: a hook is not a claim on a job."""


def run_of(hook: RunHook) -> Run:
    """Return the run by which manager and worker carry out a hook: one attempt, in a worker of its own."""
    return Run(
        id=hook.id,
        claims=NO_CLAIM,
        job=hook.name,
        data=hook.data,
        state=None,
        attempt=1,
        is_last=True,
        timeout=None if hook.name in (RELAY_OUTBOX, EMPTY_OUTBOX, WATCH) else TIMEOUT,
        stall_timeout=STALLS_AFTER if hook.name == WATCH else None,
        force_spawn=True,  # a full pool does not delay it
    )
