"""Computes analytics from the history; analytics by tag from a bounded number of jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from taskqueue.errors import InvalidJob, InvalidOption
from taskqueue.model.analytics import Analytics, Grouping, of_history, of_samples
from taskqueue.model.history import HistoryEntry, Parts, Step, entries
from taskqueue.model.job_path import path_of
from taskqueue.model.options import named
from taskqueue.model.schedules import ago
from taskqueue.model.shown_text import as_code
from taskqueue.model.timestamps import MILLISECOND, milliseconds, moment
from taskqueue.model.wording import or_nearest
from taskqueue.store import Store

MOST = 10_000_000
"""Maximum number of jobs that one call may read; each takes some memory."""


def figures(store: Store, by: str, since: Any, until: Any, at_most: int) -> Analytics:
    """Return the figures; raise ``InvalidOption`` for a grouping, time or bound that makes no sense."""
    grouping = _grouping(by)
    now = store.now()
    begin, end = _time(since, until, now)
    if isinstance(at_most, bool) or not isinstance(at_most, int) or not 1 <= at_most <= MOST:
        raise InvalidOption(f"at_most={as_code(at_most)}: pass how many jobs may be looked at, from 1 to {MOST:,}")
    if grouping is Grouping.TAG:
        return of_samples(store.samples(begin, end, at_most + 1), begin, end, at_most, store.present(now))
    first, parts = _parts(store, begin, end, now)
    return of_history(parts, grouping, first, begin, end, store.present(now))


def history(store: Store, since: Any, until: Any, queue: str | None, job: Any, step: str) -> list[HistoryEntry]:
    """Return the entries of a time; raise ``InvalidOption`` for a time or step that makes no sense."""
    try:
        length = Step(step)
    except ValueError:
        raise InvalidOption(
            f"step={as_code(step)}: figures are kept by {', '.join(choice.value for choice in Step)}"
        ) from None
    begin, end = _time(since, until, store.now())
    path = None if job is None else named("job", job, _path)
    all_entries = entries(store.history(length, _begin(length, begin), end), length)
    return [entry for entry in all_entries if queue in (None, entry.queue) and path in (None, entry.job)]


def _path(job: Any) -> str:
    try:
        return path_of(job)
    except InvalidJob as refused:
        raise InvalidOption(str(refused)) from None


def _time(since: Any, until: Any, now: datetime) -> tuple[datetime, datetime]:
    end = now if until is None else named("until", until, lambda given: ago(given, now))
    begin: datetime = named("since", since, lambda given: ago(given, end))
    if begin >= end:
        raise InvalidOption(f"since={since!r}, until={until!r}: the period ends before it starts")
    return begin, end


def _parts(store: Store, begin: datetime, end: datetime, now: datetime) -> tuple[datetime, Parts]:
    """Return when the first part starts, and the figures: whole hours, with minutes before and after them."""
    first, hour = _begin(Step.MINUTE, begin), _begin(Step.HOUR, begin)
    last = _begin(Step.HOUR, end)
    if first != hour and now - first < Step.MINUTE.kept_for:
        hour += Step.HOUR.length
    else:
        first = hour
    if hour > last:
        return first, store.history(Step.MINUTE, first, end)
    parts: Parts = {}
    if first < hour:
        parts.update(store.history(Step.MINUTE, first, hour - MILLISECOND))
    ends_with_minutes = end < now and now - last < Step.MINUTE.kept_for
    if ends_with_minutes:
        parts.update(store.history(Step.MINUTE, last, end))
        last -= MILLISECOND
    if hour <= last:
        parts.update(store.history(Step.HOUR, hour, last))
    return first, parts


def _begin(step: Step, time: datetime) -> datetime:
    return moment(step.begin(milliseconds(time)))


def _grouping(by: object) -> Grouping:
    try:
        return Grouping(by)
    except ValueError:
        names = [grouping.value for grouping in Grouping]
        raise InvalidOption(f"by={as_code(by)}: figures are by {', '.join(names)}{or_nearest(by, names)}") from None
