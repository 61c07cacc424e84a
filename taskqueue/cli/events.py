"""``taskqueue events``: past events of jobs and nodes and, with ``--follow``, new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from taskqueue.cli import ids, output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.cli.param_types import duration, extended_json
from taskqueue.model.events import EVENTS
from taskqueue.model.ids import JobId
from taskqueue.model.record import Failure
from taskqueue.model.wording import local
from taskqueue.scheduler import json_shapes

FAILURES = frozenset({"retried", "failed", "timeout"})
"""Events of an attempt that failed."""

REMEMBERED = 10_000
"""How many jobs' classes are cached, so that their next events read no record."""

if TYPE_CHECKING:
    from taskqueue.scheduler.event import Event


@click.command("events", short_help="Print what happened to jobs and nodes.")
@click.option(
    "--follow", "-f", is_flag=True, help="Print new events as they happen, from now on unless --cursor is given."
)
@click.option(
    "--event", "-e", "names", multiple=True, type=click.Choice(EVENTS), metavar="EVENT",
    help=f"Only these; may be repeated: {', '.join(EVENTS)}.",
)  # fmt: skip
@click.option(
    "--query", type=extended_json, metavar="JSON", help='Only events of jobs that match: \'{"queue": "mail"}\'.'
)
@click.option(
    "--cursor",
    metavar="CURSOR",
    help="Start after this cursor, as --json wrote it; default: with the oldest kept event.",
)
@click.option("--timeout", type=duration, metavar="S", help="Follow for at most this long; default: until interrupted.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object per line for programs.")
@pass_store
def events_command(
    context: StoreContext,
    follow: bool,
    names: tuple[str, ...],
    query: Any,
    cursor: str | None,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Print what happened to jobs and nodes, the oldest first; one day is kept."""
    if timeout is not None and not follow:
        raise click.UsageError("--timeout bounds --follow: pass both, or neither")
    begin = cursor or (None if follow else "oldest")
    classes: dict[JobId, str] = {}
    for event in context.scheduler.events(query, begin, timeout if follow else 0):
        if names and event.name not in names:
            continue
        job, error = _job(event, classes)
        if as_json:
            output.json_line(output.json_text(json_shapes.event(event, job, error)))
        else:
            output.line(_line(event, job, error))


def _job(event: Event, classes: dict[JobId, str]) -> tuple[str | None, Failure | None]:
    """Return the class of the event's job, and the error of an attempt that failed if it is still kept."""
    if event.job_id is None:
        return None, None
    if event.job_id in classes and event.name not in FAILURES:
        return classes[event.job_id], None
    record = None if event.process is None else event.process.snapshot
    if record is None:
        return classes.get(event.job_id), None
    if len(classes) == REMEMBERED:
        classes.clear()
    classes[event.job_id] = record.job
    return record.job, record.error if event.name in FAILURES else None


def _line(event: Event, job: str | None, error: Failure | None) -> str:
    """Return the event as one line: its time and name, then job, class and error, or the node."""
    line = f"{local(event.at)}  {event.name:<14}"
    if event.job_id is not None:
        why = f"{error.type}: {error.message}" if error else ""
        return "  ".join(part for part in (line, ids.short(event.job_id), job, why) if part)
    about = ", ".join(f"{name} {value}" for name, value in event.about.items())
    return f"{line}  {event.node}{f' ({about})' if about else ''}"
