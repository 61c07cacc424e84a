"""The scale of a benchmark: how many jobs, seconds and deaths each workload has."""

from __future__ import annotations

from dataclasses import dataclass

JOBS = 10_000
"""Jobs that a drain takes unless ``--jobs`` says otherwise."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The sizes of all workloads, in proportion to the jobs of a drain."""

    jobs: int = JOBS
    """Jobs that are drained."""

    @property
    def singles(self) -> int:
        """Jobs that are added one by one; twice the jobs of a drain are added in bulk."""
        return max(self.jobs // 2, 10)

    @property
    def trips(self) -> int:
        """Jobs that are added and waited for, and jobs that are due at a time of their own."""
        return max(self.jobs // 50, 5)

    @property
    def due_within(self) -> float:
        """Seconds within which the jobs with a time of their own are due."""
        return 10.0 * min(self.jobs / JOBS, 1.0)

    @property
    def rest(self) -> float:
        """Seconds for a node to become idle after some jobs, and to get others before the first is due."""
        return max(min(self.jobs / JOBS, 1.0), 0.1)

    @property
    def backlog(self) -> int:
        """Jobs that wait, and as many again that are due tomorrow."""
        return self.jobs * 10

    @property
    def idle_for(self) -> float:
        """Seconds for which an idle node is watched."""
        return max(10.0 * min(self.jobs / JOBS, 1.0), 0.5)

    @property
    def deaths(self) -> int:
        """Workers that are killed."""
        return max(self.jobs // 500, 2)
