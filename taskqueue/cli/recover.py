"""``taskqueue recover``, also called ``retry``: run jobs that have ended once more, as copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from taskqueue.cli import bulk, completion, ids, output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.cli.param_types import job_filter, past
from taskqueue.model.ids import JobId
from taskqueue.model.job_filter import JobFilter
from taskqueue.model.query import And, Query, parse
from taskqueue.model.record import Record
from taskqueue.model.wording import count
from taskqueue.scheduler import changes, json_shapes
from taskqueue.scheduler.audit_trail import shown_query


@click.command("recover", short_help="Run ended jobs again, as copies (also `retry`).")
@click.argument("id", metavar="[ID…]", nargs=-1, shell_complete=completion.ids)
@click.option("--query", type=job_filter, metavar="FILTER", help="All jobs that match this and have ended.")
@click.option(
    "--since",
    type=past,
    metavar="VALUE",
    help="With --query: only jobs that ended after this: a time, or how long ago.",
)
@click.option("--yes", is_flag=True, help="With --query: run them again; the default is only to count them.")
@bulk.plan_options
@click.option("--workflow", is_flag=True, help="The failed part of the workflow of each ID.")
@click.option("--name", metavar="TEXT", help="With --query: the name of the bulk action; default: a generated one.")
@click.option("--json", "as_json", is_flag=True, help="Write a JSON list for programs; with --query an object.")
@pass_store
def recover_command(
    context: StoreContext,
    id: tuple[str, ...],
    query: JobFilter | None,
    since: str | None,
    yes: bool,
    workflow: bool,
    as_json: bool,
    **staged: Any,
) -> None:
    """Run jobs that have ended again, as copies, and print the ids of the copies; also called `retry`.

    The jobs themselves stay as they are. Name them by ID, or with --query by what they have in common:
    "status:failed queue:mail", or JSON such as {"status": "FAILED", "queue": "mail"}. A query leaves out jobs that
    were already recovered. A job whose unique key another pending job has is not run again: named by ID it is an
    error, and a query leaves it out.

    With --workflow, the members of the workflow that failed run again, and so do the members that were canceled
    because of them, each after the copies that it depends on. ID is that of the workflow or of a member.

    With --first, --rate, --queue or --name the jobs of a query run again as a bulk action, which `bulk NAME` follows,
    continues and stops.
    """
    is_bulk = any(value is not None for name, value in staged.items() if name != "at")
    ids.check_named(id, query)
    if query is None and since is not None:
        raise click.UsageError("--since needs --query; jobs named by ID are recovered whenever they ended")
    if query is None and is_bulk:
        raise click.UsageError("--first, --rate, --queue and --name need --query")
    if workflow and (query is not None or staged["at"] is not None):
        raise click.UsageError("--workflow takes only IDs, no --query and no stages: the members keep their order")
    if query is not None:
        written = query.query(context.store.now())
        if is_bulk:
            since_then = [] if since is None else [_ended_since(context, since)]
            bulk.begin(context, {"$and": [written, *since_then]}, staged, yes, as_json)
        else:
            _recover_matching(context, written, since, yes, staged["at"], as_json)
        return
    _recover_named(context, id, workflow, staged["at"], as_json)


def _recover_named(context: StoreContext, written: Sequence[str], workflow: bool, at: Any, as_json: bool) -> None:
    """Run these jobs again, or the failed parts of their workflows."""
    records = [_named(context, id, workflow) for id in written]
    copies: list[Record] = []
    try:
        for record in records:
            copies += _part_again(context, record) if workflow else [_again(context, record, at)]
    finally:  # a refused job must not hide the copies that were added before it
        if copies:
            _show(copies, as_json)
    if not copies and as_json:
        output.write_all([])
    elif not copies:
        output.line("no failed job is left to run again", err=True)


def _named(context: StoreContext, id: str, workflow: bool) -> Record:
    """Return the job with this id, or a member of the workflow with this id, whose first member may be removed."""
    if workflow and JobId.is_valid(id):
        return changes.workflow_member(context.store, JobId(id))
    return ids.resolve(context.store, id)


def _recover_matching(
    context: StoreContext, written: Mapping[str, Any], since: str | None, yes: bool, at: Any, as_json: bool
) -> None:
    """Run the jobs that match and have ended again, or count them."""
    meant = _meant(context, written, since)
    copies: list[Record] = []
    taken = 0
    if yes:
        with context.acting("run again", "jobs", query=shown_query(written), since=since):
            copies, left_out, taken = changes.recover_all(context.store, meant, at)
        number = len(copies)
    else:
        matching, left_out = changes.recoverable(context.store, meant)
        number = len(matching)
    if as_json:
        shapes = [json_shapes.job(copy) for copy in copies]
        output.write({"found": number, "left_out": left_out, "taken": taken, "copies": shapes})
        return
    if left_out:
        output.line(f"left out, already recovered: {left_out:,}; name them by ID to run them again", err=True)
    if taken:
        output.line(f"left out, another pending job has their unique key: {taken:,}", err=True)
    if yes:
        _show(copies, as_json)
    else:
        output.line(f"would run {count(number, 'job')} again: pass --yes to add a copy of each")


def _show(copies: Sequence[Record], as_json: bool) -> None:
    output.answer_each(map(json_shapes.job, copies), (str(copy.id) for copy in copies), as_json=as_json)


def _again(context: StoreContext, ended: Record, at: Any) -> Record:
    with context.acting("run again", str(ended.id), job=ended.job):
        return changes.recover(context.store, ended.id, at)


def _part_again(context: StoreContext, member: Record) -> list[Record]:
    with context.acting("run failed part again", str(member.workflow or member.id), job=member.job):
        return changes.recover_workflow(context.store, member.id)


def _meant(context: StoreContext, query: Mapping[str, Any], since: str | None) -> Query:
    meant = parse(query)
    return meant if since is None else And((meant, parse(_ended_since(context, since))))


def _ended_since(context: StoreContext, since: str) -> dict[str, Any]:
    from taskqueue.model.schedules import ago

    return {"ended_at": {"$gt": ago(since, context.store.now())}}
