"""Adds the results of a job's dependencies to its data before it runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from taskqueue.errors import InvalidJob
from taskqueue.execution.executor import Ran, outcome_of
from taskqueue.execution.failures import failure_of
from taskqueue.execution.job_context import Interrupts, JobContext
from taskqueue.execution.loader import Loaded
from taskqueue.model import received, runnable
from taskqueue.model.job import Fail, TaskFunction
from taskqueue.model.job_types import types_of
from taskqueue.model.lifecycle import outcomes
from taskqueue.model.record import Record
from taskqueue.model.serializer import decode, encode

if TYPE_CHECKING:
    from taskqueue.model.ids import JobId

ROOM = 64 * 1024 * 1024
"""Maximum number of bytes of data with the added results, which may be up to a thousand and are not stored."""


def complete(loaded: Loaded, context: JobContext, interrupts: Interrupts) -> Ran | None:
    """Put the results into the data of the context; return the end of the run if that is not possible."""
    try:
        with interrupts:
            context.data = _completed(loaded, context)
    except InvalidJob as refused:  # no retry: the results will not change
        failed = Fail(str(refused))
        return Ran(outcome=outcomes.GivenUp(failure=failure_of(failed)), job=None, error=failed)
    except BaseException as error:  # also an interrupt: it must not end the worker, in which others may run
        return Ran(outcome=outcome_of(None, error, interrupts), job=None, error=error)
    return None


def _completed(loaded: Loaded, context: JobContext) -> str:
    record: Record = context.scheduler.get_job(context.id).snapshot
    if not record.depends_on:
        return context.data
    received.check(context.run.receives, len(record.depends_on), context.run.job)
    sources = _sources(context.scheduler, record)
    results = [None if source.result is None else decode(source.result) for source in sources]
    data = received.completed(decode(context.data), context.run.receives, results)
    types = types_of(loaded.target) if loaded.work in ("start", "function") else None
    try:
        if isinstance(loaded.target, TaskFunction):
            runnable.check_arguments(loaded.target, data)
        stated = data if types is None else types.encoded(data, "data")
        return encode(stated, "data", limit=ROOM)
    except InvalidJob as misfit:
        raise InvalidJob(f"{misfit}{_from(str(misfit), context.run.receives, sources)}") from None


def _sources(scheduler: Any, record: Record) -> list[Record]:
    ids: list[JobId] = [dependency.id for dependency in record.depends_on]
    records = _read(scheduler, ids)
    for id in ids:
        if id not in records:
            raise InvalidJob(
                f"the result of job {id} was removed with the job: recover that job, and add this one again"
            )
    return [records[id] for id in ids]


def _read(scheduler: Any, ids: Sequence[JobId]) -> dict[JobId, Record]:
    steps = received.sources(ids)
    try:
        queried = next(steps)
        while True:
            queried = steps.send(scheduler.get_jobs({"id": {"$in": queried}}))
    except StopIteration as end:
        return {id: process.snapshot for id, process in end.value.items()}


def _from(misfit: str, receives: Sequence[str], sources: Sequence[Record]) -> str:
    """Name the job that returned a value that does not fit."""
    for name, what in received.parts(receives).items():
        place = rf"data(\.{re.escape(name)}\b|\['{re.escape(name)}'\])" if name else "data"
        match = re.match(rf"{place}(\[(?P<index>\d+)\])?", misfit)
        if match is None:
            continue
        if what == received.ONE or match["index"] is not None:
            source = sources[int(match["index"] or 0) if what == received.ALL else 0]
            return f"; it is the result of job {source.id} ({source.job})"
        return f"; it is the results of {len(sources):,} jobs, the first of them {sources[0].id} ({sources[0].job})"
    return ""
