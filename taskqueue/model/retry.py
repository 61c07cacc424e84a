"""Retry policies as values: given a failed attempt, when the job runs again, if at all.

A policy is asked with a ``Situation`` and answers with a ``Decision``; both cross processes as JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Protocol, TypeAlias, TypeGuard

from taskqueue.errors import InvalidOption
from taskqueue.model.exception_names import check_names, defining_name
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.shown_text import as_code
from taskqueue.model.wording import percent

LONGEST_PAUSE = 10 * 366 * 86_400.0
"""The longest pause in seconds: formulas that grow beyond it would leave the calendar."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """A failed attempt as a policy sees it. Times are aware UTC."""

    failures: int
    """Failed attempts so far, this one included, from 1."""
    created_at: datetime
    """When the job was added."""
    due_at: datetime
    """When it was first due."""
    now: datetime
    """The current time, by the store's clock."""
    errors: tuple[str, ...] = ()
    """Dotted names of the error's class and of its bases, the class first; empty when nothing has failed yet."""
    message: str = ""
    """The error's message."""
    timed_out: bool = False
    """Whether the attempt took too long, or stalled."""
    chance: float = 0.0
    """A number from 0 up to 1, for jitter."""

    def is_a(self, name: str) -> bool:
        """Return whether the error is of the class with this dotted name, or of one derived from it.

        Any name under which a loaded module has the class will do: ``requests.Timeout``.
        """
        return name in self.errors or defining_name(name) in self.errors


class Refusal(str, Enum):
    """Why there is no further attempt."""

    SPENT = "spent"
    NOT_RETRIABLE = "not_retriable"
    UNDECIDED = "undecided"


@dataclass(frozen=True, kw_only=True)
class RetryIn:
    """Try again ``after`` this many seconds, in another ``queue`` if one is named."""

    after: float
    queue: str | None = None


@dataclass(frozen=True, kw_only=True)
class GiveUp:
    """Do not try again, for this ``reason``."""

    refusal: Refusal = Refusal.SPENT
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class AskWorker:
    """Ask the user's class, in the worker that ran the attempt."""

    path: str
    settings: Mapping[str, Any]


Decision: TypeAlias = RetryIn | GiveUp | AskWorker


def strictest(decisions: Iterable[Decision]) -> Decision:
    """Return the decision on several errors of one attempt: the first refusal, or else the longest pause."""
    pauses: list[RetryIn] = []
    for decision in decisions:
        if not isinstance(decision, RetryIn):
            return decision
        pauses.append(decision)
    return max(pauses, key=lambda pause: pause.after)


class RetryPolicy(Protocol):
    """A decision about failed attempts; evaluated wherever the outcome is known, so it imports nothing."""

    def decide(self, situation: Situation) -> Decision:
        """Return the decision after a failed attempt."""

    def is_last(self, situation: Situation) -> bool:
        """Return whether a failure of attempt number ``failures`` will be the last; its error is not known yet."""

    def document(self) -> dict[str, Any]:
        """Return the policy as plain JSON values, for ``policy`` to read back."""

    def __str__(self) -> str:
        """Return the policy in words, for ``why``."""


def decision_document(decision: RetryIn | GiveUp) -> dict[str, Any]:
    """Return the decision as plain JSON values."""
    match decision:
        case RetryIn(after=after, queue=queue):
            return {"after": after, "queue": queue}
        case GiveUp(refusal=refusal, reason=reason):
            return {"refusal": refusal.value, "reason": reason}


def decision_of(document: Mapping[str, Any]) -> RetryIn | GiveUp:
    """Return the decision that ``decision_document`` described."""
    if "after" in document:
        return RetryIn(after=document["after"], queue=document["queue"])
    return GiveUp(refusal=Refusal(document["refusal"]), reason=document["reason"])


def within(created_at: datetime, seconds: float, now: datetime) -> bool:
    """Return whether at most that many seconds have passed, the bound included."""
    return created_at >= now - timedelta(seconds=seconds)


ENDLESS = -1


@dataclass(frozen=True)
class FixedRetry:
    """A number of further attempts, always after the same pause."""

    times: int = 0
    """Further attempts after the first; -1 is endless."""
    interval: float = 300.0
    """Seconds between a failure and the next attempt."""

    def __post_init__(self) -> None:
        _whole("times", self.times)
        check_seconds("interval", self.interval)

    def decide(self, situation: Situation) -> Decision:
        """Return the pause while attempts are left."""
        return GiveUp() if self.is_last(situation) else RetryIn(after=self.interval)

    def is_last(self, situation: Situation) -> bool:
        """Return whether no attempt is left after this many failures."""
        return self.times != ENDLESS and situation.failures > self.times

    def document(self) -> dict[str, Any]:
        """Return the policy as plain JSON values."""
        return {"policy": "fixed", **asdict(self)}

    def __str__(self) -> str:
        """Return the policy in words."""
        if self.times == 0:
            return "no retry"
        return f"retry {_often(self.times)}, {'after' if self.times == 1 else 'every'} {self.interval:g} s"


@dataclass(frozen=True)
class ExponentialRetry:
    """A number of further attempts, each after twice the previous pause: ``interval * 2 ** (n - 1)`` seconds."""

    times: int = 5
    interval: float = 30.0
    factor: float = 2.0
    longest: float | None = 86_400.0
    """The pause never exceeds this, in seconds; None means no limit (except ten years)."""
    jitter: float = 0.0
    """Each pause is shortened at random by up to this fraction (0 to 1), so that jobs that failed together spread."""

    def __post_init__(self) -> None:
        _whole("times", self.times)
        check_seconds("interval", self.interval)
        if self.longest is not None:
            check_seconds("longest", self.longest)
        if isinstance(self.factor, bool) or not isinstance(self.factor, (int, float)) or not 1 <= self.factor <= 100:
            raise InvalidOption(f"factor={as_code(self.factor)} of a retry policy: pass a number between 1 and 100")
        if isinstance(self.jitter, bool) or not isinstance(self.jitter, (int, float)) or not 0 <= self.jitter <= 1:
            raise InvalidOption(f"jitter={as_code(self.jitter)} of a retry policy: pass a number between 0 and 1")

    @classmethod
    def for_an_interval(cls, seconds: float, interval: float) -> ExponentialRetry:
        """Return a policy whose pauses, from ``interval`` on, add up to about ``seconds``.

        There are ``round(log2(seconds / interval))`` further attempts, a half rounded up, and no longest pause.
        """
        check_seconds("seconds", seconds)
        check_seconds("interval", interval)
        if not seconds or not interval:
            raise InvalidOption(f"for_an_interval({seconds:g}, {interval:g}): both must be more than 0 seconds")
        doublings = math.log2(seconds / interval)
        return cls(times=max(0, math.floor(doublings + 0.5)), interval=interval, longest=None)

    def decide(self, situation: Situation) -> Decision:
        """Return the growing pause while attempts are left."""
        if self.is_last(situation):
            return GiveUp()
        # Beyond a hundred steps of any factor but 1 the bound has been reached; without it floats would overflow.
        grown = self.interval * self.factor ** min(situation.failures - 1, 100)
        pause = min(grown, LONGEST_PAUSE if self.longest is None else self.longest)
        return RetryIn(after=pause * (1 - self.jitter * situation.chance))

    def is_last(self, situation: Situation) -> bool:
        """Return whether no attempt is left after this many failures."""
        return self.times != ENDLESS and situation.failures > self.times

    def document(self) -> dict[str, Any]:
        """Return the policy as plain JSON values."""
        return {"policy": "exponential", **asdict(self)}

    def __str__(self) -> str:
        """Return the policy in words."""
        growing = f"after {self.interval:g} s and then {self.factor:g} times longer"
        bound = "" if self.longest is None else f", at most {self.longest:g} s"
        spread = f", up to {percent(self.jitter)} of it cut off at random" if self.jitter else ""
        return f"retry {_often(self.times)}, {growing}{bound}{spread}"


def check_seconds(name: str, value: object) -> None:
    """Raise ``InvalidOption`` unless the value is a number of seconds between 0 and ten years."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LONGEST_PAUSE:
        raise InvalidOption(f"{name}={as_code(value)} of a retry policy: pass seconds between 0 and ten years")


def _whole(name: str, value: object) -> None:
    if type(value) is not int or value < ENDLESS:
        raise InvalidOption(f"{name}={as_code(value)} of a retry policy: pass a whole number, {ENDLESS} or more")


def _often(times: int) -> str:
    return {ENDLESS: "endlessly", 1: "once", 2: "twice"}.get(times, f"{times} times")


NO_RETRY = FixedRetry()


Row = tuple[float, float]

DEFAULT_TABLE: tuple[Row, ...] = ((300.0, 60.0), (3600.0, 300.0), (86_400.0, 3600.0))
"""Up to 5 minutes each minute, up to an hour each 5 minutes, up to a day each hour."""


@dataclass(frozen=True)
class TableRetry:
    """Rows of (age, pause) in seconds: the first row whose age the job has not passed gives the pause; none gives up.

    An attempt that fails exactly at an age still belongs to its row.
    """

    rows: tuple[Row, ...] = DEFAULT_TABLE
    since: str = "due"
    """The start of the age: ``due``, when the job was first due, or ``created``, when it was added."""

    def __post_init__(self) -> None:
        if self.since not in ("due", "created"):
            raise InvalidOption(f"since={as_code(self.since)} of a retry policy: pass 'due' or 'created'")
        if not self.rows:
            raise InvalidOption("a time table of a retry policy has no rows: pass at least one, such as {'1h': '5m'}")
        last = 0.0
        for age, pause in self.rows:
            check_seconds("age", age)
            check_seconds("pause", pause)
            if age <= last:
                raise InvalidOption(f"age={age:g} of a retry policy: ages must grow from row to row, the first from 0")
            if not 0 < pause <= age:
                raise InvalidOption(
                    f"pause={pause:g} of a retry policy: pass more than 0, and no more than the age {age:g}"
                )
            last = age

    def decide(self, situation: Situation) -> Decision:
        """Return the pause of the first row that the job's age is in."""
        start = self._start(situation)
        for age, pause in self.rows:
            if within(start, age, situation.now):
                return RetryIn(after=pause)
        return GiveUp()

    def is_last(self, situation: Situation) -> bool:
        """Return whether the job is older than the last row."""
        return not within(self._start(situation), self.rows[-1][0], situation.now)

    def document(self) -> dict[str, Any]:
        """Return the policy as plain JSON values."""
        return {"policy": "table", "rows": [list(row) for row in self.rows], "since": self.since}

    def __str__(self) -> str:
        """Return the policy in words."""
        rows = ", ".join(f"every {pause:g} s up to an age of {age:g} s" for age, pause in self.rows)
        return f"retry {rows}"

    def _start(self, situation: Situation) -> datetime:
        return situation.due_at if self.since == "due" else situation.created_at


_NOT_RETRIABLE = GiveUp(refusal=Refusal.NOT_RETRIABLE)


@dataclass(frozen=True)
class FilteredRetry:
    """Applies another policy to errors of some types only; a timeout is left to that policy."""

    policy: RetryPolicy
    types: tuple[str, ...] = ("Exception",)
    """Dotted names of classes; their subclasses count too."""
    defined: tuple[str, ...] = field(default=(), compare=False)
    """The names of these classes in the modules that define them, as far as the client had loaded them."""

    def __post_init__(self) -> None:
        check_policy(self.policy)
        check_names(self.types)

    def decide(self, situation: Situation) -> Decision:
        """Return the other policy's decision, if the error is one of the types."""
        if situation.timed_out or any(map(situation.is_a, (*self.types, *self.defined))):
            return self.policy.decide(situation)
        return _NOT_RETRIABLE

    def is_last(self, situation: Situation) -> bool:
        """Return the other policy's answer."""
        return self.policy.is_last(situation)

    def document(self) -> dict[str, Any]:
        """Return the policy as plain JSON values."""
        return {"policy": "filtered", **_named(self), "inner": self.policy.document()}

    def __str__(self) -> str:
        """Return the policy in words."""
        return f"{self.policy}, after {' or '.join(self.types)} only"


@dataclass(frozen=True)
class Case:
    """A policy for errors of some types."""

    types: tuple[str, ...]
    policy: RetryPolicy
    defined: tuple[str, ...] = field(default=(), compare=False)
    """As of ``FilteredRetry``."""

    def __post_init__(self) -> None:
        check_policy(self.policy)
        check_names(self.types)


@dataclass(frozen=True)
class SelectedRetry:
    """The first case that has the type of the error decides; if there is none, there is no retry."""

    cases: tuple[Case, ...]

    def __post_init__(self) -> None:
        if not self.cases:
            raise InvalidOption("a retry policy by exception has no cases: pass at least one when(…).then(…)")
        for case in self.cases:
            if not isinstance(case, Case):
                raise InvalidOption(f"{as_code(case)} is not a case of a retry policy: pass when(…).then(…)")

    def decide(self, situation: Situation) -> Decision:
        """Return the decision of the first case that fits."""
        for case in self.cases:
            if any(map(situation.is_a, (*case.types, *case.defined))):
                return case.policy.decide(situation)
        return _NOT_RETRIABLE

    def is_last(self, situation: Situation) -> bool:
        """Return whether every policy says so."""
        return all(case.policy.is_last(situation) for case in self.cases)

    def document(self) -> dict[str, Any]:
        """Return the policy as plain JSON values."""
        return {
            "policy": "selected",
            "cases": [{**_named(case), "inner": case.policy.document()} for case in self.cases],
        }

    def __str__(self) -> str:
        """Return the policy in words."""
        return "; ".join(f"after {' or '.join(case.types)}: {case.policy}" for case in self.cases)


def _named(bound: FilteredRetry | Case) -> dict[str, list[str]]:
    """Return the names of the classes as plain JSON values."""
    return {"types": list(bound.types), **({"defined": list(bound.defined)} if bound.defined else {})}


def check_policy(policy: object) -> None:
    """Raise ``InvalidOption`` for a value that cannot decide; a class of the user's is named by ``custom``."""
    if isinstance(policy, type):
        raise InvalidOption(
            f"{policy.__qualname__} is a class, not a retry policy: pass retry.custom({policy.__name__})"
        )
    if not callable(getattr(policy, "decide", None)):
        raise InvalidOption(f"{as_code(policy)} is not a retry policy: pass one such as retry.exponential(8)")


_PATH_SHAPE = r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*"


@dataclass(frozen=True)
class CustomRetry:
    """A class of your own, ``module:Class``, made with ``settings`` as keyword arguments.

    Its ``decide(situation)`` returns seconds, ``RetryIn``, ``GiveUp``, or None to give up; it may have
    ``is_last(situation)``.
    """

    path: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not re.fullmatch(_PATH_SHAPE, self.path):
            raise InvalidOption(f"{self.path!r} is not an import path of a retry policy: write 'module:Class'")
        try:
            plain = json.loads(json.dumps(self.settings, allow_nan=False))
        except (TypeError, ValueError) as refused:
            raise InvalidOption(
                f"settings of the retry policy {self.path} are not plain JSON values: {refused}"
            ) from None
        object.__setattr__(self, "settings", plain)

    def decide(self, _situation: Situation) -> Decision:
        """Return that the class must be asked."""
        return AskWorker(path=self.path, settings=self.settings)

    def is_last(self, _situation: Situation) -> bool:
        """Return False: the class is not asked here."""
        return False

    def document(self) -> dict[str, Any]:
        """Return the policy as plain JSON values."""
        return {"policy": "custom", "path": self.path, "settings": dict(self.settings)}

    def __str__(self) -> str:
        """Return the policy in words."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"retry as {self.path}({given}) decides"


_KINDS = (FixedRetry, ExponentialRetry, TableRetry, FilteredRetry, SelectedRetry, CustomRetry)


def is_policy(value: object) -> TypeGuard[RetryPolicy]:
    """Return whether the value is a policy that can be kept with a job."""
    return isinstance(value, _KINDS)


def asks_a_class(policy: RetryPolicy) -> bool:
    """Return whether the decision may be up to a class of the user's."""
    match policy:
        case CustomRetry():
            return True
        case FilteredRetry(policy=inner):
            return asks_a_class(inner)
        case SelectedRetry(cases=cases):
            return any(asks_a_class(case.policy) for case in cases)
    return False


def named_errors(policy: RetryPolicy) -> tuple[str, ...]:
    """Return the names of exceptions that the decision depends on, as they were given."""
    match policy:
        case FilteredRetry(policy=inner, types=types):
            return (*types, *named_errors(inner))
        case SelectedRetry(cases=cases):
            return tuple(name for case in cases for name in (*case.types, *named_errors(case.policy)))
    return ()


def policy(document: Mapping[str, Any]) -> RetryPolicy:
    """Return the policy that ``RetryPolicy.document`` described; raise ``InvalidOption`` for anything else."""
    fields = dict(document)
    name = fields.pop("policy", None)
    if name not in _READERS:
        raise InvalidOption(f"{name!r} is not a retry policy: use {', '.join(_READERS)}")
    try:
        return _READERS[name](fields)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InvalidOption):
            raise
        raise InvalidOption(f"the retry policy {name!r} does not have these fields: {sorted(fields)}") from None


def _table(fields: Mapping[str, Any]) -> TableRetry:
    rows = tuple((float(age), float(pause)) for age, pause in fields["rows"])
    return TableRetry(rows, **{name: value for name, value in fields.items() if name != "rows"})


def _filtered(fields: Mapping[str, Any]) -> FilteredRetry:
    return FilteredRetry(policy(fields["inner"]), tuple(fields["types"]), tuple(fields.get("defined", ())))


def _selected(fields: Mapping[str, Any]) -> SelectedRetry:
    return SelectedRetry(tuple(map(_case, fields["cases"])))


def _case(fields: Mapping[str, Any]) -> Case:
    return Case(tuple(fields["types"]), policy(fields["inner"]), tuple(fields.get("defined", ())))


_READERS: Mapping[str, Callable[[Mapping[str, Any]], RetryPolicy]] = {
    "fixed": lambda fields: FixedRetry(**fields),
    "exponential": lambda fields: ExponentialRetry(**fields),
    "table": _table,
    "filtered": _filtered,
    "selected": _selected,
    "custom": lambda fields: CustomRetry(**fields),
}
