"""A workflow as lists show it: how many of its members are in which status, since when, and for how long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from taskqueue.model.ids import JobId
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.record import Status

MOST_CLASSES = 3
"""How many classes the name of a workflow has."""


class MembersAlike(NamedTuple):
    """The members of a workflow that have the same class and status, as a store counts them."""

    workflow: JobId
    job: str
    name: str | None
    """The name that the class declares for people."""
    status: Status
    is_recovered: bool
    number: int
    first: JobId
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class WorkflowSummary:
    """One workflow and what became of its members; members that were removed are not counted."""

    id: JobId
    """The id of the first member, which may have been removed."""
    name: str
    """The names of its first classes and its last, in order: ``Fetch → Resize → Publish``."""
    statuses: Mapping[Status, int]
    """How many members are in which status; of a recovered member only the last copy counts."""
    created_at: datetime
    started_at: datetime | None
    """When the first member started that is in the store."""
    ended_at: datetime | None
    """When the last member ended; None if one has not ended."""

    @property
    def number(self) -> int:
        """Return the number of its members."""
        return sum(self.statuses.values())

    @property
    def ended(self) -> int:
        """Return how many members have ended."""
        return sum(number for status, number in self.statuses.items() if status.is_final)

    @property
    def failed(self) -> int:
        """Return how many members failed or timed out."""
        return self.statuses.get(Status.FAILED, 0) + self.statuses.get(Status.TIMEOUT, 0)

    @property
    def state(self) -> str:
        """Return ``running``, ``waiting``, ``failed``, ``canceled`` or ``done``: the first that is true of a member."""
        if Status.PROCESSING in self.statuses:
            return "running"
        if self.ended < self.number:
            return "waiting"
        if self.failed:
            return "failed"
        return "canceled" if Status.CANCELED in self.statuses else "done"

    def took(self, now: datetime) -> float | None:
        """Return the seconds from its start to its end, or until now; None before its start."""
        if self.started_at is None:
            return None
        return max(0.0, ((self.ended_at or now) - self.started_at).total_seconds())


def summaries(counted: Iterable[MembersAlike]) -> list[WorkflowSummary]:
    """Return the workflows of these members, the newest first."""
    by_workflow = sorted(counted, key=lambda alike: (alike.workflow, alike.first), reverse=True)
    return [_summary(id, list(alike)[::-1]) for id, alike in groupby(by_workflow, key=attrgetter("workflow"))]


def _summary(id: JobId, members: Sequence[MembersAlike]) -> WorkflowSummary:
    """Return the summary of these members, which are in the order in which they were added."""
    statuses: dict[Status, int] = {}
    current = [alike for alike in members if not alike.is_recovered]
    for alike in sorted(current, key=attrgetter("status")):
        statuses[alike.status] = statuses.get(alike.status, 0) + alike.number
    started = [alike.started_at for alike in members if alike.started_at is not None]
    ends = [alike.ended_at for alike in current if alike.ended_at is not None]
    return WorkflowSummary(
        id=id,
        name=_name(members),
        statuses=statuses,
        created_at=min(alike.created_at for alike in members),
        started_at=min(started, default=None),
        ended_at=max(ends, default=None) if all(status.is_final for status in statuses) else None,
    )


def _name(members: Sequence[MembersAlike]) -> str:
    classes = list(dict.fromkeys(alike.name or alike.job.rpartition(":")[2] for alike in members))
    shown = classes if len(classes) <= MOST_CLASSES else [classes[0], "…", classes[-1]]
    return " → ".join(shown)
