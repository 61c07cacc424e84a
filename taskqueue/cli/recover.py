"""``taskqueue recover`` (also ``retry``) and ``bulk``: run ended jobs again as copies, at once or in stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from taskqueue.cli import completion, ids, output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.cli.job_options import option_of_jobs
from taskqueue.cli.param_types import job_filter, past
from taskqueue.model.ids import JobId
from taskqueue.model.job_filter import JobFilter
from taskqueue.model.query import And, Query, parse
from taskqueue.model.record import Record, Status
from taskqueue.model.wording import count, local
from taskqueue.scheduler import bulk_actions, changes, json_shapes
from taskqueue.scheduler.audit_trail import shown_query
from taskqueue.scheduler.bulk_actions import BulkActionState, Plan, StageResults
from taskqueue.scheduler.controls import user


def _plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Declare how many copies a stage adds, how fast, where and when."""
    decorators = (
        click.option("--first", type=int, metavar="N", help="Run only the first N jobs again, by id."),
        click.option(
            "--rate",
            metavar="N/UNIT",
            help="Spread the starts: 50/m is 50 a minute; s, h and d are second, hour and day.",
        ),
        option_of_jobs("queue"),
        option_of_jobs("at"),
    )
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


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
@_plan_options
@click.option("--workflow", is_flag=True, help="The failed part of the workflow of each ID.")
@click.option("--name", metavar="TEXT", help="With --query: the name of the bulk action; default: a generated one.")
@output.json_option("a JSON list", "; with --query an object")
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
            _begin_bulk(context, {"$and": [written, *since_then]}, staged, yes, as_json)
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
            _show_copies(copies, as_json)
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
        _show_copies(copies, as_json)
    else:
        output.line(f"would run {count(number, 'job')} again: pass --yes to add a copy of each")


def _show_copies(copies: Sequence[Record], as_json: bool) -> None:
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


@click.command("bulk", short_help="Follow, continue and stop a bulk action.")
@click.argument("name", required=False)
@click.option("--rest", is_flag=True, help="Start another stage: run the jobs again that no stage has covered yet.")
@click.option("--stop", is_flag=True, help="Cancel the copies that have not started; running copies continue.")
@click.option("--yes", is_flag=True, help="With --rest: do it; the default is only to count them.")
@_plan_options
@click.option("--reason", default="", metavar="TEXT", help="With --stop: why; kept with each canceled copy.")
@output.json_option("JSON", ": one object, or without NAME a list")
@pass_store
def bulk_command(
    context: StoreContext, name: str | None, rest: bool, stop: bool, yes: bool, reason: str, as_json: bool, **plan: Any
) -> None:
    """Print how a bulk action is doing, add a stage to it, or stop it; without NAME, list the last 20.

    `recover --query JSON --first 5 --name vat-fix --yes` starts one. `bulk vat-fix` prints its stages and how many
    copies are in which status, and `bulk vat-fix --rest --rate 50/m --yes` runs the other jobs again.
    """
    if rest and stop:
        raise click.UsageError("pass --rest or --stop, not both")
    if not rest and any(value is not None for value in plan.values()):
        raise click.UsageError("--first, --rate, --queue and --at need --rest")
    if name is None:
        if rest or stop:
            raise click.UsageError("--rest and --stop need the name of a bulk action: `taskqueue bulk` lists them")
        _list_bulk(context, as_json)
    elif rest:
        _continue_bulk(context, name, Plan.of(plan, context.store.now()), yes, as_json)
    elif stop:
        said = f"{reason} ({user()})" if reason else f"bulk action {name} stopped by {user()}"
        with context.acting("stop bulk action", name, reason=reason):
            _show_bulk(bulk_actions.stop(context.scheduler, name, said), as_json)
    else:
        _show_bulk(bulk_actions.read(context.scheduler, name), as_json)


def _begin_bulk(
    context: StoreContext, query: Mapping[str, Any], staged: Mapping[str, Any], yes: bool, as_json: bool
) -> None:
    """Start a bulk action on the matching jobs, or count them."""
    store = context.store
    plan, meant = Plan.of(staged, store.now()), parse(query)
    name = staged["name"] or bulk_actions.new_name(store.now())
    bulk_actions.check_name(name)
    if not yes:
        matching, left_out = changes.recoverable(store, meant)
        _count_bulk(len(matching), plan, as_json, left_out=left_out)
        return
    with context.acting("begin bulk action", name, query=shown_query(query), plan=plan.says):
        action = bulk_actions.begin(context.scheduler, name, query, plan, user())
    _show_bulk(action, as_json)


def _list_bulk(context: StoreContext, as_json: bool) -> None:
    actions = bulk_actions.recent(context.scheduler)
    if as_json:
        output.write_all(json_shapes.bulk_action(action) for action in actions)
        return
    for action in actions:
        output.line(f"{_progress(action)}; started by {action.first.by} at {local(action.first.record.created_at)}")
    if not actions:
        output.line("no bulk actions: `taskqueue recover --query FILTER --first 5 --yes` starts one", err=True)


def _continue_bulk(context: StoreContext, name: str, plan: Plan, yes: bool, as_json: bool) -> None:
    if not yes:
        _count_bulk(bulk_actions.read(context.scheduler, name).left, plan, as_json)
        return
    with context.acting("continue bulk action", name, plan=plan.says):
        action = bulk_actions.add_rest(context.scheduler, name, plan, user())
    _show_bulk(action, as_json)


def _count_bulk(matching: int, plan: Plan, as_json: bool, **more: int) -> None:
    number = min(matching, plan.most)
    jobs = count(matching, "job") if number == matching else f"{number:,} of {count(matching, 'job')}"
    says = f"would run {jobs} again ({plan.says}): pass --yes to add a copy of each"
    output.answer({"found": number, **more}, says, as_json=as_json)


def _show_bulk(action: BulkActionState, as_json: bool) -> None:
    if as_json:
        output.write(json_shapes.bulk_action(action))
        return
    output.line(f"bulk action {_progress(action)}")
    for number, results in enumerate(action.stages, 1):
        output.line(_stage_in_words(number, results))
    for name, why in (("left_out", "already recovered"), ("taken", "another pending job has their unique key")):
        if action.total(name):
            output.line(f"left out, {why}: {action.total(name):,}")
    if action.may_continue:
        output.line(f"the rest: taskqueue bulk {action.name} --rest --rate 50/m --yes")
    if action.unstarted:
        output.line(f"to cancel the {action.unstarted:,} that have not started: taskqueue bulk {action.name} --stop")


def _progress(action: BulkActionState) -> str:
    copies, jobs = action.total("copies"), count(action.first.found, "job")
    return f"{action.name}: {copies:,} of {jobs} run again, {action.left:,} left"


def _stage_in_words(number: int, results: StageResults) -> str:
    stage, record = results.stage, results.stage.record
    parts = [f"{results.statuses[status]:,} {status.name}" for status in Status if results.statuses[status]]
    if record.status is not Status.DONE:
        error = f", {record.error.type}: {record.error.message}" if record.error else ""
        until = f" until {local(record.ready_at)}" if record.status is Status.POSTPONED and record.ready_at else ""
        parts.append(f"the stage itself is {record.status.name}{until}{error}")
    begun = f"by {stage.by} at {local(record.created_at)}"
    return f"  stage {number}, {stage.plan.says}, {begun}: {', '.join(parts) or 'no copies'}"
