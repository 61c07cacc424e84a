"""``taskqueue wait``: wait until jobs have ended, and print how they ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from taskqueue.cli import completion, ids, output, record_facts
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.cli.param_types import duration
from taskqueue.errors import JobNotFound, WaitTimeout
from taskqueue.exit_codes import Exit
from taskqueue.insight import why
from taskqueue.model.ids import JobId
from taskqueue.model.query import Compare, Operator
from taskqueue.model.record import Record, Status
from taskqueue.scheduler import json_shapes
from taskqueue.scheduler.wait import timed_out

if TYPE_CHECKING:
    from taskqueue.scheduler.process import Process

GLANCE = 0.5
"""Seconds between two reads of the progress on a terminal."""

NOTE_AFTER = 2.0
"""Seconds after which the command says that no node takes the jobs."""


@click.command("wait")
@click.argument("id", metavar="ID…", nargs=-1, required=True, shell_complete=completion.ids)
@click.option("--timeout", type=duration, metavar="S", help="Wait for at most this long; default: no limit.")
@output.json_option("a JSON list")
@pass_store
def wait_command(context: StoreContext, id: tuple[str, ...], timeout: float | None, as_json: bool) -> int:
    """Wait until jobs have ended.

    The exit code says whether all are DONE. When the time has passed, the jobs that have ended are printed.
    """
    waited = [ids.resolve(context.store, written).id for written in id]
    return wait_and_report(context, waited, timeout, as_json=as_json)


def wait_and_report(context: StoreContext, waited: Sequence[JobId], timeout: float | None, *, as_json: bool) -> int:
    """Wait for the jobs, print how they ended, and return the exit code.

    Raises ``WaitTimeout`` after printing the jobs that have ended.
    """
    try:
        _wait(context, waited, timeout)
    except WaitTimeout:
        if ended := [record for record in _records(context, waited) if record.status.is_final]:
            _report(ended, as_json=as_json)
        raise
    ended = _records(context, waited)
    _report(ended, as_json=as_json)
    return Exit.OK if all(record.status is Status.DONE for record in ended) else Exit.UNSUCCESSFUL


def _report(ended: Sequence[Record], *, as_json: bool) -> None:
    if as_json:
        output.write_all(json_shapes.job_in_full(record) for record in ended)
        return
    for record in ended:
        output.line(f"{ids.named(record)} {outcome(record)}")


def outcome(record: Record) -> str:
    """Return the status with the result or the last error, in one line."""
    name = record.status.name
    if record.status is Status.DONE:
        return name if record.result in (None, "null") else f"{name} {record.result}"
    return f"{name} {record.error.type}: {' '.join(record.error.message.split())}" if record.error else name


def _wait(context: StoreContext, waited: Sequence[JobId], timeout: float | None) -> None:
    """Wait for all jobs; show progress on a terminal, and report if no node takes the jobs."""
    from taskqueue.cli import terminal

    with terminal.progress("waiting") as advance:
        processes = [context.scheduler.get_job(id) for id in waited]
        began = time.monotonic()
        deadline = None if timeout is None else began + timeout
        note_at: float | None = began + NOTE_AFTER
        while True:
            if advance is not None:
                records = _records(context, waited)
                advance(done=sum(map(_done, records)), total=len(records), words=_doing(records))
            moments = (deadline, note_at, None if advance is None else time.monotonic() + GLANCE)
            if _waited(context, processes, min((moment for moment in moments if moment is not None), default=None)):
                return
            if note_at is not None and time.monotonic() >= note_at:
                note_at = None
                reason = _why_no_node(context, waited)
                if reason and advance is not None:
                    advance.note(reason)
                elif reason:
                    output.line(reason, err=True)
            if deadline is not None and timeout is not None and time.monotonic() >= deadline:
                still_open = [record.id for record in _records(context, waited) if record.status.is_pending]
                if not still_open:  # the last job has ended since the check
                    return
                raise timed_out(context.store, still_open, timeout)


def _waited(context: StoreContext, processes: Sequence[Process], until: float | None) -> bool:
    """Wait until that time, and return whether all jobs have ended."""
    try:
        context.scheduler.wait_for(processes, timeout=None if until is None else max(until - time.monotonic(), 0))
    except WaitTimeout:
        return False
    return True


def _why_no_node(context: StoreContext, waited: Sequence[JobId]) -> str:
    """Return why no node takes one of the jobs; empty if all are taken."""
    pending = [record for record in _records(context, waited) if record.status in (Status.WAITING, Status.POSTPONED)]
    for queue in dict.fromkeys(record.queue for record in pending):
        reason = why.why_no_node(context.store.leases(), context.store.controls(), queue, context.store.now())
        if reason:
            return reason
    return ""


def _done(record: Record) -> float:
    """Return the fraction of the job that is done, 1 only after it has ended."""
    return 1.0 if record.status.is_final else min(record.progress, 99.0) / 100


def _records(context: StoreContext, waited: Sequence[JobId]) -> list[Record]:
    query = Compare("id", Operator.IN, tuple({str(id) for id in waited}))
    records = {record.id: record for record in context.store.find(query, limit=len(waited))}
    missing = [id for id in waited if id not in records]
    if missing:
        raise JobNotFound(missing[0])
    return [records[id] for id in waited]


def _doing(records: Sequence[Record]) -> str:
    """Return the progress of the running job."""
    running = [record for record in records if record.status is Status.PROCESSING]
    if not running:
        return "waiting"
    return f"{record_facts.progress(running[0])} {running[0].progress_message}".rstrip()
