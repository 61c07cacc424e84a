"""How far a job has come over its runs: the phase of one that runs in steps, and what of its past no longer counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from taskqueue.model.conditions import NotReadyState

CLEAN_UP_LIMIT = 60.0
"""Seconds that one run of ``clean_up`` may take where the job has no ``timeout``."""

CLEAN_UPS = 5
"""How often ``clean_up`` is tried."""


class Phase(str, Enum):
    """What a job that runs in steps does next (JB-3): COMPLETED and FAILED are the job's final statuses here."""

    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    FAILING = "failing"


PHASES: Mapping[Phase | None, frozenset[Phase]] = {
    None: frozenset({Phase.STARTING}),
    Phase.STARTING: frozenset({Phase.RUNNING, Phase.FAILING}),
    Phase.RUNNING: frozenset({Phase.RUNNING, Phase.ENDING, Phase.FAILING}),
    Phase.ENDING: frozenset({Phase.FAILING}),
    Phase.FAILING: frozenset(),
}
"""From a phase to the next ones; the job's end follows ENDING, and FAILING after any way to end badly."""


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """What a record keeps of the way it has come; None in a record that has not come any."""

    phase: Phase | None = None
    """None for a job that does not run in steps."""
    steps: int = 0
    """How many iterations are over."""
    reports: str = "{}"
    """What the job tells people, as Extended JSON text."""
    failures: int = 0
    """Failures that no longer count: those of steps that are over."""
    crashes: int = 0
    """Crashes that no longer count: those of steps that are over, and those after which a loop went on."""
    crashed_at: str | None = None
    """The place of the loop at the last crash."""
    ends_as: int | None = None
    """The number of the final status that follows when ``clean_up`` is over."""
    ends_because: str = ""
    """The cause of that status."""
    clean_ups: int = 0
    """How often ``clean_up`` has failed."""
    unready: NotReadyState | None = None
    """What was said when it was asked last whether it is ready; None once it was."""

    @property
    def has_begun(self) -> bool:
        """Return whether the job has come some way; to have been asked in vain is none."""
        return replace(self, unready=None) != Continuation()


def document(course: Continuation) -> dict[str, Any]:
    """Return the course as plain JSON values, without what is empty."""
    found = {name: value for name, value in vars(course).items() if value not in (None, 0, "")}
    if course.phase is not None:
        found["phase"] = course.phase.value
    if course.unready is not None:
        found["unready"] = dict(vars(course.unready))
    return found


def course_of(kept: Mapping[str, Any]) -> Continuation:
    """Return the course that ``document`` described."""
    phase, unready = kept.get("phase"), kept.get("unready")
    return Continuation(
        **{
            **kept,
            "phase": None if phase is None else Phase(phase),
            "unready": None if unready is None else NotReadyState(**unready),
        }
    )
