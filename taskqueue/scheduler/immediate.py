"""Immediate mode: each job runs in the process that adds it, on an embedded store in a temporary folder."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, NamedTuple
from urllib.parse import quote

from taskqueue.errors import InvalidOption
from taskqueue.insight.records import matching
from taskqueue.model.query import PENDING, RUNNING, And, Query
from taskqueue.model.record import Record, Status
from taskqueue.scheduler import run_inline
from taskqueue.scheduler.changes import cancel_each
from taskqueue.store import Store

DEEPEST = 10
"""How deep jobs may be nested, each added by the one around it; further jobs run when the innermost has ended."""

_NO_NODE = "runs each job when it is added, in the process that adds it, without a node"
_WAY_OUT = "leave it out, or use a Scheduler with a store and a node"


class ImmediateMode:
    """A store of this process and its forks, and the runs of the jobs that are added to it."""

    def __init__(self, named: str) -> None:
        """``named`` is how the user asked for this mode, for messages."""
        self._named = named
        self.max_runs = run_inline.MOST_RUNS
        """How many runs may follow an add."""
        folder = tempfile.mkdtemp(prefix="taskqueue-immediate-")
        self.url = f"sqlite://{quote(folder)}/jobs.db?synchronous=normal"
        weakref.finalize(self, _remove, folder, os.getpid())

    def check(self, records: Iterable[Record]) -> None:
        """Refuse new jobs that would have to wait for a time."""
        for record in records:
            if record.origin is not None:
                raise self.refusal(f"{record.job}: interval")
            if record.ready_at is not None and record.status is Status.POSTPONED:
                raise self.refusal(f"{record.job}: at={record.given.get('at', record.ready_at)}")

    def refuse(self, name: str, value: object) -> None:
        """Refuse a time that is not None."""
        if value is not None:
            raise self.refusal(f"{name}={value}")

    def check_cancel(self, store: Store, query: Query) -> None:
        """Refuse to cancel a running job: it cannot be ended from outside."""
        running = store.find(And((query, RUNNING)), limit=1)
        if running:
            raise self.refusal(f"a cancel of job {running[0].id}, which is running,")

    def refusal(self, name: str) -> InvalidOption:
        """Return the error for an option or a call that needs time or a node."""
        return InvalidOption(f"{name} needs time or a node: {self._named} {_NO_NODE}: {_WAY_OUT}")

    def run(self, scheduler: Any, store: Store, on_settled: Callable[[], None]) -> None:
        """Run pending jobs until none can run; raise ``TooManyRuns`` if there is no end.

        If anything is raised here, the jobs that are pending then are canceled.
        """
        outer = _NESTED.get()
        is_outermost = outer is None or outer.mode is not self
        if outer is None or outer.mode is not self:
            budget = run_inline.RunBudget(self.max_runs, store.count(PENDING))
            outer = _Nested(self, 0, budget)
        if outer.depth == DEEPEST:
            return
        token = _NESTED.set(outer._replace(depth=outer.depth + 1))
        try:
            run_inline.run_singly(scheduler, store, on_settled, outer.budget)
        except BaseException as error:
            if is_outermost:  # the next add would run them first, and end in the same way
                pending = [record.id for record in matching(store, PENDING)]
                cancel_each(store, pending, f"an add was interrupted by {type(error).__name__}")
            raise
        finally:
            _NESTED.reset(token)


class _Nested(NamedTuple):
    """The runs around the current code: of which mode, how deep, and how many may follow."""

    mode: ImmediateMode
    depth: int
    budget: run_inline.RunBudget


_NESTED: ContextVar[_Nested | None] = ContextVar("taskqueue_immediate", default=None)


@functools.lru_cache(maxsize=1)
def of_process() -> ImmediateMode:
    """Return the one mode of this process for all schedulers with the address ``immediate:``; forks share it."""
    return ImmediateMode("the address immediate:")


def _remove(folder: str, owner: int) -> None:
    """Remove the folder, but not in a fork, whose parent still uses it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
