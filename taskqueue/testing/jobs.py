"""The jobs of one test: checks which jobs were added, and runs them in the test's process."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from signal import SIGKILL
from typing import Any

from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.node.schedules import ScheduleRunner
from taskqueue.errors import InvalidJob
from taskqueue.insight.records import matching
from taskqueue.model.job_path import path_of
from taskqueue.model.lifecycle.outcomes import HandedBack, Run
from taskqueue.model.lifecycle.settle import ended, lost
from taskqueue.model.meta import META
from taskqueue.model.options import checked, named
from taskqueue.model.options.new_record import changed, in_force
from taskqueue.model.query import EVERYTHING
from taskqueue.model.record import Holder, Record
from taskqueue.model.schedules import Duration, seconds_of
from taskqueue.model.serializer import decode, encode
from taskqueue.scheduler import run_inline
from taskqueue.scheduler.declared_schedules import apply_declared
from taskqueue.scheduler.process import Process
from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.store import ClaimRequest, Settlement, Store
from taskqueue.testing.clock import MovableClock
from taskqueue.testing.crash_point import CrashPoint
from taskqueue.testing.node import TestNode

PAGE = 500
LEASE = timedelta(hours=1)


class Jobs:
    """The jobs of a test's store: runs them and asserts on them; ``start_node`` starts a real node on it."""

    def __init__(
        self, scheduler: Scheduler, store: Store, clock: MovableClock, start_node: Callable[..., TestNode]
    ) -> None:
        self._scheduler = scheduler
        self._store = store
        self._clock = clock
        self._start_node = start_node
        self._schedules = ScheduleRunner(store, CircuitBreaker(lambda: None))

    def added(self, job: Any = None, data: Any = None, **options: Any) -> list[Process]:
        """Return the jobs of the store, oldest first: all, or those of a class with such data and options."""
        every = [Process(self._scheduler, record) for record in matching(self._store, EVERYTHING)]
        if job is None:
            return every
        expected = Expected(job, data, options)
        return [process for process in every if expected.matches(process)]

    def assert_added(self, job: Any, data: Any = None, *, count: int | None = None, **options: Any) -> Process:
        """Assert that such a job was added, or ``count`` of them; return the first one.

        ``data`` that is a mapping names the keys that matter, also of a mapping or dataclass within it; options are
        those of ``add_job``. What is not named may be anything. Jobs that have ended count too.
        """
        __tracebackhide__ = True
        processes = self.added(job, data, **options)
        if processes and count in (None, len(processes)):
            return processes[0]
        number = f"{len(processes)} instead of {count} jobs were added as" if processes else "no job was added as"
        expected = Expected(job, data, options)
        raise AssertionError(f"{number} {expected}; {expected.beside(self.added())}")

    def refute_added(self, job: Any = None, data: Any = None, **options: Any) -> None:
        """Assert that no such job was added; without arguments, none at all."""
        __tracebackhide__ = True
        processes = self.added(job, data, **options)
        if processes:
            expected = "" if job is None else f" as {Expected(job, data, options)}"
            shown = "\n".join(f"  {process.job} data={process.data!r} {process.status.name}" for process in processes)
            raise AssertionError(f"expected no new job{expected}, but there are:\n{shown}")

    def perform(self, job: Any, data: Any = None, **options: Any) -> Any:
        """Add a job, run it here, and return its result; an exception that it raises is raised here.

        Data and result pass through the encoding of the store, as they do with a worker.
        """
        __tracebackhide__ = True
        process = self._scheduler.run_job(job, data, reraise=True, **options)
        if not process.is_done:
            raise AssertionError(f"the job did not end as DONE: {process.why()}")
        return process.result

    def sync_schedules(self, module: str) -> None:
        """Import a module, and store exactly the schedules that it declares with ``@schedule``, as a node does.

        Those of all other modules that are imported count too. Raises ``ConfigError`` if it cannot be imported.
        """
        apply_declared(module, self._scheduler)

    def drain(self, raise_errors: bool = True) -> list[Process]:
        """Run in this process the jobs that are due by the clock, and the jobs that these add, until none is due.

        Due schedules start their jobs, and claims whose lease has ended are rescued. The first exception of a job is
        raised here, even if the job will be retried; with ``raise_errors=False`` all of them stay in the records.
        Of a series one occurrence is run. Return the jobs in the order they began.
        """
        return self._drain(run_inline.Errors.EVERY if raise_errors else run_inline.Errors.KEPT)

    def run_for(self, duration: Duration, raise_errors: bool = True) -> list[Process]:
        """Move the clock forward by ``duration``, and run each job and schedule at the time at which it becomes due.

        An exception that fails a job for good is raised here, unless ``raise_errors=False``; one that is retried is
        not. Return the jobs in the order they began; one that was retried is there several times.
        """
        seconds: float = named("duration", duration, seconds_of)
        ends_at = self._clock.now() + timedelta(seconds=seconds)
        errors = run_inline.Errors.RAISED if raise_errors else run_inline.Errors.KEPT
        ran = self._drain(errors)
        while (next_at := self._next_at()) is not None and self._clock.now() < next_at <= ends_at:
            self._clock.move_to(next_at)
            ran += self._drain(errors)
        self._clock.move_to(ends_at)
        return ran + self._drain(errors)

    def crash(self, process: Process, signum: int = SIGKILL, *, at: str) -> Process:
        """Run a job that was added in a real worker which a signal ends at a point; return the job when it has ended.

        ``at`` is ``start``, ``end`` (after the return of ``start()``), ``checkpoint 3``, ``progress 3`` or
        ``position 3`` (after the third item of ``each``). A node is started, runs the job again as its options say,
        and is stopped. Raises ``AssertionError`` if the job ends before the point, or does not end within a minute.
        """
        __tracebackhide__ = True
        with CrashPoint(process.id, signum, at) as point:
            node = self._start_node(*point.node_options, **point.variables)
            try:
                self._scheduler.wait_for(process, timeout=60)
            finally:
                node.stop()
            if not point.was_reached:
                raise AssertionError(f"the job never reached {at!r}: {process.why()}")
        return process

    def _drain(self, errors: run_inline.Errors) -> list[Process]:
        self._rescue()
        self._schedules.fire_due()
        mode = run_inline.Mode.UNTIL_EMPTY
        records = run_inline.run(self._scheduler, self._store, run_inline.Due.NOW, mode, lambda: None, errors)
        return [Process(self._scheduler, record) for record in records]

    def _rescue(self) -> None:
        """Settle the claims of dead processes as lost once their leases have ended, as any node does."""
        now = self._clock.now()
        lost_claims = [record for record in self._store.expired(now, PAGE) if record.holder is not None]
        self._settle([(record, lost(record, now)) for record in lost_claims], now, is_unseen=True)

    def _next_at(self) -> datetime | None:
        """Return the time at which the next job or schedule is due."""
        now = self._clock.now()
        holder = Holder(seat="testing", incarnation=secrets.token_hex(8))
        limited = self._store.claim(holder, ClaimRequest(pooled=1), now, now + LEASE)
        handed_back = [(record, ended(record, HandedBack(), Run(node=holder.seat), now)) for record in limited.records]
        self._settle(handed_back, now)  # a second occurrence of a series that is already due
        postponed = self._store.claim(holder, ClaimRequest(pooled=0), now, now + LEASE)
        _, fires_at = self._store.due(now, 1)
        moments = (limited.next_at, postponed.next_at, fires_at)
        return min((moment for moment in moments if moment is not None and moment > now), default=None)

    def _settle(self, pairs: list[tuple[Record, Record]], now: datetime, *, is_unseen: bool = False) -> None:
        settlements = [
            Settlement(claims=before.claims, holder=before.holder, after=after, is_unseen=is_unseen)
            for before, after in pairs
            if before.holder is not None
        ]
        if settlements:
            self._store.settle(settlements, now)


SHOWN = 10
"""Maximum number of other jobs that a message lists."""

SHORT = 200
"""Maximum number of characters of a value that a message shows."""


class Expected:
    """A job as a test expects it: its class, and the data and options that the test names."""

    def __init__(self, job: Any, data: Any, options: Mapping[str, Any]) -> None:
        """Take data that may be a part of the mappings in the job's data; None may be any data."""
        self._path = path_of(job)
        self._data = data
        self._given = checked(options, "assert_added")
        self._meta = self._given.get(META, {})
        self._options = dict(options)

    def __str__(self) -> str:
        data = {} if self._data is None else {"data": self._data}
        return self._path + "".join(f" {name}={_short(value)}" for name, value in {**data, **self._options}.items())

    def matches(self, process: Process) -> bool:
        """Return whether the job is as expected."""
        return process.job == self._path and not self._differences(process)

    def beside(self, added: Sequence[Process]) -> str:
        """Return the jobs that were added instead, those of the expected class first, each with its differences."""
        if not added:
            return "no job was added"
        nearest = sorted(added, key=lambda process: process.job != self._path)
        lines = [f"  {self._line(process)}" for process in nearest[:SHOWN]]
        more = [f"  and {len(nearest) - SHOWN} more"] if len(nearest) > SHOWN else []
        return "\n".join(["added were:", *lines, *more])

    def _line(self, process: Process) -> str:
        shown = f"{process.job} data={_short(process.data)} queue={process.queue!r} {process.status.name}"
        differences = self._differences(process) if process.job == self._path else []
        return f"{shown} <- {'; '.join(differences)}" if differences else shown

    def _differences(self, process: Process) -> list[str]:
        options = in_force(process.snapshot)
        others = [f"{name} is {_short(options.get(name))}" for name in changed(process.snapshot, self._given)]
        meta = process.meta
        others += [
            f"meta[{key!r}] is {_short(meta.get(key))}" for key, value in self._meta.items() if meta.get(key) != value
        ]
        if self._data is None:
            return others
        return _data_differences(self._data, decode(process.snapshot.data), process.data) + others


def _data_differences(expected: Any, plain: Any, data: Any, place: str = "data") -> list[str]:
    """Return how a value of a job's data, as stored and as declared, differs from the expected one at this place."""
    if _is_one_of(expected, plain, data):
        return []
    if not isinstance(expected, Mapping) or not isinstance(plain, dict):
        return [f"{place} is {_short(data if place == 'data' else plain)}"]
    differences = [f"{place} has no {name!r}" for name in expected if name not in plain]
    for name, value in expected.items():
        if name in plain:
            inner = plain[name]
            declared = data.get(name, inner) if isinstance(data, Mapping) else getattr(data, str(name), inner)
            differences += _data_differences(value, inner, declared, f"{place}[{name!r}]")
    return differences


def _is_one_of(expected: Any, *values: Any) -> bool:
    """Return whether the value, or its stored form, is one of these."""
    if expected in values:
        return True
    try:
        return decode(encode(expected)) in values
    except InvalidJob:  # of a type that only the class can encode
        return False


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHORT else f"{text[:SHORT]}…"
