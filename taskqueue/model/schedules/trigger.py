"""The triggers of recurring jobs: one closed union, kept as plain JSON values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from taskqueue.errors import InvalidOption
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.schedules.cron import Cron
from taskqueue.model.schedules.durations import Duration, moment_of, seconds_of
from taskqueue.model.timestamps import EPOCH, whole

_PATH = r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*"


END = "end"
START = "start"

SHORTEST = 0.001
"""The shortest interval in seconds: times are kept in milliseconds."""


@dataclass(frozen=True)
class Every:
    """Run again after ``interval``, a duration, counted from ``anchor``.

    ``"end"`` counts from the end of a run, so that runs never pile up; ``"start"`` from its start; a time, as for
    ``at``, from that time: at the smallest base + k · interval (k ≥ 0) in the future.
    """

    interval: Duration
    anchor: str | datetime = END

    def __post_init__(self) -> None:
        seconds = seconds_of(self.interval)
        if seconds < SHORTEST:
            raise InvalidOption(f"Every({self.interval!r}): pass an interval of 1 ms or more, or Again() for at once")
        object.__setattr__(self, "interval", round(seconds, 3))
        if self.anchor not in (END, START):
            object.__setattr__(self, "anchor", _base(self.anchor))

    @property
    def seconds(self) -> float:
        """Return the interval in seconds."""
        return float(self.interval)  # type: ignore[arg-type]  # seconds since __post_init__

    @property
    def base(self) -> datetime | None:
        """Return the base time, None if the interval counts from a run."""
        return self.anchor if isinstance(self.anchor, datetime) else None

    @property
    def follows_end(self) -> bool:
        """Return whether the next time is known only when a run has ended."""
        return self.anchor == END

    def after(self, reference: datetime) -> datetime:
        """Return the first time strictly after ``reference``, which is a run's end or start if there is no base."""
        span = timedelta(seconds=self.seconds)
        if self.base is None:
            return whole(reference + span)
        if reference < self.base:
            return self.base
        return self.base + ((reference - self.base) // span + 1) * span

    def document(self) -> dict[str, Any]:
        """Return the trigger as plain JSON values, for ``trigger`` to read back."""
        anchor = self.anchor if self.base is None else self.base.isoformat()
        return {"trigger": "every", "interval": self.seconds, "anchor": anchor}

    def __str__(self) -> str:
        """Return the trigger in words."""
        if self.base is None:
            return f"every {self.seconds:g} s from the {self.anchor} of a run"
        return f"every {self.seconds:g} s from {self.base:%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True)
class Again:
    """Run again as soon as a run has ended."""

    @property
    def follows_end(self) -> bool:
        """Return True: the next time is known only when a run has ended."""
        return True

    def after(self, reference: datetime) -> datetime:
        """Return ``reference``: at once."""
        return reference

    def document(self) -> dict[str, Any]:
        """Return the trigger as plain JSON values, for ``trigger`` to read back."""
        return {"trigger": "again"}

    def __str__(self) -> str:
        """Return the trigger in words."""
        return "again at once, whenever a run has ended"


@dataclass(frozen=True)
class Custom:
    """Run when your own class says so: its ``next(after)`` returns an aware time after ``after``, or None.

    ``path`` is its import path, ``module:Class``; it is created with ``arguments``, plain JSON values. Nodes never
    import it: a worker is asked.
    """

    path: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not re.fullmatch(_PATH, self.path):
            raise InvalidOption(f"a schedule of your own is named by its import path 'module:Class', not {self.path!r}")
        if not isinstance(self.arguments, Mapping):
            raise InvalidOption(f"arguments of {self.path} are {self.arguments!r}: pass a mapping of names to values")
        try:
            json.dumps(dict(self.arguments), allow_nan=False)
        except (TypeError, ValueError) as refused:
            raise InvalidOption(f"arguments of {self.path} are kept as JSON: {refused}") from None

    @property
    def follows_end(self) -> bool:
        """Return False: the next time does not depend on the end of a run."""
        return False

    def document(self) -> dict[str, Any]:
        """Return the trigger as plain JSON values, for ``trigger`` to read back."""
        return {"trigger": "custom", "path": self.path, "arguments": dict(self.arguments)}

    def __str__(self) -> str:
        """Return the trigger in words."""
        written = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"when {self.path}({written}) says so"


@dataclass(frozen=True)
class UnreadableTrigger:
    """A trigger that this version cannot read: it gives no time."""

    @property
    def follows_end(self) -> bool:
        """Return False: the end of a run gives no time."""
        return False

    def after(self, _reference: datetime) -> None:
        """Return None: the next time is unknown here."""

    def document(self) -> dict[str, Any]:
        """Return nothing: a schedule with it keeps its document as it is."""
        return {}

    def __str__(self) -> str:
        """Return that it cannot be read."""
        return "cannot be read here"


Trigger: TypeAlias = Every | Cron | Again | Custom | UnreadableTrigger

_MADE: Mapping[str, Callable[..., Trigger]] = {"every": Every, "cron": Cron, "again": Again, "custom": Custom}


def trigger(document: Mapping[str, Any]) -> Trigger:
    """Return the trigger that ``document()`` of a trigger described."""
    fields = dict(document)
    made = _MADE[fields.pop("trigger")]
    if fields.get("anchor") not in (None, "end", "start"):
        fields["anchor"] = datetime.fromisoformat(fields["anchor"])
    return made(**fields)


def _base(value: Any) -> datetime:
    try:
        return moment_of(value, EPOCH)
    except InvalidOption as refused:
        raise InvalidOption(f"an interval counts from 'end', 'start' or a base time: {refused}") from None
