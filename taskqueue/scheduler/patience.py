"""How long a caller is ready to wait: one check of what is passed for it, before anything else is done."""

from __future__ import annotations

import math
from typing import Any

from taskqueue.model.options import named
from taskqueue.model.schedules import seconds_of


def patience(name: str, value: Any) -> float | None:
    """Return the seconds of a number, a timedelta or ``"5m"``, None for no end, which infinity is too.

    Raises ``InvalidOption``, also for -1: what means "no end" elsewhere, and "at once" for an interval, is a slip here.
    """
    if value is None or value == math.inf:
        return None
    seconds: float = named(name, value, seconds_of)
    return seconds
