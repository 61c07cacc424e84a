"""What each key is about for a row: which jobs, queue, node or class the row names."""

from __future__ import annotations

from datetime import datetime, timedelta

from taskqueue.model.query import Query, parse
from taskqueue.model.record import Record, Status
from taskqueue.scheduler.needs import Need, Subject
from taskqueue.scheduler.overview import FAILURES_OVER, Failures, NodeState, QueueState, Run

_FAILED = {"$in": [int(Status.FAILED), int(Status.TIMEOUT)]}
_NOT_BEGUN = {"$lt": int(Status.PROCESSING)}


def job_of(thing: object) -> str | None:
    """Return the id of the one job that it names."""
    match thing:
        case Record(id=id) | Run(record=Record(id=id)):
            return str(id)
        case Need(subject=Subject.JOB, name=name) if name:
            return name
    return None


def queue_of(thing: object) -> str | None:
    """Return the queue that it names; "" is every queue."""
    match thing:
        case QueueState(name=name) | Need(subject=Subject.QUEUE, name=name):
            return name
    return None


def node_of(thing: object) -> str | None:
    """Return the node that it names."""
    match thing:
        case NodeState(name=name):
            return name
        case Need(subject=Subject.NODE, name=name) if name:
            return name
    return None


def class_of(thing: object) -> tuple[str, str | None] | None:
    """Return the class whose failures it names, and their error; None for all errors."""
    match thing:
        case Failures(job=job, error=error):
            return job, error
        case Need(subject=Subject.CLASS, name=name) if name:
            return name, None
    return None


def listed(thing: object, now: datetime) -> tuple[str, Query] | None:
    """Return the jobs behind it, as a title and a query: those of a queue or node, or the failed ones of a class."""
    queue, node, failed = queue_of(thing), node_of(thing), class_of(thing)
    if queue:
        return f"queue {queue}", parse({"queue": queue})
    if node is not None:
        return f"node {node}, running", parse({"seat": node, "status": int(Status.PROCESSING)})
    if failed is not None:
        return f"failed {failed[0]}", _failed(failed[0], now)
    return None


def cancelable(thing: object) -> tuple[str, Query] | None:
    """Return the jobs that a cancel of it ends, in words and as a query."""
    job, queue = job_of(thing), queue_of(thing)
    if job is not None and not (isinstance(thing, Record) and thing.status.is_final):
        return "", parse({"id": job})
    if queue:
        return f" of queue {queue} that have not begun", parse({"queue": queue, "status": _NOT_BEGUN})
    return None


def repeatable(thing: object, now: datetime) -> tuple[str, Query] | None:
    """Return the ended jobs that can run again for it, in words and as a query."""
    job, queue, failed = job_of(thing), queue_of(thing), class_of(thing)
    if job is not None and isinstance(thing, Record) and thing.status.is_final:
        return "", parse({"id": job})
    if queue:
        return f" of queue {queue} that failed", parse({"queue": queue, "status": _FAILED})
    if failed is not None:
        return f" of {failed[0]} that failed in the last hour", _failed(failed[0], now)
    return None


def _failed(job: str, now: datetime, within: timedelta = FAILURES_OVER) -> Query:
    return parse({"job": job, "status": _FAILED, "ended_at": {"$gt": now - within}})
