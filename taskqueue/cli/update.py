"""``taskqueue update``: change jobs that wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

from taskqueue.cli import completion, ids, output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.cli.job_options import data_option, option_of_jobs
from taskqueue.model.meta import META, checked_meta
from taskqueue.model.record import Record
from taskqueue.scheduler import json_shapes
from taskqueue.scheduler.changes import update


@click.command("update", short_help="Change waiting jobs.")
@click.argument("id", metavar="ID…", nargs=-1, required=True, shell_complete=completion.ids)
@option_of_jobs("priority")
@option_of_jobs("at")
@option_of_jobs("queue")
@option_of_jobs("tags")
@option_of_jobs("meta")
@click.option("--no-tags", is_flag=True, help="Remove all tags.")
@data_option
@output.json_option("a JSON list")
@pass_store
def update_command(
    context: StoreContext, id: tuple[str, ...], no_tags: bool, data: Any, as_json: bool, **options: Any
) -> None:
    """Change the named options of waiting jobs, in one step for each job.

    A job that runs or has ended is not changed, which is an error.
    """
    changes = {name: value for name, value in options.items() if value not in (None, ())}
    if no_tags and "tags" in changes:
        raise click.UsageError("--tags sets the tags, and --no-tags removes them all: pass only one of them")
    if no_tags:
        changes["tags"] = ()
    if click.get_current_context().get_parameter_source("data") is ParameterSource.COMMANDLINE:  # null is data too
        changes["data"] = data
    records = [ids.resolve(context.store, written) for written in id]
    after = [_updated(context, record, changes) for record in records]
    says = (f"{ids.named(record)} is {record.status.name} in queue {record.queue}" for record in after)
    output.answer_each(map(json_shapes.job, after), says, as_json=as_json)


def _updated(context: StoreContext, before: Record, changes: Mapping[str, Any]) -> Record:
    others = {name: value for name, value in changes.items() if name != META}
    meta = checked_meta(changes[META]) if META in changes else None
    with context.acting("update", str(before.id), job=before.job, changed=sorted(changes)):
        return update(context.store, before.id, others, meta)
