"""The commands of declared operations, such as ``taskqueue pause``, and ``limit``: controls for all nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import click

from taskqueue.cli import completion, output
from taskqueue.cli.context import StoreContext, pass_new_store, pass_store
from taskqueue.cli.param_types import duration, limit_value
from taskqueue.insight.limit_states import MOST_KEYS, limit_states
from taskqueue.insight.nodes import live_seats, names
from taskqueue.model.controls import EVERY_QUEUE, Control, Kind
from taskqueue.model.limits import Family, limit_keys_of
from taskqueue.model.query import parse
from taskqueue.model.record import Status
from taskqueue.model.wording import count, decided, nearest
from taskqueue.scheduler import controls, json_shapes
from taskqueue.scheduler.operations import OPERATIONS, AnyOperation, StoreOperations, Target

LOOKED_AT = 1000
"""How many jobs are searched for one that has the limit."""

_reason = click.option(
    "--reason", default="", metavar="TEXT", help="The reason; `taskqueue why` shows it for waiting jobs."
)
_by = click.option("--by", metavar="NAME", help="Who makes this decision; default: this user and host.")
_OPTIONS: dict[str, Callable[..., Any]] = {
    "wait": click.option(
        "--wait", type=duration, metavar="S", help="Wait up to this long until no affected job is running."
    ),
    "reason": _reason,
    "by": _by,
    "until": click.option(
        "--until", metavar="VALUE", help="When this expires: a time, or a duration from now: 2h, 7d."
    ),
    "at": click.option(
        "--at", metavar="VALUE", help="When it went into service, if not now: a time, or how long ago: 20m."
    ),
    "as_json": output.json_option("one JSON object"),
}
"""The options of operations, by the parameter that takes the value."""

NAMES: Mapping[Target, completion.Complete] = {
    Target.QUEUE: completion.queues,
    Target.NODE: completion.nodes,
    Target.FAILURE: completion.failures,
    Target.RELEASE: completion.releases,
}
"""The completion of names of targets."""


def __getattr__(name: str) -> click.Command:
    """Return the command of a declared operation by its name in this module, such as ``pause_command``."""
    operation = OPERATIONS.get(name.removesuffix("_command"))
    if operation is None:
        raise AttributeError(name)
    return command_of(operation)


def command_of(operation: AnyOperation) -> click.Command:
    """Return the command of an operation: its arguments and options are the parameters of the method."""

    def run(context: StoreContext, as_json: bool, wait: float | None = None, **values: Any) -> None:
        target = _target(operation, values)
        name = EVERY_QUEUE if target is None else target
        operations = StoreOperations(context.store)
        about = operation.details(operations, name, values)
        with context.acting(operation.name, name, **about) if operation.is_audited else nullcontext():
            result = operation.call(operations, target, values)
        control = operation.control_of(context.store.controls().kept, name)
        if operation.clears is not None:
            _report_cleared(context, operation, name, result, as_json=as_json)
        elif control is not None:
            _report(context, control, wait, as_json=as_json)
        else:
            shape = json_shapes.operation(operation, name, result, control)
            output.answer(shape, operation.answer(operation.target.words(name), result), as_json=as_json)

    is_first = operation.sets is not None or operation.target is Target.RELEASE
    command = (pass_new_store if is_first else pass_store)(run)
    for value, option in reversed(_OPTIONS.items()):
        command = option(command) if operation.takes(value) or value == "as_json" else command
    is_of_queue = operation.target is Target.QUEUE
    if is_of_queue:
        command = click.option("--all", "everything", is_flag=True, help="Everything, whatever its queue.")(command)
    noun = operation.target.value
    command = click.argument(noun, required=not is_of_queue, shell_complete=NAMES[operation.target])(command)
    return click.command(operation.name, help=operation.help)(command)


def _target(operation: AnyOperation, values: dict[str, Any]) -> str | None:
    """Pop the name of the target from the values of a call, and return it; None means every queue."""
    name: str | None = values.pop(operation.target.value)
    if operation.target is Target.QUEUE and values.pop("everything") is (name is not None):
        raise click.UsageError("name a queue, or pass --all")
    return name


def _report_cleared(context: StoreContext, operation: AnyOperation, name: str, was_set: bool, *, as_json: bool) -> None:
    """Print whether the control was set, and the pauses that still hold for the queues."""
    assert operation.clears is not None  # the caller has asked for it
    active = controls.in_force(context.store, operation.clears)
    still = [control for control in active if EVERY_QUEUE in (name, control.name)]
    if as_json:
        rest = {"in_force": [json_shapes.control(pause) for pause in still]}
        cleared = json_shapes.operation(operation, name, was_set, None)
        output.write(cleared | (rest if operation.target is Target.QUEUE else {}))
        return
    output.line(operation.answer(operation.target.words(name), was_set))
    if not was_set and not still:
        _say_others(active, operation.clears)
    for pause in still:
        output.line(f"still active: {decided(pause, context.store.now())}")


@click.command("limit", short_help="Change the number of a declared limit.")
@click.argument("name", required=False)
@click.argument("value", required=False, type=limit_value)
@click.option(
    "--held",
    is_flag=True,
    help="List the limits of running and waiting jobs: how much is used, by which jobs, and how many jobs wait.",
)
@click.option("--reset", is_flag=True, help="Restore the declared numbers of the limit.")
@_reason
@_by
@output.json_option("JSON", ": one object, or without NAME a list")
@pass_store
def limit_command(
    context: StoreContext,
    name: str | None,
    value: str | None,
    held: bool,
    reset: bool,
    reason: str,
    by: str | None,
    as_json: bool,
) -> None:
    """Change the number of a declared limit, including for jobs that already wait; without NAME, list changed limits.

    NAME is the name of a shared limit, or the class that declares it: module:Class. VALUE is the declared value with
    another number: 8, "8 by=bucket" or 200/60.
    """
    if held and (name is not None or reset or reason or by is not None):
        raise click.UsageError("--held lists the limits of all running and waiting jobs: pass it alone, or with --json")
    if held:
        _list_held(context, as_json=as_json)
        return
    if name is None and (reset or reason or by is not None):
        raise click.UsageError("--reset, --reason and --by need the name of a limit")
    if name is not None and reset is (value is not None):
        raise click.UsageError("name the limit and its VALUE, or pass --reset")
    if name is None:
        _list_limits(context, as_json=as_json)
    elif value is None:
        _reset_limit(context, name, reason, by, as_json=as_json)
    else:
        _set_limit(context, name, value, reason, by, as_json=as_json)


def _reset_limit(context: StoreContext, name: str, reason: str, by: str | None, *, as_json: bool) -> None:
    with context.acting("limit", name, limit="as declared", reason=reason, by=by):
        number = controls.reset_limit(context.store, name)
    if as_json:
        output.write(json_shapes.cleared(Kind.LIMIT, name, number))
        return
    output.line(f"{name}: {count(number, 'limit')} reset to what is declared")
    if not number:
        _say_others(controls.in_force(context.store, Kind.LIMIT), Kind.LIMIT)


def _set_limit(context: StoreContext, name: str, value: str, reason: str, by: str | None, *, as_json: bool) -> None:
    with context.acting("limit", name, limit=value, reason=reason, by=by):
        changed = controls.set_limit(context.store, name, value, reason, by)
    output.answer(json_shapes.control(changed), str(changed), as_json=as_json)
    _warn_if_unmatched(context, changed)


def _list_limits(context: StoreContext, *, as_json: bool) -> None:
    changed = controls.in_force(context.store, Kind.LIMIT)
    says = (decided(control, context.store.now()) for control in changed)
    output.answer_each(map(json_shapes.control, changed), says, as_json=as_json)
    if not changed and not as_json:
        output.line("every limit is as declared")


def _list_held(context: StoreContext, *, as_json: bool) -> None:
    states = limit_states(context.store, most=MOST_KEYS + 1)
    if len(states) > MOST_KEYS:
        states = limit_states(context.store)
        output.line(f"only the {MOST_KEYS} limits with the most waiting jobs are listed", err=True)
    if as_json:
        output.write_all(map(json_shapes.limit, states))
        return
    for state in states:
        output.line(f"{state.limit_key}: {state.used:,} of {state.limit_key.count:,} used, waiting: {state.waiting:,}")
        for job in state.holders:
            output.line(f"  {job.id} {job.job} on {job.holder.seat if job.holder else '?'}")
    if not states:
        output.line("no running or waiting job has a limit")


def _say_others(others: Sequence[Control], kind: Kind) -> None:
    """If the named control is not active, list the active ones: the name may be misspelt."""
    active = ", ".join(map(str, others))
    output.line(f"active: {active}" if active else f"nothing is active: no {kind} is set", err=True)


def _report(context: StoreContext, control: Control, wait: float | None, *, as_json: bool) -> None:
    """Print the control, wait until it has taken effect, or name the running jobs. Raises ``WaitTimeout``."""
    if not as_json:
        output.line(str(control))
    _warn_if_unmatched(context, control)
    try:
        if wait is not None:
            controls.until_idle(context.store, control, wait)
    finally:
        if as_json:  # the control stays active even if its jobs have not ended in time
            output.write(json_shapes.control(control) | {"running": _running(context, control)})
    if as_json:
        return
    if wait is not None:
        output.line(f"no job{_scope_of(control)} is running")
    elif running := _running(context, control):
        output.line(f"{count(running, 'job')}{_scope_of(control)} {'is' if running == 1 else 'are'} still running")


def _scope_of(control: Control) -> str:
    """Return the words that follow *job*: the queue or node of the control; empty if every queue is paused."""
    if control.kind is Kind.DRAIN:
        return f" of node {control.name}"
    return f" of queue {control.name}" if control.name else ""


def _running(context: StoreContext, control: Control) -> int:
    return context.store.count(controls.running_of(control))


def _warn_if_unmatched(context: StoreContext, control: Control) -> None:
    """Warn if a control matches no existing queue or node: its name may be misspelt."""
    note = ""
    match control.kind:
        case Kind.DRAIN if control.name not in names(live_seats(context.store.leases(), context.store.now())):
            near = nearest(control.name, names(context.store.leases()))
            note = f"no node of this name is running: the drain applies when one starts; see `taskqueue nodes`{near}"
        case Kind.PAUSE if control.name and not context.store.find(parse({"queue": control.name}), limit=1):
            near = nearest(control.name, [queue for queue, _ in context.store.tally()])
            note = f"no job has this queue now: the pause applies to future jobs{near}"
        case Kind.LIMIT:
            note = _note_on_limit(context, control)
    if note:
        output.line(note, err=True)


def _note_on_limit(context: StoreContext, control: Control) -> str:
    """Return a note if no waiting job has the limit; none if only some jobs were searched: another may have it."""
    waiting = context.store.find(parse({"status": {"$lt": int(Status.PROCESSING)}}), limit=LOOKED_AT)
    families = {limit_key.family for record in waiting for limit_key in limit_keys_of(record.lane)}
    if control.name in families:
        return ""
    scope = Family.of(control.name).scope
    for family in map(Family.of, sorted(families)):
        if family.scope == scope and control.count is not None:
            value = family.as_argument(control.count)
            value = f'"{value}"' if family.by else value
            return (
                "no waiting job has this limit, but some have a limit of this name that counts differently: "
                f"run `taskqueue limit {family.name} --reset`, then "
                f"`taskqueue limit {family.name} {value}`"
            )
    return "" if len(waiting) == LOOKED_AT else "no waiting job has this limit: the change applies to future jobs"
