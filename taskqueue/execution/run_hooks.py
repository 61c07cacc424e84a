"""The hooks of an application around the runs of all jobs: ``around_run`` during a run, ``run_ended`` after it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from datetime import timedelta
from functools import partial
from inspect import iscoroutinefunction
from types import CoroutineType
from typing import Any, NamedTuple, TypeAlias

from taskqueue.errors import ConfigError
from taskqueue.execution.exception_groups import leaves
from taskqueue.execution.executor import Ran, exception_of, execute, meaning, outcome_of
from taskqueue.execution.failures import CONTROLS
from taskqueue.execution.job_context import Interrupts, JobContext
from taskqueue.execution.loader import Loaded
from taskqueue.model.job import Fail, Interrupted, Retry, RunningJob, Snooze, TaskFunction
from taskqueue.model.lifecycle import outcomes
from taskqueue.model.record import Failure, Status
from taskqueue.model.shown_text import as_code

log = logging.getLogger(__name__)


class RunOutcome(NamedTuple):
    """The outcome of a run, as it was stored."""

    name: str
    """``Done``, ``Failed``, ``TimedOut``, ``Snoozed`` …, as in the attempts of a job."""
    status: Status
    """The status of the job after the run: WAITING or POSTPONED if it will run again."""
    error: Exception | None
    """The exception of a run that failed."""
    took: float
    """Seconds that the job's own code took."""


AroundRun: TypeAlias = Callable[[RunningJob, Callable[[], Any]], Any]
RunEnded: TypeAlias = Callable[[RunningJob, RunOutcome], Any]


class RunHooks(NamedTuple):
    """The hooks of a process that runs jobs; at least one of them is set."""

    around_run: AroundRun | None
    run_ended: RunEnded | None


def hooks_in(around_run: AroundRun | None, run_ended: RunEnded | None) -> RunHooks | None:
    """Return the hooks, None if there are none; raise ``ConfigError`` for a hook that cannot be called."""
    for name, hook in (("around_run", around_run), ("run_ended", run_ended)):
        if hook is not None and not callable(hook):
            raise ConfigError(f"{name}={as_code(hook)} cannot be called: define a function")
    return None if around_run is None and run_ended is None else RunHooks(around_run, run_ended)


def unusable(hook: AroundRun, context: JobContext) -> Ran | None:
    """Return the outcome of a run that the hook cannot surround, since a plain function cannot await the job."""
    if context.awaits is None or iscoroutinefunction(hook):
        return None
    message = (
        f"{context.run.job} runs beside others in one event loop, but around_run of the bootstrap file is a plain "
        "function: write async def around_run, and await proceed() in it"
    )
    failure = Failure(type="taskqueue.CannotLoad", message=message)
    return Ran(outcome=outcomes.Unloadable(failure=failure, retry_for=timedelta(0)), job=None, error=None)


async def run_within(hook: AroundRun, loaded: Loaded, context: JobContext, interrupts: Interrupts) -> Ran:
    """Run the job within the hook, as ``execute`` does; only a taskqueue exception from it changes the outcome."""
    surrounded = _Surrounded(loaded, context, interrupts)
    error: BaseException | None = None
    try:
        with interrupts:
            await surrounded.call(hook)
    except BaseException as raised:
        error = raised
    ran = surrounded.decided(error)
    return await execute(loaded, context, interrupts) if ran is None else ran


class _Surrounded:
    """One run within a hook."""

    def __init__(self, loaded: Loaded, context: JobContext, interrupts: Interrupts) -> None:
        self._loaded = loaded
        self._context = context
        self._interrupts = interrupts
        self._has_begun = False
        self._ran: Ran | None = None
        self._raised: BaseException | None = None
        """The exception that ``proceed`` raised."""

    async def call(self, hook: AroundRun) -> None:
        """Call the hook, which calls ``proceed`` when it likes."""
        job = RunningJob(self._context)
        if not iscoroutinefunction(hook):
            returned = hook(job, self._proceed)
            if type(returned) is CoroutineType:
                returned.close()
                raise TypeError("it returned a coroutine: write async def around_run, and await proceed() in it")
        elif self._context.awaits is not None:
            await self._context.run_coroutine(hook(job, self._run))
        elif _is_async(self._loaded):
            await self._context.run_coroutine(self._in_loop(hook(job, self._run)))
        else:
            await self._driven(hook(job, _Proceed))

    def decided(self, error: BaseException | None) -> Ran | None:
        """Return the run with its outcome, None if the job has yet to run; ``error`` is the exception of the hook."""
        ran, reason = self._ran, self._interrupts.stop_reason
        if ran is None and reason is not None and not isinstance(error, Interrupted | KeyboardInterrupt):
            error = Interrupted(reason)  # the hook took it for an error of its own: the job must not start
        if error is None:
            if ran is None:
                log.error(
                    "around_run returned without calling proceed(); running the job without it: %s", self._context.id
                )
            return ran
        if self._raised is not None and _is_part_of(error, self._raised):
            return ran
        meant = meaning(error)
        if isinstance(meant, Retry | Fail | Snooze):
            outcome = outcome_of(None, error, self._interrupts)
            return (ran or _NOT_RUN)._replace(outcome=outcome, error=error)
        if isinstance(meant, Interrupted | KeyboardInterrupt):
            return ran or _NOT_RUN._replace(outcome=outcome_of(None, error, self._interrupts), error=error)
        log.error("around_run failed; the outcome of the job is unchanged: %s", self._context.id, exc_info=error)
        return ran

    def _proceed(self) -> None:
        """Run a job that never suspends."""
        try:
            self._run().send(None)
        except StopIteration:
            return

    async def _run(self) -> None:
        """Run the job once, and raise its error; the hook itself is interrupted before and after it."""
        if self._has_begun:
            raise RuntimeError("around_run called proceed() twice: call it once")
        self._has_begun = True
        self._interrupts.__exit__(None, None, None)
        try:
            self._ran = await execute(self._loaded, self._context, self._interrupts)
        finally:
            self._interrupts.__enter__()
        self._raised = _error_of(self._ran)
        if self._raised is not None:
            raise self._raised

    async def _in_loop(self, coroutine: CoroutineType[Any, Any, Any]) -> None:
        """Await the hook in the loop that runs the job."""
        from taskqueue.execution.event_loop import awaited  # asyncio is imported for async jobs only

        outer, self._interrupts = self._interrupts, _Open(self._interrupts)
        self._context.awaits = awaited
        try:
            await coroutine
        finally:
            self._context.awaits = None
            self._interrupts = outer

    async def _driven(self, coroutine: CoroutineType[Any, Any, Any]) -> None:
        """Run a hook that awaits only ``proceed()`` without an event loop: the job has none either."""
        step: Callable[[], Any] = partial(coroutine.send, None)
        while True:
            try:
                awaited = step()
            except StopIteration:
                return
            if awaited is not _PROCEED:
                coroutine.close()
                raise TypeError("around a job that is not async, it can only await proceed()")
            try:
                await self._run()
            except BaseException as error:
                step = partial(coroutine.throw, error)
            else:
                step = partial(coroutine.send, None)


_NOT_RUN = Ran(outcome=outcomes.HandedBack(), job=None, error=None, took=0.0)
_PROCEED = object()


class _Proceed:
    """The awaitable of an async hook that runs without an event loop."""

    def __await__(self) -> Generator[object, None, None]:
        yield _PROCEED


class _Open:
    """Interrupts of a run that are already enabled, until the loop is left."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts

    @property
    def stop_reason(self) -> str | None:
        return self._interrupts.stop_reason

    @property
    def stopping(self) -> bool:
        return self._interrupts.stopping

    def __enter__(self) -> None:
        """Change nothing."""

    def __exit__(self, *_: object) -> None:
        """Change nothing."""

    def deliver_to(self, cancel: Callable[[str], bool]) -> None:
        """Do nothing: the loop already knows."""


def _is_async(loaded: Loaded) -> bool:
    job = loaded.target
    return iscoroutinefunction(job.function if isinstance(job, TaskFunction) else getattr(job, loaded.work, None))


def _is_part_of(error: BaseException, raised: BaseException) -> bool:
    """Return whether the error is the raised one, or a group of only its errors, as a surrounding task group makes."""
    raised_ids = {id(leaf.error) for leaf in leaves(raised)}
    return all(id(leaf.error) in raised_ids for leaf in leaves(error))


def _error_of(ran: Ran) -> BaseException | None:
    """Return an exception that ``proceed`` raises and a coroutine can raise; None if the job continues later."""
    if ran.error is not None and isinstance(meaning(ran.error), CONTROLS):
        return None
    if isinstance(ran.error, StopIteration):
        error = RuntimeError("the job raised StopIteration")
        error.__cause__ = ran.error
        return error
    if ran.error is None and isinstance(ran.outcome, outcomes.GivenUp | outcomes.TimedOut):
        return exception_of(ran)
    return ran.error


def end_hook(hook: RunEnded, context: JobContext, ran: Ran, status: Status) -> Callable[[], Any]:
    """Return the call of ``run_ended`` for an outcome that led to ``status``."""
    return partial(hook, RunningJob(context), _outcome_for(ran, status))


def _outcome_for(ran: Ran, status: Status) -> RunOutcome:
    has_failed = hasattr(ran.outcome, "failure") and not isinstance(ran.outcome, outcomes.Interrupted)
    error = exception_of(ran) if has_failed else None
    return RunOutcome(name=type(ran.outcome).__name__, status=status, error=error, took=ran.took or 0.0)
