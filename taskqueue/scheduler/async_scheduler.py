"""The public API of an application in asyncio: the methods of ``Scheduler``, awaited.

The operations are defined once, in ``Scheduler`` and in the steps of its waits; here they run in threads and in the
event loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import aclosing, suppress
from functools import partial
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from typing_extensions import ParamSpec

from taskqueue.errors import JobFailed
from taskqueue.model.ids import JobId
from taskqueue.model.log_fields import CURRENT
from taskqueue.model.other_systems import OF_SCHEDULERS, missing
from taskqueue.model.record import Record, Status
from taskqueue.model.schedules import Duration
from taskqueue.scheduler import async_waits as methods
from taskqueue.scheduler import new_jobs
from taskqueue.scheduler.async_handles import AsyncEvent, AsyncProcess, AsyncSchedule
from taskqueue.scheduler.async_waits import OF_EMBEDDED, OF_SERVER, AsyncSteps, AsyncWaits, Threads
from taskqueue.scheduler.connection import Connections
from taskqueue.scheduler.event_stream import Callback, EventStream, Page, check, check_callback
from taskqueue.scheduler.job_meta import completed_entries_in_loop, completed_in_loop
from taskqueue.scheduler.operations import AnyOperation, AwaitedOperations
from taskqueue.scheduler.process import JobSnapshot, Process, is_looked_up, listed, named
from taskqueue.scheduler.schedule_api import NO_DATA
from taskqueue.scheduler.scheduler import PAGE, Scheduler
from taskqueue.scheduler.wait import of_running_job, timeout_of
from taskqueue.store.caller_transaction import LoopSession
from taskqueue.store.session_kinds import current

if TYPE_CHECKING:
    from typing_extensions import Never, Unpack

    from taskqueue.execution.run_hooks import RunOutcome
    from taskqueue.model.job import Data, RunningJob
    from taskqueue.model.options.table import JobOptions, SchedulerOptions
    from taskqueue.scheduler.job_meta import NewJob
    from taskqueue.scheduler.job_wait import JobWait
    from taskqueue.scheduler.process import Result
    from taskqueue.scheduler.signatures import Addable, Entry, Running
    from taskqueue.scheduler.workflows import AsyncWorkflow

P = ParamSpec("P")
R = TypeVar("R")


class _Blocking(Scheduler):
    """The scheduler that the threads use."""

    @property
    def connections(self) -> Connections:
        return self._connections

    def run_immediate(self) -> None:
        """In immediate mode, run pending jobs."""
        self._run_immediate([])


class AsyncScheduler(AwaitedOperations):
    """A ``Scheduler`` for asyncio: the same methods with the same arguments, awaited; no call blocks the event loop.

    For any number of tasks, event loops and threads; a forked child uses it in a loop of its own. A call that has
    started finishes even if its task is canceled: a canceled ``add_job`` may have added the job (pass an ``id`` to add
    it again safely). ``before_add`` may be a coroutine function. A job in your own transaction on SQLite
    (``connection``) needs a ``Scheduler``.
    """

    def __init__(
        self,
        url_or_database: object = None,
        *,
        immediate: bool = False,
        before_add: Callable[[NewJob], object] | None = None,
        around_run: Callable[[RunningJob, Callable[[], Any]], object] | None = None,
        run_ended: Callable[[RunningJob, RunOutcome], object] | None = None,
        **defaults: Unpack[SchedulerOptions],
    ) -> None:
        hooks: Any = {"around_run": around_run, "run_ended": run_ended}
        self.blocking = _Blocking(url_or_database, immediate=immediate, **hooks, **defaults)
        self._before_add = before_add
        self.run_hooks = self.blocking.run_hooks
        self._threads = Threads(OF_EMBEDDED if self.blocking.connections.is_embedded else OF_SERVER)
        self._stream = EventStream(partial(AsyncEvent, self), self.blocking.connections)
        self._waits: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncWaits] = WeakKeyDictionary()

    run_pending = methods.returning(methods.processes, methods.long(Scheduler.run_pending))
    update_job = methods.returning(methods.process, methods.plain(Scheduler.update_job))
    recover_job = methods.returning(methods.process, methods.plain(Scheduler.recover_job))
    recover_jobs = methods.returning(methods.processes, methods.long(Scheduler.recover_jobs))
    recover_workflow = methods.returning(methods.processes, methods.long(Scheduler.recover_workflow))
    find_jobs = methods.returning(methods.processes, methods.plain(Scheduler.find_jobs))
    count_jobs = methods.plain(Scheduler.count_jobs)
    get_job = methods.returning(methods.process, methods.plain(Scheduler.get_job))
    cancel_job = methods.returning(methods.process, methods.plain(Scheduler.cancel_job))
    cancel_jobs = methods.long(Scheduler.cancel_jobs)
    give_up_job = methods.returning(methods.process, methods.plain(Scheduler.give_up_job))
    give_up_jobs = methods.long(Scheduler.give_up_jobs)
    cursor = methods.plain(Scheduler.cursor)
    schedule = methods.returning(AsyncSchedule, methods.plain(Scheduler.schedule))
    schedules = methods.plain(Scheduler.schedules)
    get_schedule = methods.returning(AsyncSchedule, methods.plain(Scheduler.get_schedule))
    paused = methods.plain(Scheduler.paused)
    set_limit = methods.plain(Scheduler.set_limit)
    controls = methods.plain(Scheduler.controls)
    releases = methods.plain(Scheduler.releases)
    stats = methods.plain(Scheduler.stats)
    nodes = methods.plain(Scheduler.nodes)
    limits = methods.plain(Scheduler.limits)
    analytics = methods.plain(Scheduler.analytics)
    record_action = methods.plain(Scheduler.record_action)
    audit = methods.plain(Scheduler.audit)
    logs = methods.plain(Scheduler.logs)
    events_of = methods.plain(Scheduler.events_of)
    stack = methods.long(Scheduler.stack)
    history = methods.plain(Scheduler.history)
    why = methods.plain(Scheduler.why)
    flush = methods.plain(Scheduler.flush)

    @staticmethod
    def _awaited(operation: AnyOperation) -> Callable[..., Any]:
        """Return the method of a declared operation, awaited; one that waits for jobs has its own thread."""
        return (methods.long if operation.takes("wait") else methods.plain)(operation.method)

    if TYPE_CHECKING:

        def workflow_added(self) -> Coroutine[Any, Any, AsyncWorkflow]: ...

    else:  # a type checker would accept every name

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name, OF_SCHEDULERS)

    async def add_job(
        self,
        /,
        job: Addable[Data, Result],
        data: Data = NO_DATA,
        *more: Never,
        session: object = None,
        **options: Unpack[JobOptions],
    ) -> AsyncProcess[Result]:
        """Store a job that is to run once, and return its handle, as ``Scheduler.add_job`` does."""
        if more:
            raise new_jobs.after_data(more)
        every = await completed_in_loop(self._before_add, job, data, options)
        if session is None:
            return self._handle(await self.in_thread(partial(self.blocking.add_job, job, data, **every)))
        call = partial(self.blocking.add_job, job, data, session=_of_this_loop(session), **every)
        return self._handle(await _whole(self.in_thread(call)))

    async def add_jobs(self, jobs: Iterable[Entry], *, session: object = None, **refused: Never) -> list[AsyncProcess]:
        """Store many jobs in one round trip, as ``Scheduler.add_jobs`` does."""
        entries = await completed_entries_in_loop(self._before_add, jobs)
        call = self.in_thread(partial(self.blocking.add_jobs, entries, session=_of_this_loop(session), **refused))
        return [self._handle(process) for process in await (call if session is None else _whole(call))]

    async def add_job_once(
        self,
        /,
        job: Addable[Data, Result],
        data: Data = NO_DATA,
        *,
        replace_running: Running = "after",
        session: object = None,
        **options: Unpack[JobOptions],
    ) -> AsyncProcess[Result]:
        """Store a job unless an equal one is pending, as ``Scheduler.add_job_once`` does."""
        every = await completed_in_loop(self._before_add, job, data, options)
        add = partial(self.blocking.add_job_once, job, data, replace_running=replace_running, **every)
        call = self.in_thread(partial(add, session=_of_this_loop(session)))
        return self._handle(await (call if session is None else _whole(call)))

    async def run_job(
        self,
        /,
        job: Addable[Data, Result],
        data: Data = NO_DATA,
        *,
        reraise: bool = False,
        **options: Unpack[JobOptions],
    ) -> AsyncProcess[Result]:
        """Run a job now, in a thread of this process, as ``Scheduler.run_job`` does."""
        every = await completed_in_loop(self._before_add, job, data, options)
        call = partial(self.blocking.run_job, job, data, reraise=reraise, **every)
        await self.begin_callbacks()
        return self._handle(await asyncio.to_thread(call))

    async def get_schedules(self) -> list[AsyncSchedule]:
        """Return all schedules, by name."""
        return [AsyncSchedule(self, schedule) for schedule in await self.in_thread(self.blocking.get_schedules)]

    def get_jobs(self, query: Mapping[str, Any] | None = None) -> AsyncGenerator[AsyncProcess, None]:
        """Iterate with ``async for`` over the jobs that match, as ``Scheduler.get_jobs`` does."""
        return self._found(self.blocking.get_jobs(query))

    async def wait_for(
        self,
        processes: Iterable[AsyncProcess | JobId | str] | AsyncProcess | JobId | str,
        timeout: Duration | None = None,
        raise_on_error: bool = False,
    ) -> list[AsyncProcess]:
        """Wait as ``Scheduler.wait_for`` does; all waits of an event loop share one listener, and none has a thread."""
        given = list(listed(processes))
        if any(map(is_looked_up, given)):
            handles = await self.in_thread(named, given, self.blocking.connections)
        else:
            handles = named(given, self.blocking.connections)
        if self.blocking.connections.immediate is not None:
            await asyncio.to_thread(self.blocking.run_immediate)
        seconds = timeout_of("timeout", timeout)
        snapshots = [process.snapshot for _, process in handles if isinstance(process, JobSnapshot)]
        ended = {record.id: record for record in snapshots if record.status.is_final}
        failed = next((record for record in ended.values() if record.status is not Status.DONE), None)
        if raise_on_error and failed is not None:
            raise JobFailed(failed.id, failed.status.name, failed.error)
        open_ids = dict.fromkeys([id for id, _ in handles if not ended or id not in ended])
        job_wait = None if not open_ids or CURRENT.get() is None else await self._watch_of_job(open_ids)
        try:
            if self._stream.bound:
                ended.update(await self._ends_with_callbacks(open_ids, seconds, raise_on_error, ended, job_wait))
            elif open_ids:
                ended.update(await self._waits_of_loop().ends(open_ids, seconds, raise_on_error, job_wait))
        finally:
            if job_wait is not None:
                job_wait.end()
        return [self._up_to_date(process, ended[id]) for id, process in handles]

    def events(
        self, query: Mapping[str, Any] | None = None, cursor: str | None = None, timeout: Duration | None = None
    ) -> AsyncIterator[AsyncEvent]:
        """Iterate with ``async for`` over events, as ``Scheduler.events`` does.

        Without a cursor, the events start when the iteration does.
        """
        return self._events(self._stream.pages(query, cursor, timeout))

    async def read_events(self, cursor: str, limit: int = 1000) -> tuple[list[AsyncEvent], str]:
        """Return up to ``limit`` events after the cursor, and the cursor after them, with one read and no wait."""
        page = await self.in_thread(self._stream.page, cursor, limit)
        return list(page.events), page.cursor

    async def listen(
        self,
        callback: Callable[[AsyncEvent], object] | None = None,
        query: Mapping[str, Any] | None = None,
        cursor: str | None = None,
        timeout: Duration | None = None,
    ) -> str:
        """Do as ``Scheduler.listen`` does; the result of the callback is awaited if it is awaitable."""
        check_callback(callback)
        check(cursor)
        start = await self.in_thread(self._stream.start, query, cursor)
        reached = start.own
        pages = AsyncSteps[Page[AsyncEvent]](self._stream.pages(query, start.bound, timeout), self._threads)
        async with aclosing(pages.items()) as each:
            async for page in each:
                for event in page.events:
                    await self._call(start.to_call(event), event)
                    if callback is not None and start.is_own(event) and await self._call([callback], event):
                        return event.cursor
                reached = page.cursor
        return reached

    def on(self, event: str, callback: Callable[[AsyncEvent], object]) -> Callable[[], None]:
        """Bind a callback, a function or a coroutine function, as ``Scheduler.on`` does; this call is not awaited.

        So it cannot read the store: the events start with the next awaited call of this scheduler, before that call
        does anything. Events of jobs that this scheduler adds later are all heard.
        """
        return self._stream.bind(event, callback)

    def stop_listening(self) -> None:
        """End every ``listen`` and ``events`` of this scheduler that is in progress; this call is not awaited."""
        self._stream.stop()

    async def close(self) -> None:
        """Release the store; a closed scheduler is not used again."""
        self._stream.stop()
        await self._threads.call(self.blocking.close)
        await self._threads.close()

    async def in_thread(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Make the call in one of the few threads of this scheduler, and return its result."""
        await self.begin_callbacks()
        if self.blocking.connections.immediate is not None:  # it may run jobs, which add others
            return await asyncio.to_thread(call, *args, **kwargs)
        return await self._threads.call(call, *args, **kwargs)

    async def begin_callbacks(self) -> None:
        """Start the callbacks that were bound since the last call."""
        if not self._stream.is_placed:
            await self._threads.call(self._stream.place)

    async def __aenter__(self) -> AsyncScheduler:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncScheduler {self.blocking.connections}>"

    def _handle(self, process: Process[Result]) -> AsyncProcess[Result]:
        return AsyncProcess(self, process.snapshot, existed=process.existed)

    def _waits_of_loop(self) -> AsyncWaits:
        loop = asyncio.get_running_loop()
        if loop not in self._waits:
            self._waits[loop] = AsyncWaits(self.blocking.connections, self._threads)
        return self._waits[loop]

    async def _watch_of_job(self, ids: Collection[JobId]) -> JobWait | None:
        store = await self.in_thread(lambda: self.blocking.connections.store)
        return of_running_job(store, ids)

    async def _found(self, jobs: Iterable[Process]) -> AsyncGenerator[AsyncProcess, None]:
        while page := await self.in_thread(list[Process], islice(jobs, PAGE)):
            for process in page:
                yield AsyncProcess(self, process.snapshot)

    async def _events(self, pages: Any) -> AsyncGenerator[AsyncEvent, None]:
        async with aclosing(AsyncSteps[Page[AsyncEvent]](pages, self._threads).items()) as each:
            async for page in each:
                for event in page.events:
                    yield event

    async def _ends_with_callbacks(
        self,
        ids: Collection[JobId],
        timeout: float | None,
        raise_on_error: bool,
        known: Mapping[JobId, Record],
        job_wait: JobWait | None,
    ) -> dict[JobId, Record]:
        """Return the records of ended jobs, and call bound callbacks with all events since they were bound."""
        ended: dict[JobId, Record] = {}
        steps = AsyncSteps[Record | Page[AsyncEvent]](
            self._stream.ends_and_pages(ids, timeout, known, job_wait), self._threads
        )
        async with aclosing(steps.items()) as each:
            async for step in each:
                if isinstance(step, Record):
                    ended[step.id] = step
                    if raise_on_error and step.status is not Status.DONE:
                        raise JobFailed(step.id, step.status.name, step.error)
                else:
                    for event in step.events:
                        await self._call(self._stream.to_call(event), event)
        return ended

    async def _call(self, callbacks: Iterable[Callback[AsyncEvent]], event: AsyncEvent) -> bool:
        """Call the callbacks, await what they return, and return whether one of them returned True."""
        ends = False
        for callback in callbacks:
            returned = callback(event)
            ends |= (await returned if inspect.isawaitable(returned) else returned) is True
        return ends

    def _up_to_date(self, process: object, record: Record) -> AsyncProcess:
        if not isinstance(process, AsyncProcess):
            return AsyncProcess(self, record)
        process.snapshot = record
        return process


def _of_this_loop(session: object) -> object:
    """Return the session for a call in a thread; an asynchronous one stays with the running loop."""
    session = current(session)  # here, since the thread of the call would have another
    if inspect.iscoroutinefunction(getattr(session, "commit", None)):
        return LoopSession(session, asyncio.get_running_loop())
    return session


async def _whole(call: Coroutine[Any, Any, R]) -> R:
    """Return the result of the call; a canceled task waits for its end, so that it uses no session after that."""
    task = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):  # canceled once more
                await asyncio.wait([task])
        await asyncio.gather(task, return_exceptions=True)  # its exception, if it has one, is known
        raise
