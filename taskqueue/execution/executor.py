"""Runs a loaded job in this process and returns its outcome."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NamedTuple

from taskqueue.errors import InvalidJob, JobFailed, Unreadable
from taskqueue.execution.exception_groups import leaves, related
from taskqueue.execution.failures import CONTROLS, INSTRUCTIONS, brief, errors_shown, failure_of, parts_of
from taskqueue.execution.job_context import Interrupts, JobContext
from taskqueue.execution.loader import CannotLoad, Loaded
from taskqueue.model.ids import JobId
from taskqueue.model.job import (
    AwaitChildren,
    Fail,
    Interrupted,
    Job,
    JobTimeout,
    Retry,
    Snooze,
    TaskFunction,
    seconds_of,
)
from taskqueue.model.job_path import dotted
from taskqueue.model.job_types import JobTypes
from taskqueue.model.lifecycle import outcomes
from taskqueue.model.lifecycle.continuation import Phase
from taskqueue.model.lifecycle.outcomes import Outcome
from taskqueue.model.record import Failure, Status
from taskqueue.model.runnable import check_arguments
from taskqueue.model.serializer import decode, encode
from taskqueue.model.stepwise import StepOver, StepwiseJob

if TYPE_CHECKING:  # imported only for jobs that declare types
    from taskqueue.model.codecs import Form

log = logging.getLogger(__name__)

UNASKED = "a job raised Interrupted without a request to end"


class Ran(NamedTuple):
    """The end of a run: outcome, job (None if it has no hooks to call), and exception."""

    outcome: Outcome
    job: Job | None
    error: BaseException | None
    took: float | None = None
    """The seconds that the job's own code took; None if it was not called."""


async def execute(loaded: Loaded, context: JobContext, interrupts: Interrupts) -> Ran:
    """Run the job to its end and return how it ended; no exception of the job leaves this function.

    It suspends only in a context that runs coroutines in its caller's loop.

    Once a timeout or cancel has started, that is the outcome, whatever the job does.
    """
    instance: Any = None
    result: Any = None
    error: BaseException | None = None
    begun = time.monotonic()
    try:
        data = decode(context.data)
        state = None if context.run.state is None else decode(context.run.state)
    except Unreadable as unreadable:
        return Ran(outcome=outcomes.Unreadable(failure=failure_of(unreadable)), job=None, error=unreadable, took=0.0)
    try:
        with interrupts:
            types = loaded.types
            instance = loaded.make()
            if types is not None:
                data, state = _restored(types, data, state, context)
            if isinstance(instance, Job):
                vars(instance).update(data=data, state=state, _context=context)
                result = _begin(instance, loaded, data)
            else:
                result = _call(instance, loaded.work, data)
            if type(result) is CoroutineType:
                result = await context.run_coroutine(result)
            error = context.ending
            if types is not None and types.result is not None and error is None and not _cleans_up(context):
                result = _stated(types.result, result)
    except BaseException as raised:  # whatever a job raises is its outcome, even SystemExit
        error = raised
        _close_unstarted(result)
        if isinstance(instance, Job) and instance._context is None:  # noqa: SLF001 - data that did not fit
            vars(instance).update(data=data, state=state, _context=context)  # for its hooks, as they are stored
    outcome = outcome_of(result, error, interrupts)
    if isinstance(instance, StepwiseJob):
        outcome = _with_leavings(outcome, instance)
    job = instance if loaded.has_hooks else None
    return Ran(outcome=outcome, job=job, error=error, took=time.monotonic() - begun)


def _begin(instance: Job, loaded: Loaded, data: Any) -> Any:
    """Call the job, with its data if it declares parameters, and return its result or coroutine."""
    work, types = getattr(instance, loaded.work), loaded.types
    if types is None or not types.takes_data or (data is None and types.has_default):
        return work()
    return work(data)


def _close_unstarted(result: Any) -> None:
    """Close the coroutine of a run that was interrupted before it started, or Python warns about it later."""
    if type(result) is CoroutineType and inspect.getcoroutinestate(result) == inspect.CORO_CREATED:
        result.close()


def _cleans_up(context: JobContext) -> bool:
    """Return whether the run is the last step of a failed job, which has no result."""
    return context.course is not None and context.course.phase is Phase.FAILING


def _restored(types: JobTypes, data: Any, state: Any, context: JobContext) -> tuple[Any, Any]:
    """Return data and state as the job's declared types; if they do not fit, no other attempt would help."""
    context.state_form = types.state
    try:
        restored = types.decoded(data)
        return restored, state if types.state is None or state is None else types.state.decode(state, "state")
    except InvalidJob as refused:
        raise Fail(str(refused)) from None


def _stated(form: Form, result: Any) -> Any:
    """Return the result as it is stored."""
    try:
        return form.encode(result, "result")
    except InvalidJob as refused:
        raise Fail(str(refused)) from None


def _call(instance: Any, work: str, data: Any) -> Any:
    """Call a task or a method with the data as keyword arguments, or as the only argument if it is not a mapping.

    A task was added unchecked by its path: fail it with data that are not arguments. Those of a mapping are left to the
    call: binding them here as well would cost each run 15 µs.
    """
    is_task = isinstance(instance, TaskFunction)
    function = instance if is_task and instance.takes_context else getattr(instance, work)
    if isinstance(data, Mapping):
        return function(**data)
    if is_task:
        try:
            check_arguments(instance, data)
        except InvalidJob as refused:
            raise Fail(str(refused)) from None
    return function() if data is None else function(data)


def outcome_of(result: Any, error: BaseException | None, interrupts: Interrupts) -> Outcome:
    """Return the outcome of code that has returned the result, or raised the error."""
    stop_reason = interrupts.stop_reason
    if stop_reason == "cancel":
        return outcomes.Canceled()
    if stop_reason == "timeout":
        return outcomes.TimedOut(failure=failure_of(error) if error is not None else OVERDUE)
    if error is not None:
        return _of_error(error, stop_reason or ("shutdown" if interrupts.stopping else None))
    try:
        return outcomes.Done(result=encode(result, "result"))
    except Exception as refused:  # no retry: the result would be the same; its own class may raise, too
        return outcomes.GivenUp(failure=failure_of(refused))


def _of_error(error: BaseException, stop_reason: str | None) -> Outcome:
    if stop_reason is not None and any(isinstance(leaf.error, Interrupted) for leaf in leaves(error)):
        return outcomes.Interrupted()
    if stop_reason == "shutdown" and came_up_after(error, Interrupted, KeyboardInterrupt):
        return outcomes.Interrupted()
    try:
        return _as_asked(error)
    except ValueError as refused:
        return outcomes.Failed(failure=failure_of(refused))


def _as_asked(error: BaseException) -> Outcome:
    """Return the outcome that the exception stands for; raise ``ValueError`` if it carries invalid times."""
    meant = meaning(error)
    if isinstance(meant, CONTROLS):
        _log_others(error)
    match meant:
        case Snooze(seconds=seconds):
            return outcomes.Snoozed(seconds=seconds_of("Snooze", seconds))
        case StepOver(phase=phase):
            return outcomes.Stepped(phase=phase)
        case AwaitChildren(ids=ids):
            return outcomes.Awaiting(ids=ids)
        case Interrupted():
            return outcomes.Failed(failure=replace(failure_of(error), message=UNASKED))
        case Fail():
            return outcomes.GivenUp(failure=failure_of(error))
        case Retry(delay=delay):
            pause = None if delay is None else seconds_of("Retry", delay)
            return outcomes.Failed(failure=failure_of(error), delay=pause)
    return outcomes.Failed(failure=failure_of(error), parts=parts_of(error))


def meaning(error: BaseException) -> BaseException:
    """Return the exception that decides how the run ends: in a group, the first of the first kind of instruction.

    Without an instruction in the group, that is its only error, or the group itself.
    """
    shown = errors_shown(error)
    return shown[0].error if len(shown) == 1 or isinstance(shown[0].error, INSTRUCTIONS) else error


def _log_others(error: BaseException) -> None:
    """Log errors raised together with an instruction to continue later; nothing else would report them."""
    others = [brief(leaf.error) for leaf in leaves(error) if not isinstance(leaf.error, CONTROLS)]
    if others:
        log.warning("a job that continues later has also raised %s", "; ".join(others), exc_info=error)


def came_up_after(error: BaseException, *kinds: type[BaseException]) -> bool:
    """Return whether the error is of one of these kinds, or was raised while one was handled, say in a ``finally``."""
    return any(isinstance(other, kinds) for other in related(error))


def overdue(message: str) -> Failure:
    """Return the failure for a timeout without an exception, worded as if there had been one."""
    bases = tuple(dotted(base) for base in JobTimeout.__mro__[1:-1])
    return Failure(type=dotted(JobTimeout), message=message, bases=bases)


OVERDUE = overdue("the attempt returned only after its timeout")


def _with_leavings(outcome: Outcome, job: StepwiseJob) -> Outcome:
    """Return the outcome of a step with its state and reports."""
    try:
        match outcome:
            case outcomes.Stepped():
                return replace(outcome, state=encode(job.state, "state"), reports=encode(job.reports, "reports"))
            case outcomes.Done():
                return replace(outcome, reports=encode(job.reports, "reports"))
    except Exception as refused:  # as of a result
        return outcomes.GivenUp(failure=failure_of(refused))
    return outcome


def error_for_caller(id: JobId, error: BaseException | None) -> BaseException | None:
    """Return the exception for a caller that runs a job in its own process and wants to see its error.

    Nothing if the job only continues later, and none of our own exceptions.
    """
    if isinstance(error, CannotLoad):
        return JobFailed(id, Status.FAILED.name, error.failure)
    return None if error is not None and isinstance(meaning(error), CONTROLS) else error


def exception_of(ran: Ran) -> Exception:
    """Return the failure as an ``Exception`` for hooks; in user code a timeout is a ``BaseException``."""
    if isinstance(ran.error, Exception):
        return ran.error
    failure = getattr(ran.outcome, "failure", None) or OVERDUE  # a requested interruption has no error
    kind = TimeoutError if isinstance(ran.outcome, outcomes.TimedOut) else RuntimeError
    return kind(f"{failure.type}: {failure.message}")
