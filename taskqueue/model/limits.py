"""Limits: how many jobs run at once, or start in a period, as users declare them and as a record keeps them."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from types import NoneType
from typing import Any, NamedTuple, NoReturn, TypeAlias

from taskqueue.errors import InvalidOption
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.schedules import seconds_of
from taskqueue.model.shown_text import as_code
from taskqueue.model.timestamps import CLOCKS_APART

COUNT_LIMIT = 10_000
"""Maximum number of jobs that a limit can allow; the store keeps an entry for each running one."""

MOST_CONCURRENT = 1_000
"""Maximum number of jobs that one worker can run at once; each has a page of shared memory."""

_AT_A_WORKER = "concurrency:"
"""Prefix of the entry of a lane that is not a limit: how many jobs of the class one worker runs at once."""

LONGEST = 31 * 86_400.0
"""The longest time that a rate can count over, in seconds."""

KEY_LIMIT = 200
"""Maximum number of characters of a key; in a longer one the values of the data are kept by their hash."""

LEEWAY = 0.25
"""Seconds that may pass between the report that a job starts and its first statement on a busy machine."""

_NAME = r"[^\s=:\ud800-\udfff]{1,100}"
_TEXT = r"(?P<count>\d{1,19})(/(?P<per>\S+))?(\s+by=(?P<by>\S+))?(\s+name=(?P<name>\S+))?"


class _NoCondition:
    """Refuses to be joined like a condition; a type checker refuses every operand."""

    def __and__(self, other: NoReturn) -> NoReturn:
        """Raise ``InvalidOption``."""
        raise InvalidOption(no_condition(self))

    __or__ = __rand__ = __ror__ = __and__

    def __invert__(self) -> NoReturn:
        """Raise ``InvalidOption``."""
        raise InvalidOption(no_condition(self))


@dataclass(frozen=True)
class Limit(_NoCondition):
    """At most ``count`` jobs of the class run at once, in the whole cluster.

    With ``by``, a key of the job's data (``"bucket"``, ``"customer.id"``, or a list of such keys), this many for each
    value of the key. With ``name``, all jobs that declare a limit of this name share it.
    """

    count: int
    by: str | tuple[str, ...] | list[str] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        _check(self)

    def __str__(self) -> str:
        return f"{self.count}{_scope(self)}"


@dataclass(frozen=True)
class Rate(_NoCondition):
    """At most ``count`` jobs of the class start in any ``per`` seconds, in the whole cluster.

    ``by`` and ``name`` are as in ``Limit``.
    """

    count: int
    per: float
    by: str | tuple[str, ...] | list[str] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        _check(self)
        seconds = seconds_of(self.per)
        if not 0.001 <= seconds <= LONGEST:
            raise InvalidOption(f"Rate(per={self.per!r}): pass seconds from 0.001 to {LONGEST:,.0f}")
        object.__setattr__(self, "per", seconds)

    def __str__(self) -> str:
        return f"{self.count}/{self.per:.15g}{_scope(self)}"


Declared: TypeAlias = Limit | Rate


class Family(NamedTuple):
    """A limit's declaration without its number: the same for all values that it counts by."""

    scope: str
    """The class, or ``name=NAME``."""
    per: float | None = None
    """The seconds over which a rate counts; None for a limit of running jobs."""
    by: tuple[str, ...] = ()
    """The keys of the data that it counts by."""

    @classmethod
    def of(cls, text: str) -> Family:
        """Return the family that the text describes, as controls and keys have it."""
        kind, _, rest = text.partition(":")
        scope, _, by = rest.partition(" by=")
        try:
            per = None if kind == "limit" else float(kind.removeprefix("rate/"))
        except ValueError:  # the text is damaged
            per = None
        return cls(scope, per, tuple(by.split(",")) if by else ())

    @property
    def declaration(self) -> str:
        """Return its scope and keys, as people write them."""
        return f"{self.scope} by={','.join(self.by)}" if self.by else self.scope

    @property
    def name(self) -> str:
        """Return the name or class by which ``taskqueue limit`` knows it."""
        return self.scope.removeprefix("name=")

    def as_argument(self, count: int) -> str:
        """Return the value for ``taskqueue limit`` that gives it this number."""
        per = "" if self.per is None else f"/{self.per:g}"
        return f"{count}{per} by={','.join(self.by)}" if self.by else f"{count}{per}"

    def __str__(self) -> str:
        return f"{'limit' if self.per is None else f'rate/{self.per:g}'}:{self.declaration}"


@dataclass(frozen=True, kw_only=True)
class LimitKey:
    """The key that jobs share under a limit: at most ``count`` of them at once, or within ``per`` seconds."""

    key: str
    count: int
    per: float | None = None

    @property
    def family(self) -> str:
        """Return the limit's declaration without its number: the same for all values that it counts by."""
        return " ".join(self.key.split(" ", 2)[:2])

    @property
    def of(self) -> str:
        """Return its subject: a class or a name, and the values that it counts by."""
        return self.key.partition(":")[2]

    def __str__(self) -> str:
        within = "at once" if self.per is None else f"in {self.per:g} s"
        return f"at most {self.count:,} {within} of {self.of}"


def no_condition(limit: object) -> str:
    """Return the error for a limit that was passed as a condition; it names the right option."""
    return f"{limit!r} is a limit, not a condition: pass it in limits=[…], and conditions in ready="


def declared(value: Any) -> Declared:
    """Return the limit that a value means: itself, or text such as ``5``, ``5 by=bucket`` or ``100/60 name=api``."""
    if isinstance(value, Limit | Rate):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return Limit(value)
    match = re.fullmatch(_TEXT, value.strip()) if isinstance(value, str) else None
    if match is None:
        raise InvalidOption("pass Limit(5), Rate(100, per=60), or text such as '5 by=bucket' or '100/60 name=api'")
    by = tuple(match["by"].split(",")) if match["by"] else None
    if match["per"] is None:
        return Limit(int(match["count"]), by, match["name"])
    if match["per"] in ("s", "m", "h", "d"):
        raise InvalidOption(f"{match['per']!r} is not a time: write {match['count']}/1{match['per']}")
    per = float(match["per"]) if re.fullmatch(r"\d+(\.\d+)?", match["per"]) else seconds_of(match["per"])
    return Rate(int(match["count"]), per, by, match["name"])


def lane(limits: Iterable[Declared], job: str, data: Any) -> str:
    """Return the lane of a job with these limits and data: its limit keys as one text."""
    limit_keys: dict[str, LimitKey] = {}
    for limit in limits:
        limit_key = _limit_key(limit, job, data)
        if limit_keys.setdefault(limit_key.key, limit_key) != limit_key:
            raise InvalidOption(
                f"two limits of one job count the same jobs: {limit_keys[limit_key.key]} and {limit_key}: leave one out"
            )
    return _text(limit_keys.values())


def with_concurrency(lane: str, job: str, concurrency: int) -> str:
    """Return the lane of a job whose class has ``count`` jobs at once in one worker."""
    if concurrency == 1:
        return lane
    return _text((*limit_keys_of(lane), LimitKey(key=f"{_AT_A_WORKER}{job}", count=concurrency)))


def _text(limit_keys: Iterable[LimitKey]) -> str:
    rows = [
        [limit_key.key, limit_key.count, limit_key.per]
        for limit_key in sorted(limit_keys, key=lambda limit_key: limit_key.key)
    ]
    return json.dumps(rows, separators=(",", ":")) if rows else ""


@functools.lru_cache(maxsize=2048)
def limit_keys_of(lane: str) -> tuple[LimitKey, ...]:
    """Return the limit keys of a lane; none if it cannot be read, which a claim will detect."""
    try:
        return tuple(limit_key for limit_key in _parsed(lane) if not limit_key.key.startswith(_AT_A_WORKER))
    except (TypeError, ValueError):
        return ()


@functools.lru_cache(maxsize=2048)
def concurrency_of(lane: str) -> tuple[str, int]:
    """Return the class of a lane and how many of its jobs one worker runs at once; "" if that is one."""
    try:
        limit_keys = [limit_key for limit_key in _parsed(lane) if limit_key.key.startswith(_AT_A_WORKER)]
    except (TypeError, ValueError):
        limit_keys = []
    return (limit_keys[0].key.removeprefix(_AT_A_WORKER), limit_keys[0].count) if limit_keys else ("", 1)


@functools.lru_cache(maxsize=2048)
def lane_of(text: str) -> str:
    """Return the lane that the text describes; raise ``TypeError`` or ``ValueError`` for any other text."""
    _parsed(text)
    return text


def _parsed(lane: str) -> tuple[LimitKey, ...]:
    rows = json.loads(lane) if lane else ()
    return tuple(LimitKey(key=str(key), count=int(count), per=per and float(per)) for key, count, per in rows)


def has_rate(lane: str) -> bool:
    """Return whether a rate counts the starts of the jobs of this lane."""
    return any(limit_key.per is not None for limit_key in limit_keys_of(lane))


def until(limit_key: LimitKey, began_at: datetime) -> datetime:
    """Return how long a rate counts a start: a little longer than its period, as it is reported just before."""
    assert limit_key.per is not None
    return began_at + timedelta(seconds=limit_key.per + min(limit_key.per / 20, LEEWAY))


def latest_end(limit_key: LimitKey, now: datetime) -> datetime:
    """Return until when a rate may count a start; one counted longer happened before the clock was set back."""
    return until(limit_key, now + CLOCKS_APART)


def family_of(limit: Declared, job: str) -> str:
    """Return the family of the limit's keys for jobs of this class (``LimitKey.family``)."""
    return str(Family(scope_of(limit.name, job), limit.per if isinstance(limit, Rate) else None, _paths(limit)))


def scope_of(name: str | None, job: str) -> str:
    """Return the scope of the limits with this name, or of the unnamed limits of the class."""
    return f"name={name}" if name else job


def _limit_key(limit: Declared, job: str, data: Any) -> LimitKey:
    family = family_of(limit, job)
    values = " ".join(_written(data, path) for path in _paths(limit))
    key = f"{family} {values}".rstrip()
    if values and len(key) > KEY_LIMIT:
        import hashlib  # it loads a cipher library; few keys are that long

        key = f"{family} #{hashlib.sha256(values.encode()).hexdigest()[:32]}"
    return LimitKey(key=key, count=limit.count, per=limit.per if isinstance(limit, Rate) else None)


def _written(data: Any, path: str) -> str:
    """Return the value at a path into the data as canonical text; a missing key is null."""
    for key in path.split("."):
        data = data.get(key) if isinstance(data, Mapping) else None
    return json.dumps(data, sort_keys=True, separators=(",", ":"), default=str)


def _paths(limit: Declared) -> tuple[str, ...]:
    if limit.by is None:
        return ()
    return (limit.by,) if isinstance(limit.by, str) else tuple(limit.by)


def _scope(limit: Declared) -> str:
    by = f" by={','.join(_paths(limit))}" if limit.by else ""
    return f"{by} name={limit.name}" if limit.name else by


def _check(limit: Declared) -> None:
    kind = type(limit).__name__
    if type(limit.count) is not int or not 1 <= limit.count <= COUNT_LIMIT:
        raise InvalidOption(f"{kind}({as_code(limit.count)}): pass a whole number from 1 to {COUNT_LIMIT:,}")
    if limit.name is not None and not (isinstance(limit.name, str) and re.fullmatch(_NAME, limit.name)):
        raise InvalidOption(f"{kind}(name={limit.name!r}): pass up to 100 characters without spaces, '=' and ':'")
    paths = _paths(limit) if isinstance(limit.by, str | tuple | list | NoneType) else (limit.by,)
    if limit.by is not None and not (paths and all(isinstance(path, str) and _is_path(path) for path in paths)):
        raise InvalidOption(f"{kind}(by={limit.by!r}): pass a key of the job's data such as 'bucket' or 'customer.id'")
    if limit.by is not None:
        object.__setattr__(limit, "by", paths)


def _is_path(path: str) -> bool:
    return all(path.split(".")) and not re.search(r"[\s,=\ud800-\udfff]", path)
