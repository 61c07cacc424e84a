"""A fixed interval, counted from the end of a run, from its start, or from a base time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from taskqueue.errors import InvalidOption
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.schedules.durations import Duration, moment_of, seconds_of
from taskqueue.model.timestamps import EPOCH, whole

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


def _base(value: Any) -> datetime:
    try:
        return moment_of(value, EPOCH)
    except InvalidOption as refused:
        raise InvalidOption(f"an interval counts from 'end', 'start' or a base time: {refused}") from None
