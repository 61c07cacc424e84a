"""The promise of a class: which share of its jobs start how soon after they are due.

A job is judged once: when its first run has ended, or when it ends without a run because it expired or its class could
not be loaded. Figures name the promise by which jobs were judged, so that reading them needs no class.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from taskqueue.model.lifecycle.claim_end import waits_since
from taskqueue.model.lifecycle.outcomes import CheckFailed, Declared, NotReady, Outcome, Run, Unloadable
from taskqueue.model.record import Cause, Options, Record, changed

MOST_KNOWN = 1000
"""How many names of figures are remembered with their promises."""

_UNSTARTED = (NotReady, CheckFailed, Declared, Unloadable)
"""The outcomes of claims whose jobs did not start; a claim that was handed back has no start time."""


class Promise(NamedTuple):
    """The share of jobs, 0.5 to 1, that start within some seconds after they are due."""

    share: float
    within: float


def promise_of(options: Options) -> Promise | None:
    """Return the promise among the options; None if there is none."""
    return None if options.begin_within is None else Promise(options.promise, options.begin_within)


def with_wait(before: Record, after: Record, outcome: Outcome, run: Run) -> Record:
    """Return the record after the run with how long the job waited for it, if it was the first run of the job."""
    if run.started_at is None or isinstance(outcome, _UNSTARTED) or has_started(before):
        return after
    due_at = min(waits_since(before), before.unloadable_since or run.started_at)
    return changed(after, waited=max(0.0, (run.started_at - due_at).total_seconds()))


def is_kept(after: Record) -> bool | None:
    """Return whether the job has kept the promise of its class; None if this change does not decide it."""
    within = after.options.begin_within
    if within is None:
        return None
    if after.waited is not None:
        return after.waited <= within
    is_unloadable = after.status.is_final and after.cause is Cause.UNLOADABLE
    return False if is_unloadable and not has_started(after) else None


def has_started(record: Record) -> bool:
    """Return whether a run has started; a try to load the class is none."""
    if record.course is not None and record.course.has_begun:
        return True
    unloadable = Unloadable.__name__
    return any(attempt.started_at is not None and attempt.outcome != unloadable for attempt in record.attempts)


def figure_name(promise: Promise, *, kept: bool) -> str:
    """Return the name of the figure that counts jobs: ``k:0.99:30.0`` if they kept the promise, else ``l:…``."""
    return f"{'k' if kept else 'l'}:{promise.share!r}:{promise.within!r}"


@lru_cache(MOST_KNOWN)
def promise_in(name: str) -> Promise | None:
    """Return the promise in the name of such a figure; None if it has none, as in the sum of too many."""
    share, _, within = name[2:].partition(":")
    try:
        return Promise(float(share), float(within))
    except ValueError:
        return None
