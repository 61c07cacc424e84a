"""``taskqueue events``: past events of jobs and nodes and, with ``--follow``, new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from taskqueue.cli import ids, json_output, output, words
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.cli.param_types import duration, extended_json
from taskqueue.model.events import EVENTS

if TYPE_CHECKING:
    from taskqueue.scheduler.event import Event


@click.command("events")
@click.option("--follow", "-f", is_flag=True, help="Go on with what happens, from now on unless --cursor is given.")
@click.option("--event", "-e", "names", multiple=True, type=click.Choice(EVENTS), help="Only these; may be repeated.")
@click.option(
    "--query", type=extended_json, metavar="JSON", help='Only events of jobs that match: \'{"queue": "mail"}\'.'
)
@click.option(
    "--cursor", metavar="CURSOR", help="Begin behind this one, as --json wrote it; default: with what is kept."
)
@click.option("--timeout", type=duration, metavar="S", help="Follow no longer than this; default: until you interrupt.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object a line for programs.")
@pass_store
def events_command(
    place: StoreContext,
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
    for event in place.scheduler.events(query, begin, timeout if follow else 0):
        if not names or event.name in names:
            output.line(output.json_text(json_output.event(event)) if as_json else _said(event))


def _said(event: Event) -> str:
    """Return the event as one line: when, what, and whom it is about."""
    line = f"{words.moment(event.at)}  {event.name:<14}"
    if event.job_id is not None:
        return f"{line}  {ids.short(event.job_id)}"
    about = ", ".join(f"{name} {value}" for name, value in event.about.items())
    return f"{line}  {event.node}{f' ({about})' if about else ''}"
