"""Replaces a worker in which jobs of several classes fail at once: something that one of them left may be the cause.

A worker in which everything fails is free again at once, so it gets most of the jobs. If a new worker fails in the
same way, it is the jobs: then no other one is replaced until a job succeeds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from taskqueue.daemon.manager.worker_handle import WorkerHandle

log = logging.getLogger(__name__)

FAILED_RUNS = 5
"""Number of runs in a row that must have failed, of at least two classes."""

AT_ONCE = 0.5
"""Seconds within which these runs have failed."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds between two replacements: the first and the longest pause; they double."""


class Pauses:
    """The pauses between replacements for one cause: they double, and are short again after a long rest."""

    def __init__(self) -> None:
        self._next_at = 0.0
        self._pause = FIRST_PAUSE

    def has_passed(self, now: float) -> bool:
        """Return whether the pause has passed; if so, the next one starts."""
        if now < self._next_at:
            return False
        is_quiet = now - self._next_at > LONGEST_PAUSE
        self._pause = FIRST_PAUSE if is_quiet else min(2 * self._pause, LONGEST_PAUSE)
        self._next_at = now + self._pause
        return True


class FailingWorkers:
    """The replacements of one node for such failures."""

    def __init__(self, replace: Callable[[WorkerHandle, str], None]) -> None:
        self._replace = replace
        self._replaced_at: float | None = None
        """When a worker was replaced whose failures no newer worker has confirmed or refuted yet."""
        self._replaced_pid = 0
        self._pauses = Pauses()
        self._is_fault_of_jobs = False

    def on_ended(self, worker: WorkerHandle, job: str, outcome: str, took: float | None, now: float) -> None:
        """Note how a run of class ``job`` ended; replace the worker if necessary."""
        if outcome != "Failed" or took is None or took > AT_ONCE:
            worker.failed_jobs.clear()
            if outcome == "Done" and self._replaced_at is not None and self._is_new(worker):
                self._note_success()
            return
        worker.failed_jobs.append(job)
        del worker.failed_jobs[:-FAILED_RUNS]
        classes = len({*worker.failed_jobs})
        if len(worker.failed_jobs) < FAILED_RUNS or classes < 2 or worker.to_be_replaced or self._is_fault_of_jobs:
            return
        failures = f"its last {FAILED_RUNS} runs, of {classes} classes, all failed at once"
        if self._is_new(worker):
            self._is_fault_of_jobs = True
            log.error("jobs also fail in a new worker, so the jobs are at fault: pid %d: %s", worker.pid, failures)
        elif self._pauses.has_passed(now):
            self._replaced_at, self._replaced_pid = now, worker.pid
            self._replace(worker, failures)

    def _is_new(self, worker: WorkerHandle) -> bool:
        return self._replaced_at is not None and worker.forked_at >= self._replaced_at

    def _note_success(self) -> None:
        """Note that a job has succeeded in a new worker."""
        if not self._is_fault_of_jobs:
            pid = self._replaced_pid
            log.warning(
                "jobs succeed in a new worker, so something that a job left in the previous one was at fault: pid %d",
                pid,
            )
        self._replaced_at, self._is_fault_of_jobs = None, False
