"""``taskqueue flush``: remove all jobs of a store, after asking."""

from __future__ import annotations

import sys

import click

from taskqueue.cli import output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.errors import ConfigError
from taskqueue.exit_codes import Exit
from taskqueue.model.query import EVERYTHING
from taskqueue.model.wording import count


@click.command("flush")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object for programs.")
@pass_store
def flush_command(context: StoreContext, yes: bool, as_json: bool) -> int:
    """Remove all jobs of the store.

    All means all, whatever their status. Running ones are ended by their nodes.
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
