"""Retry policies as values: given how often a job has failed, when it runs again, if at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from taskqueue.errors import InvalidOption

ENDLESS = -1


class RetryPolicy(Protocol):
    """A decision about failed attempts; evaluated wherever the outcome is known, so it imports nothing."""

    def delay(self, failures: int) -> float | None:
        """Return the seconds to wait after the ``failures``-th failed attempt (from 1), or None to give up."""

    def document(self) -> dict[str, Any]:
        """Return the policy as plain JSON values, for ``policy`` to read back."""

    def __str__(self) -> str:
        """Return the policy in words, for ``why``."""


@dataclass(frozen=True)
class FixedRetry:
    """So many further attempts, always after the same pause (PTS ``retry`` and ``retry_interval``)."""

    times: int = 0
    """Further attempts after the first; -1 is endless."""
    interval: float = 300.0
    """Seconds between a failure and the next attempt."""

    def __post_init__(self) -> None:
        _whole("times", self.times, at_least=ENDLESS)
        _seconds("interval", self.interval)

    def delay(self, failures: int) -> float | None:
        """Return the pause while attempts are left."""
        if self.times != ENDLESS and failures > self.times:
            return None
        return self.interval

    def document(self) -> dict[str, Any]:
        """Return the policy as plain JSON values."""
        return {"policy": "fixed", **asdict(self)}

    def __str__(self) -> str:
        """Return the policy in words."""
        if self.times == 0:
            return "no retry"
        often = "endlessly" if self.times == ENDLESS else f"{self.times} times"
        return f"retry {often}, every {self.interval:g} s"


@dataclass(frozen=True)
class ExponentialRetry:
    """So many further attempts, each after twice the pause before it (REC-23: ``interval * 2 ** (n - 1)``)."""

    times: int = 5
    interval: float = 30.0
    factor: float = 2.0
    longest: float = 86_400.0
    """The pause never exceeds this, in seconds."""

    def __post_init__(self) -> None:
        _whole("times", self.times, at_least=ENDLESS)
        _seconds("interval", self.interval)
        _seconds("longest", self.longest)
        if not 1 <= self.factor <= 100:
            raise InvalidOption(f"factor={self.factor!r} of a retry policy: pass a number between 1 and 100")

    def delay(self, failures: int) -> float | None:
        """Return the growing pause while attempts are left."""
        if self.times != ENDLESS and failures > self.times:
            return None
        return min(self.interval * self.factor ** min(failures - 1, 100), self.longest)

    def document(self) -> dict[str, Any]:
        """Return the policy as plain JSON values."""
        return {"policy": "exponential", **asdict(self)}

    def __str__(self) -> str:
        """Return the policy in words."""
        often = "endlessly" if self.times == ENDLESS else f"{self.times} times"
        growing = f"after {self.interval:g} s and then {self.factor:g} times longer, at most {self.longest:g} s"
        return f"retry {often}, {growing}"


POLICIES: Mapping[str, type[FixedRetry] | type[ExponentialRetry]] = {
    "fixed": FixedRetry,
    "exponential": ExponentialRetry,
}


def policy(document: Mapping[str, Any]) -> RetryPolicy:
    """Return the policy that ``RetryPolicy.document`` described."""
    fields = dict(document)
    return POLICIES[fields.pop("policy")](**fields)


def _whole(name: str, value: object, at_least: int) -> None:
    if type(value) is not int or value < at_least:
        raise InvalidOption(f"{name}={value!r} of a retry policy: pass a whole number, {at_least} or more")


def _seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 10 * 366 * 86_400:
        raise InvalidOption(f"{name}={value!r} of a retry policy: pass seconds between 0 and ten years")


NO_RETRY = FixedRetry()
