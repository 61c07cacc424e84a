"""The store boundary: what every store promises, on one page."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from taskqueue.model.controls import Control, Controls, Kind
from taskqueue.model.ids import JobId
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.query import EVERYTHING, Query
from taskqueue.model.record import Holder, Record, Status
from taskqueue.store.bell import Bell
from taskqueue.store.queue_shares import STRICT, QueueShares

if TYPE_CHECKING:
    from taskqueue.model.analytics import Postponed, Present, Sample
    from taskqueue.model.audit import AuditEntry
    from taskqueue.model.finding import Finding
    from taskqueue.model.history import Parts, Step
    from taskqueue.model.schedules.schedule import NamedSchedule
    from taskqueue.model.workflow import WorkflowSummary

SCHEMA_VERSION = 1
"""The schema version of this code: new stores are created with it, and ``taskqueue migrate`` upgrades to it."""

ALIKE = 1000
"""Maximum number of records that ``Store.alike`` returns."""

OLDEST = "oldest"
"""The cursor before the first event that is kept."""


@dataclass(frozen=True, kw_only=True)
class ClaimRequest:
    """A node's demand: jobs for its pool, jobs with a process of their own, and the queues to take them from."""

    pooled: int
    forced: int = 0
    queues: Mapping[str, int | None] = field(default_factory=dict)
    """Maps each allowed queue to the most records to take from it (None: no limit); empty allows every queue."""
    due_by: datetime | None = None
    """Allow an early claim of jobs that are due by then if no job is WAITING; no earlier than ``Store.early_by``."""
    data: int | None = None
    """Maximum number of bytes of data for the pool (None: no limit); the first ``free`` of them always fit."""
    free: int = 0
    rooms: Mapping[str, int] = field(default_factory=dict)
    """How many more jobs of each class with ``concurrency`` to take; of others, as many as one worker runs."""
    shares: QueueShares = STRICT
    """Decide between queues. A claim reads them and changes nothing: the node counts what it got."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The result of a claim: PROCESSING records, and when the next postponed job becomes due, if one is known."""

    records: Sequence[Record]
    next_at: datetime | None
    begins_at: datetime | None = None  # for an early claim, the moment before which none of its jobs may begin
    has_more: bool = False  # whether ``ClaimRequest.data``, or another claim at the same time, left jobs out


@dataclass(frozen=True, kw_only=True)
class Note:
    """Progress of a running job that its node records with the next renewal."""

    started_at: datetime | None = None
    loaded_at: datetime | None = None  # when the class was loaded and the job's own code started: rates count from then
    progress: float | None = None
    progress_message: str = ""
    progress_at: datetime | None = None
    state: str | None = None
    cursor: str | None = None
    lines: str | None = None  # the last log lines of the run, see ``model.log_lines``


@dataclass(frozen=True, kw_only=True)
class ClaimState:
    """The state of one claim: its fence and a cancel request."""

    claims: int
    cancel_reason: str | None = None  # the reason given, "" if there is none; None without a request


@dataclass(frozen=True, kw_only=True)
class Renewal:
    """The result of a renewal: every claim of the holder, and when the first lease of another holder ends."""

    claims: Mapping[JobId, ClaimState]
    others_end_at: datetime | None  # the earliest end of a lease on a job that another incarnation holds, if any


class Settlement(NamedTuple):
    """The record after an outcome, to be written if the claim ``(id, claims, holder)`` still holds."""

    claims: int
    holder: Holder
    after: Record
    lease_end: datetime | None = None  # of a lost claim, as the caller read it: refused if that has been renewed
    defined: Record | None = None
    """The record as it was claimed, where ``after`` has the options that its class declares."""
    lines: str | None = None  # as of ``Note``
    is_unseen: bool = False  # no process has seen whether the run started and ended: its node or manager has died


@dataclass(frozen=True, kw_only=True)
class Event:
    """One transition of one job, a progress report, or an event of a node."""

    id: str
    """``job id:claims:name``, the same whenever the same transition is recorded; progress adds its time."""
    name: str
    """One of ``model.events.EVENTS``: the status in lower case, ``progress`` or ``retried``, or one of a node."""
    at: datetime
    job_id: JobId | None = None
    status: Status | None = None
    node: str = ""  # the node of a node event; empty for the events of jobs
    about: Mapping[str, Any] = field(default_factory=dict)  # details of a node event, plain JSON values
    cursor: str = ""  # the cursor after this event, in the result of ``events``

    @property
    def ended(self) -> JobId | None:
        """Return the job that ended with this event; None for other events."""
        return self.job_id if self.status is not None and self.status.is_final else None


@dataclass(frozen=True, kw_only=True)
class Lease:
    """A named right that one incarnation holds for a time: a seat (``seat:web-1``) or the leader's (``lead``)."""

    name: str
    holder: Holder
    since: datetime
    until: datetime
    about: Mapping[str, object] = field(default_factory=dict)  # facts that the holder publishes, plain JSON values


class Disagreement(NamedTuple):
    """A job, or a queue, with derived fields that do not agree with the fields that they repeat."""

    about: str
    fields: tuple[str, ...]
    job: JobId | None = None  # None for a queue


class Disagreements(NamedTuple):
    """The result of a search for disagreeing fields."""

    found: Sequence[Disagreement]
    is_complete: bool  # whether the whole store was read in time


class Store(Protocol):
    """Stores jobs. Methods raise ``StoreUnavailable`` within a deadline if the store cannot be used.

    Times that decide anything are arguments, taken from the store's clock ``now()``.
    """

    url: str
    """The resolved address, without secrets."""

    guarantee: str
    """The failures that an acknowledged job survives, in words."""

    takes_calls_at_once: bool  # whether calls from two threads are faster than the same calls one after the other
    early_by: timedelta
    """The early-claim window: how long before its time a postponed job may be claimed, so that it starts on time."""

    def add(self, records: Sequence[Record]) -> list[Record]:
        """Insert all records and return the stored record for each, in order.

        A job with the same id, class and data are the same job: the stored one is returned. If only the id is the same,
        ``DuplicateId`` is raised and nothing
        is stored. If a pending job has the unique key, that job is returned. Dependencies that have ended are ignored.
        A job names its last copy.
        """

    def alike(self, new: Record, ignore_data: bool) -> list[Record]:
        """Return the pending records for which ``new`` is the same job, whatever their unique keys.

        Those have the same path, and unless ``ignore_data`` the same data: up to ``ALIKE``, running ones first, then
        the oldest. Where data count and one has the unique key of ``new``, that one alone is enough.
        """

    def replace(self, new: Record, old: Record, cancel_running: str | None, now: datetime) -> Record | None:
        """Put ``new`` in the place of ``old``, in one step; None if ``old`` has moved.

        A pending one is canceled (cause REPLACED). A running one gives up the key, and ``new`` waits until it has
        ended; with ``cancel_running`` (a reason) it is also asked to end.
        """

    def find(
        self, query: Query, *, order: str = "id", limit: int = 100, after: tuple[object, JobId] | None = None
    ) -> list[Record]:
        """Return up to ``limit`` matching records by (``order``, id), after ``after`` if given.

        ``order`` is ``id``, ``created_at``, ``ended_at`` or ``rank``; with a ``-`` before it, descending. ``after`` is
        the order value (a time, a rank, or an id) and id of the last record of the page before.
        """

    def time_after(
        self, order: str, steps: int, statuses: Sequence[int], after: tuple[object, JobId] | None = None
    ) -> datetime | None:
        """Return the time up to which a search must look at more than this many records; None if there are fewer.

        ``order`` and ``after`` are those of ``find``: by ``created_at``, records of any status count, by ``ended_at``
        those of each of these final ``statuses``. It is read from an index, and from records of the time of ``after``.
        """

    def count(self, query: Query, most: int | None = None) -> int:
        """Return how many records match; with ``most``, count no further than that."""

    def tally(self) -> Mapping[tuple[str, Status], int]:
        """Return how many records there are for each queue and status; its cost does not grow with them."""

    def waiting_since(self) -> Mapping[str, datetime]:
        """Return, for each queue, since when the job that would be claimed first has been waiting."""

    def waiting_lanes(self, limit: int) -> Mapping[str, int]:
        """Return how many records wait in each lane (``Record.lane``), reading up to ``limit`` of them."""

    def workflows(self, upto: JobId | None, limit: int) -> list[WorkflowSummary]:
        """Return up to ``limit`` workflows that have members, by id, the newest first, from ``upto`` on if given."""

    def history(self, step: Step, since: datetime, until: datetime) -> Parts:
        """Return the figures of the minutes or hours that start from ``since`` up to ``until``.

        Each settled claim and end counts once, in the minute it was settled; an added job counts in the minute of
        ``created_at``.
        """

    def tidy_history(self, now: datetime, limit: int) -> bool:
        """Add up figures and counts, then remove up to ``limit`` old minutes and hours; return whether more remain."""

    def present(self, now: datetime) -> Present:
        """Return how many records have not ended, by what they wait for."""

    def postponed(self, most: int) -> Postponed:
        """Return how many postponed records are due in which hour, and how many wait for others, up to ``most`` each.

        Those that are due first are looked at first.
        """

    def samples(self, since: datetime, until: datetime, limit: int, query: Query = EVERYTHING) -> Sequence[Sample]:
        """Return the rows for analytics: up to ``limit`` jobs that match and ended in (since, until], the newest first.

        All jobs that ended in this time may be looked at: a query only leaves jobs out.
        """

    def cancel(self, id: JobId, reason: str, now: datetime) -> Record | None:
        """Cancel a pending job, or record a cancel request for a running one, and ring; return it, None if unknown."""

    def cancel_many(self, ids: Sequence[JobId], reason: str, now: datetime) -> list[Record]:
        """Cancel each of these as ``cancel`` does, in few writes, and return the existing ones, in order."""

    def update(self, before: Record, after: Record, now: datetime) -> bool:
        """Apply the owner's changes to a pending record; return False and change nothing if ``before`` has moved.

        These may concern its status, cause, ``ready_at``, rank, queue, priority, tags, data and ``given``. Or they end
        it, or let it clean up before its end, with the effects of that.
        """

    def claim(self, holder: Holder, demand: ClaimRequest, now: datetime, until: datetime) -> Claim:
        """Take WAITING records for ``holder`` until ``until``; never one record for two.

        Those of one queue are taken by (rank, id). Between queues the shares of the demand decide, by the priority of
        the first record of each; with ``STRICT`` (rank, id) decides over all queues. The records are returned by
        (rank, id).

        First promotes due jobs and ends expired ones, in bounded steps. Nothing is taken of a queue that is
        paused, or for a node that is drained, by any claim that starts after ``set_control`` has returned; limits have
        the numbers that were set for them. Jobs with limits are never taken ahead of their time.
        """

    def claim_one(self, id: JobId, holder: Holder, now: datetime, until: datetime) -> Record | None:
        """Take this one record for ``holder`` if it is WAITING, not late, and its limits have room; else None.

        For a caller that runs one particular job: pauses, drains and other waiting jobs do not matter.
        """

    def renew(self, holder: Holder, until: datetime, notes: Mapping[JobId, Note]) -> Renewal:
        """Extend every claim of ``holder``, record the notes on those it still holds, and return its claims."""

    def note(self, holder: Holder, notes: Mapping[JobId, Note]) -> None:
        """Record the notes on claims that ``holder`` still holds, without extending anything."""

    def settle(self, settlements: Sequence[Settlement], now: datetime) -> set[JobId]:
        """Write each outcome whose claim still holds, with its effects, and return their ids.

        A cancel request that came in the meantime is obeyed (``settle.obeying``). The unique key stays as the store has
        it. A final record releases the jobs that wait for it. Events are recorded; bells ring.

        A settlement with ``defined`` also applies the options of ``after``, including queue, limits and a unique key
        that differs. Where another pending job has that key, the record ends (``apply_declared.outdone``).
        """

    def log_lines(self, id: JobId) -> Mapping[int, str]:
        """Return the log lines of the last runs of the job, by the number of their claims (``model.log_lines``).

        They are removed with their job.
        """

    def limit_usage(self, keys: Sequence[str], now: datetime) -> Mapping[str, int]:
        """Return how much of each of these limit keys is in use (``model.limits.LimitKey``)."""

    def rate_ends(self, key: str, now: datetime, limit: int) -> list[datetime]:
        """Return when the starts counted by a rate under this key stop counting: the ``limit`` earliest times."""

    def expired(self, now: datetime, limit: int) -> list[Record]:
        """Return PROCESSING records whose lease has ended, for settling as lost."""

    def orphaned(self, seat: str, incarnation: str, limit: int) -> list[Record]:
        """Return PROCESSING records of this seat held by any other incarnation than this one."""

    def held(self, holder: Holder, limit: int) -> list[Record]:
        """Return up to ``limit`` PROCESSING records of exactly this holder."""

    def holders(self, seats: Collection[str]) -> list[Holder]:
        """Return the holders of PROCESSING records at these seats, without duplicates."""

    def acquire(self, lease: Lease, now: datetime) -> Lease:
        """Take or renew the lease if it is free, expired, or this holder's; return the resulting lease.

        Rings the bell of ``CONTROLS`` when it was taken, not when it was renewed.
        """

    def resign(self, name: str, holder: Holder) -> None:
        """Release the lease if this holder has it."""

    def leases(self) -> list[Lease]:
        """Return all leases that were taken and not resigned, even if they have ended."""

    def repair(self, now: datetime) -> int:
        """Finish half-done effects of outcomes whose writer died, and return how many there were."""

    def schedules(self, names: Collection[str] | None = None) -> list[NamedSchedule]:
        """Return the schedules with these names, by name; all schedules if no name is given."""

    def due(self, now: datetime, limit: int) -> tuple[list[NamedSchedule], datetime | None]:
        """Return up to ``limit`` schedules whose next time has come, the soonest first, and the soonest time of all."""

    def replace_schedule(
        self, before: NamedSchedule | None, after: NamedSchedule | None, jobs: Sequence[Record], now: datetime
    ) -> bool:
        """Put ``after`` in the place of ``before``, add the jobs, in one step, and ring; return whether it was done.

        It is refused if the kept one has another version than ``before``, or, without ``before``, if there is one of
        its name. Without ``after`` the schedule is removed. A job whose id is known, or whose unique key is taken, is
        left out. When a job ends that a schedule awaits, its next time is kept in the same step (``series.advance``).
        """

    def controls(self) -> Controls:
        """Return the active controls."""

    def set_control(self, control: Control) -> None:
        """Set the control, replacing an earlier one of the same kind and name, and ring."""

    def clear_control(self, kind: Kind, name: str) -> bool:
        """Clear the control and ring; return whether there was one."""

    def prune(self, before: Mapping[Status, datetime], events_before: datetime, limit: int) -> int:
        """Remove up to ``limit`` final records that ended before the time for their status, and old events.

        Children and dependencies of a pending record are kept. Return how many records were removed.
        """

    def flush(self) -> int:
        """Remove all jobs, whatever their status, and all events, record ``store_flushed``, and return the number.

        A schedule that waited for one of them continues from now (``fire.reconciled``).
        """

    def record_events(self, events: Sequence[Event]) -> None:
        """Record the events of a node, and ring."""

    def events(self, cursor: str | None, limit: int = 1000) -> tuple[list[Event], str]:
        """Return the events since the cursor, oldest first, and the cursor after them.

        None starts now, ``OLDEST`` with the first that is kept. Misses nothing, may repeat. Raises ``CursorTooOld`` if
        events after the cursor were removed; a reader of all events before a flush continues with ``store_flushed``.
        """

    def cursor_at(self, at: datetime) -> str:
        """Return the cursor before the first event that was recorded at about this time or later."""

    def events_of(self, id: JobId, since: datetime, limit: int) -> list[Event]:
        """Return the events of a job, by a look at up to ``limit`` writes of events since about this time."""

    def record_action(self, entry: AuditEntry) -> None:
        """Record the audit entry; flushing jobs does not remove it."""

    def audit(self, limit: int, before: str | None = None) -> list[AuditEntry]:
        """Return up to ``limit`` entries, the newest first, or those before the cursor. Raises ``InvalidQuery``."""

    def diagnose(self) -> list[Finding]:
        """Examine the state of the store and return the findings; only reads, for up to half a minute."""

    def strains(self) -> list[Finding]:
        """Return those findings that change by themselves: room, connections, members. They cost a few short reads."""

    def disagreeing(self, limit: int) -> Disagreements:
        """Return up to ``limit`` jobs and queues whose derived fields disagree with their sources; reads only."""

    def write_again(self, found: Sequence[Disagreement]) -> int:
        """Rewrite the derived fields of these jobs and queues, and return how many were rewritten.

        Fields that agree by now, or that are changing at this moment, are left alone.
        """

    def bell(self, topic: str) -> Bell:
        """Return a bell of the topic, listening from now on."""

    def now(self) -> datetime:
        """Return the store's time, in whole milliseconds."""

    def close(self) -> None:
        """Release everything; a closed store is not used again."""
