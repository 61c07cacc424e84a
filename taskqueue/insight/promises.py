"""How the classes of a store keep their promises: the share of jobs that started in time, and the error budget left."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from shlex import quote

from taskqueue.insight.needs import Need, Subject
from taskqueue.insight.recent_figures import PROMISES_OVER
from taskqueue.model.finding import Finding, Level
from taskqueue.model.history import Figures, Parts, Step
from taskqueue.model.promise import Promise, figure_name, promise_in
from taskqueue.model.timestamps import moment
from taskqueue.model.wording import count, local, percent, span

FEW = 3
"""With fewer late jobs, no error budget counts as used up: one late job of ten is no trend."""

BURNING, BURNED = 14.4, 10
"""A budget burns fast if late jobs of an hour use it up in a 14.4th of its time, and are at least this many."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """How a class has kept its promise since ``since``: over 30 days, or since its figures begin."""

    promise: Promise
    since: datetime
    """The hour of the first job that was judged."""
    kept: int
    late: int
    kept_in_hour: int
    """The jobs of the last hour that kept it."""
    late_in_hour: int

    @property
    def number(self) -> int:
        """Return how many jobs were judged."""
        return self.kept + self.late

    @property
    def share(self) -> float:
        """Return the share that kept it, 0 to 1."""
        return self.kept / self.number

    @property
    def may_be_late(self) -> float:
        """Return the error budget: how many jobs may be late."""
        return round(self.number * (1 - self.promise.share), 6)

    @property
    def budget_left(self) -> float:
        """Return the share of the error budget that is left, 1 to 0; negative if more jobs were late."""
        return 1 - self.late / self.may_be_late

    @property
    def is_used_up(self) -> bool:
        """Return whether more jobs were late than may be, and not just a few."""
        return self.late >= FEW and self.budget_left <= 0

    @property
    def burns(self) -> bool:
        """Return whether the jobs of the last hour would use up the budget of 30 days in two."""
        allowed = 1 - self.promise.share
        most = min(BURNING * allowed, (1 + allowed) / 2)  # more than all jobs cannot be late
        return self.late_in_hour >= BURNED and self.late_in_hour >= most * (self.kept_in_hour + self.late_in_hour)

    @property
    def is_well(self) -> bool:
        """Return whether nobody needs to look at it."""
        return not (self.burns or self.is_used_up)


def promises_of(hours: Parts, minutes: Parts) -> dict[str, Kept]:
    """Return how each class keeps its present promise, by name, from hours of 30 days and minutes of the last hour.

    A promise with another share or time starts anew: what was judged by the one before says nothing about it.
    """
    present: dict[str, tuple[int, Promise]] = {}
    for parts in (hours, minutes):
        for at, part in parts.items():
            for (_, job), figures in part.items():
                for promise in filter(None, map(promise_in, _names(figures))):
                    present[job] = max(present.get(job, (at, promise)), (at, promise))
    return {job: kept for job, (_, promise) in sorted(present.items()) if (kept := _kept(job, promise, hours, minutes))}


def _names(figures: Figures) -> Iterator[str]:
    return (name for name in figures if name[:2] in ("k:", "l:"))


def _kept(job: str, promise: Promise, hours: Parts, minutes: Parts) -> Kept | None:
    kept, late = figure_name(promise, kept=True), figure_name(promise, kept=False)
    judged = {at: figures for at, part in hours.items() for (_, of), figures in part.items() if of == job}
    begun = [at for at, figures in judged.items() if kept in figures or late in figures]
    if not begun:
        return None  # its first minute is over, and was not in the hours when they were read
    of_minutes = [figures for part in minutes.values() for (_, of), figures in part.items() if of == job]
    return Kept(
        promise=promise,
        since=moment(min(begun)),
        kept=sum(figures.get(kept, 0) for figures in judged.values()),
        late=sum(figures.get(late, 0) for figures in judged.values()),
        kept_in_hour=sum(figures.get(kept, 0) for figures in of_minutes),
        late_in_hour=sum(figures.get(late, 0) for figures in of_minutes),
    )


def needs_of(promises: Mapping[str, Kept], now: datetime) -> Iterator[Need]:
    """Yield the promises whose error budget burns fast, or is used up."""
    for job, kept in promises.items():
        do = f"see how long its jobs wait: `taskqueue class {quote(job)}`"
        if kept.burns:
            says = f"{job} breaks its promise: {late_in_words(kept)}; {in_words(kept, now)}"
            yield Need(subject=Subject.PROMISE, name=job, says=says, do=do, level=Level.ERROR)
        elif kept.is_used_up:
            says = f"{job} has not kept its promise: {in_words(kept, now)}"
            yield Need(subject=Subject.PROMISE, name=job, says=says, do=do)


def findings_of(promises: Mapping[str, Kept], now: datetime) -> Iterator[Finding]:
    """Yield for ``doctor`` the promises that are kept."""
    for job, kept in promises.items():
        if kept.is_well:
            yield Finding("promise", f"{job}: {in_words(kept, now)}", name=job)


def promise_in_words(promise: Promise) -> str:
    """Return ``99 % start within 30 s``."""
    return f"{percent(promise.share)} start within {span(promise.within)}"


def in_words(kept: Kept, now: datetime) -> str:
    """Return the share that was kept, over which time, and what is left of the error budget."""
    is_whole = now - kept.since >= PROMISES_OVER - Step.HOUR.length
    over = f"in the last {PROMISES_OVER.days} days" if is_whole else f"since {local(kept.since)}"
    started = f"{share_in_words(kept.share)} of {count(kept.number, 'job')} started within {span(kept.promise.within)}"
    return f"{started} {over}, {percent(kept.promise.share)} are promised; {budget_in_words(kept)}"


def late_in_words(kept: Kept) -> str:
    """Return how many jobs of the last hour were late."""
    return (
        f"{kept.late_in_hour:,} of {count(kept.kept_in_hour + kept.late_in_hour, 'job')} started late in the last hour"
    )


def budget_in_words(kept: Kept) -> str:
    """Return what is left of the error budget."""
    if kept.budget_left > 0:
        return f"{percent(kept.budget_left)} of the error budget is left"
    were_late = f"{count(kept.late, 'job')} {'was' if kept.late == 1 else 'were'} late"
    return f"the error budget is used up: {were_late}, {math.floor(kept.may_be_late):,} may be"


def share_in_words(share: float) -> str:
    """Return the share in percent, never rounded up to a promise that was not kept."""
    return percent(share) if share >= 0.99 else f"{math.floor(1000 * share) / 10:g} %"
