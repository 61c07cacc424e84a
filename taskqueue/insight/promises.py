"""How the classes of a store keep their promises: the share of jobs that started in time, and the error budget left."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from shlex import quote
from typing import TypeAlias

from taskqueue.insight.needs import Need, Subject
from taskqueue.insight.recent_figures import PROMISES_OVER
from taskqueue.model.finding import Finding, Level
from taskqueue.model.history import Parts, Step
from taskqueue.model.promise import Promise, promise_in
from taskqueue.model.timestamps import moment
from taskqueue.model.wording import count, exact_span, local, percent

FEW = 3
"""With fewer late jobs, no error budget counts as used up: one late job of ten is no trend."""

BURNING, MOST_BURNING, BURNED = 14.4, 0.75, 10
"""A budget burns fast if at least ten jobs of the last hour were late: 14.4 times the share that may be, or 75 %.

The alerts have the same bounds. A budget of 30 days then lasts two days, or longer if the promise is below about 0.95.
"""


@dataclass(frozen=True, kw_only=True)
class PromiseState:
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
        """Return whether far more jobs of the last hour were late than may be."""
        most = min(BURNING * (1 - self.promise.share), MOST_BURNING)  # more than all jobs cannot be late
        return self.late_in_hour >= BURNED and self.late_in_hour >= most * (self.kept_in_hour + self.late_in_hour)

    @property
    def is_well(self) -> bool:
        """Return whether nobody needs to look at it."""
        return not (self.burns or self.is_used_up)


@dataclass(slots=True)
class Judged:
    """The jobs of one class that were judged by one promise in some parts of the time."""

    first: int
    """The first part, in milliseconds since 1970."""
    last: int
    kept: int = 0
    late: int = 0


JudgedJobs: TypeAlias = dict[tuple[str, Promise], Judged]


def judged_in(parts: Parts) -> JudgedJobs:
    """Return the judged jobs of these minutes or hours, by class and promise."""
    judged: JudgedJobs = {}
    for at, part in parts.items():
        for (_, job), figures in part.items():
            for name in figures:
                if name[:2] in ("k:", "l:") and (promise := promise_in(name)) is not None:
                    of_class = judged.get((job, promise)) or judged.setdefault((job, promise), Judged(at, at))
                    of_class.first, of_class.last = min(of_class.first, at), max(of_class.last, at)
                    of_class.kept += figures[name] if name[0] == "k" else 0
                    of_class.late += figures[name] if name[0] == "l" else 0
    return judged


def promises_of(month: JudgedJobs, hour: JudgedJobs) -> dict[str, PromiseState]:
    """Return how each class keeps its present promise, by name, from the jobs of 30 days and of the last hour.

    A promise with another share or time starts again from zero: what was judged by the one before says nothing
    about it.
    """
    present: dict[str, tuple[int, Promise]] = {}
    for judged in (month, hour):
        for (job, promise), of_class in judged.items():
            present[job] = max(present.get(job, (0, promise)), (of_class.last, promise))
    none = Judged(0, 0)
    return {
        job: PromiseState(
            promise=promise,
            since=moment(of_month.first),
            kept=of_month.kept,
            late=of_month.late,
            kept_in_hour=hour.get((job, promise), none).kept,
            late_in_hour=hour.get((job, promise), none).late,
        )
        for job, (_, promise) in sorted(present.items())
        if (of_month := month.get((job, promise))) is not None  # else its first job came after the month was read
    }


def needs_of(promises: Mapping[str, PromiseState], now: datetime) -> Iterator[Need]:
    """Yield the promises whose error budget burns fast, or is used up."""
    for job, state in promises.items():
        do = f"see how long its jobs wait: `taskqueue class {quote(job)}`"
        if state.burns:
            says = f"{job} breaks its promise: {late_in_words(state)}; {in_words(state, now)}"
            yield Need(subject=Subject.PROMISE, name=job, says=says, do=do, level=Level.ERROR)
        elif state.is_used_up:
            says = f"{job} has not kept its promise: {in_words(state, now)}"
            yield Need(subject=Subject.PROMISE, name=job, says=says, do=do)


def findings_of(promises: Mapping[str, PromiseState], now: datetime) -> Iterator[Finding]:
    """Yield for ``doctor`` the promises that are kept."""
    for job, state in promises.items():
        if state.is_well:
            yield Finding("promise", f"{job}: {in_words(state, now)}", name=job)


def promise_in_words(promise: Promise) -> str:
    """Return ``99 % start within 30 s``."""
    return f"{_exactly(promise)} start within {exact_span(promise.within)}"


def in_words(state: PromiseState, now: datetime) -> str:
    """Return the share that was kept, over which time, and the rest of the error budget."""
    is_whole = now - state.since >= PROMISES_OVER - Step.HOUR.length
    over = f"in the last {PROMISES_OVER.days} days" if is_whole else f"since {local(state.since)}"
    within = exact_span(state.promise.within)
    started = f"{share_in_words(state)} of {count(state.number, 'job')} started within {within}"
    return f"{started} {over} (promised: {_exactly(state.promise)}); {budget_in_words(state)}"


def late_in_words(state: PromiseState) -> str:
    """Return how many jobs of the last hour were late."""
    jobs = count(state.kept_in_hour + state.late_in_hour, "job")
    return f"{state.late_in_hour:,} of {jobs} started late in the last hour"


def budget_in_words(state: PromiseState) -> str:
    """Return the rest of the error budget."""
    if state.budget_left > 0:
        return f"{percent(state.budget_left)} of the error budget is left"
    were_late = f"{count(state.late, 'job')} {'was' if state.late == 1 else 'were'} late"
    return f"the error budget is used up: {were_late}, {math.floor(state.may_be_late):,} may be"


def share_in_words(state: PromiseState) -> str:
    """Return the share that was kept in percent, never rounded up to a promise that was not kept."""
    scale = 100_000 if state.share >= 0.99 else 1000
    return f"{100 * (scale * state.kept // state.number) / scale:.10g} %"


def _exactly(promise: Promise) -> str:
    """Return the promised share in percent, not rounded: a share of jobs is read beside it."""
    return f"{100 * promise.share:.10g} %"
