"""The demand for jobs of each class with ``concurrency``: for free run slots, and more while runs are short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from taskqueue.daemon.runtime.prefetch import SHORT_RUN, RunTimes
from taskqueue.model.record import Record


class ConcurrencyDemand:
    """The classes with ``concurrency`` that the node has met, each with its run slots and its claims in flight."""

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}
        """The run slots of each class that was met."""
        self._in_flight: Counter[str] = Counter()
        self._run_times = RunTimes()

    def add(self, record: Record) -> None:
        """Count a new claim."""
        if record.options.concurrency > 1:
            self.slots[record.job] = record.options.concurrency
            self._in_flight[record.job] += 1

    def remove(self, record: Record) -> None:
        """Count a claim no more."""
        if record.options.concurrency > 1:
            self._in_flight[record.job] -= 1

    def run_took(self, job: str, seconds: float) -> None:
        """Record how long a run took."""
        self._run_times.add(job, seconds)

    def stop_prefetching(self, job: str) -> None:
        """Prefetch no jobs of the class until a short run has ended: those that were came back."""
        self._run_times.forget(job)

    def free_slots(self, job: str) -> int:
        """Return how many more jobs of the class could begin; 0 for a class that was never claimed."""
        return self.slots.get(job, 0) - self._in_flight[job]

    def rooms(self) -> Mapping[str, int]:
        """Return how many more jobs of each class to claim: none if enough are prefetched, for batches."""
        return {job: self._room(job, slots) for job, slots in self.slots.items()}

    def _room(self, job: str, slots: int) -> int:
        in_flight = self._in_flight[job]
        prefetched = slots if self._run_times.expected(job) <= SHORT_RUN else 0
        if in_flight >= slots + prefetched // 2:
            return 0
        return slots + prefetched - in_flight
