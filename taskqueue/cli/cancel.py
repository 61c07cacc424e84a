"""``taskqueue cancel``: end jobs that wait or run."""

from __future__ import annotations

import click

from taskqueue.cli import completion, ids, json_output, output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.errors import JobNotFound
from taskqueue.model.record import Record, Status


@click.command("cancel")
@click.argument("id", metavar="ID…", nargs=-1, required=True, shell_complete=completion.ids)
@click.option("--reason", default="", metavar="TEXT", help="Why; kept with the job and shown by `why`.")
@click.option("--json", "as_json", is_flag=True, help="Write a JSON list for programs.")
@pass_store
def cancel_command(context: StoreContext, id: tuple[str, ...], reason: str, as_json: bool) -> None:
    """End jobs that wait or run.

    One that waits is CANCELED at once. One that runs is asked to end, and killed if it does not.
    """
    found = [ids.resolve(context.store, written) for written in id]
    after = [_canceled(context, record, reason) for record in found]
    if as_json:
        json_output.write_all(json_output.job(record) for record in after)
        return
    for before, record in zip(found, after, strict=True):
        output.line(f"{ids.short(record.id)} {_said(before, record)}")


def _canceled(context: StoreContext, record: Record, reason: str) -> Record:
    after = context.store.cancel(record.id, reason, context.store.now())
    if after is None:
        raise JobNotFound(record.id)
    return after


def _said(before: Record, after: Record) -> str:
    if before.status.is_final:
        return f"had ended already as {before.status.name}"
    if after.status is not Status.PROCESSING and after.status.is_pending:
        return f"is {after.status.name} to clean up"
    if after.status.is_pending:
        return f"runs on node {after.holder.seat if after.holder else '?'} and is asked to end"
    return f"is {after.status.name}"
