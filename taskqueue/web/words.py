"""The words of the pages: states, times, spans, classes, numbers and triggers; most are filters of the templates."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from functools import lru_cache, partial
from typing import Any

from markupsafe import Markup, escape

from taskqueue.model.record import Status
from taskqueue.model.schedules import Cron, Every, Trigger
from taskqueue.model.schedules.cron_fields import SHORT
from taskqueue.model.shown_text import shown
from taskqueue.model.wording import count, percent, size, span

WORDS: Mapping[Status, str] = {
    Status.WAITING: "waiting",
    Status.POSTPONED: "later",
    Status.PROCESSING: "running",
    Status.DONE: "done",
    Status.FAILED: "failed",
    Status.CANCELED: "canceled",
    Status.TIMEOUT: "timed out",
}
"""The word for each status; with a hyphen for the space it is the class of the style sheet."""

_ID = re.compile(r"\b([0-9a-f]{24})\b")

_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC")

_STATUSES = {
    kind: Markup('<span class="status %s">%s</span>') % (word.replace(" ", "-"), word) for kind, word in WORDS.items()
}


def status(value: Status) -> Markup:
    """Return the word with its dot."""
    return _STATUSES[value]


def ago(moment: datetime | None) -> Markup:
    """Return how far away a time is; the exact time is its title, which the script puts into the reader's zone."""
    if moment is None:
        return Markup("–")
    seconds = (moment - datetime.now(timezone.utc)).total_seconds()
    words = f"in {rough(seconds)}" if seconds > 0 else f"{rough(-seconds)} ago"
    return _time(moment, words, "ago")


def clock(moment: datetime | None) -> Markup:
    """Return the time of the day, with the date if that is another day; in UTC until the script changes it."""
    return Markup("–") if moment is None else _clock(moment, "%H:%M:%S", "clock")


def minute(moment: datetime) -> Markup:
    """Return the same without seconds, for the start of a minute or an hour."""
    return _clock(moment, "%H:%M", "minute")


def rough(seconds: float | None) -> str:
    """Return a span without fractions, which nobody can act on: ``12 s``, ``4 min``."""
    if seconds is None:
        return "–"
    return span(round(seconds)) if seconds >= 10 else f"{max(seconds, 0):.1f} s"


def took(seconds: float | None) -> str:
    """Return a span with its fraction; a dash if it is unknown."""
    return "–" if seconds is None else span(seconds)


def name(job: str) -> str:
    """Return the class of an import path without its module."""
    return job.rpartition(":")[2] or job


def module(job: str) -> str:
    """Return the module of an import path."""
    return job.rpartition(":")[0]


def number(value: float) -> str:
    """Return a number with separated thousands, and one decimal if it is small and has a fraction."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def short(id: object) -> str:
    """Return the ends of an id, by which people tell ids apart."""
    text = str(id)
    return text if len(text) <= 12 else f"{text[:6]}…{text[-4:]}"


def outcome(name: str) -> str:
    """Return how a run ended, as words: ``timed out`` for ``TimedOut``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def lines(text: str) -> Markup:
    """Return text of a job as it may be shown: characters that turn text around, and the like, are written out."""
    return escape(shown(text))


def code(text: str, plain: Callable[[str], Markup] = escape) -> Markup:
    """Return text with the words between backticks as code, and the others as ``plain`` writes them."""
    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else plain(part) for place, part in enumerate(parts)
    )


def sentence(text: str, root: str | None = None) -> Markup:
    """Return a sentence of ``why`` or of a need: its code as code, its times as times, below ``root`` its ids as links.

    The times are in UTC; the script puts them into the reader's zone.
    """
    return code(shown(text), _with_times if root is None else partial(_with_links, root))


def _with_links(root: str, text: str) -> Markup:
    link = Markup('<a class="mono" href="{}/jobs/{}">{}</a>')
    parts = _ID.split(text)
    return Markup("").join(
        link.format(root, part, part) if at % 2 else _with_times(part) for at, part in enumerate(parts)
    )


def trigger_times(trigger: Trigger) -> str:
    """Return when the trigger starts a job: ``At 03:15, Monday through Friday, UTC``."""
    if isinstance(trigger, Cron):
        return f"{_cron(trigger.expr)}, {trigger.tz}"
    if isinstance(trigger, Every):
        anchors = {"end": " after the last run ended", "start": " after the last run began"}
        return f"Every {span(trigger.seconds)}" + (anchors[str(trigger.anchor)] if trigger.base is None else "")
    words = str(trigger)
    return words[:1].upper() + words[1:]


@lru_cache(maxsize=1000)
def _cron(expr: str) -> str:
    from cron_descriptor import FormatError, MissingFieldError, Options, get_description
    from cron_descriptor import WrongArgumentError as Wrong

    options = Options()
    options.use_24hour_time_format = True
    try:
        return str(get_description(SHORT.get(expr, expr), options))
    except (FormatError, MissingFieldError, Wrong, ValueError, IndexError, KeyError):
        return f"Cron {expr}"


def _with_times(text: str) -> Markup:
    parts = _MOMENT.split(text)
    return Markup("").join(_as_time(part) if place % 2 else escape(part) for place, part in enumerate(parts))


def _as_time(text: str) -> Markup:
    try:
        return clock(datetime.fromisoformat(f"{text}+00:00"))
    except ValueError:  # no time, but text of a job
        return escape(f"{text} UTC")


def _clock(moment: datetime, today: str, kind: str) -> Markup:
    is_today = moment.date() == datetime.now(timezone.utc).date()
    return _time(moment, moment.strftime(today if is_today else "%Y-%m-%d %H:%M"), kind)


_TIME = Markup('<time class="nowrap" data-kind="%s" datetime="%s" title="%s">%s</time>')


def _time(moment: datetime, words: str, kind: str) -> Markup:
    utc = moment.astimezone(timezone.utc)
    at = f"{utc:%Y-%m-%dT%H:%M:%S}"
    values = (kind, f"{at}.{utc.microsecond // 1000:03d}Z", f"{at.replace('T', ' ')} UTC", words)
    return _TIME % values  # a page has hundreds: this takes a third of what format() takes


FILTERS: Mapping[str, Callable[..., Any]] = {
    "status": status,
    "ago": ago,
    "clock": clock,
    "minute": minute,
    "rough": rough,
    "took": took,
    "name": name,
    "module": module,
    "number": number,
    "short": short,
    "outcome": outcome,
    "lines": lines,
    "code": code,
    "sentence": sentence,
    "count": count,
    "percent": percent,
    "size": size,
}
"""The filters by their names in templates."""
