"""Caches the figures of recent minutes and hours of one store: nothing that cannot have changed is read again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
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


class UsualFigures(NamedTuple):
    """The figures of past hours by class, for all queues together, and by queue."""

    numbers: Parts
    """The numbers of the hours of the last week, by class."""
    runs: Parts
    """How long jobs ran in the hours of the last day, by class."""
    waits: Parts
    """The longest wait in each hour of the last week, by queue, for all classes together."""
    promises: Parts
    """How many jobs kept the promise in 30 days, by hour, of each class that had such jobs in a week."""


class RecentFigures:
    """The recent figures of one store; threads may share it."""

    def __init__(self, store: Store) -> None:
        hour, week = KEPT_FOR[Step.MINUTE], KEPT_FOR[Step.HOUR]
        self._minutes = KeptFigures(store, Step.MINUTE, {_slim_minute: hour, _whole: hour})
        self._yesterday = KeptFigures(store, Step.MINUTE, {_whole: hour})
        self._hour_of_yesterday: tuple[int, Parts] = (0, {})
        # A week of hours takes long to read: all of this comes from one read.
        self._hours = KeptFigures(
            store,
            Step.HOUR,
            {_classes: week, _promises: week, _longest_waits: week, _whole: DAY, _runs: USUAL_OVER},
            _classes_and_queues,
        )
        self._promises = KeptFigures(store, Step.HOUR, {_promises: PROMISES_OVER})

    def minutes(self, now: datetime) -> Parts:
        """Return the numbers of the minutes that started in the last hour, by queue and class."""
        return self.last_hour(now).numbers

    def last_hour(self, now: datetime) -> LastHour:
        """Return the same with the figures of all queues and classes together."""
        return LastHour(*self._minutes.read(_hour_before(now), now, _slim_minute, _whole))

    def yesterday(self, now: datetime) -> Parts:
        """Return the figures of the same minutes a day before, under ``WHOLE``; a new minute is read once."""
        minute = Step.MINUTE.begin(milliseconds(now))
        if self._hour_of_yesterday[0] != minute:
            [whole] = self._yesterday.read(_hour_before(now - DAY), now - DAY, _whole)
            self._hour_of_yesterday = minute, whole
        return self._hour_of_yesterday[1]

    def day(self, now: datetime) -> Parts:
        """Return the figures of the last day by hour, the hour of this time a day ago included, under ``WHOLE``."""
        [whole] = self._hours.read(now - DAY, now, _whole)
        return whole

    def hours(self, since: datetime, now: datetime) -> Parts:
        """Return the numbers of the hours from the one of ``since`` on, by class, for all queues together."""
        [numbers] = self._hours.read(since, now, _classes)
        return numbers

    def runs(self, now: datetime) -> Parts:
        """Return how long jobs ran in the hours of the last day, by class, for all queues together."""
        [runs] = self._hours.read(now - USUAL_OVER, now, _runs)
        return runs

    def usual(self, now: datetime) -> UsualFigures:
        """Return what past hours show about the present one."""
        forms = (_classes, _runs, _longest_waits, _promises)
        numbers, runs, waits, week = self._hours.read(now - KEPT_FOR[Step.HOUR], now, *forms)
        lately = {of_class for part in week.values() for of_class in part}
        [month] = self._promises.read(now - PROMISES_OVER, now, _promises) if lately else [{}]
        promises = {at: {key: part[key] for key in part.keys() & lately} for at, part in month.items()}
        return UsualFigures(numbers, runs, waits, promises)


class KeptFigures:
    """The figures of the parts of a time, in each of these forms for a time of its own; threads may share it."""

    def __init__(
        self, store: Store, step: Step, forms: Mapping[Slim, timedelta], prepared: Slim = lambda part: part
    ) -> None:
        """Make all forms from what ``prepared`` returns for a part."""
        self._prepared = prepared
        self._store = store
        self._step = step
        self._forms = forms
        self._lock = threading.Lock()
        self._parts: dict[Slim, Parts] = {form: {} for form in forms}
        self._first: int | None = None
        self._read_to = 0

    def read(self, since: datetime, now: datetime, *forms: Slim) -> list[Parts]:
        """Return the parts from the one of ``since`` on in each of these forms, or in all.

        Calls with the same ``now`` read the store once.
        """
        with self._lock:
            begin, last = self._step.begin(milliseconds(since)), milliseconds(now)
            oldest = self._oldest(last, max(self._forms.values()))
            if self._first is None or begin < self._first:
                self._read(begin, last)
                self._first = begin  # after it was read, so that an outage leaves no gaps
            elif last != self._read_to:
                unsettled = self._step.begin(self._read_to - UNSETTLED[self._step] // MILLISECOND)
                self._read(max(unsettled, oldest), last)
            self._first = max(self._first, oldest)
            return [
                {at: part for at, part in self._parts[form].items() if at >= begin} for form in forms or self._forms
            ]

    def _read(self, first: int, last: int) -> None:
        length = AT_ONCE * (self._step.length // MILLISECOND)
        for begin in range(first, last + 1, length):
            end = min(last, begin + length - 1)
            history = self._store.history(self._step, moment(begin), moment(end))
            parts = {at: self._prepared(part) for at, part in history.items()}
            for form, kept_for in self._forms.items():
                oldest = self._oldest(last, kept_for)
                kept = {at: part for at, part in self._parts[form].items() if at >= oldest}
                self._parts[form] = kept | {at: form(part) for at, part in parts.items() if at >= oldest}
        self._read_to = last

    def _oldest(self, last: int, kept_for: timedelta) -> int:
        return self._step.begin(last - kept_for // MILLISECOND)


def _hour_before(now: datetime) -> datetime:
    """Return from when on minutes started within an hour before this time."""
    return now - KEPT_FOR[Step.MINUTE] + Step.MINUTE.length - MILLISECOND


_NUMBERS = ("added", "done", "failed", "timeout", "canceled", "expired")
_RUN = ("ran", "longest_run", *(f"r{number}" for number in range(len(BUCKETS) + 1)))
_WAIT = ("waited", "longest_wait", *(f"w{number}" for number in range(len(BUCKETS) + 1)))


def _numbers(figures: Figures) -> Figures:
    """Return the numbers of jobs, errors and promises, without times."""
    errors = {intern(name): value for name, value in figures.items() if name[1:2] == ":"}
    return _named(_NUMBERS, figures) | errors


def _named(names: Sequence[str], figures: Figures) -> Figures:
    return {name: figures[name] for name in names if name in figures}


def _slim_minute(part: Part) -> Part:
    return {(intern(queue), intern(job)): _numbers(figures) for (queue, job), figures in part.items()}


def _whole(part: Part) -> Part:
    """Return the numbers and waiting times of all queues and classes together, and all failed attempts as one error."""
    whole: Figures = {}
    for figures in part.values():
        add_figures(whole, _named((*_NUMBERS, *_WAIT), figures))
        add_figures(whole, {"x:": sum(number for name, number in figures.items() if name.startswith("x:"))})
    return {WHOLE: whole}


def _classes_and_queues(part: Part) -> Part:
    """Return the figures of each class, whatever the queue, and the longest wait of each queue under no class."""
    of_class: dict[str, Figures] = {}
    waits: dict[str, int] = {}
    for (queue, job), figures in part.items():
        if "longest_wait" in figures:
            waits[queue] = max(waits.get(queue, 0), figures["longest_wait"])
        add_figures(of_class.setdefault(job, {}), figures)
    classes = {(EVERY_QUEUE, intern(job)): figures for job, figures in of_class.items()}
    return {**classes, **{(intern(queue), ""): {"longest_wait": wait} for queue, wait in waits.items()}}


def _classes(part: Part) -> Part:
    """Return the numbers of jobs, errors and promises of each class."""
    return {key: _numbers(figures) for key, figures in part.items() if key[1]}


def _runs(part: Part) -> Part:
    """Return how long the jobs of each class ran."""
    return {key: _named(_RUN, figures) for key, figures in part.items() if key[1]}


def _promises(part: Part) -> Part:
    """Return how many jobs kept the promise of their class or were late, for the classes that have one."""
    slim: Part = {}
    for (_, job), figures in part.items():
        judged = {intern(name): value for name, value in figures.items() if name[:2] in ("k:", "l:")}
        if judged and job != OTHER:
            add_figures(slim.setdefault((EVERY_QUEUE, intern(job)), {}), judged)
    return slim


def _longest_waits(part: Part) -> Part:
    return {key: figures for key, figures in part.items() if not key[1]}
