"""The targets of keys: the jobs, queue, node or class that a row names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from taskqueue.insight.failure_groups import FailureGroup
from taskqueue.insight.needs import Need, Subject
from taskqueue.insight.nodes import Node
from taskqueue.insight.overview import FAILURES_OVER, QueueState, Run
from taskqueue.model.fingerprint import group_id
from taskqueue.model.history import OTHER
from taskqueue.model.query import Query, parse
from taskqueue.model.record import Record, Status
from taskqueue.scheduler.operations import Target

_FAILED = {"$in": [int(Status.FAILED), int(Status.TIMEOUT)]}
_NOT_BEGUN = {"$lt": int(Status.PROCESSING)}


def job_of(thing: object) -> str | None:
    """Return the id of the one job that it names."""
    match thing:
        case Record(id=id) | Run(record=Record(id=id)):
            return str(id)
        case Need(subject=Subject.JOB | Subject.RUN, name=name) if name:
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
        case Node(name=name):
            return name
        case Need(subject=Subject.NODE, name=name) if name:
            return name
    return None


def failure_of(thing: object) -> str | None:
    """Return the id of the error of a class that it names; None if errors are counted together there."""
    match thing:
        case FailureGroup(job=job, fingerprint=fingerprint) if OTHER not in (job, fingerprint):
            return group_id(job, fingerprint)
        case Need(subject=Subject.CLASS, name=job, error=fingerprint) if fingerprint and OTHER not in (
            job,
            fingerprint,
        ):
            return group_id(job, fingerprint)
    return None


NAMES: Mapping[Target, Callable[[object], str | None]] = {
    Target.QUEUE: queue_of,
    Target.NODE: node_of,
    Target.FAILURE: failure_of,
}
"""The functions that return what a row names, by the kind of target."""


def failures_of(thing: object) -> tuple[str, dict[str, Any]] | None:
    """Return the failures that it names, in words and as a query; None if no query can tell them apart."""
    match thing:
        case FailureGroup(job=job, fingerprint=fingerprint, query=dict(query)):
            return f"{job} that failed with {fingerprint or 'no error'}", query
        case Need(subject=Subject.CLASS | Subject.RETRIED, name=name) if name:
            return f"{name} that failed", {"job": name}
    return None


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The jobs of a row: several lists, each a query that an index answers, with its order."""

    title: str
    parts: tuple[tuple[Query, str], ...]
    later: Query | None = None
    """Jobs that are due later; they are looked up only if there are few: stores do not order them by queue."""


def listed(thing: object, now: datetime) -> Listing | None:
    """Return the jobs of the target: of a queue or node, or the jobs of a class that failed or are retried."""
    queue, node, failures = queue_of(thing), node_of(thing), failures_of(thing)
    if queue:
        of_queue = {"queue": queue}
        begun = (parse({**of_queue, "status": int(Status.PROCESSING)}), "id")
        waiting = (parse({**of_queue, "status": int(Status.WAITING)}), "rank")
        later = parse({**of_queue, "status": int(Status.POSTPONED)})
        return Listing(title=f"queue {queue}", parts=(begun, waiting, *_failed_by_end(of_queue, now)), later=later)
    if node is not None:
        return Listing(title=f"node {node}", parts=((parse({"seat": node, "status": int(Status.PROCESSING)}), "id"),))
    if failures is not None:
        _, query = failures
        retried = parse({"error.type": {"$exists": True}, **query, "status": int(Status.POSTPONED)})
        return Listing(title=f"failed {query['job']}", parts=_failed_by_end(query, now), later=retried)
    return None


def _failed_by_end(of: Mapping[str, Any], now: datetime) -> tuple[tuple[Query, str], ...]:
    ended = {**of, "ended_at": {"$gt": now - FAILURES_OVER}}
    return tuple((parse({**ended, "status": int(status)}), "-ended_at") for status in (Status.FAILED, Status.TIMEOUT))


def cancelable(thing: object) -> tuple[str, Query] | None:
    """Return the jobs that canceling the target ends, in words and as a query."""
    job, queue = job_of(thing), queue_of(thing)
    if job is not None and not (isinstance(thing, Record) and thing.status.is_final):
        return "", parse({"id": job})
    if queue:
        return f" of queue {queue} that have not started", parse({"queue": queue, "status": _NOT_BEGUN})
    return None


def retried(thing: object) -> tuple[str, Query] | None:
    """Return the jobs of the target that wait to run again and can be given up, in words and as a query."""
    queue, failures = queue_of(thing), failures_of(thing)
    if queue:
        return f" of queue {queue} that wait to run again", parse({"queue": queue})
    if failures is not None:
        words, query = failures
        return f" of {words} and wait to run again", parse(query)
    return cancelable(thing)


def repeatable(thing: object, now: datetime) -> tuple[str, Query] | None:
    """Return the ended jobs of the target that can run again, in words and as a query."""
    job, queue, failures = job_of(thing), queue_of(thing), failures_of(thing)
    if job is not None and isinstance(thing, Record) and thing.status.is_final:
        return "", parse({"id": job})
    if queue:
        return f" of queue {queue} that failed", parse({"queue": queue, "status": _FAILED})
    if failures is not None:
        words, query = failures
        failed = {**query, "status": _FAILED, "ended_at": {"$gt": now - FAILURES_OVER}}
        return f" of {words} in the last hour", parse(failed)
    return None
