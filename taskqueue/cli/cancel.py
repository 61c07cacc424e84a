"""``taskqueue cancel`` and ``give-up``: end jobs that wait or run, or that wait to run again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from taskqueue.cli import completion, ids, output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.cli.param_types import job_filter
from taskqueue.errors import JobNotFound
from taskqueue.model.job_filter import JobFilter
from taskqueue.model.query import PENDING, And, parse
from taskqueue.model.record import Record, Status
from taskqueue.model.wording import count
from taskqueue.scheduler import changes, json_shapes
from taskqueue.scheduler.audit_trail import shown_query


@click.command("cancel")
@click.argument("id", metavar="[ID…]", nargs=-1, shell_complete=completion.ids)
@click.option("--query", type=job_filter, metavar="FILTER", help="All jobs that match this and have not ended.")
@click.option("--yes", is_flag=True, help="With --query: cancel them; the default is only to count them.")
@click.option("--reason", default="", metavar="TEXT", help="Why; kept with the job and shown by `why`.")
@output.json_option("a JSON list")
@pass_store
def cancel_command(
    context: StoreContext, id: tuple[str, ...], query: JobFilter | None, yes: bool, reason: str, as_json: bool
) -> None:
    """End jobs that wait or run.

    Name them by ID, or with --query by what they have in common: "class:Mail queue:mail", or JSON such as
    {"job": "shop:Mail"}. A waiting job is CANCELED at once. A running job is asked to end, and killed if it does not.
    """
    ids.check_named(id, query)
    if query is not None:
        _cancel_matching(context, query.query(context.store.now()), yes, reason, as_json)
        return
    records = [ids.resolve(context.store, written) for written in id]
    after = [_canceled(context, record, reason) for record in records]
    says = (f"{ids.named(record)} {_said(before, record)}" for before, record in zip(records, after, strict=True))
    output.answer_each(map(json_shapes.job, after), says, as_json=as_json)


@click.command("give-up", short_help="Give up on jobs that wait to run again: they end as FAILED.")
@click.argument("id", metavar="[ID…]", nargs=-1, shell_complete=completion.ids)
@click.option("--query", type=job_filter, metavar="FILTER", help="All jobs that match this and wait to run again.")
@click.option("--yes", is_flag=True, help="With --query: give them up; the default is only to count them.")
@click.option("--reason", default="", metavar="TEXT", help="Why; kept with the job, after its error.")
@output.json_option("a JSON list", "; with --query an object")
@pass_store
def give_up_command(
    context: StoreContext, id: tuple[str, ...], query: JobFilter | None, yes: bool, reason: str, as_json: bool
) -> None:
    """End jobs that wait to run again after an error, or for their class to be loaded, as FAILED.

    Name them by ID, or with --query by what they have in common: "class:Mail status:retrying", or JSON such as
    {"job": "shop:Mail"}. They keep their last error. `recover` runs them again.
    """
    ids.check_named(id, query)
    if query is not None:
        _give_up_matching(context, query.query(context.store.now()), yes, reason, as_json)
        return
    after = [_given_up(context, ids.resolve(context.store, written), reason) for written in id]
    output.answer_each(
        map(json_shapes.job, after), (f"{ids.named(record)} {_is(record)}" for record in after), as_json=as_json
    )


def _give_up_matching(context: StoreContext, written: Mapping[str, Any], yes: bool, reason: str, as_json: bool) -> None:
    """Give up, or count, the jobs that match and wait to run again."""
    given_up, query = 0, parse(written)
    number = context.store.count(And((query, parse(changes.WAITS_AGAIN))))
    if yes:
        with context.acting("give up", "jobs", query=shown_query(written), number=number, reason=reason):
            given_up = changes.give_up_all(context.store, query, reason)
    says = f"gave up {count(given_up, 'job')}"
    if not yes:
        says = f"would give up {count(number, 'job')}: pass --yes to give them up"
    output.answer({"found": number, "given_up": given_up}, says, as_json=as_json)


def _given_up(context: StoreContext, record: Record, reason: str) -> Record:
    with context.acting("give up", str(record.id), job=record.job, reason=reason):
        return changes.give_up(context.store, record.id, reason)


def _cancel_matching(context: StoreContext, written: Mapping[str, Any], yes: bool, reason: str, as_json: bool) -> None:
    """Cancel, or count, the jobs that match and are pending now; jobs added during the call are left alone."""
    canceled = asked = 0
    query = parse(written)
    number = context.store.count(And((query, PENDING)))
    if yes:
        with context.acting("cancel", "jobs", query=shown_query(written), number=number, reason=reason):
            canceled, asked = changes.cancel_all(context.store, query, reason)
        number = canceled + asked
    asked_too = f"; asked {count(asked, 'running job')} to end" if asked else ""
    says = f"canceled {count(canceled, 'job')}{asked_too}"
    if not yes:
        says = f"would cancel {count(number, 'job')}: pass --yes to cancel them"
    output.answer({"found": number, "asked_to_end": asked, "canceled": canceled}, says, as_json=as_json)


def _canceled(context: StoreContext, record: Record, reason: str) -> Record:
    with context.acting("cancel", str(record.id), job=record.job, reason=reason):
        after = context.store.cancel(record.id, reason, context.store.now())
        if after is None:
            raise JobNotFound(record.id)
    return after


def _said(before: Record, after: Record) -> str:
    if before.status.is_final:
        return f"had already ended as {before.status.name}"
    if after.status is Status.PROCESSING:
        return f"is running on node {after.holder.seat if after.holder else '?'} and was asked to end"
    return _is(after)


def _is(after: Record) -> str:
    """Return the status of a job after it was ended; one in steps cleans up first."""
    return f"is {after.status.name}{'' if after.status.is_final else ', to clean up'}"
