"""Applies the effects of a job's end to other records: its next occurrence, the jobs that wait for it, its children."""

from __future__ import annotations

import json
import logging
from datetime import datetime
from typing import TYPE_CHECKING

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.pending import TREE_ENDS, orphaned, relieved
from taskqueue.model.lifecycle.recovered_copy import origins_of
from taskqueue.model.reading import mapping, readable
from taskqueue.model.record import Record, Status
from taskqueue.model.schedules.series import advance, successor
from taskqueue.model.timestamps import milliseconds
from taskqueue.store.bell import PLANS
from taskqueue.store.relational import waits
from taskqueue.store.relational.columns import COLUMNS
from taskqueue.store.relational.rows import records_of

if TYPE_CHECKING:
    from taskqueue.store.relational.transaction import Transaction

log = logging.getLogger(__name__)

_ADVANCE = """
UPDATE plans SET next_run_at = ?, awaits = NULL, version = version + 1 WHERE name = ? AND awaits = ?
"""
_ABOUT = "SELECT about FROM plans WHERE name = ?"
_COUNT_END = "UPDATE plans SET about = ?, version = version + 1 WHERE name = ?"
_CHILDREN = f"SELECT {COLUMNS} FROM jobs WHERE parent = ? AND parent IS NOT NULL AND status <= 2"


def apply(work: Transaction, ended: Record, now: datetime) -> None:
    """Apply the effects of an ended record, and of the ends that these cause."""
    if ended.origin is not None:
        _recur(work, ended, now)
    waits.end_needs(work, ended)
    if ended.status not in TREE_ENDS and not waits.exist(work):
        return
    work.ended.append(ended)
    if len(work.ended) > 1:
        return  # the loop below is running further up the stack: a long chain of ends must not recurse deeply
    while work.ended:
        first = work.ended[0]
        if waits.exist(work):
            _release(work, first.id, first.status, now)
            for origin in origins_of(first) if first.status is Status.DONE else ():
                _release(work, origin, first.status, now)
        if first.status in TREE_ENDS:
            _cancel_children(work, first, now)
        work.ended.popleft()


def recheck(work: Transaction, waiting: Record, now: datetime) -> Record:
    """Return the record after a recheck of its parent and of the jobs it waits for, which may have ended."""
    after = waiting
    for awaited in waiting.waiting_for:
        present = work.record(awaited)
        if present is None or present.status.is_final:
            after = relieved(after, awaited, None if present is None else present.status, now)
    parent = None if waiting.parent is None else work.record(waiting.parent)
    if parent is not None and parent.status in TREE_ENDS:
        after = orphaned(after, parent.id, parent.status, now)
    if after is not waiting:
        work.replace(waiting, after, now)
    return after


def _recur(work: Transaction, ended: Record, now: datetime) -> None:
    """Insert the next occurrence of a recurring job."""
    following = successor(ended, now)
    if following is not None and not work.insert(following) and work.record(following.id) is None:
        log.warning("the series ends: another job has the unique key %r of job %s", following.unique, ended.id)
    step = advance(ended, now)
    if step is not None and step.next_run_at is not None:
        work.execute(_ADVANCE, (milliseconds(step.next_run_at), step.schedule, str(step.job)))
        work.topics.add(PLANS)
    if step is not None and step.failed is not None:
        _count_end(work, step.schedule, str(step.job), step.failed)


def _count_end(work: Transaction, schedule: str, job: str, failed: bool) -> None:
    """Count the end of a job that a schedule has started lately; a schedule that cannot be read counts nothing."""
    rows = work.execute(_ABOUT, (schedule,)).fetchall()
    for counted in readable(rows, lambda row: _with_end(row[0], job, failed), "a schedule"):
        if counted is not None:
            work.execute(_COUNT_END, (counted, schedule))


def _with_end(kept: str, job: str, failed: bool) -> str | None:
    about = mapping(kept)
    if job not in about["recent"]:
        return None
    about["ended"] = {**(about["ended"] or {}), job: failed}
    return json.dumps(about, ensure_ascii=False)


def _release(work: Transaction, ended: JobId, status: Status, now: datetime) -> None:
    for waiting in waits.waiting_for(work, ended):
        after = relieved(waiting, ended, status, now)
        if after is not waiting:
            work.replace(waiting, after, now)


def _cancel_children(work: Transaction, ended: Record, now: datetime) -> None:
    for child in records_of(work.execute(_CHILDREN, (str(ended.id),)).fetchall()):
        after = orphaned(child, ended.id, ended.status, now)
        if child.status is Status.PROCESSING:
            work.request_cancel(after)
        else:
            work.replace(child, after, now)
