"""The jobs before and after a job as a graph: a column for each depth, a line for each dependency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from taskqueue.model.ids import WORKFLOW_TAG, JobId
from taskqueue.model.record import Status
from taskqueue.scheduler import workflows
from taskqueue.scheduler.process import Process
from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.web.words import WORDS, name

MOST = 40
"""The most jobs that are drawn."""

MOST_MEMBERS = 200
"""The most members of a workflow that are read."""

MOST_COPIES = 10
"""How many copies one after the other are followed."""

WIDTH, HEIGHT, GAP_X, GAP_Y = 148, 28, 36, 12


@dataclass(frozen=True, kw_only=True)
class Box:
    """One job of the graph."""

    id: str
    text: str
    kind: str
    """Its status as a class of the style sheet."""
    says: str
    is_self: bool
    x: int
    y: int


@dataclass(frozen=True, kw_only=True)
class Line:
    """One dependency."""

    x1: int
    y1: int
    x2: int
    y2: int


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A drawing, and what it shows in words."""

    boxes: Sequence[Box]
    lines: Sequence[Line]
    width: int
    height: int
    left_out: int
    """How many more jobs were found than are drawn."""
    is_more: bool
    """Whether there may be even more."""
    says: str
    has_failed: bool
    """Whether a member of the workflow failed, and was not recovered."""


def graph_of(scheduler: Scheduler, process: Process) -> Graph | None:
    """Return the graph of a job's workflow, the jobs that it depends on, and the jobs that wait for it.

    None if it has none of these. A job is not found any more by one that it depended on and that has ended, but in its
    workflow: stores keep no order of those.
    """
    related = _related(scheduler, process)
    if len(related) < 2:
        return None
    drawn = _nearest(related, process)
    depths = _depths(drawn)
    boxes = _boxes(drawn, depths, process)
    own_depth = depths[process.id]
    before = sum(1 for depth in depths.values() if depth < own_depth)
    after = sum(1 for depth in depths.values() if depth > own_depth)
    return Graph(
        boxes=list(boxes.values()),
        lines=_lines(drawn, boxes),
        width=4 + (max(depths.values()) + 1) * (WIDTH + GAP_X) - GAP_X,
        height=2 + max(box.y for box in boxes.values()) + HEIGHT,
        left_out=len(related) - len(drawn),
        is_more=len(related) >= MOST_MEMBERS,
        says=f"{before} before, {after} after",
        has_failed=workflows.workflow_of(process.tags) is not None and any(map(_has_failed, related.values())),
    )


def _boxes(drawn: Mapping[JobId, Process], depths: Mapping[JobId, int], process: Process) -> dict[JobId, Box]:
    """Return a box for each job: a column for each depth, in it one row after the other."""
    rows: Counter[int] = Counter()
    boxes: dict[JobId, Box] = {}
    for job in sorted(drawn.values(), key=lambda other: (depths[other.id], str(other.id))):
        column = depths[job.id]
        word = WORDS[job.status]
        boxes[job.id] = Box(
            id=str(job.id),
            text=_cut(name(job.job)),
            kind=word.replace(" ", "-"),
            says=f"{job.job} {job.id}: {word}",
            is_self=job.id == process.id,
            x=2 + column * (WIDTH + GAP_X),
            y=2 + rows[column] * (HEIGHT + GAP_Y),
        )
        rows[column] += 1
    return boxes


def _lines(drawn: Mapping[JobId, Process], boxes: Mapping[JobId, Box]) -> list[Line]:
    """Return a line for each dependency, from the right edge of one job to the left edge of the next."""
    return [
        Line(
            x1=boxes[before].x + WIDTH,
            y1=boxes[before].y + HEIGHT // 2,
            x2=boxes[job.id].x,
            y2=boxes[job.id].y + HEIGHT // 2,
        )
        for job in drawn.values()
        for before in job.depends_on
        if before in boxes
    ]


def _related(scheduler: Scheduler, process: Process) -> Mapping[JobId, Process]:
    """Return the job, its dependencies, the jobs that wait for it, and the first members of its workflow."""
    related = scheduler.find_jobs({"waiting_for": process.id}, limit=MOST)
    if process.depends_on:
        related += scheduler.find_jobs({"id": {"$in": list(process.depends_on[:MOST])}}, limit=MOST)
    first = workflows.workflow_of(process.tags)
    if first is not None:
        added = scheduler.find_jobs({"id": first}, limit=1) or [process]
        members = {"created_at": added[0].created_at, "tags": f"{WORKFLOW_TAG}{first}"}  # all were added at once
        related += scheduler.find_jobs(members, order="id", limit=MOST_MEMBERS)
    return {**_latest(scheduler, {job.id: job for job in related}), process.id: process}


def _latest(scheduler: Scheduler, related: Mapping[JobId, Process]) -> Mapping[JobId, Process]:
    """Return the jobs; the last copy of a recovered job is in its place."""
    latest = dict(related)
    for _ in range(MOST_COPIES):
        copied = {job.recovered_as: id for id, job in latest.items() if job.recovered_as and not job.is_done}
        copies = scheduler.find_jobs({"id": {"$in": list(copied)[:MOST_MEMBERS]}}, limit=MOST_MEMBERS) if copied else []
        if not copies:
            break
        latest = {id: job for id, job in latest.items() if id not in {copied[copy.id] for copy in copies}}
        latest |= {copy.id: copy for copy in copies}
    return latest


def _has_failed(job: Process) -> bool:
    return job.status in (Status.FAILED, Status.TIMEOUT) and job.recovered_as is None


def _nearest(related: Mapping[JobId, Process], process: Process) -> Mapping[JobId, Process]:
    """Return the job, its neighbours, and others while there is room."""
    near = [*process.depends_on, *(job.id for job in related.values() if process.id in job.depends_on)]
    order = dict.fromkeys([process.id, *(id for id in near if id in related), *related])
    return {id: related[id] for id in list(order)[:MOST]}


def _depths(drawn: Mapping[JobId, Process]) -> dict[JobId, int]:
    """Return the length of the longest chain of jobs before each one; dependencies have no cycles."""
    depths = dict.fromkeys(drawn, 0)
    for _ in drawn:
        moved = False
        for job in drawn.values():
            deepest = max((depths[id] + 1 for id in job.depends_on if id in depths), default=0)
            if deepest > depths[job.id]:
                depths[job.id], moved = deepest, True
        if not moved:
            break
    return depths


def _cut(text: str) -> str:
    return text if len(text) <= 17 else f"{text[:16]}…"
