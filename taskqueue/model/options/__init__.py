"""The options of a job: one table of names, defaults and meanings; merges the three levels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum
from typing import Any

from taskqueue.errors import InvalidOption
from taskqueue.model.options import validators
from taskqueue.model.record import OnCrash, OnFailure
from taskqueue.model.retry import RetryPolicy
from taskqueue.model.schedules import seconds_of
from taskqueue.model.schedules.series import FAILURES_LIMIT, interval, reference


class Scope(IntEnum):
    """The level that sets an option: a call for one job, a class for its own, a scheduler for all it adds."""

    ONE = 1
    CLASS = 2
    ALL = 3


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option: ``check`` returns the value as it is kept, or raises ``InvalidOption`` without naming the option."""

    check: Callable[[Any], Any]
    default: Any
    meaning: str
    scope: Scope = Scope.ALL
    """For how many jobs at most one place may set it."""


OPTIONS: Mapping[str, Option] = {
    "at": Option(
        check=validators.start,
        default=None,
        meaning="when to run: an aware datetime, unix seconds, a timedelta from now, 'now', '+1 hour' or ISO text with "
        "a zone",
    ),
    "retry": Option(
        check=validators.retry,
        default=0,
        meaning="how many further attempts after a failure; -1 is endless; or a retry policy",
    ),
    "retry_interval": Option(
        check=seconds_of, default=300.0, meaning="the pause between a failure and the next attempt: seconds or '5m'"
    ),
    "retry_on": Option(
        check=validators.retry_on,
        default=(),
        meaning="the exception classes, or their dotted names, that retry is for, subclasses included; none is all",
    ),
    "retry_on_timeout": Option(
        check=validators.flag, default=True, meaning="whether retry is also for attempts that took too long or stalled"
    ),
    "timeout": Option(
        check=validators.timeout,
        default=None,
        meaning="how long one attempt may take: seconds or '5m'; None or 0 is without end",
    ),
    "stall_timeout": Option(
        check=validators.timeout,
        default=None,
        meaning="how long an attempt may go without progress() or checkpoint(): seconds or '5m'; None or 0 is for ever",
    ),
    "priority": Option(
        check=validators.whole(-20, 20),
        default=0,
        meaning="from -20 to 20, the lower the sooner; one step is worth an hour of waiting",
    ),
    "queue": Option(
        check=validators.queue, default="default", meaning="the queue, which nodes can choose with --work-on"
    ),
    "tags": Option(check=validators.tags, default=(), meaning="words to find the job by"),
    "unique": Option(
        check=validators.unique,
        default=None,
        meaning="a key that only one pending job can have; adding returns the one that has it",
        scope=Scope.CLASS,
    ),
    "force_spawn": Option(
        check=validators.flag, default=False, meaning="run it in a worker of its own, outside the bounds of the pool"
    ),
    "crash_retries": Option(
        check=validators.whole(0, validators.COUNT_LIMIT),
        default=3,
        meaning="how often it runs again after its worker or node vanished",
    ),
    "on_crash": Option(
        check=validators.on_crash,
        default=OnCrash.RETRY,
        meaning="'retry' runs it again after a crash (at least once), 'fail' never (at most once)",
    ),
    "depends_on": Option(
        check=validators.dependencies,
        default=(),
        meaning="the jobs, or their ids, that have to be DONE first; a mapping says for each what its failure does; "
        "a list may hold checks too, as for ready",
        scope=Scope.ONE,
    ),
    "on_dependency_failure": Option(
        check=validators.on_failure,
        default=OnFailure.CANCEL,
        meaning="what a job of depends_on that ends without success does to this one: 'cancel' it, "
        "'ignore' (it runs all the same) or 'wait' (it goes on waiting)",
    ),
    "ready": Option(
        check=validators.ready,
        default=None,
        meaning="what has to hold before each run: Check(function) or its path 'module:function', or '#method' of the "
        "job's class, joined with & | ~",
    ),
    "limits": Option(
        check=validators.limits,
        default=(),
        meaning="how many may run at once or start in a time: Limit(5), Limit(5, by='bucket'), Rate(100, per=60), "
        "or text: '5 by=bucket', '100/60 name=api'",
    ),
    "parent": Option(
        check=validators.parent,
        default=None,
        meaning="the job, or its id, that this one is a part of: it is canceled with it",
        scope=Scope.ONE,
    ),
    "id": Option(
        check=validators.job_id, default=None, meaning="the id, so that adding twice is adding once", scope=Scope.ONE
    ),
    "expires": Option(
        check=validators.time,
        default=None,
        meaning="when it is too late to start it: a time as for at; '+1 hour' counts from at",
    ),
    "interval": Option(
        check=interval,
        default=None,
        meaning="how long after a run it runs again: seconds or '5m'; -1 is at once, None or 0 never",
    ),
    "interval_reference": Option(
        check=reference,
        default="end",
        meaning="what the interval counts from: the end or start of a run, or a base time as for at",
    ),
    "until": Option(
        check=validators.time, default=None, meaning="the last time at which it may run again: a time as for at"
    ),
    "max_runs": Option(
        check=validators.optional(validators.whole(1, validators.COUNT_LIMIT)),
        default=None,
        meaning="how often it runs in all, retries not counted",
    ),
    "stop_after_failures": Option(
        check=validators.optional(validators.whole(1, FAILURES_LIMIT)),
        default=None,
        meaning="how many runs in a row must have failed for it not to run again",
    ),
    "ignore_data": Option(
        check=validators.flag,
        default=False,
        meaning="for add_job_once only: jobs of one class are the same whatever their data",
    ),
}
"""Every option by its name; ``add_job``, classes, schedulers, the command line and the reference read this table."""


def checked(given: Mapping[str, Any], where: str = "add_job", scope: Scope = Scope.ONE) -> dict[str, Any]:
    """Return the options as they are kept, or raise ``InvalidOption`` naming option, value, place and way out.

    ``where`` says who set them, and ``scope`` for how many jobs: ``id``, for instance, cannot be a default of many.
    """
    return {name: _value(name, value, where, scope) for name, value in given.items()}


def _value(name: str, value: Any, where: str, scope: Scope) -> Any:
    option = OPTIONS.get(name)
    if option is None:
        raise InvalidOption(f"{where}: there is no option {name!r}{_hint(name)}")
    if scope > option.scope is Scope.ONE:
        raise InvalidOption(f"{where}: {name} belongs to one job: pass it to add_job")
    if scope > option.scope:
        raise InvalidOption(
            f"{where}: {name} is not for jobs of all classes: declare it on a class, or pass it to add_job"
        )
    try:
        return value_of(name, value)
    except InvalidOption as refused:
        raise InvalidOption(f"{where}: {refused}") from None


def value_of(name: str, value: Any) -> Any:
    """Return the value of one option as it is kept, or raise ``InvalidOption`` naming option, value and way out."""
    return named(name, value, OPTIONS[name].check)


def named(name: str, value: Any, check: Callable[[Any], Any]) -> Any:
    """Return what the check returns, or raise its ``InvalidOption`` with name and value before it, the value once."""
    try:
        return check(value)
    except InvalidOption as refused:
        said = str(refused).removeprefix(repr(value))
        raise InvalidOption(f"{name}={_short(value)}{said if said.startswith(' ') else f': {refused}'}") from None


OF_OTHERS: Mapping[str, str] = {
    "countdown": "at",
    "delay": "at",
    "eta": "at",
    "run_at": "at",
    "max_retries": "retry",
    "retries": "retry",
    "expire": "expires",
}
"""Options of other systems, with the equivalent here."""


def _hint(name: object) -> str:
    if str(name) in OF_OTHERS:
        return f": did you mean {OF_OTHERS[str(name)]}?"
    near = get_close_matches(str(name), OPTIONS, n=3)
    if near:
        return f": did you mean {' or '.join(near)}?"
    return f": use {', '.join(OPTIONS)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def merged(call: Mapping[str, Any], declared: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options, checked before: the call wins over the class, the class over the scheduler."""
    options = {**_DEFAULTS, **defaults, **declared, **call}
    if not isinstance(options["retry"], int):
        check_interval(options["retry"], call, declared, defaults)
    return options


def check_interval(policy: RetryPolicy, *levels: Mapping[str, Any]) -> None:
    """Refuse an interval that is set where the policy is, or where it would win over it: it would have no effect."""
    for level in levels:
        if "retry_interval" in level:
            raise InvalidOption(f"retry is a policy with pauses of its own ({policy}): leave out retry_interval")
        if "retry" in level:
            return


_DEFAULTS = {name: option.default for name, option in OPTIONS.items()}
