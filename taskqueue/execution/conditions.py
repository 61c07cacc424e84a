"""Checks a job's condition in the process that would run it; a faulty predicate affects only this job."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from types import CoroutineType
from typing import Any

from taskqueue.errors import Unreadable, assert_never
from taskqueue.execution.executor import Ran, overdue
from taskqueue.execution.failures import failure_of
from taskqueue.execution.job_context import Interrupts, JobContext
from taskqueue.execution.loader import CannotLoad, Loaded
from taskqueue.model.conditions import CHECK_LIMIT, OWN, AllOf, AnyOf, Check, Condition, Not, asks, both
from taskqueue.model.job import Job
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.lifecycle import outcomes
from taskqueue.model.lifecycle.outcomes import Outcome
from taskqueue.model.record import Failure
from taskqueue.model.serializer import decode
from taskqueue.model.shown_text import as_code

Finder = Callable[[str], Callable[..., object]]
"""Finds the predicate that an import path names."""

TOO_LONG = f"the check took longer than {CHECK_LIMIT:g} s"


def condition_of_run(declared: Condition | None, loaded: Loaded) -> Condition | None:
    """Return the condition of a run: the declared one, and the condition of the job's own class."""
    if not loaded.has_check or (declared is not None and asks(declared, OWN)):
        return declared
    return both(OWN, declared)


async def ask(
    condition: Condition, loaded: Loaded, context: JobContext, interrupts: Interrupts, *, find: Finder
) -> Ran | None:
    """Return None if the condition holds, else the outcome of a run that does not start."""
    job: Job | None = None
    denial: str | None = None
    error: BaseException | None = None
    try:
        data = decode(context.data)
    except Unreadable as unreadable:
        return Ran(outcome=outcomes.Unreadable(failure=failure_of(unreadable)), job=None, error=unreadable)
    try:
        with interrupts:
            types = loaded.types if loaded.work == "start" else None
            job = _job(loaded, context, data if types is None else types.decoded(data))
            denial = await _denial(condition, _Asking(job, loaded, find, context))
    except BaseException as raised:  # whatever a predicate raises is an answer, even SystemExit
        error = raised
    outcome = _outcome(denial, error, interrupts)
    if outcome is None:
        return None
    has_hooks = loaded.has_hooks and isinstance(outcome, outcomes.CheckFailed | outcomes.Canceled)
    return Ran(outcome=outcome, job=job if has_hooks else None, error=error)


def _outcome(denial: str | None, error: BaseException | None, interrupts: Interrupts) -> Outcome | None:
    stop_reason = interrupts.stop_reason or ("shutdown" if interrupts.stopping else None)
    if stop_reason == "cancel":
        return outcomes.Canceled()
    if stop_reason == "timeout":
        return outcomes.CheckFailed(failure=overdue(TOO_LONG))
    if stop_reason is not None:
        return outcomes.HandedBack()
    if isinstance(error, CannotLoad):
        return outcomes.Unloadable(failure=error.failure, retry_for=timedelta(0))
    if error is not None:
        return outcomes.CheckFailed(failure=failure_of(error))
    return None if denial is None else outcomes.NotReady(reason=denial)


def _job(loaded: Loaded, context: JobContext, data: Any) -> Job:
    """Return the argument of predicates: the job itself or, for other work, a job with its id, data and scheduler."""
    job = loaded.make() if isinstance(loaded.make, type) and issubclass(loaded.make, Job) else Job()
    vars(job).update(data=data, _context=context)
    return job


@dataclass(frozen=True)
class _Asking:
    """Calls predicates and finds them by their paths."""

    job: Job
    loaded: Loaded
    find: Finder
    context: JobContext


async def _denial(condition: Condition, asking: _Asking) -> str | None:
    """Return the part of the condition that does not hold; None if all parts hold."""
    match condition:
        case Check():
            return None if await _answer(condition, asking) else f"{condition} said no"
        case AllOf(parts=parts):
            for part in parts:
                denial = await _denial(part, asking)
                if denial is not None:
                    return denial
            return None
        case AnyOf(parts=parts):
            denials = []
            for part in parts:
                denial = await _denial(part, asking)
                if denial is None:
                    return None
                denials.append(denial)
            return ", ".join(denials)
        case Not(part=part):
            return f"{part} said yes" if await _denial(part, asking) is None else None
    return assert_never(condition)


async def _answer(check: Check, asking: _Asking) -> bool:
    own = check.own_method
    if own is None:
        answer = asking.find(check.predicate)(asking.job, **check.settings)
    else:
        answer = _own(check.predicate, own, asking)(**check.settings)
    if type(answer) is CoroutineType:
        answer = await asking.context.run_coroutine(answer)
    if answer is None or inspect.isawaitable(answer):
        raise TypeError(f"{check} returned {as_code(answer)}: it must return True or False")
    return bool(answer)


def _own(predicate: str, method: str, asking: _Asking) -> Callable[..., object]:
    """Return the method that ``module:Class.method`` names, of the job or of a class that is not a job."""
    kind = asking.loaded.target
    is_plain = isinstance(kind, type) and not issubclass(kind, Job)
    predicate_method = getattr(kind() if is_plain else asking.job, method, None)
    if not callable(predicate_method):
        name = kind.__qualname__ if isinstance(kind, type) else type(asking.job).__qualname__
        message = f"{predicate}: the job's class {name} has no method {method}"
        raise CannotLoad(Failure(type="taskqueue.CannotLoad", message=message))
    return partial(predicate_method, asking.job) if is_plain else predicate_method
