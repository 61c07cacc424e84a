"""Decide how many workers to start and to retire: pure arithmetic, all facts are arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from taskqueue.daemon.settings import PoolMode, Settings

FIRST_PAUSE = 0.1  # seconds
LONGEST_PAUSE = 10.0  # seconds between two attempts to start a worker while the system refuses one
EARLY_DEATHS_ENDURED = 7  # workers in a row that die before their first job, within about six seconds


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Backoff after workers that die before their first job, and while the system lacks what a worker needs.

    Times are seconds of one monotonic clock.
    """

    deaths: int = 0
    shortages: int = 0
    resumes_at: float = 0.0

    @property
    def exhausted(self) -> bool:
        """Whether to stop trying to start workers."""
        return self.deaths >= EARLY_DEATHS_ENDURED

    def allows(self, now: float) -> bool:
        """Return whether a worker may be started."""
        return now >= self.resumes_at and not self.exhausted

    def died_early(self, now: float) -> Backoff:
        """Count an early death; deaths during the pause after it count as one with it."""
        if now < self.resumes_at:
            return self
        pause = FIRST_PAUSE * 2**self.deaths
        return replace(self, deaths=self.deaths + 1, resumes_at=now + pause)

    def fell_short(self, now: float) -> Backoff:
        """Count an attempt that the system has refused; it never leads to giving up."""
        if now < self.resumes_at:
            return self
        pause = min(FIRST_PAUSE * 2 ** min(self.shortages, 10), LONGEST_PAUSE)
        return replace(self, shortages=self.shortages + 1, resumes_at=now + pause)

    def recovered(self) -> Backoff:
        """Reset the shortages: the system has provided what a worker needs."""
        return replace(self, shortages=0)

    def survived(self) -> Backoff:
        """Reset the backoff: a worker has started its first job."""
        return Backoff()


_PATIENT = Backoff()


@dataclass(frozen=True, kw_only=True)
class PoolState:
    """Counts of workers and of queued jobs.

    Each pooled worker is counted once: ``idle`` maps its pid to the time since when it has no job; ``busy`` ones have
    a job; ``starting`` ones are not ready yet; ``leaving`` ones are retired or killed and not dead yet. ``waiting`` is
    the number of queued jobs without a worker. Jobs with ``force_spawn`` count only in ``forced_waiting``, their
    workers only in ``forced_starting``, until they are ready.
    """

    idle: Mapping[int, float] = field(default_factory=dict)
    busy: int = 0
    starting: int = 0
    leaving: int = 0
    waiting: int = 0
    forced_starting: int = 0
    forced_waiting: int = 0

    @property
    def serving(self) -> int:
        """Pooled workers that can run a job, now or when they are ready."""
        return len(self.idle) + self.busy + self.starting


@dataclass(frozen=True, kw_only=True)
class PoolChange:
    """Start ``spawn`` pooled and ``forced`` other workers, and retire those with the pids in ``retire``.

    ``review_at`` is when to decide again if nothing changes before: None for never.
    """

    spawn: int = 0
    forced: int = 0
    retire: tuple[int, ...] = ()
    review_at: float | None = None


def decide(settings: Settings, state: PoolState, *, now: float, backoff: Backoff = _PATIENT) -> PoolChange:
    """Return which workers to start and to retire, given the workers and the queued jobs.

    Call this after every change: a worker started or ended, a job came, started or ended. No worker is retired while a
    job waits that it could run. After early deaths and shortages workers are started one at a time.
    """
    demand = min(max(state.busy + state.waiting, settings.floor), settings.slots)
    missing = max(0, min(demand - state.serving, settings.slots - state.serving - state.leaving))
    spawn, forced = _after_deaths(missing, state, now, backoff)
    retire, retires_next_at = _surplus(settings, state, demand, now)
    resumes_at = backoff.resumes_at if now < backoff.resumes_at and not backoff.exhausted else None
    moments = [moment for moment in (retires_next_at, resumes_at) if moment is not None]
    return PoolChange(spawn=spawn, forced=forced, retire=retire, review_at=min(moments, default=None))


def _after_deaths(spawn: int, state: PoolState, now: float, backoff: Backoff) -> tuple[int, int]:
    """Return the pooled and the forced workers to start: during a pause of the backoff none, after it one at a time."""
    forced = state.forced_waiting
    if not backoff.deaths and not backoff.shortages:
        return spawn, forced
    if not backoff.allows(now) or state.starting or state.forced_starting:
        return 0, 0
    return min(spawn, 1), 0 if spawn else min(forced, 1)


def _surplus(settings: Settings, state: PoolState, demand: int, now: float) -> tuple[tuple[int, ...], float | None]:
    """Return the workers to retire now, longest idle first, and when the next one is due.

    Idle workers above the bounds are retired at once; in mode ``ondemand`` these are all idle ones.
    """
    longest_idle = sorted(state.idle, key=lambda pid: (state.idle[pid], pid))
    spare = len(longest_idle) - state.waiting  # the others are about to get a job
    candidates = longest_idle[: max(0, min(state.serving - demand, spare))]
    at_once = len(candidates)
    if settings.pm is PoolMode.DYNAMIC:
        at_once = min(at_once, max(0, state.serving - settings.slots))
    quiet = [pid for pid in candidates[at_once:] if state.idle[pid] + settings.idle_timeout <= now]
    rest = candidates[at_once + len(quiet) :]
    return (*candidates[:at_once], *quiet), state.idle[rest[0]] + settings.idle_timeout if rest else None
