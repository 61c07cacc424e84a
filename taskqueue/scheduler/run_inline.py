"""Runs pending jobs in the calling process: claims, runs and settles as a node does, without its processes."""

from __future__ import annotations

import logging
import os
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from types import TracebackType
from typing import Any

from taskqueue.errors import TooManyRuns
from taskqueue.execution.attempt import call_hooks, run_attempt
from taskqueue.execution.executor import Ran, error_for_caller
from taskqueue.execution.job_context import JobContext
from taskqueue.execution.loader import load, load_policy, load_predicate
from taskqueue.execution.log_capture import attached
from taskqueue.execution.run import run_of
from taskqueue.execution.run_hooks import RunHooks
from taskqueue.insight import host
from taskqueue.insight.records import matching, present
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle import outcomes, pending
from taskqueue.model.lifecycle.continuation import Phase
from taskqueue.model.lifecycle.outcomes import Outcome, Run
from taskqueue.model.lifecycle.settle import ended
from taskqueue.model.log_fields import CURRENT
from taskqueue.model.log_lines import MOST_LINES, kept_text, written
from taskqueue.model.query import PENDING
from taskqueue.model.record import PRIORITY_STEP, Cause, Record, Status
from taskqueue.model.schedules.series import series_id
from taskqueue.model.timestamps import moment
from taskqueue.scheduler.add import check_alone, existed, refuse
from taskqueue.store import Claim, ClaimRequest, Note, Settlement, Store

log = logging.getLogger(__name__)

LEASE = timedelta(hours=1)
"""How long claims are held: only progress and checkpoints renew them while a job runs here."""

RENEW_EVERY = timedelta(minutes=1)

MOST_RUNS = 10_000
"""How many runs may follow the first run of each pending job, unless the caller passes another number."""

BATCH = 1000
EVERYTHING = (ClaimRequest(pooled=BATCH, forced=BATCH),)
ONE_JOB = (ClaimRequest(pooled=1), ClaimRequest(pooled=0, forced=1))
"""Claim one at a time: a job may wait for another one, which must not be claimed then."""


class Due(Enum):
    """Which jobs are due: those whose time has come, or all that have a time."""

    NOW = "now"
    END_OF_TIME = "end of time"


class Mode(Enum):
    """How often jobs run: one attempt of each pending job, or until none is left."""

    ONCE = "once"
    UNTIL_EMPTY = "until empty"


class Errors(Enum):
    """Whether exceptions of jobs stay in their records, the first one that ends a job is raised, or the first one."""

    KEPT = "kept"
    RAISED = "raised"
    EVERY = "every"


class RunBudget:
    """The runs that are left until jobs count as running without end: jobs that add, snooze or retry jobs may."""

    def __init__(self, most: int, pending: int = 0) -> None:
        """``most`` runs beyond one of each of the ``pending`` jobs."""
        self._most = most
        self._left = most + pending
        self._runs: Counter[str] = Counter()

    def spend(self, job: str) -> None:
        """Count a run of this class; raise ``TooManyRuns`` if none is left."""
        if self._left <= 0:
            raise TooManyRuns(self._most, *self._runs.most_common(1)[0])
        self._left -= 1
        self._runs[job] += 1


def run(
    scheduler: Any,
    store: Store,
    horizon: Due,
    how_often: Mode,
    on_settled: Callable[[], None],
    errors: Errors = Errors.KEPT,
    max_runs: int = MOST_RUNS,
) -> list[Record]:
    """Run pending jobs in the order of (due time, priority, id); return the records in the order in which they started.

    Of a series one occurrence is run. After ``max_runs`` runs beyond one of each job that is pending now, raise
    ``TooManyRuns``.
    """
    budget = RunBudget(max_runs, store.count(PENDING))
    line = _InlineRunner(scheduler, store, on_settled, errors=errors, budget=budget)
    try:
        line.work(horizon, how_often)
    finally:
        line.hand_back()
    records = {record.id: record for record in present(store, line.begun)}
    return [records[id] for id in line.begun if id in records]


def run_singly(scheduler: Any, store: Store, on_settled: Callable[[], None], budget: RunBudget) -> None:
    """Run pending jobs, whatever their time, until none is left that can run; claim one at a time."""
    line = _InlineRunner(scheduler, store, on_settled, "run_job", budget=budget, requests=ONE_JOB)
    try:
        line.work(Due.END_OF_TIME, Mode.UNTIL_EMPTY)
    finally:
        line.hand_back()


def run_new(
    scheduler: Any, store: Store, new: Record, on_settled: Callable[[], None]
) -> tuple[Record, BaseException | None]:
    """Store the new record as claimed by this process, run it, and return its final state with the job's exception.

    No node can take it then. If this process dies, a node of this host rescues it at once, others when the lease
    ends. If the record exists already, that one is returned and nothing is run.
    """
    line = _InlineRunner(scheduler, store, on_settled, "run_job")
    try:
        error = line.run_new(new)
    finally:
        line.hand_back()
    kept = line.kept or new
    stored = next(iter(present(store, [kept.id])), kept)
    return replace(stored, existed=kept.existed), error


@dataclass(eq=False)
class _InlineRunner:
    """The jobs that run here one after the other, and the claims on the jobs that still wait."""

    scheduler: Any
    store: Store
    on_settled: Callable[[], None]
    name: str = "run_pending"
    errors: Errors = Errors.KEPT
    budget: RunBudget | None = None
    requests: Sequence[ClaimRequest] = EVERYTHING

    def __post_init__(self) -> None:
        self._holder = host.caller(self.name)
        self._held: dict[JobId, Record] = {}
        self._renewed_at = self.store.now()
        self._series: set[JobId] = set()
        self._unready: dict[JobId, Outcome] = {}
        self._declared: set[JobId] = set()
        """Records handed back to be claimed again, with the options of their class."""
        self._raised: dict[JobId, BaseException] = {}
        """The last exception of each job that has not ended."""
        self._runs = self._runs_when_asked = 0
        self._steps_on = False
        """Whether the last run was a step, and the next step waits."""
        self._ended_as: Status | None = None
        """The status after the last run; None if it was not settled."""
        self.begun: dict[JobId, None] = {}
        self.kept: Record | None = None
        """The stored record that a new one would duplicate."""

    def run_new(self, new: Record) -> BaseException | None:
        """Add the record as claimed, and run it unless another one is kept; return the exception of the job.

        A job with limits is claimed after it is stored, because its limits may be full; then it is left to the nodes.
        """
        if "on_duplicate" in new.given:
            check_alone(new, "run_job runs the new job, or none")
        now = self.store.now()
        [stored] = self.store.add([new if new.lane else pending.claimed(new, self._holder, now + LEASE)])
        self.kept = stored
        if stored.id != new.id and "on_duplicate" in new.given:
            refuse(new, stored)
        mine = self._claim(stored.id) if new.lane and not existed(new, stored) else stored
        error = None
        while mine is not None and mine.holder == self._holder:
            self._held[mine.id] = mine
            raised = self._run(mine)
            error = error or raised
            mine = self._claim(mine.id) if self._steps_on else None
        return error

    def _claim(self, id: JobId) -> Record | None:
        now = self.store.now()
        return self.store.claim_one(id, self._holder, now, now + LEASE)

    def work(self, horizon: Due, how_often: Mode) -> None:
        """Run jobs until none is due; in the mode of all times, continue with the time of the next one."""
        chosen = None if how_often is Mode.UNTIL_EMPTY else self._pending()
        due = self.store.now()
        while chosen is None or chosen:
            claim = self._next_claim(due)
            self._held.update((record.id, record) for record in claim.records)
            for record in sorted(claim.records, key=_order):
                if (chosen is None or record.id in chosen) and self._is_first_of_series(record):
                    self._run_or_raise(record)
            if chosen is not None:
                chosen.difference_update({record.id for record in claim.records} - self._declared)
                self._declared.clear()
            if claim.records:
                due = self.store.now()
            elif claim.next_at is not None and (horizon is Due.END_OF_TIME or claim.next_at <= due):
                due = claim.next_at
            elif not self._ask_again():
                return

    def _next_claim(self, due: datetime) -> Claim:
        """Return the first claim that takes a job, or else one that says when the next job is due."""
        times = []
        for request in self.requests:
            claim = self.store.claim(self._holder, request, due, self.store.now() + LEASE)
            if claim.records:
                return claim
            times.append(claim.next_at)
        return Claim(records=(), next_at=min((at for at in times if at is not None), default=None))

    def _ask_again(self) -> bool:
        """Ask the jobs once more that were not ready, if others have run since; return whether they were asked."""
        if not self._unready or self._runs == self._runs_when_asked:
            return False
        self._runs_when_asked = self._runs
        unready = [self._held[id] for id in self._unready]
        self._unready.clear()
        for record in unready:
            self._run_or_raise(record)
        return True

    def hand_back(self) -> None:
        """Hand back the claims of jobs that did not run."""
        now = self.store.now()
        unrun = ((record, self._unready.get(id, outcomes.HandedBack())) for id, record in self._held.items())
        back = [self._settlement(record, outcome, None, now) for record, outcome in unrun]
        self._held.clear()
        if back:
            self.store.settle(back, now)
            self.on_settled()

    def _is_first_of_series(self, record: Record) -> bool:
        """Return whether no other occurrence of the record's series was run here: a series has no end."""
        series = series_id(record)
        if series is None:
            return True
        is_first = series not in self._series
        self._series.add(series)
        return is_first

    def _pending(self) -> set[JobId]:
        """Return the ids of all pending jobs."""
        return {record.id for record in matching(self.store, PENDING)}

    def _run_or_raise(self, record: Record) -> None:
        """Run one claim; on request, raise the exception that ended the job as FAILED or TIMEOUT."""
        if self.budget is not None:
            self.budget.spend(record.job)
        self._ended_as = None
        error = self._run(record)
        if self.errors is Errors.KEPT:
            return
        error = error or self._raised.get(record.id)
        if error is None or self._ended_as in (Status.DONE, Status.CANCELED):
            self._raised.pop(record.id, None)
        elif self.errors is Errors.EVERY or self._ended_as in (Status.FAILED, Status.TIMEOUT):
            raise error
        else:
            self._raised[record.id] = error

    def _run(self, record: Record) -> BaseException | None:
        """Run one claim to its outcome; a claim that was lost or must be canceled does not start.

        Return the exception of the job.
        """
        if record.damage:
            self.begun[record.id] = None
            self._settle(record, outcomes.unreadable(record), None)
            return None
        if self.scheduler.run_hooks is not None:  # context variables that hooks set end with the run
            return copy_context().run(self._run_here, record, self.scheduler.run_hooks)
        return self._run_here(record)

    def _run_here(self, record: Record, hooks: RunHooks | None = None) -> BaseException | None:
        interrupts = CallerInterrupts()
        context = InlineContext(record, self.scheduler, interrupts, self)
        if hooks is not None:
            context.set_hooks(*hooks)
        if "sentry_sdk" in sys.modules:  # the application may have set it up
            from taskqueue.execution.sentry import scope_of

            context.sentry = scope_of(context)
        try:
            return self._run_in(context, interrupts)
        finally:
            if context.sentry is not None:
                context.sentry.leave()

    def _run_in(self, context: InlineContext, interrupts: CallerInterrupts) -> BaseException | None:
        record = context.record
        with attached():
            ran = run_attempt(context, _Loader(), interrupts)
        if isinstance(ran.outcome, outcomes.NotReady):  # kept until no other is left to run
            self._unready[record.id] = ran.outcome
            return None
        if isinstance(ran.outcome, outcomes.Declared):
            self._declared.add(record.id)
        elif isinstance(ran.outcome, outcomes.Unloadable):
            self.begun[record.id] = None
        return self._end(context, ran, interrupts)

    def _end(self, context: InlineContext, ran: Ran, interrupts: CallerInterrupts) -> BaseException | None:
        """Settle the claim, call the hooks if that was accepted, and return the exception."""
        status = self._settle(context.record, ran.outcome, context.started_at, context.close())
        if status is not None and interrupts.keyboard is None:
            call_hooks(ran, status, context, interrupts)
        if interrupts.keyboard is not None:
            raise interrupts.keyboard
        return error_for_caller(context.id, ran.error)

    def _renew(self, now: datetime) -> None:
        """Renew all claims if that was not done a moment ago: it costs a write for each."""
        if now - self._renewed_at > RENEW_EVERY:
            self._renewed_at = now
            self.store.renew(self._holder, now + LEASE, {})

    def now(self) -> datetime:
        """Return the store's time."""
        return self.store.now()

    def begin(self, record: Record) -> bool:
        """Count the run as started; return False if the claim was lost or has a cancel request."""
        stored = next(iter(present(self.store, [record.id])), None)
        if stored is None or (stored.claims, stored.holder) != (record.claims, self._holder):
            return False
        if stored.cancel is not None and stored.phase is not Phase.FAILING:
            return False
        self.begun[record.id] = None
        self._runs += 1
        return True

    def _settle(
        self, record: Record, outcome: Outcome, started_at: datetime | None, lines: str | None = None
    ) -> Status | None:
        """Settle one claim and return the status it led to, None if the claim was lost."""
        now = self.store.now()
        settlement = self._settlement(record, outcome, started_at, now)._replace(lines=lines)
        self._steps_on = False
        self._held.pop(record.id, None)
        accepted = self.store.settle([settlement], now)
        self.on_settled()
        if record.id not in accepted:
            log.warning("the outcome was refused: the job was removed or taken over by another process: %s", record.id)
            return None
        after = settlement.after
        self._ended_as = after.status
        self._steps_on = after.status is Status.WAITING and (
            isinstance(outcome, outcomes.Stepped) or after.cause is Cause.CLEAN_UP
        )
        return after.status

    def _settlement(self, record: Record, outcome: Outcome, started_at: datetime | None, now: datetime) -> Settlement:
        run = Run(node=self._holder.seat, pid=os.getpid(), started_at=started_at, chance=random.random())
        after = ended(record, outcome, run, now)
        defined = None if after.options is record.options else record
        return Settlement(claims=record.claims, holder=self._holder, after=after, defined=defined)

    def write(self, id: JobId, note: Note) -> None:
        """Write the note of a job in progress, and renew the claims when that is due."""
        self._renew(self.store.now())
        self.store.note(self._holder, {id: note})


class _Loader:
    """Loads the code of a run from any module: the caller has chosen it."""

    find = staticmethod(load)
    find_policy = staticmethod(load_policy)
    find_predicate = staticmethod(load_predicate)


def _order(record: Record) -> tuple[datetime, int, JobId]:
    """Return (due, priority, id): the rank of a claimed record says since when it waits."""
    return moment(record.rank) - record.priority * PRIORITY_STEP, record.priority, record.id


PROGRESS_EVERY = 0.5
"""Seconds between two writes of progress, or of the positions of loops."""


class CallerInterrupts(AbstractContextManager[None]):
    """Ends a run only on the caller's Ctrl-C: an uncaught ``KeyboardInterrupt`` in the job is meant for the caller."""

    def __init__(self) -> None:
        self.stop_reason: str | None = None
        self.stopping = False
        self.keyboard: KeyboardInterrupt | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.stop_reason, self.keyboard = "shutdown", error

    def deliver_to(self, cancel: Callable[[str], bool]) -> None:
        """Do nothing: ``KeyboardInterrupt`` leaves an event loop by itself."""


class InlineContext(JobContext):
    """The context of one run; ``record`` has its last progress and state, on which the outcome is based."""

    def __init__(self, record: Record, scheduler: Any, interrupts: CallerInterrupts, runner: _InlineRunner) -> None:
        super().__init__(run_of(record, runner.now()), interrupts)
        self.fields.outer = CURRENT.get()
        self.record = record
        self._scheduler = scheduler
        self.started_at: datetime | None = None
        """When the run itself started; None if it has not."""
        self._runner = runner
        self._lines: deque[bytes] = deque(maxlen=MOST_LINES)
        self._logged = 0
        self._written_at = -PROGRESS_EVERY
        self._placed_at = -PROGRESS_EVERY

    @property
    def scheduler(self) -> Any:
        """Return the scheduler that runs the job."""
        return self._scheduler

    def report_check(self) -> None:
        """Report nothing: a check here has no time limit."""

    def report_start(self) -> bool:
        """Write the start to the store; return False if the claim was lost or must be canceled."""
        started_at = self._runner.now()
        self._runner.write(self.id, Note(started_at=started_at, loaded_at=started_at))
        if not self._runner.begin(self.record):
            return False
        self.started_at = started_at
        return True

    def _run_coroutine(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        from taskqueue.execution.event_loop import run_alone  # asyncio is imported only for async jobs

        return run_alone(coroutine, self._interrupts)

    def _keep_progress(self, percent: float, message: str) -> None:
        """Write it if the last write is long enough ago; the outcome brings the last one."""
        at = self._runner.now()
        self.record = replace(self.record, progress=percent, progress_message=message, progress_at=at)
        if time.monotonic() - self._written_at < PROGRESS_EVERY:
            return
        self._written_at = time.monotonic()
        self._runner.write(self.id, Note(progress=percent, progress_message=message, progress_at=at))

    def _keep_state(self, text: str) -> None:
        self.record = replace(self.record, state=text)
        self._runner.write(self.id, Note(state=text))

    def _keep_line(self, at: float, level: str, logger: str, text: str) -> None:
        self._logged += 1
        self._lines.append(written(0, self._logged, at, level, logger, text))

    def close(self) -> str | None:
        """Stop keeping lines, and return those of the run as stores keep them; None if there are none."""
        self.fields.keep = None
        return kept_text(self.attempt, list(self._lines)) if self._lines else None

    def _keep_position(self, text: str) -> None:
        """Write it if the last write is long enough ago; the outcome brings the last one."""
        self.record = replace(self.record, cursor=text)
        if time.monotonic() - self._placed_at >= PROGRESS_EVERY:
            self._placed_at = time.monotonic()
            self._runner.write(self.id, Note(cursor=text))
