"""The times of a trigger in words: ``At 03:15, Monday through Friday``."""

from __future__ import annotations

from functools import lru_cache

from taskqueue.model.schedules import Cron, Every, Trigger
from taskqueue.model.wording import span

NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


def words_of(trigger: Trigger) -> str:
    """Return when the trigger starts a job."""
    if isinstance(trigger, Cron):
        return f"{_cron(trigger.expr)}, {trigger.tz}"
    if isinstance(trigger, Every):
        behind = {"end": " after the last run ended", "start": " after the last run began"}
        base = trigger.base
        return f"Every {span(trigger.seconds)}" + (behind[str(trigger.anchor)] if base is None else "")
    words = str(trigger)
    return words[:1].upper() + words[1:]


@lru_cache(maxsize=1000)
def _cron(expr: str) -> str:
    from cron_descriptor import FormatError, MissingFieldError, Options, get_description
    from cron_descriptor import WrongArgumentError as Wrong

    options = Options()
    options.use_24hour_time_format = True
    try:
        return str(get_description(NICKNAMES.get(expr, expr), options))
    except (FormatError, MissingFieldError, Wrong, ValueError, IndexError, KeyError):
        return f"Cron {expr}"
