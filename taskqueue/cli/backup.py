"""``taskqueue backup``: the embedded store as it is now, in one file."""

from __future__ import annotations

from pathlib import Path

import click

from taskqueue.cli import output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.store.backup import back_up


@click.command("backup")
@click.argument("file", type=click.Path(path_type=Path))
@pass_store
def backup_command(context: StoreContext, file: Path) -> None:
    """Write the embedded store into a new FILE, as it is at one moment.

    Nodes and applications go on meanwhile. FILE is complete and on the disk when the command ends, or does not exist.
    A MongoDB store is backed up with mongodump.
    """
    size = back_up(context.url, file)
    output.line(f"{file} has the store as it was: {size:,} bytes")
