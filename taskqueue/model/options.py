"""The options of a job: one table of their names, checks, defaults and meanings, and how three levels become one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from enum import IntEnum
from typing import Any

from bson import ObjectId

from taskqueue.errors import InvalidOption
from taskqueue.model.dependency import OnFailure
from taskqueue.model.limit import Declared, declared
from taskqueue.model.readiness import Condition, is_condition
from taskqueue.model.readiness import declared as condition_declared
from taskqueue.model.record import JobId, OnCrash
from taskqueue.model.recurrence import FAILURES_LIMIT, interval, reference
from taskqueue.model.retry import ENDLESS, RetryPolicy, is_policy, policy
from taskqueue.model.retry.by_error import names_of
from taskqueue.model.schedule import is_relative, moment_of, seconds_of

QUEUE_SHAPE = re.compile(r"[^\s=,]{1,100}")
"""A queue's name: no spaces, and nothing that ``--work-on QUEUE=N`` would read otherwise."""

TEXT_LIMIT = 200
"""The most characters of a tag or a unique key."""

TAGS_LIMIT = 50
DEPENDENCIES_LIMIT = 1000
LIMITS_LIMIT = 5
COUNT_LIMIT = 1_000_000


class Scope(IntEnum):
    """For which jobs a place sets an option: a call for one, a class for its own, a scheduler for all it adds."""

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


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption("pass True or False")
    return value


def _whole(least: int, most: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise InvalidOption(f"pass a whole number from {least:,} to {most:,}")
        return value

    return check


def _optional(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else check(value)


def _time(value: Any) -> Any:
    """Return relative text as it is, for the moment of adding to resolve, anything else as UTC."""
    if value is None:
        return None
    moment = moment_of(value, _ANY_MOMENT)
    return value.strip() if is_relative(value) else moment


def _start(value: Any) -> Any:
    """Return None for ``now``, which is when a job starts anyway."""
    return None if value == "now" else _time(value)


_ANY_MOMENT = datetime.fromisoformat("2000-01-01T00:00:00+00:00")


def _retry(value: Any) -> int | RetryPolicy:
    if is_policy(value):
        return value
    if isinstance(value, Mapping):
        return policy(value)
    if type(value) is not int or not ENDLESS <= value <= COUNT_LIMIT:
        raise InvalidOption(
            "pass the number of further attempts, -1 for endlessly, or a policy such as ExponentialRetry()"
        )
    return value


def _retry_on(value: Any) -> tuple[str, ...]:
    given = [value] if isinstance(value, str | type) else value
    if not isinstance(given, list | tuple | set | frozenset):
        raise InvalidOption("pass exception classes, or their dotted names such as 'app.errors.Refused'")
    return tuple(sorted(names_of(given))) if given else ()


def _timeout(value: Any) -> float | None:
    if value is None:
        return None
    return seconds_of(value) or None


def _queue(value: Any) -> str:
    if not isinstance(value, str) or not QUEUE_SHAPE.fullmatch(value):
        raise InvalidOption("pass a name of 1 to 100 characters without spaces, '=' and ','")
    return _sound(value)


def _tags(value: Any) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, (list, tuple, set, frozenset)) or len(given) > TAGS_LIMIT:
        raise InvalidOption(f"pass a list of up to {TAGS_LIMIT} texts")
    return tuple(sorted({_text(tag) for tag in given}))


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= TEXT_LIMIT:
        raise InvalidOption(f"pass text of 1 to {TEXT_LIMIT} characters")
    return _sound(value)


def _sound(value: str) -> str:
    if not value.isprintable():
        raise InvalidOption("pass text of printable characters")
    return value


def _unique(value: Any) -> str | None:
    return None if value is None else _text(value)


def _on_crash(value: Any) -> OnCrash:
    try:
        return OnCrash(value)
    except ValueError:
        raise InvalidOption("pass 'retry' or 'fail'") from None


def _limits(value: Any) -> tuple[Declared, ...]:
    given = value if isinstance(value, list | tuple) else [value]
    if len(given) > LIMITS_LIMIT:
        raise InvalidOption(f"pass up to {LIMITS_LIMIT} limits")
    return tuple(declared(one) for one in given)


def _on_failure(value: Any) -> OnFailure:
    try:
        return OnFailure(value)
    except ValueError:
        raise InvalidOption("pass 'cancel', 'ignore' or 'wait'") from None


def _dependencies(value: Any) -> tuple[tuple[JobId, OnFailure | None] | Condition, ...]:
    """Return ids, each with what its failure does where the caller has said so for this one, and conditions (LZQ-7)."""
    given = value if isinstance(value, list | tuple | set | frozenset | Mapping) else [value]
    if len(given) > DEPENDENCIES_LIMIT:
        raise InvalidOption(f"pass up to {DEPENDENCIES_LIMIT:,} jobs")
    if isinstance(given, Mapping):
        return tuple((_job(one), _on_failure(what)) for one, what in given.items())
    conditions = [one for one in given if is_condition(one) or (isinstance(one, str) and _names_predicate(one))]
    ids = dict.fromkeys(_job(one) for one in given if one not in conditions)
    return (*((id, None) for id in ids), *map(condition_declared, conditions))


def _names_predicate(text: str) -> bool:
    return text.startswith("#") or ":" in text


def _ready(value: Any) -> Condition | None:
    return None if value is None else condition_declared(value)


def _job(value: Any) -> JobId:
    """Return the id of a job that is named by its id or by a handle on it."""
    id = _id(value if isinstance(value, str) else getattr(value, "id", value))
    if id is None:
        raise InvalidOption("pass a Process, an ObjectId or its 24 hexadecimal digits, or several of them")
    return id


def _parent(value: Any) -> JobId | None:
    return None if value is None else _job(value)


def _id(value: Any) -> JobId | None:
    if value is None or isinstance(value, ObjectId):
        return value
    if isinstance(value, str) and ObjectId.is_valid(value):
        return ObjectId(value)
    raise InvalidOption("pass an ObjectId or its 24 hexadecimal digits")


OPTIONS: Mapping[str, Option] = {
    "at": Option(
        check=_start,
        default=None,
        meaning="when to run: an aware datetime, unix seconds, 'now', '+1 hour' or ISO text with a zone",
    ),
    "retry": Option(
        check=_retry, default=0, meaning="how many further attempts after a failure; -1 is endless; or a retry policy"
    ),
    "retry_interval": Option(
        check=seconds_of, default=300.0, meaning="the pause between a failure and the next attempt: seconds or '5m'"
    ),
    "retry_on": Option(
        check=_retry_on,
        default=(),
        meaning="the exception classes, or their dotted names, that retry is for, subclasses included; none is all",
    ),
    "retry_on_timeout": Option(
        check=_flag, default=True, meaning="whether retry is also for attempts that took too long or stalled"
    ),
    "timeout": Option(
        check=_timeout, default=None, meaning="how long one attempt may take: seconds or '5m'; None or 0 is without end"
    ),
    "stall_timeout": Option(
        check=_timeout,
        default=None,
        meaning="how long an attempt may go without progress() or checkpoint(): seconds or '5m'; None or 0 is for ever",
    ),
    "priority": Option(
        check=_whole(-20, 20),
        default=0,
        meaning="from -20 to 20, the lower the sooner; one step is worth an hour of waiting",
    ),
    "queue": Option(check=_queue, default="default", meaning="the queue, which nodes can choose with --work-on"),
    "tags": Option(check=_tags, default=(), meaning="words to find the job by"),
    "unique": Option(
        check=_unique,
        default=None,
        meaning="a key that only one pending job can have; adding returns the one that has it",
        scope=Scope.CLASS,
    ),
    "force_spawn": Option(
        check=_flag, default=False, meaning="run it in a worker of its own, outside the bounds of the pool"
    ),
    "crash_retries": Option(
        check=_whole(0, COUNT_LIMIT), default=3, meaning="how often it runs again after its worker or node vanished"
    ),
    "on_crash": Option(
        check=_on_crash,
        default=OnCrash.RETRY,
        meaning="'retry' runs it again after a crash (at least once), 'fail' never (at most once)",
    ),
    "depends_on": Option(
        check=_dependencies,
        default=(),
        meaning="the jobs, or their ids, that have to be DONE first; a mapping says for each what its failure does; "
        "a list may hold checks too, as for ready",
        scope=Scope.ONE,
    ),
    "on_dependency_failure": Option(
        check=_on_failure,
        default=OnFailure.CANCEL,
        meaning="what a job of depends_on that ends without success does to this one: 'cancel' it, "
        "'ignore' (it runs all the same) or 'wait' (it goes on waiting)",
    ),
    "ready": Option(
        check=_ready,
        default=None,
        meaning="what has to hold before each run: Check(function) or its path 'module:function', or '#method' of the "
        "job's class, joined with & | ~",
    ),
    "limits": Option(
        check=_limits,
        default=(),
        meaning="how many may run at once or start in a time: Limit(5), Limit(5, by='bucket'), Rate(100, per=60), "
        "or text: '5 by=bucket', '100/60 name=api'",
    ),
    "parent": Option(
        check=_parent,
        default=None,
        meaning="the job, or its id, that this one is a part of: it is canceled with it",
        scope=Scope.ONE,
    ),
    "id": Option(check=_id, default=None, meaning="the id, so that adding twice is adding once", scope=Scope.ONE),
    "expires": Option(
        check=_time, default=None, meaning="when it is too late to start it: a time as for at; '+1 hour' counts from at"
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
    "until": Option(check=_time, default=None, meaning="the last time at which it may run again: a time as for at"),
    "max_runs": Option(
        check=_optional(_whole(1, COUNT_LIMIT)), default=None, meaning="how often it runs in all, retries not counted"
    ),
    "stop_after_failures": Option(
        check=_optional(_whole(1, FAILURES_LIMIT)),
        default=None,
        meaning="how many runs in a row must have failed for it not to run again",
    ),
    "ignore_data": Option(
        check=_flag, default=False, meaning="for add_job_once only: jobs of one class are the same whatever their data"
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
    try:
        return OPTIONS[name].check(value)
    except InvalidOption as refused:
        raise naming(name, value, refused) from None


def naming(name: str, value: object, refused: InvalidOption) -> InvalidOption:
    """Return the refusal with the name of what was refused; the value stands there once."""
    said = str(refused).removeprefix(repr(value))
    return InvalidOption(f"{name}={_short(value)}{said if said.startswith(' ') else f': {refused}'}")


def _hint(name: object) -> str:
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
        _check_interval(options["retry"], call, declared, defaults)
    return options


def _check_interval(policy: RetryPolicy, *levels: Mapping[str, Any]) -> None:
    """Refuse an interval that is set where the policy is, or where it would win over it: it would have no effect."""
    for level in levels:
        if "retry_interval" in level:
            raise InvalidOption(f"retry is a policy with pauses of its own ({policy}): leave out retry_interval")
        if "retry" in level:
            return


_DEFAULTS = {name: option.default for name, option in OPTIONS.items()}
