"""Caches the figures of recent minutes and hours of one store: nothing that cannot have changed is read again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from sys import intern
from typing import NamedTuple

from taskqueue.model.history import BUCKETS, OTHER, Figures, Part, Parts, Step, add_figures
from taskqueue.model.timestamps import MILLISECOND, milliseconds, moment
from taskqueue.store import Store

UNSETTLED: Mapping[Step, timedelta] = {Step.MINUTE: timedelta(minutes=2), Step.HOUR: timedelta(minutes=15)}
"""Minutes or hours that ended more recently than this may still change."""

KEPT_FOR: Mapping[Step, timedelta] = {Step.MINUTE: timedelta(hours=1), Step.HOUR: timedelta(days=7)}
"""How far back the figures are kept."""

USUAL_OVER = timedelta(days=1)
"""For this long, an hour also includes how long jobs ran."""

DAY = timedelta(days=1)

PROMISES_OVER = timedelta(days=30)
"""For this long, promises of classes have an error budget."""

AT_ONCE = 30
"""How many minutes or hours are read at once: their figures take much memory."""

EVERY_QUEUE = ""
"""The queue of hours, whose figures are those of all queues together."""

WHOLE = ("", "")
"""The key of the figures of all queues and classes together; no queue has this name."""

Slim = Callable[[Part], Part]


class LastHour(NamedTuple):
    """The figures of the minutes that started in the last hour."""

    numbers: Parts
    """The numbers of jobs and errors, by queue and class."""
    whole: Parts
    """The numbers, waiting times and failed attempts of all queues and classes together, under ``WHOLE``."""


class RecentFigures:
    """The recent figures of one store; threads may share it."""

    def __init__(self, store: Store) -> None:
        self._minutes = KeptFigures(store, Step.MINUTE, KEPT_FOR[Step.MINUTE], _slim_minute, _whole)
        self._yesterday = KeptFigures(store, Step.MINUTE, KEPT_FOR[Step.MINUTE], _whole)
        self._hour_of_yesterday: tuple[int, Parts] = (0, {})
        self._hours = KeptFigures(store, Step.HOUR, KEPT_FOR[Step.HOUR], partial(_of_classes, _numbers), _promises)
        self._promises = KeptFigures(store, Step.HOUR, PROMISES_OVER, _promises)
        self._day = KeptFigures(store, Step.HOUR, DAY, _whole)
        self._runs = KeptFigures(store, Step.HOUR, USUAL_OVER, partial(_of_classes, _runs))
        self._waits = KeptFigures(store, Step.HOUR, KEPT_FOR[Step.HOUR], _longest_waits)

    def minutes(self, now: datetime) -> Parts:
        """Return the numbers of the minutes that started in the last hour, by queue and class."""
        return self.last_hour(now).numbers

    def last_hour(self, now: datetime) -> LastHour:
        """Return the same with the figures of all queues and classes together."""
        numbers = self._minutes.read(_hour_before(now), now)
        return LastHour(numbers, {at: part for at, part in self._minutes.also.items() if at in numbers})

    def yesterday(self, now: datetime) -> Parts:
        """Return the figures of the same minutes a day before, under ``WHOLE``; a new minute is read once."""
        minute = Step.MINUTE.begin(milliseconds(now))
        if self._hour_of_yesterday[0] != minute:
            self._hour_of_yesterday = minute, self._yesterday.read(_hour_before(now - DAY), now - DAY)
        return self._hour_of_yesterday[1]

    def day(self, now: datetime) -> Parts:
        """Return the figures of the last day by hour, the hour of this time a day ago included, under ``WHOLE``."""
        return self._day.read(now - DAY, now)

    def hours(self, since: datetime, now: datetime) -> Parts:
        """Return the numbers of the hours from the one of ``since`` on, by class, for all queues together."""
        return self._hours.read(since, now)

    def promises(self, now: datetime) -> Parts:
        """Return how many jobs kept the promise in 30 days, by hour, of each class that had such jobs in a week.

        ``hours`` must have been read before.
        """
        lately = {of_class for part in self._hours.also.values() for of_class in part}
        month = self._promises.read(now - PROMISES_OVER, now) if lately else {}
        return {at: {key: part[key] for key in part.keys() & lately} for at, part in month.items()}

    def runs(self, now: datetime) -> Parts:
        """Return how long jobs ran in the hours of the last day, by class, for all queues together."""
        return self._runs.read(now - USUAL_OVER, now)

    def waits(self, now: datetime) -> Parts:
        """Return the longest wait in each hour of the last week, by queue, for all classes together."""
        return self._waits.read(now - KEPT_FOR[Step.HOUR], now)


class KeptFigures:
    """The figures of the parts of a time, in the form that ``slim`` gives them; threads may share it."""

    def __init__(
        self, store: Store, step: Step, kept_for: timedelta, slim: Slim, slim_also: Slim | None = None
    ) -> None:
        self._store = store
        self._step = step
        self._kept_for = kept_for
        self._slim = slim
        self._slim_also = slim_also
        self.also: Parts = {}
        """The same parts in the form that ``slim_also`` gives them; a new value after each read."""
        self._lock = threading.Lock()
        self._parts: Parts = {}
        self._first: int | None = None
        self._read_to = 0

    def read(self, since: datetime, now: datetime) -> Parts:
        """Return the figures of the parts from the one of ``since`` on."""
        with self._lock:
            begin, oldest = self._step.begin(milliseconds(since)), self._step.begin(milliseconds(now - self._kept_for))
            if self._first is None or begin < self._first:
                self._read(begin, milliseconds(now))
                self._first = begin  # after it was read, so that an outage leaves no gaps
            else:
                unsettled = self._step.begin(self._read_to - UNSETTLED[self._step] // MILLISECOND)
                self._read(max(unsettled, oldest), milliseconds(now))
            self._forget(oldest)
            return {at: part for at, part in self._parts.items() if at >= begin}

    def _read(self, first: int, last: int) -> None:
        length = AT_ONCE * (self._step.length // MILLISECOND)
        for begin in range(first, last + 1, length):
            end = min(last, begin + length - 1)
            parts = self._store.history(self._step, moment(begin), moment(end))
            self._parts.update({at: self._slim(part) for at, part in parts.items()})
            if self._slim_also is not None:
                self.also = self.also | {at: self._slim_also(part) for at, part in parts.items()}
        self._read_to = last

    def _forget(self, before: int) -> None:
        for at in [at for at in self._parts if at < before]:
            del self._parts[at]
        self.also = {at: part for at, part in self.also.items() if at >= before}
        if self._first is not None:
            self._first = max(self._first, before)


def _hour_before(now: datetime) -> datetime:
    """Return from when on minutes started within an hour before this time."""
    return now - KEPT_FOR[Step.MINUTE] + Step.MINUTE.length - MILLISECOND


_NUMBERS = ("added", "done", "failed", "timeout", "canceled")
_RUN = ("ran", "longest_run", *(f"r{number}" for number in range(len(BUCKETS) + 1)))
_WAIT = ("waited", "longest_wait", *(f"w{number}" for number in range(len(BUCKETS) + 1)))


def _numbers(figures: Figures) -> Figures:
    """Return the numbers of jobs, errors and promises, without times."""
    errors = {intern(name): value for name, value in figures.items() if name[1:2] == ":"}
    return _named(_NUMBERS, figures) | errors


def _runs(figures: Figures) -> Figures:
    return _named(_RUN, figures)


def _named(names: Sequence[str], figures: Figures) -> Figures:
    return {name: figures[name] for name in names if name in figures}


def _whole(part: Part) -> Part:
    """Return the numbers and waiting times of all queues and classes together, and all failed attempts as one error."""
    whole: Figures = {}
    for figures in part.values():
        add_figures(whole, _named((*_NUMBERS, *_WAIT), figures))
        add_figures(whole, {"x:": sum(number for name, number in figures.items() if name.startswith("x:"))})
    return {WHOLE: whole}


def _slim_minute(part: Part) -> Part:
    return {(intern(queue), intern(job)): _numbers(figures) for (queue, job), figures in part.items()}


def _of_classes(select: Callable[[Figures], Figures], part: Part) -> Part:
    """Return the wanted figures of each class, whatever the queue."""
    slim: Part = {}
    for (_, job), figures in part.items():
        add_figures(slim.setdefault((EVERY_QUEUE, intern(job)), {}), select(figures))
    return slim


def _promises(part: Part) -> Part:
    """Return how many jobs kept the promise of their class or were late, for the classes that have one."""
    slim: Part = {}
    for (_, job), figures in part.items():
        judged = {intern(name): value for name, value in figures.items() if name[:2] in ("k:", "l:")}
        if judged and job != OTHER:
            add_figures(slim.setdefault((EVERY_QUEUE, intern(job)), {}), judged)
    return slim


def _longest_waits(part: Part) -> Part:
    slim: Part = {}
    for (queue, _), figures in part.items():
        if "longest_wait" in figures:
            add_figures(slim.setdefault((intern(queue), ""), {}), {"longest_wait": figures["longest_wait"]})
    return slim
