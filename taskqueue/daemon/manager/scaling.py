"""Decide how many children there should be: pure arithmetic, all facts are arguments."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from taskqueue.errors import ConfigError

FIRST_PAUSE = 0.1  # seconds
EARLY_DEATHS_ENDURED = 7  # within about six seconds; children in a row that die before their first job


class PoolMode(str, Enum):
    """How the number of children follows the work (PTS-27)."""

    STATIC = "static"  # min_children, always
    DYNAMIC = "dynamic"  # between min_children and max_children, by demand
    ONDEMAND = "ondemand"  # none idle, one for each job, at most max_children


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """The bounds of a pool; jobs with force_spawn have children outside of them (issue 25 of the ancestor).

    ``idle_timeout`` is how many seconds a surplus child stays idle before it is retired.
    """

    mode: PoolMode = PoolMode.DYNAMIC
    min_children: int = 1
    max_children: int = 2
    idle_timeout: float = 30.0

    def __post_init__(self) -> None:
        if self.min_children < 0:
            raise ConfigError(f"min_children={self.min_children} must be 0 or more")
        if self.max_children < self.min_children:
            raise ConfigError(
                f"max_children={self.max_children} is less than min_children={self.min_children}: raise the one or "
                "lower the other"
            )
        if self.slots < 1:
            raise ConfigError(f"a {self.mode.value} pool of no children runs no job: allow for one at least")
        if self.idle_timeout < 0:
            raise ConfigError(f"idle_timeout={self.idle_timeout} must be 0 seconds or more")

    @property
    def floor(self) -> int:
        """How many children there are without work; on demand none, whatever min_children says (PTS-28)."""
        return 0 if self.mode is PoolMode.ONDEMAND else self.min_children

    @property
    def slots(self) -> int:
        """How many jobs can run at once, those with force_spawn not counted."""
        return self.min_children if self.mode is PoolMode.STATIC else self.max_children


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """The patience with children that die before their first job; moments are seconds of one monotonic clock."""

    deaths: int = 0
    resumes_at: float = 0.0

    @property
    def exhausted(self) -> bool:
        """Whether to give up: what kills them is not going away."""
        return self.deaths >= EARLY_DEATHS_ENDURED

    def allows(self, now: float) -> bool:
        """Return whether a child may be started."""
        return now >= self.resumes_at and not self.exhausted

    def died_early(self, now: float) -> "Backoff":
        """Take note of a death; those of one batch, that is during the pause after its first, count as one."""
        if now < self.resumes_at:
            return self
        pause = FIRST_PAUSE * 2**self.deaths
        return replace(self, deaths=self.deaths + 1, resumes_at=now + pause)

    def survived(self) -> "Backoff":
        """Take note that a child got to its first job."""
        return Backoff()


_PATIENT = Backoff()


@dataclass(frozen=True, kw_only=True)
class PoolState:
    """The children there are and the jobs that have none yet.

    Each general child is counted once: ``idle`` maps its pid to the moment since when it has no job; ``busy`` ones
    have a job, be it one they were started for; ``starting`` ones are not ready yet and have none; ``leaving`` ones
    were told to go, or killed, and are not gone yet. ``waiting`` are the jobs given to the pool that no child has.
    Jobs with force_spawn are counted in ``forced_waiting`` alone, and of their children, in ``forced_starting``, those
    that are not ready yet.
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
        """How many general children can do a job, now or when they are ready."""
        return len(self.idle) + self.busy + self.starting


@dataclass(frozen=True, kw_only=True)
class PoolChange:
    """What to do: start ``spawn`` general and ``forced`` bound children, send those in ``retire`` home.

    ``review_at`` is when to plan again though nothing happened meanwhile: None for never.
    """

    spawn: int = 0
    forced: int = 0
    retire: tuple[int, ...] = ()
    review_at: float | None = None


def plan(settings: PoolSettings, state: PoolState, *, now: float, backoff: Backoff = _PATIENT) -> PoolChange:
    """Say which children to start and to retire, given who is there and what waits (PTS-28 to PTS-31).

    Called after every change: a child that started or ended, a job that came, began or ended. No child is retired
    while a job waits that it could do. After early deaths children are started one at a time.
    """
    demand = min(max(state.busy + state.waiting, settings.floor), settings.slots)
    missing = max(0, min(demand - state.serving, settings.slots - state.serving - state.leaving))
    spawn, forced = _after_deaths(missing, state, now, backoff)
    retire, retires_next_at = _surplus(settings, state, demand, now)
    resumes_at = backoff.resumes_at if now < backoff.resumes_at and not backoff.exhausted else None
    moments = [moment for moment in (retires_next_at, resumes_at) if moment is not None]
    return PoolChange(spawn=spawn, forced=forced, retire=retire, review_at=min(moments, default=None))


def _after_deaths(spawn: int, state: PoolState, now: float, backoff: Backoff) -> tuple[int, int]:
    """Return the general and the forced children to start; in a pause of the backoff none, after it one at a time."""
    forced = state.forced_waiting
    if not backoff.deaths:
        return spawn, forced
    if not backoff.allows(now) or state.starting or state.forced_starting:
        return 0, 0
    return min(spawn, 1), 0 if spawn else min(forced, 1)


def _surplus(settings: PoolSettings, state: PoolState, demand: int, now: float) -> tuple[tuple[int, ...], float | None]:
    """Return the children to retire now, longest idle first, and when the next ones are due.

    What exceeds the bounds goes at once: nobody idles on demand, and bounds may have been lowered.
    """
    longest_idle = sorted(state.idle, key=lambda pid: (state.idle[pid], pid))
    spare = len(longest_idle) - state.waiting  # the others have a job to take in a moment
    candidates = longest_idle[: max(0, min(state.serving - demand, spare))]
    at_once = len(candidates)
    if settings.mode is PoolMode.DYNAMIC:
        at_once = min(at_once, max(0, state.serving - settings.slots))
    quiet = [pid for pid in candidates[at_once:] if state.idle[pid] + settings.idle_timeout <= now]
    left = candidates[at_once + len(quiet) :]
    return (*candidates[:at_once], *quiet), state.idle[left[0]] + settings.idle_timeout if left else None
