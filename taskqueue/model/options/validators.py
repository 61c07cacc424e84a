"""Validates option values: each check returns the stored form, or refuses without naming the option."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId

from taskqueue.errors import InvalidOption
from taskqueue.model.conditions import Condition, is_condition
from taskqueue.model.conditions import declared as condition_declared
from taskqueue.model.exception_names import names_of
from taskqueue.model.ids import TEXT_LIMIT as ID_TEXT_LIMIT
from taskqueue.model.ids import JobId, id_with_class
from taskqueue.model.limits import Declared, Limit, Rate, declared, no_condition
from taskqueue.model.record import OnCrash, OnFailure
from taskqueue.model.retry import ENDLESS, RetryPolicy, is_policy, policy
from taskqueue.model.schedules import from_now, is_relative, moment_of, seconds_of

QUEUE_SHAPE = re.compile(r"[^\s=,]{1,100}")
"""A queue's name: no spaces, and nothing that ``--work-on QUEUE=N`` would misread."""

TEXT_LIMIT = 200
"""Maximum number of characters of a tag or a unique key."""

NODE_LIMIT = 200
"""Maximum number of characters of a node's name."""

TAGS_LIMIT = 50
DEPENDENCIES_LIMIT = 1000
LIMITS_LIMIT = 5
"""Maximum number of tags of a job, jobs that it depends on, and limits that it counts under."""

COUNT_LIMIT = 1_000_000
"""The largest number of an option that counts something."""

_ANY_MOMENT = datetime.fromisoformat("2000-01-01T00:00:00+00:00")


def flag(value: Any) -> bool:
    """Return True or False."""
    if not isinstance(value, bool):
        raise InvalidOption("pass True or False")
    return value


def whole(least: int, most: int) -> Callable[[Any], int]:
    """Return the check for a whole number within these bounds."""

    def check(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise InvalidOption(f"pass a whole number from {least:,} to {most:,}")
        return value

    return check


def choice(kind: Callable[[Any], Any], words: Iterable[str]) -> Callable[[Any], Any]:
    """Return the check for one of these words, of which ``kind`` makes the stored value."""
    *others, last = map(str, words)

    def check(value: Any) -> Any:
        if value not in (*others, last):
            raise InvalidOption(f"pass {', '.join(map(repr, others))} or {last!r}")
        return kind(value)

    return check


on_crash = choice(OnCrash, OnCrash)
on_failure = choice(OnFailure, OnFailure)
on_duplicate = choice(str, ("return", "replace", "extend", "raise"))


def optional(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the check that accepts None."""
    return lambda value: None if value is None else check(value)


def time(value: Any) -> Any:
    """Return a relative time as text, for the moment of adding to resolve, anything else as UTC."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = from_now(seconds_of(value))
    moment = moment_of(value, _ANY_MOMENT)
    return value.strip() if is_relative(value) else moment


def start(value: Any) -> Any:
    """Return None for ``now``, the usual start of a job."""
    return None if value == "now" else time(value)


def retry(value: Any) -> int | RetryPolicy:
    """Return a number of attempts, or a policy, even if its document was passed."""
    if is_policy(value):
        return value
    if isinstance(value, Mapping):
        return policy(value)
    if type(value) is not int or not ENDLESS <= value <= COUNT_LIMIT:
        raise InvalidOption(
            "pass the number of further attempts, -1 for no limit, or a policy such as retry.exponential(8)"
        )
    return value


def retry_on(value: Any) -> tuple[str, ...]:
    """Return the dotted names of exception classes, sorted."""
    given = [value] if isinstance(value, str | type) else value
    if not isinstance(given, list | tuple | set | frozenset):
        raise InvalidOption("pass exception classes, or their dotted names such as 'app.errors.Refused'")
    return tuple(sorted(names_of(given))) if given else ()


def timeout(value: Any) -> float | None:
    """Return seconds, None for no end."""
    if value is None:
        return None
    return seconds_of(value) or None


def queue(value: Any) -> str:
    """Return the name of a queue."""
    if not isinstance(value, str) or not QUEUE_SHAPE.fullmatch(value):
        raise InvalidOption("pass a name of 1 to 100 characters without spaces, '=' and ','")
    return _sound(value)


def tags(value: Any) -> tuple[str, ...]:
    """Return the words, sorted and without duplicates."""
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


def display_name(value: Any) -> str | None:
    """Return the name for people, or None."""
    if value is None or (isinstance(value, str) and 1 <= len(value.strip()) <= len(value) <= ID_TEXT_LIMIT):
        return None if value is None else _sound(value)
    raise InvalidOption(f"pass text of 1 to {ID_TEXT_LIMIT} printable characters, such as 'Send an invoice'")


def node(value: Any) -> str:
    """Return the name of a node."""
    if not isinstance(value, str) or not value.strip() or len(value) > NODE_LIMIT or not value.isprintable():
        raise InvalidOption(f"pass the name of a node, 1 to {NODE_LIMIT} printable characters")
    return value


def unique(value: Any) -> str | None:
    """Return the key, or None."""
    return None if value is None else _text(value)


def period(value: Any) -> float | None:
    """Return the seconds of a period, or None."""
    seconds = None if value is None else seconds_of(value)
    if seconds is not None and seconds < 0.001:
        raise InvalidOption("pass seconds or '5m', more than 0, or leave it out")
    return seconds


def promise(value: Any) -> float:
    """Return a share of jobs."""
    if not isinstance(value, int | float) or not 0.5 <= value <= 0.99999:
        raise InvalidOption("pass a share from 0.5 to 0.99999: 0.99 for 99 of 100 jobs")
    return float(value)


def limits(value: Any) -> tuple[Declared, ...]:
    """Return the limits as they are declared."""
    given = value if isinstance(value, list | tuple) else [value]
    if len(given) > LIMITS_LIMIT:
        raise InvalidOption(f"pass up to {LIMITS_LIMIT} limits")
    for condition in filter(is_condition, given):
        raise InvalidOption(f"{condition} is a condition, not a limit: pass it in ready=")
    return tuple(declared(limit) for limit in given)


def dependencies(value: Any) -> tuple[tuple[JobId, OnFailure | None] | Condition, ...]:
    """Return ids, each with the effect of its failure if the caller names one, and conditions."""
    given = value if isinstance(value, list | tuple | set | frozenset | Mapping) else [value]
    if len(given) > DEPENDENCIES_LIMIT:
        raise InvalidOption(f"pass up to {DEPENDENCIES_LIMIT:,} jobs")
    if isinstance(given, Mapping):
        return tuple((_job(dependency), on_failure(what)) for dependency, what in given.items())
    conditions = [item for item in given if is_condition(item) or (isinstance(item, str) and _names_predicate(item))]
    ids = dict.fromkeys(_job(item) for item in given if item not in conditions)
    return (*((id, None) for id in ids), *map(condition_declared, conditions))


def receives(value: Any) -> tuple[str, ...]:
    """Return the parts of the data that are received, each as ``NAME=result``, or just the word for the whole."""
    given = [f"{name}={what}" for name, what in value.items()] if isinstance(value, Mapping) else value
    given = [given] if isinstance(given, str) else given
    if not isinstance(given, list | tuple | set | frozenset) or not all(map(_is_received, given)):
        raise InvalidOption("pass 'result' or 'results', or name the parts of the data to fill: {'page': 'result'}")
    names = [part.rpartition("=")[0] for part in given]
    if len(set(names)) < len(names) or ("" in names and len(names) > 1):
        raise InvalidOption("each part of the data is received once, and the whole data not with parts: name each once")
    return tuple(sorted(given))


def _is_received(value: object) -> bool:
    if not isinstance(value, str) or len(value) > TEXT_LIMIT or not value.isprintable():
        return False
    name, sign, what = value.rpartition("=")
    return what in ("result", "results") and bool(name) is bool(sign)


def _names_predicate(text: str) -> bool:
    return text.startswith("#") or (":" in text and id_with_class(text) is None)


def ready(value: Any) -> Condition | None:
    """Return the condition, or None."""
    return None if value is None else condition_declared(value)


def _job(value: Any) -> JobId:
    """Return the id of a job that is named by its id or by a handle on it."""
    if isinstance(value, Limit | Rate):
        raise InvalidOption(no_condition(value))
    id = job_id(value if isinstance(value, str) else getattr(value, "id", value))
    if id is None:
        raise InvalidOption("pass a Process, an ObjectId or its 24 hexadecimal digits, or several of them")
    return id


def parent(value: Any) -> JobId | None:
    """Return the id of the parent, or None."""
    return None if value is None else _job(value)


def job_id(value: Any) -> JobId | None:
    """Return the id, or None; a text may be written with its class path."""
    if value is None or isinstance(value, ObjectId):
        return value
    id = None
    if isinstance(value, str):
        id = ObjectId(value) if ObjectId.is_valid(value) else id_with_class(value)
    if id is None:
        raise InvalidOption(
            "pass a Process, an ObjectId or its 24 hexadecimal digits, or the text of the id of a job that is in the "
            "store, alone or with its class: 'shop:Invoice:invoice-7'"
        )
    return id


def new_id(value: Any) -> JobId | str | None:
    """Return the id of a new job, or the text that means it with the class of the job, or None."""
    if value is None or isinstance(value, ObjectId):
        return value
    if isinstance(value, str) and ObjectId.is_valid(value):
        return ObjectId(value)
    if isinstance(value, str) and 1 <= len(value) <= ID_TEXT_LIMIT and value.isprintable():
        return value
    raise InvalidOption(
        f"pass text of 1 to {ID_TEXT_LIMIT} printable characters, an ObjectId or its 24 hexadecimal digits; "
        "for a key that is free again when the job has ended, use unique="
    )
