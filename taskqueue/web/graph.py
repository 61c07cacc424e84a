"""The jobs before and after a job as a graph: a column for each depth, jobs that are alike in one box."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from taskqueue.model.ids import JobId
from taskqueue.model.job_filter import JobFilter, Token
from taskqueue.model.record import Status
from taskqueue.model.wording import count, span
from taskqueue.scheduler.process import Process
from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.web.words import WORDS, name

MOST = 40
"""Maximum number of boxes that are drawn."""

MOST_MEMBERS = 200
"""Maximum number of members of a workflow that are read."""

MOST_LETTERS = 21
"""How many letters of facts fit into a box."""

MOST_COPIES = 10
"""How many copies one after the other are followed."""

FOLDED = 3
"""From this many on, jobs of one class and depth share a box."""

WIDTH, HEIGHT, GAP_X, GAP_Y = 168, 44, 36, 12

_WORST_FIRST = (
    *(Status.FAILED, Status.TIMEOUT, Status.PROCESSING, Status.WAITING, Status.POSTPONED, Status.CANCELED),
    Status.DONE,
)
"""A box has the colour of the first of these statuses that one of its jobs has."""


class Kind(NamedTuple):
    """What the jobs of a box have in common; jobs that are few in their kind have boxes of their own."""

    depth: int
    job: str
    only: JobId | None = None


@dataclass(frozen=True, kw_only=True)
class Box:
    """One job of the graph, or several that are alike."""

    ids: Sequence[str]
    address: str
    text: str
    facts: str
    """How the jobs are, and how long they took, as far as it fits into the box."""
    kind: str
    """Their status as a class of the style sheet."""
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


def graph_of(scheduler: Scheduler, process: Process) -> Graph | None:
    """Return the graph of a job's workflow, the jobs that it depends on, and the jobs that wait for it.

    None if it has none of these. A job is not found any more by one that it depended on and that has ended, but in its
    workflow: stores keep no order of those.
    """
    related = {job.id: job for job in _neighbours(scheduler, process)}
    workflow = process.snapshot.workflow
    if workflow is not None:
        related |= {job.id: job for job in _members(scheduler, workflow)}
    latest = {**_latest(scheduler, related), process.id: process}
    return None if len(latest) < 2 else _drawn(latest, process, is_more=len(related) >= MOST_MEMBERS)


def graph_of_workflow(scheduler: Scheduler, workflow: JobId) -> Graph:
    """Return the graph of the first members of a workflow."""
    members = _members(scheduler, workflow)
    related = _latest(scheduler, {job.id: job for job in members})
    return _drawn(related, None, is_more=len(members) >= MOST_MEMBERS)


def _drawn(related: Mapping[JobId, Process], process: Process | None, *, is_more: bool) -> Graph:
    depths = _depths(related)
    groups = _nearest(_folded(related, depths, process), process)
    kinds = {job.id: kind for kind, group in groups.items() for job in group}
    boxes = _boxes(groups, process)
    own = None if process is None else depths[process.id]
    before, after = (0 if own is None else sum(1 for id in kinds if (depths[id] - own) * side > 0) for side in (-1, 1))
    return Graph(
        boxes=list(boxes.values()),
        lines=_lines(groups, kinds, boxes),
        width=max(box.x for box in boxes.values()) + WIDTH + 4,
        height=max(box.y for box in boxes.values()) + HEIGHT + 4,
        left_out=len(related) - len(kinds),
        is_more=is_more,
        says=count(len(related), "job") if own is None else f"{before} before, {after} after",
    )


def _folded(
    related: Mapping[JobId, Process], depths: Mapping[JobId, int], process: Process | None
) -> dict[Kind, list[Process]]:
    """Return the jobs by their kind; the job of the page has its own box."""
    others = [job for job in related.values() if process is None or job.id != process.id]
    alike = Counter(Kind(depths[job.id], job.job) for job in others)
    groups: dict[Kind, list[Process]] = {}
    for job in sorted(related.values(), key=lambda job: (depths[job.id], job.id)):
        kind = Kind(depths[job.id], job.job)
        is_alone = alike[kind] < FOLDED or (process is not None and job.id == process.id)
        groups.setdefault(kind._replace(only=job.id) if is_alone else kind, []).append(job)
    return groups


def _boxes(groups: Mapping[Kind, Sequence[Process]], process: Process | None) -> dict[Kind, Box]:
    """Return a box for each kind: a column for each depth, in it one row after the other."""
    rows: Counter[int] = Counter()
    columns = {depth: column for column, depth in enumerate(sorted({kind.depth for kind in groups}))}
    boxes: dict[Kind, Box] = {}
    for kind, group in groups.items():
        column = columns[kind.depth]
        statuses = {job.status for job in group}
        status = next(status for status in _WORST_FIRST if status in statuses)
        facts = _facts(group)
        many = f" × {len(group)}" if len(group) > 1 else ""
        boxes[kind] = Box(
            ids=[str(job.id) for job in group],
            address=_address(group),
            text=f"{_cut(name(kind.job), 18 - len(many))}{many}",
            facts=_fitting(facts),
            kind=WORDS[status].replace(" ", "-"),
            says=f"{kind.job}{many or f' {group[0].id}'}: {', '.join(facts)}",
            is_self=process is not None and kind.only == process.id,
            x=2 + column * (WIDTH + GAP_X),
            y=2 + rows[column] * (HEIGHT + GAP_Y),
        )
        rows[column] += 1
    return boxes


def _fitting(facts: Sequence[str]) -> str:
    """Return as many facts as fit into a box, at least the first."""
    texts = [", ".join(facts[:number]) for number in range(len(facts), 0, -1)]
    return next((text for text in texts if len(text) <= MOST_LETTERS), texts[-1])


def _facts(group: Sequence[Process]) -> list[str]:
    """Return the statuses of the jobs with their numbers, and how long the last attempt of the slowest took."""
    statuses = Counter(job.status for job in group)
    words = [f"{statuses[status]} {WORDS[status]}" for status in _WORST_FIRST if status in statuses]
    seconds = [job.snapshot.took for job in group if job.snapshot.took is not None]
    said = words if len(group) > 1 else [WORDS[group[0].status]]
    if len(said) < 3 and seconds:
        said.append(span(max(seconds)))
    return said


def _address(group: Sequence[Process]) -> str:
    """Return the address of the job, or of the list of the jobs."""
    if len(group) == 1:
        return f"/jobs/{group[0].id}"
    return f"/jobs?{JobFilter(tuple(Token('id', str(job.id)) for job in group)).address()}"


def _lines(
    groups: Mapping[Kind, Sequence[Process]], kinds: Mapping[JobId, Kind], boxes: Mapping[Kind, Box]
) -> list[Line]:
    """Return a line for each pair of boxes, from the right edge of one to the left edge of the next."""
    pairs = {
        (kinds[before], kind): None
        for kind, group in groups.items()
        for job in group
        for before in job.depends_on
        if before in kinds
    }
    return [
        Line(
            x1=boxes[before].x + WIDTH,
            y1=boxes[before].y + HEIGHT // 2,
            x2=boxes[kind].x,
            y2=boxes[kind].y + HEIGHT // 2,
        )
        for before, kind in pairs
    ]


def _neighbours(scheduler: Scheduler, process: Process) -> list[Process]:
    """Return the dependencies of the job, and the jobs that wait for it."""
    neighbours = scheduler.find_jobs({"waiting_for": process.id}, limit=MOST)
    if process.depends_on:
        neighbours += scheduler.find_jobs({"id": {"$in": list(process.depends_on[:MOST])}}, limit=MOST)
    return neighbours


def _members(scheduler: Scheduler, workflow: JobId) -> list[Process]:
    return scheduler.find_jobs({"workflow": workflow}, order="id", limit=MOST_MEMBERS)


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


def _nearest(groups: Mapping[Kind, list[Process]], process: Process | None) -> Mapping[Kind, list[Process]]:
    """Return the boxes of the job and its neighbours, and others while there is room, in the order of the others."""
    if len(groups) <= MOST or process is None:
        return dict(list(groups.items())[:MOST])

    def is_near(group: Iterable[Process]) -> bool:
        return any(job.id in process.depends_on or process.id in job.depends_on for job in group)

    order = sorted(groups, key=lambda kind: (kind.only != process.id, not is_near(groups[kind])))
    drawn = set(order[:MOST])
    return {kind: group for kind, group in groups.items() if kind in drawn}


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


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
