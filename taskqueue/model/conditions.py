"""Conditions of a run: predicates of the user's, composed with ``&``, ``|`` and ``~``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, TypeAlias, cast

from taskqueue.errors import InvalidOption, assert_never
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.limits import Limit, Rate, no_condition
from taskqueue.model.main_module import defining_module, standard_namesake

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""The first and the longest pause, in seconds, before a job that is not ready is asked again; pauses double."""

CHECK_LIMIT = 10.0
"""Seconds that a check may take."""

FAILED_CHECKS = 5
"""How many checks in a row must fail for the job to fail."""

_OWN = "#"
_PATH_SHAPE = r"#[^\W\d]\w*|[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)?"


class _Composable:
    """Joins conditions."""

    def __and__(self, other: Condition) -> AllOf:
        """Return the condition that both hold."""
        return AllOf((*_parts(AllOf, self), *_parts(AllOf, _checked(other))))

    def __or__(self, other: Condition) -> AnyOf:
        """Return the condition that at least one of the two holds."""
        return AnyOf((*_parts(AnyOf, self), *_parts(AnyOf, _checked(other))))

    def __invert__(self) -> Not:
        """Return the condition that this one does not hold."""
        return Not(cast("Condition", self))


@dataclass(frozen=True, init=False)
class Check(_Composable):
    """A function of yours that decides whether a job may run, called with the job and ``settings`` as keywords.

    ``predicate`` is the function, its path ``"module:function"`` or ``"module:Class.method"``, or ``"#method"`` of the
    job's own class. Conditions are joined with ``&`` and ``|`` and negated with ``~``.
    """

    predicate: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __init__(self, predicate: str | Callable[..., object], /, **settings: Any) -> None:
        path = _path(predicate)
        try:
            plain = json.loads(json.dumps(settings, allow_nan=False))
        except (TypeError, ValueError) as refused:
            raise InvalidOption(f"settings of the check {path} are not plain JSON values: {refused}") from None
        object.__setattr__(self, "predicate", path)
        object.__setattr__(self, "settings", plain)

    @property
    def own_method(self) -> str | None:
        """Return the method of the job's own class that is asked, None for a predicate from elsewhere."""
        return self.predicate.removeprefix(_OWN) if self.predicate.startswith(_OWN) else None

    def __str__(self) -> str:
        """Return the check in words."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{self.predicate}({given})"


@dataclass(frozen=True)
class AllOf(_Composable):
    """Every part holds."""

    parts: tuple[Condition, ...]

    def __str__(self) -> str:
        """Return the condition in words."""
        return " and ".join(map(_word, self.parts))


@dataclass(frozen=True)
class AnyOf(_Composable):
    """At least one part holds."""

    parts: tuple[Condition, ...]

    def __str__(self) -> str:
        """Return the condition in words."""
        return " or ".join(map(_word, self.parts))


@dataclass(frozen=True)
class Not(_Composable):
    """The part does not hold."""

    part: Condition

    def __str__(self) -> str:
        """Return the condition in words."""
        return f"not {_word(self.part)}"


Condition: TypeAlias = Check | AllOf | AnyOf | Not


@dataclass(frozen=True, kw_only=True)
class NotReadyState:
    """The last "not ready" answer of a job: how often in a row, and how many of the last checks failed."""

    times: int
    errors: int
    reason: str

    @property
    def pause(self) -> float:
        """Return the seconds before the next check."""
        return min(FIRST_PAUSE * 2.0 ** min(self.times - 1, 20), LONGEST_PAUSE)


def is_condition(value: object) -> bool:
    """Return whether the value is a condition."""
    return isinstance(value, Check | AllOf | AnyOf | Not)


def both(first: Condition | None, second: Condition | None) -> Condition | None:
    """Return the condition that both hold; None means no condition."""
    if first is None or second is None:
        return first or second
    return first & second


def asks(condition: Condition, check: Check) -> bool:
    """Return whether the condition asks this check."""
    match condition:
        case Check():
            return condition == check
        case AllOf(parts=parts) | AnyOf(parts=parts):
            return any(asks(part, check) for part in parts)
        case Not(part=part):
            return asks(part, check)
    return assert_never(condition)


def declared(value: Any) -> Condition:
    """Return the condition of a value: a condition, a predicate or its path, or a ``document``."""
    if is_condition(value):
        return cast(Condition, value)
    return condition(value) if isinstance(value, Mapping) else Check(value)


def document(condition: Condition) -> dict[str, Any]:
    """Return the condition as plain JSON values."""
    match condition:
        case Check(predicate=predicate, settings=settings):
            return {"check": predicate, "settings": dict(settings)} if settings else {"check": predicate}
        case AllOf(parts=parts):
            return {"all": [document(part) for part in parts]}
        case AnyOf(parts=parts):
            return {"any": [document(part) for part in parts]}
        case Not(part=part):
            return {"not": document(part)}
    return assert_never(condition)


def condition(document: Mapping[str, Any]) -> Condition:
    """Return the condition that ``document`` described; raise ``InvalidOption`` for anything else."""
    match document:
        case {"check": predicate, "settings": dict() as settings} if len(document) == 2:
            return Check(predicate, **settings)
        case {"check": predicate} if len(document) == 1:
            return Check(predicate)
        case {"all": [_, *_] as parts} if len(document) == 1:
            return AllOf(tuple(map(condition, parts)))
        case {"any": [_, *_] as parts} if len(document) == 1:
            return AnyOf(tuple(map(condition, parts)))
        case {"not": dict() as part} if len(document) == 1:
            return Not(condition(part))
    raise InvalidOption(f"{document!r} is not a condition: write {{'check': 'module:function'}}, 'all', 'any' or 'not'")


def _path(predicate: object) -> str:
    if isinstance(predicate, str):
        if not re.fullmatch(_PATH_SHAPE, predicate):
            raise InvalidOption(f"{predicate!r} does not name a predicate: write 'module:function' or '#method'")
        return predicate
    if isinstance(predicate, Limit | Rate):
        raise InvalidOption(no_condition(predicate))
    name = getattr(predicate, "__qualname__", "")
    path = f"{defining_module(predicate)}:{name}"
    if not callable(predicate) or isinstance(predicate, type) or not re.fullmatch(_PATH_SHAPE, path):
        raise InvalidOption(
            f"{predicate!r} is not a predicate: pass a function at the top level of its module, or its path"
        )
    clash = standard_namesake(predicate)
    if clash:
        raise InvalidOption(f"predicate {name} {clash}")
    return path


def _checked(other: object) -> Condition:
    if isinstance(other, Limit | Rate):
        raise InvalidOption(no_condition(other))
    if not is_condition(other):
        raise InvalidOption(f"{other!r} is not a condition: join checks, such as Check(is_open) & ~Check(is_full)")
    return cast(Condition, other)


def _parts(kind: type[AllOf] | type[AnyOf], one: Any) -> tuple[Condition, ...]:
    return one.parts if isinstance(one, kind) else (one,)


def _word(part: Condition) -> str:
    return f"({part})" if isinstance(part, AllOf | AnyOf) else str(part)


OWN = Check("#is_ready")
"""The condition of a class that defines ``is_ready``."""
