"""The continuation: state carried from one run of a job to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from taskqueue.model.conditions import NotReadyState
from taskqueue.model.lazy_dataclass import dataclass

CLEAN_UP_LIMIT = 60.0
"""Seconds that one run of ``clean_up`` may take if the job has no ``timeout``."""

CLEAN_UPS = 5
"""How often ``clean_up`` is tried."""


class Phase(str, Enum):
    """The next action of a job that runs in steps; COMPLETED and FAILED are final."""

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
"""The next phases of each phase; the job ends after ENDING, or after FAILING if it did not succeed."""


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """State carried from one run of a job to the next; None in a record without any."""

    phase: Phase | None = None
    """None for a job that does not run in steps."""
    steps: int = 0
    """How many iterations have ended."""
    reports: str = "{}"
    """The reports of the job for people, as Extended JSON text."""
    failures: int = 0
    """Failures that no longer count: failures of steps that have ended."""
    crashes: int = 0
    """Crashes that no longer count: crashes in steps that have ended, and crashes after which a loop continued."""
    crashed_at: str | None = None
    """The position of the loop at the last crash."""
    ends_as: int | None = None
    """The number of the final status that follows when ``clean_up`` has ended."""
    ends_because: str = ""
    """The cause of that status."""
    clean_ups: int = 0
    """How often ``clean_up`` has failed."""
    unready: NotReadyState | None = None
    """The last "not ready" answer; None once the job was ready."""

    @property
    def has_begun(self) -> bool:
        """Return whether the job has made progress; a "not ready" answer does not count."""
        return replace(self, unready=None) != Continuation()


def document(course: Continuation) -> dict[str, Any]:
    """Return the continuation as plain JSON values, without empty fields."""
    fields = {name: value for name, value in vars(course).items() if value not in (None, 0, "")}
    if course.phase is not None:
        fields["phase"] = course.phase.value
    if course.unready is not None:
        fields["unready"] = dict(vars(course.unready))
    return fields


def continuation_of(kept: Mapping[str, Any]) -> Continuation:
    """Return the continuation of a ``document``."""
    phase, unready = kept.get("phase"), kept.get("unready")
    return Continuation(
        **{
            **kept,
            "phase": None if phase is None else Phase(phase),
            "unready": None if unready is None else NotReadyState(**unready),
        }
    )
