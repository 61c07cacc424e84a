"""Formats times, spans, sizes and lists for people, in commands, *why* and the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timezone, tzinfo
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskqueue.model.controls import Control

LONGEST_NAME = 200
"""Maximum number of characters of a mistyped name that are compared with known names, which takes their square."""

_STEPS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))


_ZONE: ContextVar[tzinfo | None] = ContextVar("zone of times in sentences", default=None)


@contextmanager
def in_utc() -> Iterator[None]:
    """Give all times in UTC and in full, for a page that puts them into the zone of its reader."""
    token = _ZONE.set(timezone.utc)
    try:
        yield
    finally:
        _ZONE.reset(token)


def at(moment: datetime, now: datetime) -> str:
    """Return the time in the reader's zone and how far away it is: ``2030-01-31 12:00:00 CET (5 min ago)``."""
    seconds = (moment - now).total_seconds()
    distance = f"in {span(seconds)}" if seconds > 0 else f"{span(-seconds)} ago"
    return f"{local(moment)} ({distance})"


def local(moment: datetime) -> str:
    """Return the time in the reader's zone, with the zone."""
    return f"{moment.astimezone(_ZONE.get()):%Y-%m-%d %H:%M:%S %Z}"


def minute(moment: datetime, now: datetime) -> str:
    """Return a short time in the reader's zone: ``14:02``, with the date if it is on another day."""
    if _ZONE.get() is not None:
        return local(moment)
    at, today = moment.astimezone(), now.astimezone()
    return f"{at:%H:%M}" if at.date() == today.date() else f"{at:%Y-%m-%d %H:%M}"


def percent(share: float) -> str:
    """Return the share, 0 to 1, in percent: ``4.2 %``; only exactly 0 and 1 are ``0 %`` and ``100 %``."""
    if 0.99 <= share < 1:
        missing = float(f"{max(100 * (1 - share), 0.0001):.1g}")
        return f"{100 - missing:.4f}".rstrip("0").rstrip(".") + " %"
    if share >= 0.1:
        return f"{100 * share:.0f} %"
    return f"{max(100 * share, 0.0001):.2g} %" if share else "0 %"  # smaller numbers would look like 1e-05


def decided(control: Control, now: datetime) -> str:
    """Return the control with its time, author and reason: ``queue mail is paused, since … by ann@web (why)``."""
    return f"{control}, {since(control, now)}"


def since(control: Control, now: datetime) -> str:
    """Return the time, author and reason of a control: ``since 2030-01-31 12:00:00 CET (5 min ago) by ann@web``."""
    reason = f" ({control.reason})" if control.reason else ""
    return f"since {at(control.since, now)} by {control.by}{reason}"


def span(seconds: float) -> str:
    """Return a duration in its largest unit: ``250 ms``, ``1.5 s``, ``4 min``, ``2 d``."""
    for size, unit in _STEPS:
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{round(seconds * 1000)} ms"


def exact_span(seconds: float) -> str:
    """Return a duration in the largest unit that rounds nothing: ``100 s``, ``2 min``, ``1.25 s``."""
    for size, unit in _STEPS:
        if seconds >= 1.5 * size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.10g} s"


def size(number: float) -> str:
    """Return bytes as ``12 MiB``, or ``12 KiB`` if they are less than one MiB."""
    return f"{number / 2**20:,.0f} MiB" if number >= 2**20 else f"{number / 2**10:.0f} KiB"


def count(number: int, thing: str) -> str:
    """Return a number of things: ``1 job``, ``1,200 jobs``, ``2 copies``."""
    return f"{number:,} {thing if number == 1 else plural(thing)}"


def plural(thing: str) -> str:
    """Return the plural of a regular English noun: ``jobs``, ``copies``, ``keys``."""
    return f"{thing[:-1]}ies" if thing.endswith("y") and thing[-2:-1] not in "aeiou" else f"{thing}s"


def times(number: int) -> str:
    """Return ``once``, ``twice`` or ``3 times``."""
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the question whether the most similar name was meant, as the rest of a sentence; empty for none."""
    near = _nearest(name, known)
    return f": did you mean {near}?" if near else ""


def or_nearest(name: object, known: Iterable[str]) -> str:
    """Return the same question after a sentence that lists the known names; empty for none."""
    near = _nearest(name, known) if isinstance(name, str) else ""
    return f"; did you mean {near}?" if near else ""


def _nearest(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    names = {other.lower(): other for other in known if other != name}
    near = get_close_matches(name[:LONGEST_NAME].lower(), names, n=1)
    return names[near[0]] if near else ""


def some(names: Sequence[str], most: int = 5) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
