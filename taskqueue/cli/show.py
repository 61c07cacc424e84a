"""``taskqueue show``, ``why`` and ``stack``: what is kept about a job, why it is in its state, what it executes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime

import click

from taskqueue.cli import completion, ids, output, record_facts
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.insight import obstacles
from taskqueue.model.lifecycle.recovered_copy import COPY, ORIGIN, key_of
from taskqueue.model.limits import limit_keys_of
from taskqueue.model.record import Attempt, Failure, Record
from taskqueue.model.unique_period import end_of
from taskqueue.model.wording import count, local, size, span
from taskqueue.scheduler import json_shapes
from taskqueue.scheduler.workflows import find

VALUE_LINES = 40
"""Maximum number of lines of data, state or result that are shown."""


@click.command("show")
@click.argument("id", metavar="ID", shell_complete=completion.ids)
@output.json_option("one JSON object")
@pass_store
def show_command(context: StoreContext, id: str, as_json: bool) -> None:
    """Show everything that is kept about a job.

    This includes its options, data, result, error and last attempts, and its workflow.
    """
    record = ids.resolve(context.store, id)
    if as_json:
        output.write(json_shapes.job_in_full(record))
        return
    from taskqueue.cli import terminal

    now = context.store.now()
    cause = record_facts.cause(record, now, obstacles.holds(context.store, [record]))
    all_facts = [*facts(record, cause), ("log", _log(context, record))]
    terminal.facts([(name, value) for name, value in all_facts if value])
    for name, text in texts(record):
        terminal.heading(name)
        output.lines(text)
    if record.attempts:
        terminal.heading("attempts")
        _show_attempts(record.attempts)
        if record.attempts[-1].stack:
            terminal.heading("stack of the last attempt when it was ended")
            output.lines(record.attempts[-1].stack)
    if record.workflow is not None:
        terminal.heading("workflow")
        output.lines(find(context.scheduler, record.id).drawing())


@click.command("why")
@click.argument("id", metavar="ID", shell_complete=completion.ids)
@output.json_option("one JSON object")
@pass_store
def why_command(context: StoreContext, id: str, as_json: bool) -> None:
    """Say why a job is in its current state.

    In words: why it waits, what it does, or how it ended.
    """
    record = ids.resolve(context.store, id)
    why = context.scheduler.why(record.id)
    if as_json:
        output.write(json_shapes.job(record) | {"why": why})
        return
    from taskqueue.cli import terminal

    terminal.sentences(why)


def facts(record: Record, cause: str) -> list[tuple[str, str]]:
    """Return the facts of a record by their names; some are empty."""
    options = record.options
    return [
        ("id", str(record.id)),
        ("id text", record.id_text or ""),
        ("job", record.job),
        ("name", options.name or ""),
        ("status", f"{record.status.name}  {cause}".rstrip()),
        ("record", record.damage),
        ("queue", f"{record.queue}, priority {record.priority}"),
        ("tags", ", ".join(record.tags)),
        ("meta", ", ".join(f"{key}={value}" for key, value in record.meta.items())),
        ("unique key", _unique_key(record)),
        ("node", record.holder.seat if record.holder else ""),
        ("phase", _phase(record)),
        ("loops", record.cursor or ""),
        ("progress", f"{record_facts.progress(record)} {record.progress_message}".rstrip() if record.progress else ""),
        ("reported", local(record.progress_at) if record.progress_at else ""),
        ("added", local(record.created_at)),
        ("due", local(record.ready_at) if record.status.name == "POSTPONED" and record.ready_at else ""),
        ("lease ends", local(record.ready_at) if record.holder and record.ready_at else ""),
        ("limits", "; ".join(str(limit_key) for limit_key in limit_keys_of(record.lane))),
        ("parent", str(record.parent or "")),
        ("depends on", ", ".join(str(dependency.id) for dependency in record.depends_on)),
        ("receives", ", ".join(options.receives)),
        ("waits for", ", ".join(str(id) for id in record.waiting_for)),
        ("started", local(record.started_at) if record.started_at else ""),
        ("ended", local(record.ended_at) if record.ended_at else ""),
        ("expires", local(record.expires_at) if record.expires_at else ""),
        ("retry", _retry(record)),
        ("crashes", _crashes(record)),
        ("timeout", span(options.timeout) if options.timeout else ""),
        ("stall timeout", span(options.stall_timeout) if options.stall_timeout else ""),
        ("recovered from", str(record.given.get(ORIGIN, ""))),
        ("recovered as", str(record.given.get(COPY, ""))),
        ("key", key_of(record) or ""),
        ("process", "a worker of its own (force_spawn)" if options.force_spawn else ""),
    ]


def texts(record: Record) -> Iterator[tuple[str, str]]:
    """Yield data, state, reports, result and error of a record, each under its name, if the record has it."""
    reports = record.course.reports if record.course else None
    fields = (("data", record.data), ("state", record.state), ("reports", reports), ("result", record.result))
    for name, text in fields:
        if text is not None and text not in ("null", "{}"):
            yield name, _value(text)
    if record.error is not None:
        yield "error", _error(record.error)


def _unique_key(record: Record) -> str:
    ends_at = end_of(record)
    return (record.unique or "") if ends_at is None else f"{record.unique}, taken until {local(ends_at)}"


def _retry(record: Record) -> str:
    policy = str(record.options.retry).removeprefix("retry ")
    return f"{policy}; {record.failures} failed so far" if record.failures else policy


def _crashes(record: Record) -> str:
    if record.options.on_crash.value == "fail":
        return "never run again after a crash (on_crash='fail')"
    if not record.crashes:
        return ""
    forgiven = record.crashes - record.counted_crashes
    more = f", {forgiven} more before it continued" if forgiven else ""
    return f"{record.counted_crashes} of {record.options.crash_retries} allowed{more}"


def _phase(record: Record) -> str:
    if record.course is None or record.course.phase is None:
        return ""
    return f"{record.course.phase.value}, iterations done: {record.course.steps}"


def _value(text: str) -> str:
    try:
        lines = json.dumps(json.loads(text), ensure_ascii=False, indent=2).splitlines()
    except (RecursionError, ValueError):  # damaged
        lines = text.splitlines()
    left = len(lines) - VALUE_LINES
    return "\n".join(lines if left <= 0 else [*lines[:VALUE_LINES], f"… {left} more lines; --json writes all"])


def _log(context: StoreContext, record: Record) -> str:
    """Return how many log lines are kept, and how to see them."""
    lines = len(context.scheduler.logs(record.id))
    return f"{count(lines, 'line')}: taskqueue logs {ids.named(record)}" if lines else ""


def _error(failure: Failure) -> str:
    return failure.traceback.rstrip() or f"{failure.type}: {failure.message}"


def _show_attempts(attempts: tuple[Attempt, ...]) -> None:
    from taskqueue.cli import terminal

    columns = (
        terminal.Column(head="attempt", side="right"),
        terminal.Column(head="outcome"),
        terminal.Column(head="node", cut="end"),
        terminal.Column(head="pid", side="right"),
        terminal.Column(head=f"began {datetime.now().astimezone():%Z}", is_spare=True),
        terminal.Column(head="took", side="right"),
        terminal.Column(head="memory", side="right", is_spare=True),
        terminal.Column(head="how", cut="end"),
    )
    terminal.table(columns, [attempt_cells(attempt) for attempt in attempts])


def attempt_cells(attempt: Attempt) -> list[str]:
    """Return number, outcome, node, pid, start, duration and peak memory of an attempt, and how it ended."""
    took = (attempt.ended_at - attempt.started_at).total_seconds() if attempt.started_at else None
    how = f"{attempt.error.type.rpartition('.')[2]}: {attempt.error.message}" if attempt.error else attempt.exit
    return [
        str(attempt.number),
        attempt.outcome,
        attempt.node,
        str(attempt.pid or "-"),
        f"{attempt.started_at.astimezone():%H:%M:%S}" if attempt.started_at else "-",
        span(took) if took is not None else "-",
        size(attempt.peak_memory) if attempt.peak_memory else "-",
        " ".join(how.split()) or "-",
    ]


@click.command("stack")
@click.argument("id", metavar="ID", shell_complete=completion.ids)
@output.json_option("one JSON object")
@pass_store
def stack_command(context: StoreContext, id: str, as_json: bool) -> None:
    """Show where a running job is.

    Print the Python stack of all its threads and asyncio tasks, without stopping it: files, lines and functions, no
    values. The node that runs the job answers.
    """
    record = ids.resolve(context.store, id)
    stack = context.scheduler.stack(record.id)
    if as_json:
        output.write(json_shapes.job(record) | {"stack": stack})
    else:
        output.lines(stack)
