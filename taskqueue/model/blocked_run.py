"""A running job that holds its run slot while it waits for other jobs, as its node publishes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

MOST_AWAITED = 20
"""Maximum number of awaited jobs that are published for one run."""

MOST_BLOCKED = 1_000
"""Maximum number of runs that a node publishes, which is as many run slots as a class can have."""

POOL = ""
"""The slots of workers that run one job at a time."""

OWN_WORKER = "force_spawn"
"""The slot of a job with a worker of its own, for which no other job waits."""


class BlockedRun(NamedTuple):
    """A run that is blocked until other jobs have ended."""

    job: str
    awaited: tuple[str, ...]
    """The ids of the jobs that it waits for and that have not ended."""
    queue: str
    slots: str
    """The kind of its run slot: ``POOL``, ``OWN_WORKER``, or the path of a class with ``concurrency``."""

    def document(self) -> list[Any]:
        """Return it as plain values."""
        return [self.job, list(self.awaited), self.queue, self.slots]


def slots_of(job: str, concurrency: int, force_spawn: bool) -> str:
    """Return the kind of run slot that a job of this class needs."""
    if force_spawn:
        return OWN_WORKER
    return job if concurrency > 1 else POOL


def blocked_runs(documents: object) -> Iterator[BlockedRun]:
    """Yield the runs that a node has published, except unreadable ones."""
    if not isinstance(documents, Sequence):
        return
    for document in documents:
        match document:
            case [str(job), [*awaited], str(queue), str(slots)]:
                yield BlockedRun(job, tuple(map(str, awaited)), queue, slots)
