"""``taskqueue events``: the last events of jobs and nodes and, with ``--follow``, new ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from taskqueue.cli import completion, ids, output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.cli.param_types import duration, extended_json, past
from taskqueue.model.events import EVENTS
from taskqueue.model.ids import JobId
from taskqueue.model.job_filter import JobFilter, Token
from taskqueue.model.record import Failure
from taskqueue.model.schedules import ago
from taskqueue.model.wording import local
from taskqueue.scheduler import json_shapes
from taskqueue.store import OLDEST

FAILURES = frozenset({"retried", "failed", "timeout"})
"""Events of an attempt that failed."""

REMEMBERED = 10_000
"""How many jobs' classes are cached, so that their next events read no record."""

LAST = 50
"""How many events are printed unless options say where to start."""

LOOK_BACK = (1, 10, 60, 600, 3600)
"""How many of the last seconds are read to find the last events: one value after the other, until there are enough."""

if TYPE_CHECKING:
    from taskqueue.scheduler.event import Event


@click.command("events", short_help="Print what happened to jobs and nodes.")
@click.option(
    "--follow", "-f", is_flag=True, help="Print new events as they happen, from now on unless --cursor is given."
)
@click.option(
    "--event", "-e", "names", multiple=True, type=click.Choice(EVENTS), metavar="EVENT",
    help=f"Only events of this name; may be repeated: {', '.join(EVENTS)}.",
)  # fmt: skip
@click.option(
    "--query", type=extended_json, metavar="JSON", help='Only events of jobs that match: \'{"queue": "mail"}\'.'
)
@click.option(
    "--class", "--job", "classes", multiple=True, shell_complete=completion.classes, metavar="NAME",
    help="Only events of jobs of this class: module:Class, or a part of it; may be repeated.",
)  # fmt: skip
@click.option(
    "--node", "nodes", multiple=True, metavar="NAME", help="Only events of this node itself; may be repeated."
)
@click.option("--since", type=past, metavar="VALUE", help="Only events since then: a time, or how long ago.")
@click.option(
    "-n", "--limit", "last", type=click.IntRange(min=0), metavar="N",
    help=f"Only the last N events; 0 means all. Default: {LAST}, but all with --since or --cursor.",
)  # fmt: skip
@click.option("--cursor", metavar="CURSOR", help="Start after this cursor, as --json wrote it, or at 'oldest'.")
@click.option("--timeout", type=duration, metavar="S", help="Stop following after this long; default: never.")
@output.json_option("one JSON object per line")
@pass_store
def events_command(
    context: StoreContext,
    follow: bool,
    since: str | None,
    last: int | None,
    cursor: str | None,
    timeout: float | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Print the last events of jobs and nodes, the oldest first; one day is kept."""
    if timeout is not None and not follow:
        raise click.UsageError("--timeout limits --follow: pass both, or neither")
    if cursor is not None and since is not None:
        raise click.UsageError("--cursor and --since both say where to start: pass only one of them")
    if chosen["nodes"] and (chosen["classes"] or chosen["query"] is not None):
        raise click.UsageError("events of a node belong to no job: pass --node, or --class and --query")
    reader = _Reader(context, since, **chosen)
    if last is None and not (follow or cursor or since):
        last = LAST
    begin = cursor or reader.begin or (OLDEST if last is not None else None)
    shown: list[Event] = []
    if last:
        shown = reader.last(last, cursor)
        begin = shown[-1].cursor if shown else context.scheduler.cursor()
    classes: dict[JobId, str] = {}
    following = reader.events(begin, timeout if follow else 0) if follow or not last else iter(())
    for event in chain(shown, following):
        job, error = _job(event, classes)
        if as_json:
            output.json_line(output.json_text(json_shapes.event(event, job, error)))
        else:
            output.line(_line(event, job, error))


class _Reader:
    """Reads the chosen events from the store."""

    def __init__(self, context: StoreContext, since: str | None, **chosen: Any) -> None:
        now = context.store.now()
        self._scheduler, self._store, self._now = context.scheduler, context.store, now
        self._names, self._nodes = chosen["names"], chosen["nodes"]
        queries = [JobFilter(tuple(Token("class", name) for name in chosen["classes"])).query(now), chosen["query"]]
        self._query = {"$and": [query for query in queries if query]} if any(queries) else None
        self._since = None if since is None else ago(since, now)
        self.begin = None if self._since is None else self._store.cursor_at(self._since)

    def events(self, cursor: str | None, timeout: float | None) -> Iterator[Event]:
        """Yield the chosen events after the cursor; if there is none, from now on."""
        for event in self._scheduler.events(self._query, cursor, timeout):
            is_chosen = (not self._names or event.name in self._names) and (
                not self._nodes or event.node in self._nodes
            )
            if is_chosen and (self._since is None or event.at >= self._since):
                yield event

    def last(self, number: int, cursor: str | None) -> list[Event]:
        """Return up to this many of the last chosen events, the oldest first."""
        for seconds in () if cursor else LOOK_BACK:
            at = self._now - timedelta(seconds=seconds)
            if self._since is not None and at <= self._since:
                break
            events = list(deque(self.events(self._store.cursor_at(at), 0), maxlen=number))
            if len(events) == number:
                return events
        return list(deque(self.events(cursor or self.begin or OLDEST, 0), maxlen=number))


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
