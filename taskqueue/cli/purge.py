"""``taskqueue purge`` and ``taskqueue flush``: remove ended jobs of a certain age, or everything, after a dry run."""

from __future__ import annotations

import sys
from collections.abc import Collection
from datetime import datetime, timedelta, timezone

import click

from taskqueue.cli import output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.cli.param_types import duration
from taskqueue.errors import ConfigError
from taskqueue.exit_codes import Exit
from taskqueue.model.query import EVERYTHING, Query, parse
from taskqueue.model.record import Status
from taskqueue.model.wording import count, local
from taskqueue.scheduler import json_shapes
from taskqueue.store import Store

BATCH = 1000
NO_EVENTS = datetime(1970, 1, 1, tzinfo=timezone.utc)
"""A time before all events: purging leaves events to the nodes."""


@click.command("purge")
@click.option("--done", is_flag=True, help="DONE jobs.")
@click.option("--failed", is_flag=True, help="FAILED jobs.")
@click.option("--canceled", is_flag=True, help="CANCELED jobs.")
@click.option("--timeout", is_flag=True, help="TIMEOUT jobs.")
@click.option("--older", type=duration, required=True, metavar="AGE", help="Jobs that ended longer ago: 12h, 7d.")
@click.option("--yes", is_flag=True, help="Remove them; the default is only to count them.")
@output.json_option("one JSON object")
@pass_store
def purge_command(context: StoreContext, older: float, yes: bool, as_json: bool, **statuses: bool) -> None:
    """Remove jobs that ended some time ago.

    Name their statuses. Jobs that a pending job needs stay. Nodes do this themselves: see --keep-done and
    --keep-failed of taskqueue-node.
    """
    chosen = [Status[name.upper()] for name, is_chosen in statuses.items() if is_chosen]
    if not chosen:
        raise click.UsageError("name the jobs to remove: --done, --failed, --canceled or --timeout")
    store = context.store
    before = store.now() - timedelta(seconds=older)
    number = store.count(_ended(chosen, before))
    names = [status.name for status in chosen]
    removed = 0
    if yes:
        with context.acting("purge", "jobs", statuses=names, before=json_shapes.time(before), number=number):
            removed = _remove(store, chosen, before)
    if as_json:
        output.write({"statuses": names, "before": json_shapes.time(before), "found": number, "removed": removed})
        return
    which = f"{' or '.join(names)}, ended before {local(before)}"
    if not yes:
        output.line(f"would remove {count(number, 'job')} ({which}): pass --yes to remove them")
        return
    needed = store.count(_ended(chosen, before))
    output.line(f"removed {count(removed, 'job')} ({which})")
    if needed:
        output.line(f"{count(needed, 'job')} kept: pending jobs need them")


def _ended(statuses: Collection[Status], before: datetime) -> Query:
    return parse({"status": {"$in": [int(status) for status in statuses]}, "ended_at": {"$lt": before}})


def _remove(store: Store, statuses: Collection[Status], before: datetime) -> int:
    """Remove the jobs in batches, so that nodes can write in between, and return the number."""
    total = 0
    while removed := store.prune(dict.fromkeys(statuses, before), NO_EVENTS, BATCH):
        total += removed
    return total


@click.command("flush")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output.json_option("one JSON object")
@pass_store
def flush_command(context: StoreContext, yes: bool, as_json: bool) -> int:
    """Remove all jobs of the store.

    That includes jobs of every status; running jobs are ended by their nodes.
    """
    store = context.store
    number = store.count(EVERYTHING)
    if not yes and not _agreed(f"remove {count(number, 'job')} from {store.url}?"):
        output.line("nothing was removed", err=True)
        return Exit.ERROR
    with context.acting("flush", "jobs", number=number):
        removed = store.flush()
    if as_json:
        output.json_line(output.json_text({"removed": removed}))
    else:
        output.line(f"removed {count(removed, 'job')}")
    return Exit.OK


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError("flush removes all jobs and cannot ask without a terminal: pass --yes")
    return click.confirm(question, err=True)
