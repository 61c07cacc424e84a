"""``taskqueue backup``: write the embedded store, as it is now, to one file."""

from __future__ import annotations

from pathlib import Path

import click

from taskqueue.cli import output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.store.backup import back_up


@click.command("backup", short_help="Write the embedded store into a new file.")
@click.argument("file", type=click.Path(path_type=Path))
@output.json_option("one JSON object")
@pass_store
def backup_command(context: StoreContext, file: Path, as_json: bool) -> None:
    """Write the embedded store into a new FILE, as it is at one moment.

    Nodes and applications keep running. FILE is complete and on the disk when the command ends, or does not exist.
    A MongoDB store is backed up with mongodump, a PostgreSQL store with pg_dump.
    """
    size = back_up(context.url, file)
    says = f"{file} holds a copy of the store: {size:,} bytes"
    output.answer({"file": str(file), "bytes": size}, says, as_json=as_json)
