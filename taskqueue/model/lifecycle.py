"""Every transition of a record, as pure functions over frozen records beside the table that tests and diagrams read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace as replaced
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from typing_extensions import assert_never

from taskqueue.model.course import CLEAN_UP_LIMIT, CLEAN_UPS, PHASES, Course, Phase
from taskqueue.model.dependency import OnFailure
from taskqueue.model.readiness import FAILED_CHECKS, Unready
from taskqueue.model.record import (
    ATTEMPTS_KEPT,
    PRIORITY_STEP,
    Attempt,
    CancelRequest,
    Cause,
    Failure,
    Holder,
    JobId,
    OnCrash,
    Record,
    Status,
    moment,
    whole,
)
from taskqueue.model.retry import NO_RETRY, Again, Delegated, GiveUp, Refusal, Situation
from taskqueue.model.retry.by_error import known_names, timed_out_names
from taskqueue.model.schedule import moment_of
from taskqueue.model.text import clean

if TYPE_CHECKING:  # the type checker knows which fields ``dataclasses.replace`` takes; ``changed`` does the same sooner
    from dataclasses import replace
else:
    from taskqueue.model.record import changed as replace

CRASH_PAUSES = (timedelta(0), timedelta(seconds=1), timedelta(seconds=10))
"""The pause after the first, second and every later crash."""

CLEAN_UP_PAUSES = tuple(timedelta(seconds=seconds) for seconds in (1, 10, 60, 600))
"""The pause after each failed ``clean_up``."""

UNLOADABLE_PAUSES = (timedelta(seconds=1), timedelta(minutes=1))
"""The first and the longest pause between attempts to load a class."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """``start()`` returned; ``result`` is its value as Extended JSON text.

    ``reports`` is what the last step of a ``StepwiseJob`` leaves behind, as Extended JSON text; None: as before.
    """

    result: str | None = None
    reports: str | None = None


@dataclass(frozen=True, kw_only=True)
class Failed:
    """``start()`` raised; ``delay`` in seconds overrides the policy's pause (``raise Retry``).

    ``decision`` is what a policy of the user's own said, here as below.
    """

    failure: Failure
    delay: float | None = None
    decision: Again | GiveUp | None = None


@dataclass(frozen=True, kw_only=True)
class GivenUp:
    """``start()`` raised ``Fail``: no further attempt, whatever the policy says."""

    failure: Failure


@dataclass(frozen=True, kw_only=True)
class Snoozed:
    """``start()`` raised ``Snooze``: again in so many seconds, counted nowhere."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class NotReady:
    """The condition of the job does not hold, as ``reason`` says; counted nowhere."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class CheckFailed:
    """The job could not be asked whether it is ready: its predicate raised, or took too long."""

    failure: Failure


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """A step of a ``StepwiseJob`` is over and ``phase`` is next, behind all that waits; counted nowhere.

    ``state`` and ``reports`` are what the step leaves behind, as Extended JSON text; None: as before.
    """

    phase: Phase
    state: str | None = None
    reports: str | None = None


@dataclass(frozen=True, kw_only=True)
class Awaiting:
    """``start()`` called ``wait_children`` while these were open: again when they have ended, counted nowhere."""

    ids: tuple[JobId, ...]


@dataclass(frozen=True, kw_only=True)
class TimedOut:
    """The attempt was ended because its time was over."""

    failure: Failure
    decision: Again | GiveUp | None = None


@dataclass(frozen=True, kw_only=True)
class Stalled:
    """The attempt was ended because it gave no sign of progress for too long."""

    failure: Failure
    decision: Again | GiveUp | None = None


@dataclass(frozen=True, kw_only=True)
class Canceled:
    """The run was ended because somebody canceled the job."""


@dataclass(frozen=True, kw_only=True)
class Interrupted:
    """The run was ended because the node or its worker shuts down."""


@dataclass(frozen=True, kw_only=True)
class HandedBack:
    """The claim was returned before the run began."""


@dataclass(frozen=True, kw_only=True)
class Crashed:
    """The worker, manager or node vanished while the job ran; ``failure`` holds the evidence."""

    failure: Failure


@dataclass(frozen=True, kw_only=True)
class Unloadable:
    """The class could not be loaded here; after ``patience`` of trying the job fails."""

    failure: Failure
    patience: timedelta


Outcome: TypeAlias = (
    Done
    | Failed
    | GivenUp
    | Snoozed
    | NotReady
    | CheckFailed
    | Stepped
    | Awaiting
    | TimedOut
    | Stalled
    | Canceled
    | Interrupted
    | HandedBack
    | Crashed
    | Unloadable
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is known of one run besides its outcome."""

    node: str
    pid: int | None = None
    started_at: datetime | None = None
    exit: str = ""
    peak_memory: int | None = None
    chance: float = 0.0
    """A number from 0 up to 1, for what is to differ from run to run: the jitter of a pause."""


TREE_ENDS = (Status.CANCELED, Status.TIMEOUT)
"""The ends of a job that end its children too (X-25); one that FAILED leaves them alone."""

W, P, R = Status.WAITING, Status.POSTPONED, Status.PROCESSING
D, F, C, T = Status.DONE, Status.FAILED, Status.CANCELED, Status.TIMEOUT

TRANSITIONS: Mapping[tuple[Status, str], frozenset[Status]] = {
    (P, "promote"): frozenset({W}),
    (P, "release"): frozenset({P, W, C}),
    (W, "claim"): frozenset({R}),
    (W, "cancel"): frozenset({C}),
    (P, "cancel"): frozenset({C}),
    (R, "cancel"): frozenset({R}),
    (W, "update"): frozenset({W, P}),
    (P, "update"): frozenset({W, P}),
    (W, "expire"): frozenset({C}),
    (P, "expire"): frozenset({C}),
    (R, "Done"): frozenset({D}),
    (R, "Failed"): frozenset({W, P, F}),
    (R, "GivenUp"): frozenset({F}),
    (R, "Snoozed"): frozenset({W, P}),
    (R, "NotReady"): frozenset({P}),
    (R, "CheckFailed"): frozenset({P, F}),
    (R, "Stepped"): frozenset({W}),
    (R, "Awaiting"): frozenset({P}),
    (R, "TimedOut"): frozenset({W, P, T}),
    (R, "Stalled"): frozenset({W, P, T}),
    (R, "Canceled"): frozenset({C}),
    (R, "Interrupted"): frozenset({W, P, F}),
    (R, "HandedBack"): frozenset({W, P}),
    (R, "Crashed"): frozenset({W, P, F}),
    (R, "Unloadable"): frozenset({P, F}),
}
"""From a status, by a verb or an outcome, to these statuses; a cancel request turns every pending one into CANCELED.

Where a job that runs in steps would come to a bad end it is WAITING instead, and comes to that end when ``clean_up`` is
over (``model.course``).
"""


def behind(record: Record, awaited: JobId) -> Record:
    """Return the record, not added yet, so that it waits until the job ``awaited`` has ended."""
    ready_at = record.ready_at if record.status is P else None
    waiting_for = (*record.waiting_for, awaited)
    return replace(record, status=P, cause=Cause.BEHIND, ready_at=ready_at, waiting_for=waiting_for)


def in_place_of(new: Record, old: Record) -> Record:
    """Return the record that replaces ``old`` so that it waits, too, for the running job behind which that was put."""
    if old.cause is Cause.CHILDREN:
        return new
    depends_on = {one.id for one in old.depends_on}
    for id in old.waiting_for:
        if id not in depends_on and id not in new.waiting_for:
            new = behind(new, id)
    return new


def promoted(record: Record) -> Record:
    """Return the postponed record as WAITING; its time has come and its rank stays."""
    return replace(record, status=W)


def relieved(record: Record, ended: JobId, status: Status | None, now: datetime) -> Record:
    """Return the record after a job that it waits for has ended, or is gone (None): as its dependency on it says."""
    if ended not in record.waiting_for:
        return record
    edge = next((one.on_failure for one in record.depends_on if one.id == ended), OnFailure.IGNORE)
    if status is D or edge is OnFailure.IGNORE:
        return released(record, ended, now)
    if edge is OnFailure.WAIT or record.status is not P:
        return record
    reason = f"it depends on job {ended}, which {'is gone' if status is None else f'ended as {status.name}'}"
    return canceled(record, reason, now, Cause.DEPENDENCY)


def released(record: Record, ended: JobId, now: datetime) -> Record:
    """Return the record without ``ended`` among what it waits for; WAITING when that was the last."""
    left = tuple(id for id in record.waiting_for if id != ended)
    if left or record.status is not P:
        return replace(record, waiting_for=left)
    if record.ready_at is not None and record.ready_at > now:
        return replace(record, waiting_for=(), cause=Cause.SCHEDULED)
    if record.cause is Cause.CHILDREN:
        return replace(record, waiting_for=(), status=W, ready_at=_waits_since(record))
    return replace(record, waiting_for=(), status=W, cause=Cause.ADDED, ready_at=whole(now)).at_rank()


def claimed(record: Record, holder: Holder, until: datetime) -> Record:
    """Return the record held by ``holder`` until its lease ends."""
    return replace(
        record,
        status=R,
        cause=Cause.CLAIMED,
        ready_at=whole(until),
        holder=holder,
        claims=record.claims + 1,
        started_at=None,
    )


def planned(record: Record, at: datetime, now: datetime) -> Record:
    """Return the record that waits so that it may run from ``at`` on; a time that is over is now."""
    if at > now:
        cause = Cause.BEHIND if record.waiting_for else Cause.SCHEDULED
        return replace(record, status=P, cause=cause, ready_at=whole(at)).at_rank()
    if record.waiting_for:
        return replace(record, ready_at=None)
    return replace(record, status=W, cause=Cause.SCHEDULED, ready_at=whole(now)).at_rank()


def canceled(record: Record, reason: str, now: datetime, cause: Cause = Cause.CANCELED) -> Record:
    """Return the record canceled, or with the wish recorded while it runs; a final one unchanged."""
    if record.status.is_final:
        return record
    if record.status is R:
        if record.phase is Phase.FAILING:
            return record
        request = record.cancel or CancelRequest(requested_at=whole(now), reason=clean(reason))
        return replace(record, cancel=request)
    error = record.error if not reason else Failure(type="Canceled", message=clean(reason))
    return _final(record, C, cause, now, error)


def orphaned(child: Record, parent: JobId, status: Status, now: datetime) -> Record:
    """Return the record after its parent has ended in one of ``TREE_ENDS``: canceled, or asked to end."""
    if child.phase is Phase.FAILING:
        return child
    return canceled(child, f"its parent {parent} ended as {status.name}", now)


def is_late(record: Record, now: datetime) -> bool:
    """Tell whether a pending record was to be started by now and never was."""
    return record.expires_at is not None and record.started_at is None and record.expires_at <= now


def expired(record: Record, now: datetime) -> Record:
    """Return the record, not started in time, as CANCELED."""
    error = Failure(type="Expired", message=f"was not started before {record.expires_at:%Y-%m-%d %H:%M:%S} UTC")
    return _final(record, C, Cause.EXPIRED, now, error)


def ended(record: Record, outcome: Outcome, run: Run, now: datetime) -> Record:
    """Return what becomes of a PROCESSING record after ``outcome``."""
    tried = _with_attempt(record, outcome, run, now)
    if record.phase is Phase.FAILING and isinstance(outcome, _CLEANED):
        after = _cleaned(tried, outcome, now)
    else:
        after = _settled(tried, outcome, run, now)
    started_at = None if isinstance(outcome, _CHECKED) else run.started_at or record.started_at
    if started_at is not None and after.started_at is not started_at:
        after = replace(after, started_at=started_at)
    return obeying(after, record.cancel, now)


def obeying(after: Record, cancel: CancelRequest | None, now: datetime) -> Record:
    """Return ``after``, canceled if it would run again although somebody asked to cancel it."""
    if cancel is None or after.status.is_final or after.phase is Phase.FAILING:
        return after
    return canceled(replace(after, cancel=cancel), cancel.reason, now)


def lost(record: Record, now: datetime) -> Record:
    """Return what becomes of a claim whose lease ended without news from its node."""
    if record.holder is None or record.started_at is None:
        return obeying(_back(record, Cause.LOST, now), record.cancel, now)
    told = f"node {record.holder.seat} was not heard of until its lease ended; progress was {record.progress:.4g} %"
    failure = Failure(type="NodeLost", message=told)
    run = Run(node=record.holder.seat, started_at=record.started_at)
    return ended(record, Crashed(failure=failure), run, now)


def time_limit(record: Record) -> float | None:
    """Return how many seconds a run of the record may take; None for no bound."""
    if record.phase is Phase.FAILING:
        return record.options.timeout or CLEAN_UP_LIMIT
    return record.options.timeout


def _settled(  # noqa: C901 - one case for each outcome
    record: Record, outcome: Outcome, run: Run, now: datetime
) -> Record:
    match outcome:
        case Done(result=result, reports=reports):
            return replace(
                _reporting(record, reports),
                status=D,
                cause=Cause.RETURNED,
                ready_at=None,
                holder=None,
                waiting_for=(),
                ended_at=whole(now),
                error=None,
                result=result,
                progress=100.0,
            )
        case Failed() | TimedOut() | Stalled():
            return _failed(record, outcome, run, now)
        case GivenUp(failure=failure):
            return _final(replace(record, failures=record.failures + 1), F, Cause.FAILED, now, failure)
        case Snoozed(seconds=seconds):
            return _later(record, Cause.SNOOZED, timedelta(seconds=seconds), now)
        case NotReady() | CheckFailed():
            return _unready(record, outcome, now)
        case Stepped():
            return _stepped(record, outcome, now)
        case Awaiting(ids=ids):
            return replace(record, status=P, cause=Cause.CHILDREN, ready_at=None, waiting_for=ids, holder=None)
        case Canceled():
            return _obedient(record, now)
        case Interrupted():
            return _interrupted(record, now)
        case HandedBack():
            return _back(record, Cause.HANDED_BACK, now)
        case Crashed(failure=failure):
            return _crashed(record, failure, now)
        case Unloadable(failure=failure, patience=patience):
            return _unloadable(record, failure, patience, now)
    assert_never(outcome)


_CLEANED = (Done, Failed, GivenUp, TimedOut, Stalled, Canceled, Crashed)
"""The outcomes of a run of ``clean_up`` that say whether it is over."""


def _obedient(record: Record, now: datetime) -> Record:
    reason = record.cancel.reason if record.cancel else ""
    return _final(record, C, Cause.CANCELED, now, Failure(type="Canceled", message=reason or "canceled"))


_CHECKED = (NotReady, CheckFailed)
"""The outcomes of a check, after which the run has not begun."""


def _unready(record: Record, outcome: NotReady | CheckFailed, now: datetime) -> Record:
    """Return the record before it is asked again; after too many checks that failed in a row it has failed."""
    before = record.unready or Unready(times=0, errors=0, reason="")
    began_at = record.attempts[-1].started_at if record.attempts else None
    record = replace(record, started_at=began_at)
    match outcome:
        case NotReady(reason=reason):
            asked, error = Unready(times=before.times + 1, errors=0, reason=clean(reason)), record.error
        case CheckFailed(failure=failure):
            said = f"the check failed: {failure.message}"
            asked, error = Unready(times=before.times + 1, errors=before.errors + 1, reason=clean(said)), failure
    if asked.errors >= FAILED_CHECKS:
        return _final(record, F, Cause.CHECK_FAILED, now, error)
    later = _later(record, Cause.NOT_READY, timedelta(seconds=asked.pause), now)
    return replace(later, error=error, course=replaced(record.course or Course(), unready=asked))


def _ready(record: Record) -> Record:
    """Return the record without what was said before it was ready."""
    if record.unready is None:
        return record
    course = replaced(record.course or Course(), unready=None)
    return replace(record, course=course if course.has_begun else None)


def _stepped(record: Record, outcome: Stepped, now: datetime) -> Record:
    """Return the record before its next step: what failed or crashed in this one no longer counts."""
    course = record.course or Course()
    assert outcome.phase in PHASES[course.phase], f"{outcome.phase} does not follow {course.phase}"
    following = replaced(
        course,
        phase=outcome.phase,
        steps=course.steps + (course.phase is Phase.RUNNING),
        reports=outcome.reports or course.reports,
        failures=record.failures,
        crashes=record.crashes,
        crashed_at=None,
    )
    state = outcome.state or record.state
    later = _later(record, Cause.STEPPED, timedelta(0), now)
    return replace(later, course=following, state=state, cursor=None, error=None)


def _reporting(record: Record, reports: str | None) -> Record:
    if record.course is None or reports is None:
        return record
    return replace(record, course=replaced(record.course, reports=reports))


def _to_clean_up(record: Record, status: Status, cause: Cause, now: datetime, error: Failure | None) -> Record:
    """Return the record that is to clean up before it comes to its end."""
    assert record.course is not None
    course = replaced(record.course, phase=Phase.FAILING, ends_as=int(status), ends_because=cause.value)
    later = _later(record, Cause.CLEAN_UP, timedelta(0), now)
    return replace(later, course=course, cursor=None, waiting_for=(), error=error)


def _cleaned(
    record: Record, outcome: Done | Failed | GivenUp | TimedOut | Stalled | Canceled | Crashed, now: datetime
) -> Record:
    """Return the record at its end, or before another try to clean up."""
    course = record.course
    assert course is not None
    assert course.ends_as is not None
    if isinstance(outcome, Done):
        record = _reporting(record, outcome.reports)
        return _final(record, Status(course.ends_as), Cause(course.ends_because), now, record.error)
    if isinstance(outcome, Canceled):
        return _final(record, C, Cause.CANCELED, now, record.error)
    course = replaced(course, clean_ups=course.clean_ups + 1)
    record = replace(record, course=course)
    if course.clean_ups >= CLEAN_UPS:
        first = f"; before that: {record.error.message}" if record.error else ""
        failure = replaced(outcome.failure, message=f"clean_up() failed: {outcome.failure.message}{first}")
        return _final(record, F, Cause.CLEAN_UP_FAILED, now, failure)
    return _later(record, Cause.CLEAN_UP, CLEAN_UP_PAUSES[course.clean_ups - 1], now)


def situation(record: Record, now: datetime, outcome: Failed | TimedOut | Stalled | None, chance: float) -> Situation:
    """Return what a retry policy is told of the present attempt's failure; without an outcome, what if it fails."""
    failure = None if outcome is None else outcome.failure
    timed_out = isinstance(outcome, TimedOut | Stalled)
    names = () if failure is None else known_names((failure.type, *failure.bases))
    return Situation(
        failures=record.counted_failures + 1,
        created_at=record.created_at,
        due_at=_due_at(record),
        now=now,
        errors=timed_out_names(names) if timed_out else names,
        message="" if failure is None else failure.message,
        timed_out=timed_out,
        chance=chance,
    )


def is_last_attempt(record: Record, now: datetime) -> bool:
    """Tell whether a failure of the present attempt will end the job, as far as its policy can tell in advance."""
    retry = record.options.retry
    return retry == NO_RETRY or retry.is_last(situation(record, now, None, 0.0))


def _due_at(record: Record) -> datetime:
    """Return when the job was to run first: at the time that the call named, if it is later than the call."""
    at = record.given.get("at")
    return record.created_at if at is None else max(record.created_at, moment_of(at, record.created_at))


def _failed(record: Record, outcome: Failed | TimedOut | Stalled, run: Run, now: datetime) -> Record:
    """Return the record after a failed attempt, as its retry policy decides."""
    decision = outcome.decision or _decided(record, outcome, run, now)
    failure = outcome.failure
    record = replace(record, failures=record.failures + 1)
    match decision:
        case Again(after=after, queue=queue):
            delay = outcome.delay if isinstance(outcome, Failed) else None
            later = _later(record, Cause.RETRY, timedelta(seconds=after if delay is None else delay), now)
            return replace(later, error=failure, queue=queue or record.queue)
        case GiveUp(refusal=refusal, reason=reason):
            said = replaced(failure, message=f"{failure.message} ({reason})") if reason else failure
            status = F if isinstance(outcome, Failed) else T
            return _final(record, status, _cause_of(refusal, outcome, record.counted_failures), now, said)
    assert_never(decision)


def _decided(record: Record, outcome: Failed | TimedOut | Stalled, run: Run, now: datetime) -> Again | GiveUp:
    """Return what the policy of the record decides; one that only a worker could ask gives up without one."""
    if not isinstance(outcome, Failed) and not record.options.retry_on_timeout:
        return GiveUp()
    decision = record.options.retry.decide(situation(record, now, outcome, run.chance))
    if isinstance(decision, Delegated):
        reason = f"its retry policy {decision.path} was not asked: the worker that could ask it was gone"
        return GiveUp(refusal=Refusal.UNDECIDED, reason=reason)
    return decision


def _cause_of(refusal: Refusal, outcome: Failed | TimedOut | Stalled, failures: int) -> Cause:
    if refusal is not Refusal.SPENT:
        return Cause(refusal.value)
    match outcome:
        case TimedOut():
            return Cause.TIMED_OUT
        case Stalled():
            return Cause.STALLED
    return Cause.EXHAUSTED if failures > 1 else Cause.FAILED


def _interrupted(record: Record, now: datetime) -> Record:
    if record.options.on_crash is OnCrash.FAIL:
        failure = Failure(type="Interrupted", message="the run was interrupted, and on_crash='fail' forbids another")
        return _final(record, F, Cause.INTERRUPTED, now, failure)
    return _back(record, Cause.INTERRUPTED, now)


def _crashed(record: Record, failure: Failure, now: datetime) -> Record:
    record = replace(_moved_on(record), crashes=record.crashes + 1)
    if record.options.on_crash is OnCrash.FAIL or record.counted_crashes > record.options.crash_retries:
        return _final(record, F, Cause.CRASHED, now, failure)
    pause = CRASH_PAUSES[min(record.counted_crashes, len(CRASH_PAUSES)) - 1]
    again = _later(record, Cause.CRASHED, pause, now) if pause else _back(record, Cause.CRASHED, now)
    return replace(again, error=failure)


def _moved_on(record: Record) -> Record:
    """Return the record without its crashes so far, if a loop of it has gone on since the last of them."""
    course = record.course or Course()
    if record.cursor is None or record.cursor == course.crashed_at:
        return record
    return replace(record, course=replaced(course, crashes=record.crashes, crashed_at=record.cursor))


def _unloadable(record: Record, failure: Failure, patience: timedelta, now: datetime) -> Record:
    since = record.unloadable_since or whole(now)
    if now - since >= patience:
        return _final(record, F, Cause.UNLOADABLE, now, failure)
    first, longest = UNLOADABLE_PAUSES
    pause = min(first * 2 ** min(record.unloadable_times, 20), longest, since + patience - now)
    tried = replace(record, unloadable_since=since, unloadable_times=record.unloadable_times + 1, error=failure)
    return _later(tried, Cause.UNLOADABLE, pause, now)


def _later(record: Record, cause: Cause, pause: timedelta, now: datetime) -> Record:
    """Return the record freed, to run again after the pause."""
    status = P if pause > timedelta(0) else W
    freed = replace(record, status=status, cause=cause, ready_at=whole(now + pause), holder=None)
    return freed.at_rank()


def _back(record: Record, cause: Cause, now: datetime) -> Record:
    """Return the record with its place in the queue, as before the claim; one taken before its time waits for it."""
    since = _waits_since(record)
    if since > now:
        return replace(record, status=P, cause=Cause.SCHEDULED, ready_at=since, holder=None, started_at=None)
    has_begun = record.course is not None and record.course.has_begun  # such a job is not late any more
    began_at = since if has_begun else None
    return replace(record, status=W, cause=cause, ready_at=since, holder=None, started_at=began_at)


def _waits_since(record: Record) -> datetime:
    """Return since when the record waits, or until when: its rank says so while a claim holds it."""
    return moment(record.rank) - record.priority * PRIORITY_STEP


def _final(record: Record, status: Status, cause: Cause, now: datetime, error: Failure | None) -> Record:
    if record.phase not in (None, Phase.FAILING) and status is not D and cause not in _UNCLEANED:
        return _to_clean_up(record, status, cause, now, error)
    return replace(
        record,
        status=status,
        cause=cause,
        ready_at=None,
        holder=None,
        waiting_for=(),
        ended_at=whole(now),
        error=error,
    )


_UNCLEANED = (Cause.UNLOADABLE, Cause.REPLACED)
"""The bad ends before which a job that runs in steps does not clean up: nobody could, or its place is taken at once."""


_UNTOLD = (HandedBack, Stepped, *_CHECKED)
"""The outcomes of claims that were no attempts."""


def _with_attempt(record: Record, outcome: Outcome, run: Run, now: datetime) -> Record:
    """Return the record with the run among its last attempts; claims that never started leave no trace."""
    if isinstance(outcome, _UNTOLD):
        return record
    record = _ready(record)
    attempt = Attempt(
        number=record.attempt,
        claims=record.claims,
        node=run.node,
        pid=run.pid,
        started_at=run.started_at,
        ended_at=whole(now),
        outcome=type(outcome).__name__,
        error=getattr(outcome, "failure", None),
        exit=run.exit,
        peak_memory=run.peak_memory,
    )
    attempts = (*record.attempts, attempt)[-ATTEMPTS_KEPT:]
    return replace(record, attempts=attempts, started_at=run.started_at or record.started_at)
