"""Describes the errors of users' code in words that can be stored: cut to size, and without passwords."""

from __future__ import annotations

import traceback
from dataclasses import replace
from typing import Any

from taskqueue.execution.exception_groups import Leaf, leaves, related
from taskqueue.model.job import AwaitChildren, Fail, Interrupted, Retry, RunFacilities, Snooze
from taskqueue.model.job_path import dotted
from taskqueue.model.other_systems import OF_JOBS
from taskqueue.model.record import Failure
from taskqueue.model.serializer import clean
from taskqueue.model.stepwise import StepOver
from taskqueue.store.redaction import concealed_in

MESSAGE_LIMIT = 8 * 1024
"""Maximum number of characters of an error message that are stored."""

TRACEBACK_LIMIT = 32 * 1024
"""Maximum number of characters of a traceback that are stored; the last ones are kept."""

PARTS_LIMIT = 50
"""Maximum number of classes of errors of one group that a retry policy is asked about."""

_AROUND_JOBS = {
    "taskqueue.execution.executor",
    "taskqueue.execution.event_loop",
    "taskqueue.execution.job_context",
    "taskqueue.execution.run_hooks",
    "taskqueue.daemon.worker.concurrent_run",
    "taskqueue.daemon.worker.worker_context",
    "taskqueue.daemon.worker.watched_loop",
    "taskqueue.scheduler.task",
    "asyncio.base_events",
    "asyncio.events",
}
"""The modules whose frames come before the job's own frames in a traceback."""

_BEHIND_JOBS = "taskqueue.daemon.worker.interrupts"
"""The module whose frames come after the job's, because it raises the interrupt."""

CONTROLS = (AwaitChildren, Snooze, StepOver)
"""The exceptions with which a job continues later."""

INSTRUCTIONS = (Fail, Retry, AwaitChildren, Snooze, StepOver, Interrupted)
"""The exceptions that say how a run ends, even from within a group, where the first kind in this order counts."""


def errors_shown(error: BaseException) -> list[Leaf]:
    """Return the errors that matter: in a group, the instructions of the first kind present, or else all errors."""
    every = leaves(error)
    kinds = ([leaf for leaf in every if isinstance(leaf.error, kind)] for kind in INSTRUCTIONS)
    return next(filter(None, kinds), every)


def brief(error: BaseException) -> str:
    """Return the error of code that has ended in one line; its type if it has no message."""
    return with_type(error, _final_message_of(error))


def with_type(error: BaseException, message: str) -> str:
    """Return the message after the type of its error; the type alone if the message is empty."""
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def failure_of(error: BaseException) -> Failure:
    """Describe the error in words that need no import, cut to size and without the passwords in URLs.

    A group is described by its errors if they are of one class; its traceback has all of them.
    """
    shown = errors_shown(error)
    failure = _named(shown[0] if len({type(leaf.error) for leaf in shown}) == 1 else Leaf(error))
    if len(shown) > 1:
        failure = replace(failure, message=_joined(shown))
    return replace(failure, traceback=traceback_of(error))


def traceback_of(error: BaseException) -> str:
    """Return the traceback as it is stored: from the job's code on, cut to size, without the passwords in URLs."""
    _leave_out_interrupts(error)
    lines = traceback.format_exception(type(error), error, _of_the_job(error))
    return clean(concealed_in("".join(lines)))[-TRACEBACK_LIMIT:]


def parts_of(error: BaseException) -> tuple[Failure, ...]:
    """Return one error of each class in a group, without tracebacks; nothing if there is only one class."""
    parts = tuple({type(leaf.error): _named(leaf) for leaf in reversed(leaves(error))}.values())[::-1]
    return parts[:PARTS_LIMIT] if len(parts) > 1 else ()


def _named(leaf: Leaf) -> Failure:
    """Return the class, the message and the bases of an error; the bases include the groups that contain it."""
    kind, *bases = map(dotted, leaf.classes)
    return Failure(type=kind, message=kept(_final_message_of(leaf.error)), bases=tuple(bases))


def kept(message: str) -> str:
    """Return a message of the user's code as it is stored: cut to size, and without the passwords in URLs."""
    return clean(concealed_in(message))[:MESSAGE_LIMIT]


def _way_of(error: BaseException) -> str:
    """Return advice on an attribute that jobs of another system have; empty for other errors."""
    if not isinstance(error, AttributeError) or not isinstance(error.obj, RunFacilities):
        return ""
    way = OF_JOBS.get(error.name or "")
    return f": {way}" if way else ""


def _joined(shown: list[Leaf]) -> str:
    """Return the distinct messages of several errors."""
    is_mixed = len({type(leaf.error) for leaf in shown}) > 1
    messages = dict.fromkeys(brief(leaf.error) if is_mixed else _final_message_of(leaf.error) for leaf in shown)
    return kept(f"{len(shown)} errors: {'; '.join(messages)}")


def _of_the_job(error: BaseException) -> Any:
    """Return the traceback without the frames that lead to the job's code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") in _AROUND_JOBS:
        trace = trace.tb_next
    return trace


def _leave_out_interrupts(error: BaseException) -> None:
    """Cut the tracebacks of the error, and of all errors shown with it, so that they end with the job's code."""
    for shown in related(error):
        last = trace = shown.__traceback__
        while trace is not None:
            if trace.tb_frame.f_globals.get("__name__") != _BEHIND_JOBS:
                last = trace
            trace = trace.tb_next
        if last is not None:
            last.tb_next = None


def message_of(error: BaseException) -> str:
    """Return the message of an error; words about its class if its ``__str__`` fails.

    ``__str__`` is user code: an interrupt or an exit in it is raised.
    """
    try:
        return f"{error}{_way_of(error)}"
    except Exception as broken:
        return _without_message(broken)


def _final_message_of(error: BaseException) -> str:
    """Return the message of an error that ends a run, whatever its ``__str__`` raises."""
    try:
        return message_of(error)
    except BaseException as broken:
        return _without_message(broken)


def _without_message(broken: BaseException) -> str:
    return f"(its __str__ raised {type(broken).__name__})"
