"""The public API of an application: add, read, wait for and cancel jobs, and define schedules."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from taskqueue.errors import InvalidOption, JobFailed, JobNotFound
from taskqueue.execution.declared_options import at_hand
from taskqueue.insight.records import matching, present, read
from taskqueue.model.ids import JobId
from taskqueue.model.log_fields import CURRENT
from taskqueue.model.options import checked
from taskqueue.model.options.table import Scope
from taskqueue.model.other_systems import OF_SCHEDULERS, missing
from taskqueue.model.query import PENDING, Compare, Operator, Query, parse
from taskqueue.model.record import Record, Status
from taskqueue.model.schedules import Duration
from taskqueue.model.shown_text import as_code
from taskqueue.scheduler import add, job_meta, new_jobs, wait
from taskqueue.scheduler.changes import (
    SAME_DATA,
    cancel_all,
    give_up,
    give_up_all,
    recover,
    recover_all,
    recover_workflow,
    update,
)
from taskqueue.scheduler.connection import Connections, leave_open
from taskqueue.scheduler.event import Event
from taskqueue.scheduler.event_stream import Events, EventStream
from taskqueue.scheduler.operator_api import Operations
from taskqueue.scheduler.process import Process, id_of, named
from taskqueue.scheduler.schedule_api import NO_DATA, Schedules
from taskqueue.scheduler.wait import timeout_of
from taskqueue.store.caller_transaction import session_inserts

if TYPE_CHECKING:
    import sqlite3

    from typing_extensions import Never, Self, Unpack

    from taskqueue.execution.run_hooks import RunHooks, RunOutcome
    from taskqueue.model.job import Data, RunningJob
    from taskqueue.model.options.table import JobOptions, SchedulerOptions, When
    from taskqueue.model.options.update import JobChanges
    from taskqueue.scheduler.job_meta import NewJob
    from taskqueue.scheduler.process import Result
    from taskqueue.scheduler.signatures import Addable, Entry, Running
    from taskqueue.scheduler.workflows import Workflow

PAGE = 200
"""Records that ``get_jobs`` reads at once."""


class Scheduler(Events, Operations, Schedules):
    """A client of one store: cheap to create, opened when first used, usable by many threads and after a fork.

    ``url_or_database`` is a path or URL, or a ``pymongo`` database; None means ``TASKQUEUE_URL``, or else the embedded
    database of this user. ``defaults`` are options for every job that is added through this scheduler. With
    ``connection``, an open ``sqlite3.Connection`` to the file of the store, everything is done through that connection
    and in its transaction: a rollback leaves no job. You commit and close it. With ``immediate``, or the address
    ``immediate:``, each job runs in this process when it is added, on a temporary store. ``before_add`` is called with
    a ``NewJob`` before each job is added, and may add to its ``meta``; ``around_run`` and ``run_ended`` are hooks for
    jobs that this process runs itself, like the hooks of the bootstrap file in workers.
    """

    def __init__(
        self,
        url_or_database: object = None,
        *,
        connection: sqlite3.Connection | None = None,
        immediate: bool = False,
        before_add: Callable[[NewJob], object] | None = None,
        around_run: Callable[[RunningJob, Callable[[], Any]], object] | None = None,
        run_ended: Callable[[RunningJob, RunOutcome], object] | None = None,
        **defaults: Unpack[SchedulerOptions],
    ) -> None:
        self._defaults = checked(defaults, "Scheduler", Scope.ALL)
        self._before_add = job_meta.check_plain(before_add)
        self.run_hooks = None if around_run is None and run_ended is None else _run_hooks(around_run, run_ended)
        self._connections = Connections(url_or_database, connection, immediate)
        self._is_immediate = self._connections.immediate is not None
        self._listening = EventStream(partial(Event, self), self._connections)
        self._unclosed = weakref.finalize(self, leave_open, self._connections)

    if TYPE_CHECKING:

        def workflow_added(self) -> Workflow: ...

    else:  # a type checker would accept every name

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name, OF_SCHEDULERS)

    def add_job(
        self,
        /,
        job: Addable[Data, Result],
        data: Data = NO_DATA,
        *more: Never,
        session: object = None,
        **options: Unpack[JobOptions],
    ) -> Process[Result]:
        """Store a job to run once, and return its handle; it is durable when this returns.

        ``job`` is a subclass of ``Job``, a function with ``@task`` or ``"module:Class.method"``. Options of the call
        override options of the class, which override the scheduler's. Raises ``InvalidJob`` (``InvalidOption``,
        ``DataTooLarge``) before anything is stored. If a pending job has the same ``unique`` key, that job is returned,
        and its ``existed`` is True. With ``session`` the job is part of its open transaction: the session
        of a ``pymongo`` client, or a connection of psycopg, SQLAlchemy or Django to the PostgreSQL database of the
        store.
        """
        if more:
            raise new_jobs.after_data(more)
        store, silence = self._connections.store_and_silence
        every: Mapping[str, Any] = options
        if self._before_add is not None or CURRENT.get() is not None:
            every = job_meta.completed(self._before_add, job, data, options)
        if "depends_on" in every or "parent" in every:
            every = new_jobs.with_ids(store, every)
        new = new_jobs.record_of(job, data, every, self._defaults, store.now())
        if new.depends_on or new.parent is not None:
            new_jobs.check_related(store, [new])
        if self._is_immediate:
            self._check_immediate([new], session)
        [stored] = (store if session is None else session_inserts(store, session)).add([new])
        if stored is not new and "on_duplicate" in new.given:
            stored = add.after_duplicate(store, new, stored, session)
        if self._is_immediate:
            return self._run_immediate([Process(self, stored, existed=add.existed(new, stored))])[0]
        if stored is new:  # a session may be aborted, for which there is no ring
            return Process(self, stored, silence=silence if session is None else None)
        return Process(self, stored, existed=add.existed(new, stored))

    def add_jobs(self, jobs: Iterable[Entry], *, session: object = None, **refused: Never) -> list[Process]:
        """Store many jobs, each ``(job, data)`` or ``(job, data, options)``, in one round trip.

        Returns their handles in order. Nothing is stored if one of them is invalid. Options go with each job. With
        ``session`` the jobs are part of its open transaction, as with ``add_job``.
        """
        for name in refused:
            raise InvalidOption(f"add_jobs: {name} goes with each job: pass (job, data, {{{name!r}: …}})")
        store = self._connections.store
        entries = job_meta.completed_entries(self._before_add, jobs)
        with_ids = new_jobs.with_ids_of_call(store)
        records = list(new_jobs.records_of(entries, self._defaults, store.now(), with_ids))
        return self._add_records(records, session)

    def add_job_once(
        self,
        /,
        job: Addable[Data, Result],
        data: Data = NO_DATA,
        *,
        replace_running: Running = "after",
        session: object = None,
        **options: Unpack[JobOptions],
    ) -> Process[Result]:
        """Store a job unless an equal one is pending; return the handle of the job that is then pending.

        Equal means the same class and data (with ``ignore_data`` the same class), however it was added; with ``unique``
        the same key. If an option that is passed here differs from that of the pending job, or ignored data do, the new
        job replaces it and all other equal jobs. If the old job is already running, the new job waits ``after`` it, or,
        with ``replace_running="cancel"``, after it was asked to end. If more than 100 jobs of the class that
        ``add_job`` added are pending, each call reads all of them: pass ``unique``. With ``session`` the job is part of
        its open transaction, as with ``add_job``, which replaces no job: ``InvalidOption`` is raised instead.
        """
        add.refuse_of_key(options)
        if replace_running not in ("after", "cancel"):
            raise InvalidOption(f"replace_running={as_code(replace_running)}: pass 'after' or 'cancel'")
        store = self._connections.store
        every = new_jobs.with_ids(store, job_meta.completed(self._before_add, job, data, options))
        order = new_jobs.order(job, data, every, self._defaults, store.now())
        new_jobs.check_related(store, [order.record])
        self._check_immediate([order.record], session)
        if session is None:
            reason = "replaced by another add_job_once" if replace_running == "cancel" else None
            stored = add.add_once(store, order, reason)
        else:
            stored = add.add_once_within(session_inserts(store, session), order)
        return self._run_immediate([Process(self, stored, existed=add.existed(order.record, stored))])[0]

    def run_job(
        self,
        /,
        job: Addable[Data, Result],
        data: Data = NO_DATA,
        *,
        reraise: bool = False,
        **options: Unpack[JobOptions],
    ) -> Process[Result]:
        """Run a job now, in this process, and leave only its retries to the nodes; return its process.

        The job is stored before it starts, so that nothing is lost if this process dies, and its outcome is recorded.
        An exception of the job is kept as its error; with ``reraise`` it is raised here too: ``JobFailed`` if the job
        cannot be loaded, nothing if it continues later (``Snooze``, ``wait_children``). A job in steps runs to its end,
        unless a node takes a step in between: nodes may then run the other steps, so wait for the job. A job with
        limits is left to the nodes if its limits have no room, or if a node takes it first. The job's timeouts are not
        enforced here. After about an hour without progress or a checkpoint a node may take it, and its outcome is
        refused. If this process dies, a node of this host takes it back within seconds. Raises ``InvalidOption`` for
        options that would let it wait.
        """
        from taskqueue.scheduler import run_inline

        store = self._connections.store
        every = new_jobs.with_ids(store, job_meta.completed(self._before_add, job, data, options))
        new = new_jobs.record_of(at_hand(job), data, every, self._defaults, store.now())
        if new.status is not Status.WAITING:
            raise InvalidOption("run_job runs the job now: leave out at and depends_on, or use add_job")
        self._check_immediate([new])
        record, error = run_inline.run_new(self, store, new, self._connections.wake)
        [process] = self._run_immediate([Process(self, record, existed=add.existed(new, record))])
        if reraise and error is not None:
            raise error
        return process

    def update_job(self, id: JobId | str, **changes: Unpack[JobChanges]) -> Process:
        """Change a waiting job: ``priority``, ``at``, ``queue``, ``tags``, ``meta``, ``data``; return its new state.

        All changes take place in one step, or none. ``at=None`` means now; ``tags`` and ``meta`` replace the present
        ones, so pass ``{**process.meta, "tenant": "acme"}`` to add to its meta. Raises ``WrongStatus`` for a job that
        runs or has ended, ``InvalidOption``, ``DataTooLarge`` and ``JobNotFound``.
        """
        if (immediate := self._connections.immediate) is not None:
            immediate.refuse("at", changes.get("at"))
        return self._run_immediate(
            [Process(self, update(self._connections.store, id_of(id, self._connections), changes))]
        )[0]

    def recover_job(self, id: JobId | str, at: When | None = None, *, data: Any = SAME_DATA) -> Process:
        """Add a copy of a job that has ended, to run ``at`` a time or now, and return the copy.

        It has the same options and, without ``data``, the same data, a new id, no attempts and no checkpoint;
        ``recovered_from`` is the id of the old job, which stays as it is. It waits for no other job, but its
        ``dependencies`` are those of the old job; it is not a child of the parent. A copy of a job without success,
        with the same data, has its ``key`` too, so that external effects are not repeated. Raises ``WrongStatus`` for a
        job that has not ended, ``KeyTaken`` if another pending job has its ``unique`` key, and ``JobNotFound``.
        """
        if (immediate := self._connections.immediate) is not None:
            immediate.refuse("at", at)
        return self._run_immediate(
            [Process(self, recover(self._connections.store, id_of(id, self._connections), at, data))]
        )[0]

    def recover_jobs(self, query: Mapping[str, Any], at: When | None = None) -> list[Process]:
        """Add a copy of every job that matches the query and has ended, and return the copies, ordered by the old ids.

        ``{"status": "FAILED", "job": "shop.mail:MailJob"}``: see the reference of queries, and ``recover_job``. Jobs
        that were recovered before are left out, so that the work of their copies is not repeated. So are jobs whose
        ``unique`` key another pending job has.
        """
        if (immediate := self._connections.immediate) is not None:
            immediate.refuse("at", at)
        recovered = recover_all(self._connections.store, parse(query), at)
        return self._run_immediate([Process(self, record) for record in recovered.copies])

    def recover_workflow(self, id: JobId | str) -> list[Process]:
        """Run the failed part of a workflow again: add copies in one step, and return them.

        ``id`` is that of the workflow or of a member. Members that failed are copied, and the members that were
        canceled because of them, which wait for the copies as before. What is DONE, was canceled for another reason, or
        was recovered before, is left out. Raises ``JobNotFound``.
        """
        copies = recover_workflow(self._connections.store, id_of(id, self._connections))
        return self._run_immediate([Process(self, record) for record in copies])

    def get_job(self, id: JobId | str) -> Process:
        """Return the job with this id; raise ``JobNotFound`` if there is none."""
        [record] = read(self._connections.store, [id_of(id, self._connections)])
        return Process(self, record)

    def get_jobs(self, query: Mapping[str, Any] | None = None) -> Iterator[Process]:
        """Iterate over the jobs that match, by id, reading as you go; without a query, over all pending jobs.

        ``{"queue": "mail", "data.to": "a@example.org"}``: see the reference of queries. Raises ``InvalidQuery``.
        """
        return self._matching(PENDING if query is None else parse(query))

    def cancel_job(self, id: JobId | str, reason: str = "") -> Process:
        """Cancel a waiting job, or ask a running job to end; a job that has ended stays as it is.

        Returns the job as it is then: CANCELED, or still PROCESSING until its node has ended it. Raises
        ``JobNotFound``.
        """
        store, named_id = self._connections.store, id_of(id, self._connections)
        if (immediate := self._connections.immediate) is not None:
            immediate.check_cancel(store, Compare("id", Operator.EQ, str(named_id)))
        record = store.cancel(named_id, str(reason), store.now())
        if record is None:
            raise JobNotFound(id)
        self._connections.wake()
        return Process(self, record)

    def cancel_jobs(self, query: Mapping[str, Any], reason: str = "") -> int:
        """Cancel every pending job that matches, as ``cancel_job`` does, and return their number.

        ``{"queue": "mail", "job": "shop.mail:MailJob"}``: see the reference of queries. Jobs that are added during the
        call stay; ``count_jobs`` with ``"status": {"$lte": "PROCESSING"}`` in the query counts them beforehand.
        """
        if (immediate := self._connections.immediate) is not None:
            immediate.check_cancel(self._connections.store, parse(query))
        canceled, asked = cancel_all(self._connections.store, parse(query), str(reason))
        self._connections.wake()
        return canceled + asked

    def give_up_job(self, id: JobId | str, reason: str = "") -> Process:
        """End a job that waits to run again after an error, or for its class to be loaded, as FAILED; return it.

        Its error stays the last one, with the reason after it. A ``StepwiseJob`` cleans up first. Raises
        ``WrongStatus`` for any other job, and ``JobNotFound``.
        """
        record = give_up(self._connections.store, id_of(id, self._connections), str(reason))
        self._connections.wake()
        return Process(self, record)

    def give_up_jobs(self, query: Mapping[str, Any], reason: str = "") -> int:
        """Give up every job that matches and waits to run again, as ``give_up_job`` does, and return their number."""
        number = give_up_all(self._connections.store, parse(query), str(reason))
        self._connections.wake()
        return number

    def wait_for(
        self,
        processes: Iterable[Process | JobId | str] | Process | JobId | str,
        timeout: Duration | None = None,
        raise_on_error: bool = False,
    ) -> list[Process]:
        """Wait until all jobs have ended and return their handles in order; passed handles are refreshed.

        ``processes`` are handles or ids, or a single one of them. Jobs that have ended already, duplicates and no jobs
        at all are fine. Raises ``WaitTimeout`` naming the open jobs after ``timeout``, seconds or ``"5m"``,
        ``JobNotFound``, and with ``raise_on_error`` ``JobFailed`` for the first job known to have ended without
        success. The timeout is accurate to about a second: if there are very many jobs, jobs that cannot be read by
        then count as open. A running job that waits for itself, or for a job that such waits keep from running, gets
        ``WaitDeadlock``.
        """
        handles = named(processes, self._connections)
        if self._is_immediate:
            self._run_immediate([])
        ended: dict[JobId, Record] = {}
        with closing(self._ends(handles, timeout_of("timeout", timeout))) as ends:
            for record in ends:
                ended[record.id] = record
                if raise_on_error and record.status is not Status.DONE:
                    raise JobFailed(record.id, record.status.name, record.error)
        refreshed = [handle if isinstance(handle, Process) else Process(self, ended[id]) for id, handle in handles]
        for process in refreshed:
            process.snapshot = ended[process.snapshot.id]
        return refreshed

    def run_pending(
        self, ignore_time: bool = True, once: bool = False, *, reraise: bool = False, max_runs: int = 10_000
    ) -> list[Process]:
        """Run pending jobs in this process, for tests and scripts without a node.

        Jobs run in the order of (due time, priority, id) until none is left, or with ``once`` one attempt of each job
        that is pending now; of a series one occurrence. With ``ignore_time`` jobs that are due later run too, including
        retries. The job's ``timeout`` is not enforced here. Up to 1000 jobs at a time are kept from the nodes; if this
        process is killed, or a job runs for about an hour without progress or a checkpoint, nodes may take them, and
        the outcome of that job is refused. Returns the jobs in the order they started. With ``reraise`` the first
        exception that ends a job as FAILED or TIMEOUT is raised here, after it is recorded; the other jobs stay
        pending. Jobs may add, snooze or retry jobs without end: after ``max_runs`` runs beyond one of each job that was
        pending at first, raises ``TooManyRuns``.
        """
        from taskqueue.scheduler import run_inline

        if type(max_runs) is not int or max_runs < 1:
            raise InvalidOption(f"max_runs={as_code(max_runs)}: pass a whole number, 1 or more")
        errors = run_inline.Errors.RAISED if reraise else run_inline.Errors.KEPT
        pass_over = run_inline.Mode.ONCE if once else run_inline.Mode.UNTIL_EMPTY
        horizon = run_inline.Due.END_OF_TIME if ignore_time else run_inline.Due.NOW
        store, wake = self._connections.store, self._connections.wake
        records = run_inline.run(self, store, horizon, pass_over, wake, errors, max_runs)
        return [Process(self, record) for record in records]

    def _matching(self, query: Query) -> Iterator[Process]:
        """Yield the jobs that match; the first step opens the store, in the thread that takes it."""
        for record in matching(self._connections.store, query, PAGE):
            yield Process(self, record)

    def _add_records(self, records: Sequence[Record], session: object = None) -> list[Process]:
        """Store checked jobs together, and return their handles in order."""
        store = self._connections.store
        new_jobs.check_related(store, records)
        self._check_immediate(records, session)
        adder = None if session is None else session_inserts(store, session)
        added = zip(records, add.many_added(store, records, adder), strict=True) if records else ()
        return self._run_immediate([Process(self, stored, existed=add.existed(new, stored)) for new, stored in added])

    def _check_immediate(self, records: Sequence[Record], session: object = None) -> None:
        """In immediate mode, refuse new jobs that need time or a node."""
        immediate = self._connections.immediate
        if immediate is not None:
            immediate.refuse("session", session)
            immediate.check(records)

    def _run_immediate(self, added: list[Process]) -> list[Process]:
        """In immediate mode, run pending jobs until none can run; return the handles of added jobs, up to date."""
        immediate = self._connections.immediate
        if immediate is None:
            return added
        connections = self._connections
        immediate.run(self, connections.store, connections.wake)
        records = {record.id: record for record in present(connections.store, [process.id for process in added])}
        for process in added:
            process.snapshot = records.get(process.id, process.snapshot)
        taken = [process.id for process in added if process.status is Status.PROCESSING and not process.existed]
        ended = {record.id: record for record in wait.ends(connections.store, connections.listener, taken, None)}
        for process in added:  # of a job that another thread has taken, the end
            process.snapshot = ended.get(process.id, process.snapshot)
        return added

    def close(self) -> None:
        """Release the store; a closed scheduler cannot be used again."""
        self._unclosed.detach()
        self._listening.stop()
        self._connections.close()

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __copy__(self) -> Self:
        """Return a scheduler like this one whose calls do not wait for calls of this one, to be closed as any other.

        It is this one if its calls never wait for each other, or if the application has passed the connection.
        """
        connections = self._connections.another()
        if connections is None:
            return self
        other = object.__new__(type(self))
        listening = EventStream(partial(Event, other), connections)
        unclosed = weakref.finalize(other, leave_open, connections)
        own = {"_connections": connections, "_listening": listening, "_unclosed": unclosed}
        other.__dict__.update({**self.__dict__, **own})
        return other

    def __repr__(self) -> str:
        return f"<Scheduler {self._connections}>"

    def _ends(self, handles: Sequence[tuple[JobId, object]], timeout: float | None) -> Generator[Record, None, None]:
        """Yield the records of jobs that were known to have ended, then of the others as they end."""
        snapshots = [process.snapshot for _, process in handles if isinstance(process, Process)]
        ended = {record.id: record for record in snapshots if record.status > Status.PROCESSING}
        yield from ended.values()
        open_ids = dict.fromkeys([id for id, _ in handles if not ended or id not in ended])
        if not open_ids and not self._listening.bound:
            return
        connections = self._connections
        store = connections.store
        job_wait = None if not open_ids or CURRENT.get() is None else wait.of_running_job(store, open_ids)
        try:
            if self._listening.bound:
                yield from self._listening.ends(open_ids, timeout, ended, job_wait)
                return
            [silence, *others] = {
                getattr(handle, "_silence", None) for id, handle in handles if not ended or id in open_ids
            }
            silence = None if others else silence
            yield from wait.ends(store, connections.listener, open_ids, timeout, silence, job_wait)
        finally:
            if job_wait is not None:
                job_wait.end()


def _run_hooks(around_run: Any, run_ended: Any) -> RunHooks | None:
    from taskqueue.execution.run_hooks import hooks_in  # few programs that add jobs also run them

    return hooks_in(around_run, run_ended)
