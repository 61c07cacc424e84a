"""Policies that count failures or the age of a job: always the same pause, or one that grows."""

from __future__ import annotations

import math
from dataclasses import asdict
from datetime import datetime
from typing import Any

from taskqueue.errors import InvalidOption
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.retry.decision import LONGEST_PAUSE, Decision, GiveUp, RetryIn, Situation, within
from taskqueue.model.shown_text import as_code
from taskqueue.model.wording import percent

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
