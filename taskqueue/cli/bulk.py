"""``taskqueue bulk``: follow, continue and stop a bulk action that ``recover`` has started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from taskqueue.cli import output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.cli.job_options import option_of_jobs
from taskqueue.model.record import Status
from taskqueue.model.wording import count, local
from taskqueue.scheduler import bulk_actions, changes, json_shapes
from taskqueue.scheduler.audit_trail import shown_query
from taskqueue.scheduler.bulk_actions import BulkActionState, Plan, StageResults
from taskqueue.scheduler.controls import user


def plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
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


@click.command("bulk", short_help="Follow, continue and stop a bulk action.")
@click.argument("name", required=False)
@click.option("--rest", is_flag=True, help="Start another stage: run the jobs again that no stage has covered yet.")
@click.option("--stop", is_flag=True, help="Cancel the copies that have not started; running copies continue.")
@click.option("--yes", is_flag=True, help="With --rest: do it; the default is only to count them.")
@plan_options
@click.option("--reason", default="", metavar="TEXT", help="With --stop: why; kept with each canceled copy.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON for programs: one object, or without NAME a list.")
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
        _list(context, as_json)
    elif rest:
        _rest(context, name, Plan.of(plan, context.store.now()), yes, as_json)
    elif stop:
        said = f"{reason} ({user()})" if reason else f"bulk action {name} stopped by {user()}"
        with context.acting("stop bulk action", name, reason=reason):
            _show(bulk_actions.stop(context.scheduler, name, said), as_json)
    else:
        _show(bulk_actions.read(context.scheduler, name), as_json)


def begin(context: StoreContext, query: Mapping[str, Any], staged: Mapping[str, Any], yes: bool, as_json: bool) -> None:
    """Start a bulk action on the matching jobs, or count them."""
    from taskqueue.model.query import parse

    store = context.store
    plan, meant = Plan.of(staged, store.now()), parse(query)
    name = staged["name"] or bulk_actions.new_name(store.now())
    bulk_actions.check_name(name)
    if not yes:
        matching, left_out = changes.recoverable(store, meant)
        _count(len(matching), plan, as_json, left_out=left_out)
        return
    with context.acting("begin bulk action", name, query=shown_query(query), plan=plan.says):
        action = bulk_actions.begin(context.scheduler, name, query, plan, user())
    _show(action, as_json)


def _list(context: StoreContext, as_json: bool) -> None:
    actions = bulk_actions.recent(context.scheduler)
    if as_json:
        output.write_all(json_shapes.bulk_action(action) for action in actions)
        return
    for action in actions:
        output.line(f"{_progress(action)}; started by {action.first.by} at {local(action.first.record.created_at)}")
    if not actions:
        output.line("no bulk actions: `taskqueue recover --query FILTER --first 5 --yes` starts one", err=True)


def _rest(context: StoreContext, name: str, plan: Plan, yes: bool, as_json: bool) -> None:
    if not yes:
        _count(bulk_actions.read(context.scheduler, name).left, plan, as_json)
        return
    with context.acting("continue bulk action", name, plan=plan.says):
        action = bulk_actions.add_rest(context.scheduler, name, plan, user())
    _show(action, as_json)


def _count(matching: int, plan: Plan, as_json: bool, **more: int) -> None:
    number = min(matching, plan.most)
    jobs = count(matching, "job") if number == matching else f"{number:,} of {count(matching, 'job')}"
    says = f"would run {jobs} again ({plan.says}): pass --yes to add a copy of each"
    output.answer({"found": number, **more}, says, as_json=as_json)


def _show(action: BulkActionState, as_json: bool) -> None:
    if as_json:
        output.write(json_shapes.bulk_action(action))
        return
    output.line(f"bulk action {_progress(action)}")
    for number, results in enumerate(action.stages, 1):
        output.line(_said(number, results))
    for name, why in (("left_out", "already recovered"), ("taken", "another pending job has their unique key")):
        if action.total(name):
            output.line(f"left out, {why}: {action.total(name):,}")
    if action.may_continue:
        output.line(f"the rest: taskqueue bulk {action.name} --rest --rate 50/m --yes")
    if action.unstarted:
        output.line(f"to cancel the {action.unstarted:,} that have not started: taskqueue bulk {action.name} --stop")


def _progress(action: BulkActionState) -> str:
    copies, found = action.total("copies"), count(action.first.found, "job")
    return f"{action.name}: {copies:,} of {found} run again, {action.left:,} left"


def _said(number: int, results: StageResults) -> str:
    stage, record = results.stage, results.stage.record
    parts = [f"{results.statuses[status]:,} {status.name}" for status in Status if results.statuses[status]]
    if record.status is not Status.DONE:
        error = f", {record.error.type}: {record.error.message}" if record.error else ""
        until = f" until {local(record.ready_at)}" if record.status is Status.POSTPONED and record.ready_at else ""
        parts.append(f"the stage itself is {record.status.name}{until}{error}")
    begun = f"by {stage.by} at {local(record.created_at)}"
    return f"  stage {number}, {stage.plan.says}, {begun}: {', '.join(parts) or 'no copies'}"
