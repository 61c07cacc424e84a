"""One run of a job, the same in a worker and in the caller's process: load, check, start, run, decide, call hooks."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from types import CoroutineType
from typing import Any, Protocol

from taskqueue.errors import InvalidOption
from taskqueue.execution import run_hooks
from taskqueue.execution.conditions import ask, condition_of_run
from taskqueue.execution.executor import Ran, exception_of, execute
from taskqueue.execution.failures import brief
from taskqueue.execution.job_context import Interrupts, JobContext
from taskqueue.execution.loader import CannotLoad, Loaded
from taskqueue.execution.retries import Question, question_of, with_decision, with_public_names
from taskqueue.model.lifecycle import outcomes
from taskqueue.model.log_fields import CURRENT
from taskqueue.model.options import checked
from taskqueue.model.options.readers import stated
from taskqueue.model.options.table import Scope
from taskqueue.model.record import Failure, Status
from taskqueue.model.runnable import options_of

log = logging.getLogger(__name__)


class Loader(Protocol):
    """Finds the code of a run by import path; each method can raise ``CannotLoad``."""

    def find(self, path: str) -> Loaded:
        """Return the job."""

    def find_policy(self, path: str) -> type:
        """Return the class of retry policies."""

    def find_predicate(self, path: str) -> Callable[..., object]:
        """Return the predicate of a condition."""


def run_attempt(context: JobContext, loader: Loader, interrupts: Interrupts) -> Ran:
    """Run the job of a context that never suspends to its outcome, as ``attempt`` does, with its log fields."""
    token = CURRENT.set(context.fields)
    try:
        ran: Ran = finished(attempt(context, loader, interrupts))
        return ran
    finally:
        CURRENT.reset(token)


async def attempt(context: JobContext, loader: Loader, interrupts: Interrupts) -> Ran:
    """Run the job of the context and return the outcome, which may be that the run does not start.

    No exception of the job's module, class, conditions or retry policy leaves this function.
    """
    try:
        with interrupts:
            loaded = loader.find(context.run.job)
    except CannotLoad as cannot:
        outcome = outcomes.Unloadable(failure=cannot.failure, retry_for=timedelta(0))
        return Ran(outcome=outcome, job=None, error=cannot)
    except BaseException as error:  # an interrupted import ends the run as an interrupted constructor would
        loaded = Loaded(path=context.run.job, make=_raising(error), work="start")
    reported = report(loaded) if context.run.undeclared else None
    if reported is not None:
        return reported
    question = None if context.run.retry is None else question_of(context.run.retry, loader.find_policy)
    if question is not None:
        context.is_last_attempt = _is_last(question, interrupts)
    if context.run.receives and (misfit := _received(loaded, context, interrupts)) is not None:
        return misfit
    is_later_step = context.course is not None and context.course.phase is not None
    asks = (context.condition is not None or loaded.has_check) and not is_later_step
    if asks and (condition := condition_of_run(context.condition, loaded)) is not None:
        context.report_check()
        unready = await ask(condition, loaded, context, interrupts, find=loader.find_predicate)
        if unready is not None:
            return unready
    if context.around_run is not None and (refused := run_hooks.unusable(context.around_run, context)) is not None:
        return refused
    if not context.report_start():
        return Ran(outcome=outcomes.HandedBack(), job=None, error=None)
    if context.around_run is None:
        ran = await execute(loaded, context, interrupts)
    else:
        ran = await run_hooks.run_within(context.around_run, loaded, context, interrupts)
    if context.run.error_names:
        ran = ran._replace(outcome=with_public_names(ran.outcome, context.run.error_names, context.run.job))
    return ran if question is None else _decided(question, ran, interrupts)


def _received(loaded: Loaded, context: JobContext, interrupts: Interrupts) -> Ran | None:
    """Add the results of other jobs to the data of the run; return the end of the run if the data no longer fits."""
    from taskqueue.execution.received_values import complete  # few jobs receive anything

    misfit = complete(loaded, context, interrupts)
    if misfit is None or context.report_start():
        return misfit
    return Ran(outcome=outcomes.HandedBack(), job=None, error=None)


def finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that never suspends; so a run has one form, with or without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        return finished.value
    raise RuntimeError(f"{coroutine} suspended outside of an event loop")


def report(loaded: Loaded) -> Ran | None:
    """Return the outcome that reports the declared options of the run's class; None if it declares none."""
    try:
        options = checked(options_of(loaded.target), f"options of {loaded.path}", Scope.CLASS)
    except InvalidOption as refused:
        failure = Failure(type="taskqueue.InvalidOption", message=str(refused))
        outcome = outcomes.Unloadable(failure=failure, retry_for=timedelta(0))
        return Ran(outcome=outcome, job=None, error=refused)
    if not options:
        return None
    stated_options = {name: stated(value) for name, value in options.items()}
    return Ran(outcome=outcomes.Declared(options=stated_options), job=None, error=None)


def _raising(error: BaseException) -> Callable[[], Any]:
    def make() -> Any:
        raise error

    return make


def _is_last(question: Question, interrupts: Interrupts) -> bool:
    try:
        with interrupts:
            return question.is_last
    except BaseException:  # the run itself will be interrupted again
        return False


def _decided(question: Question, ran: Ran, interrupts: Interrupts) -> Ran:
    """Return the run with the decision of a custom retry policy."""
    try:
        with interrupts:
            return ran._replace(outcome=with_decision(question, ran.outcome, ran.took or 0.0, random.random()))
    except BaseException as error:
        log.warning("a retry policy was interrupted: %s", brief(error))
        return ran


def call_hooks(ran: Ran, status: Status, context: JobContext, interrupts: Interrupts) -> None:
    """Call hooks that never suspend, as ``await_hooks`` does, with the log fields of the run."""
    token = CURRENT.set(context.fields)
    try:
        finished(await_hooks(ran, status, context, interrupts))
    finally:
        CURRENT.reset(token)


async def await_hooks(ran: Ran, status: Status, context: JobContext, interrupts: Interrupts) -> None:
    """Call the hooks for an accepted outcome that led to ``status``; their errors are logged and change nothing.

    They are called in the run's scope of Sentry, so that what they and this function log has its tags.
    """
    with nullcontext() if context.sentry is None else context.sentry.entered():
        for hook in _every_hook(ran, status, context):
            try:
                with interrupts:
                    called = hook()
                    if type(called) is CoroutineType:
                        await context.run_coroutine(called)
            except Exception:
                log.exception("a hook failed after its job had ended; the outcome is unchanged: %s", hook)
            except BaseException as error:
                log.error("a hook was interrupted; the outcome is unchanged: %s (%s)", hook, brief(error))
                return


def _every_hook(ran: Ran, status: Status, context: JobContext) -> Iterator[Callable[[], Any]]:
    """Yield the hooks of the class, then the hook for all jobs and the report to Sentry."""
    yield from hooks(ran, status)
    if context.run_ended is not None and ran.took is not None:
        yield run_hooks.end_hook(context.run_ended, context, ran, status)
    if context.sentry is not None:
        yield partial(context.sentry.report, ran, status)


def hooks(ran: Ran, status: Status) -> Iterator[Callable[[], Any]]:
    """Yield the hooks of the class for an accepted outcome that led to ``status``, in order."""
    job = ran.job
    if job is None:
        return
    if status is Status.DONE:
        yield job.on_success
        yield job.finalize
        return
    error = exception_of(ran)
    has_failed = isinstance(ran.outcome, outcomes.Failed | outcomes.GivenUp | outcomes.TimedOut)
    if has_failed:
        yield partial(job.on_failure, error)
    if status.is_final and (has_failed or isinstance(ran.outcome, outcomes.CheckFailed)):
        yield partial(job.on_last_failure, error)
    if status.is_final:
        yield job.finalize
