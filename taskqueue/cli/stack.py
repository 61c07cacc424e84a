"""``taskqueue stack``: the stack of a running job, on whatever node it runs."""

from __future__ import annotations

import click

from taskqueue.cli import completion, ids, output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.scheduler import json_shapes


@click.command("stack")
@click.argument("id", metavar="ID", shell_complete=completion.ids)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object for programs.")
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
