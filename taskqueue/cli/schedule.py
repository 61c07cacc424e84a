"""``taskqueue schedule``: define, inspect and control named schedules from a shell."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskqueue.cli import completion, ids, output
from taskqueue.cli.context import NewStoreContext, StoreContext, pass_new_store, pass_store
from taskqueue.cli.job_options import data_option, option_of_jobs
from taskqueue.cli.param_types import duration, extended_json, interval
from taskqueue.errors import InvalidOption
from taskqueue.model.options.table import OPTIONS
from taskqueue.model.schedules import Cron, Custom, Every
from taskqueue.model.schedules.cron import UTC, in_zone
from taskqueue.model.schedules.schedule import NamedSchedule, Overlap, Stage
from taskqueue.model.schedules.series import AT_ONCE
from taskqueue.model.wording import count, local, span
from taskqueue.scheduler import json_shapes
from taskqueue.scheduler.schedules import ONE_JOB, RULES

if TYPE_CHECKING:
    from taskqueue.model.options.table import ScheduleEntry
    from taskqueue.scheduler.crontab import Crontab
    from taskqueue.scheduler.declared_schedules import ScheduleChanges


@click.group("schedule")
def schedule_command() -> None:
    """Define, inspect and control named schedules."""


def _job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for name in reversed(
        [name for name, option in OPTIONS.items() if not option.is_of_class and name not in (*ONE_JOB, *RULES)]
    ):
        command = option_of_jobs(name)(command)
    return command


@schedule_command.command("add")
@click.argument("name")
@click.argument("job", metavar="CLASS", shell_complete=completion.classes)
@data_option
@click.option("--every", type=interval, metavar="TIME", help="Run at this interval, such as 5m; -1 means at once.")
@click.option(
    "--from", "anchor", metavar="TIME", default="end", show_default=True,
    help="With --every: count from the 'end' or 'start' of a run, or from a base time.",
)  # fmt: skip
@click.option("--cron", metavar="EXPR", help="Run at these local times: minute, hour, day, month, weekday.")
@click.option("--tz", metavar="ZONE", help="With --cron: the time zone, such as Europe/Berlin; default: UTC.")
@click.option("--at", metavar="PATH", help="Run when the class module:Class says so: its next(after) returns a time.")
@click.option("--arguments", type=extended_json, metavar="JSON", help="With --at: the arguments of the class.")
@click.option(
    "--overlap", type=click.Choice([overlap.value for overlap in Overlap]), default="skip", show_default=True,
    help="What happens at a scheduled time while a job of the schedule waits or runs.",
)  # fmt: skip
@click.option(
    "--misfire", default="once", show_default=True, metavar="RULE",
    help="Which missed times are made up: once, skip or all(N).",
)  # fmt: skip
@click.option(
    "--grace", type=duration, default="60", show_default=True, metavar="S",
    help="How late a run still counts as on time.",
)  # fmt: skip
@click.option("--until", metavar="TIME", help="The last time at which it starts a job.")
@click.option("--max-runs", type=click.IntRange(min=1), metavar="N", help="How many jobs it starts in total.")
@click.option("--stop-after-failures", type=click.IntRange(1, 100), metavar="N", help="End after N failures in a row.")
@_job_options
@output.json_option("JSON")
@pass_new_store
def _add(context: StoreContext, name: str, job: str, data: Any, as_json: bool, **options: Any) -> None:
    """Define a schedule, or redefine the one of this name.

    Its counters stay, and its next time if the trigger is the same.
    """
    every, anchor, at, arguments = (options.pop(key) for key in ("every", "anchor", "at", "arguments"))
    given = {key: value for key, value in options.items() if value not in (None, ())}
    given["every"] = every if every in (None, AT_ONCE) else Every(every, anchor)
    given["at"] = None if at is None else Custom(at, arguments or {})
    with context.acting("schedule", name, job=job):
        schedule = context.scheduler.schedule(name, job, data, **given)
    _report(context, schedule.snapshot, as_json=as_json)


@schedule_command.command("list")
@output.json_option("JSON")
@pass_store
def _list(context: StoreContext, as_json: bool) -> None:
    """List all schedules."""
    schedules = context.store.schedules()
    if as_json:
        output.write_all(json_shapes.schedule(schedule) for schedule in schedules)
        return
    if not schedules:
        output.line("no schedules")
        return
    from taskqueue.cli import terminal

    columns = (
        terminal.Column(head="name", cut="end"),
        terminal.Column(head="stage"),
        terminal.Column(head="next", cut="end"),
        terminal.Column(head="started", side="right"),
        terminal.Column(head="missed", side="right"),
        terminal.Column(head="trigger", cut="end", is_spare=True),
        terminal.Column(head="job", cut="start", is_spare=True),
    )
    now = context.store.now()
    terminal.table(columns, [_row(schedule, now) for schedule in schedules])


def _row(schedule: NamedSchedule, now: datetime) -> list[str]:
    return [
        schedule.name,
        schedule.stage.value,
        _next(schedule, now),
        f"{schedule.fired:,}",
        f"{schedule.missed:,}",
        str(schedule.trigger),
        schedule.template.job,
    ]


@schedule_command.command("show", short_help="Show a schedule, its last jobs and missed times.")
@click.argument("name", shell_complete=completion.schedules)
@output.json_option("JSON")
@pass_store
def _show(context: StoreContext, name: str, as_json: bool) -> None:
    """Show a schedule: its definition, its last jobs, and which times it missed and why."""
    _report(context, context.scheduler.get_schedule(name).snapshot, as_json=as_json)


@schedule_command.command("pause")
@click.argument("name", shell_complete=completion.schedules)
@click.option("--reason", default="", metavar="TEXT", help="Why; kept with the schedule.")
@output.json_option("JSON")
@pass_store
def _pause(context: StoreContext, name: str, reason: str, as_json: bool) -> None:
    """Stop a schedule from starting jobs until it is resumed."""
    handle = context.scheduler.get_schedule(name)
    with context.acting("pause schedule", name, reason=reason):
        schedule = handle.pause(reason).snapshot
    output.answer(json_shapes.schedule(schedule), f"{name} is paused", as_json=as_json)


@schedule_command.command("resume", short_help="Let a paused schedule start jobs again.")
@click.argument("name", shell_complete=completion.schedules)
@output.json_option("JSON")
@pass_store
def _resume(context: StoreContext, name: str, as_json: bool) -> None:
    """Resume a schedule from now; times that it missed while it was paused are not made up."""
    handle = context.scheduler.get_schedule(name)
    with context.acting("resume schedule", name):
        schedule = handle.resume().snapshot
    says = f"{name} is {schedule.stage.value}, next: {_next(schedule, context.store.now())}"
    output.answer(json_shapes.schedule(schedule), says, as_json=as_json)


@schedule_command.command("remove")
@click.argument("name", shell_complete=completion.schedules)
@output.json_option("JSON")
@pass_store
def _remove(context: StoreContext, name: str, as_json: bool) -> None:
    """Remove a schedule; jobs that it has started stay."""
    schedule = context.scheduler.get_schedule(name)
    with context.acting("remove schedule", name):
        schedule.remove()
    shape = json_shapes.schedule(schedule.snapshot) | {"removed": True}
    output.answer(shape, f"{name} is removed", as_json=as_json)


@schedule_command.command("trigger")
@click.argument("name", shell_complete=completion.schedules)
@output.json_option("JSON")
@pass_store
def _trigger(context: StoreContext, name: str, as_json: bool) -> None:
    """Start a job of a schedule now, and print its id."""
    schedule = context.scheduler.get_schedule(name)
    with context.acting("trigger", name):
        process = schedule.trigger()
    output.answer(json_shapes.job_in_full(process.snapshot), str(process.id), as_json=as_json)


@schedule_command.command("preview")
@click.argument("name", shell_complete=completion.schedules)
@click.option("-n", "--count", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many times.")
@output.json_option("JSON")
@pass_store
def _preview(context: StoreContext, name: str, count: int, as_json: bool) -> None:
    """Print the next times of a schedule, as if each run ended at once."""
    schedule = context.scheduler.get_schedule(name)
    times, trigger = schedule.preview(count), schedule.snapshot.trigger
    if as_json:
        output.write({"name": name, "times": [json_shapes.time(at) for at in times]})
        return
    tz = trigger.tz if isinstance(trigger, Cron) else UTC
    for at in times:
        output.line(f"{local(at)}{f', {in_zone(at, tz):%Y-%m-%d %H:%M:%S} {tz}' if tz != UTC else ''}")


@schedule_command.command("sync", short_help="Apply the schedules that an application declares.")
@click.argument("application", metavar="FILE_OR_MODULE")
@click.option(
    "--name", metavar="NAME", help="The name under which the store keeps the application; default: that of the module."
)
@click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
@output.json_option("JSON")
@pass_new_store
def _sync(context: NewStoreContext, application: str, name: str | None, dry_run: bool, as_json: bool) -> None:
    """Make the schedules of an application exactly those that its code declares with @schedule.

    The module is imported here, with what it imports. Schedules that it declared before and no longer declares are
    removed; schedules of operators and of other applications stay. An older set is applied again, too.
    """
    from taskqueue.cli import application_module
    from taskqueue.scheduler import declared_schedules

    folder, module = str(application_module.folder_of(application)), application_module.module_of(application)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    declared_schedules.import_application(module)
    _apply(context, "sync schedules", name or module, declared_schedules.declared(), dry_run=dry_run, as_json=as_json)


def _apply(
    context: NewStoreContext,
    action: str,
    application: str,
    entries: Mapping[str, ScheduleEntry],
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make these the schedules of the application, or only find out what would change; print the changes."""
    if dry_run:
        changes = context.scheduler.schedules(entries, application=application, dry_run=True)
    else:
        with context.acting(action, application):
            changes = context.scheduler.schedules(entries, application=application, force=True)
    if as_json:
        output.write({"application": application, "dry_run": dry_run, **json_shapes.schedule_changes(changes)})
        return
    for line in _lines(changes):
        output.line(line)
    number = len(changes.added) + len(changes.changed) + len(changes.removed)
    done = "would change" if dry_run else "changed"
    output.line(f"{count(number, 'schedule') if number else 'nothing'} of application {application} {done}")


@schedule_command.command("import", short_help="Define a schedule for each line of a crontab.")
@click.argument("file", type=click.Path(allow_dash=True), metavar="FILE")
@click.option("--system", is_flag=True, help="The lines name a user after their times, as in /etc/crontab.")
@click.option("--tz", metavar="ZONE", help="The time zone of lines without CRON_TZ; default: that of this host.")
@click.option("--name", metavar="NAME", help="The name under which the store keeps the file; default: the file's own.")
@click.option("--queue", metavar="QUEUE", help="Put the jobs into this queue, such as one for a single host.")
@click.option("--skip", is_flag=True, help="Leave out lines that cannot be imported.")
@click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
@output.json_option("JSON")
@pass_new_store
def _import(
    context: NewStoreContext,
    file: str,
    system: bool,
    tz: str | None,
    name: str | None,
    queue: str | None,
    **flags: bool,
) -> None:
    """Define a schedule for each line of a crontab; FILE is - for `crontab -l | taskqueue schedule import -`.

    A schedule has the name of the comment `# name: NAME` above its line, or that of its program. Schedules of lines
    that are no longer in the file are removed. If a line cannot be imported, nothing is.
    """
    application = name or ("crontab" if file == "-" else Path(file).name)
    crontab = _crontab(file, tz, system=system)
    if crontab.wrong and not flags["skip"]:
        raise InvalidOption(f"nothing is imported: {'; '.join(map(str, crontab.wrong))}; or pass --skip")
    for wrong in crontab.wrong:
        output.line(f"left out: {wrong}", err=True)
    entries: Any = {name: {**entry, **({"queue": queue} if queue else {})} for name, entry in crontab.entries.items()}
    _apply(context, "import schedules", application, entries, dry_run=flags["dry_run"], as_json=flags["as_json"])


def _crontab(file: str, tz: str | None, *, system: bool) -> Crontab:
    """Return what the file says."""
    from taskqueue.scheduler import crontab

    path = os.path.abspath(file)
    if not system and (path == "/etc/crontab" or os.path.dirname(path) == "/etc/cron.d"):
        raise click.UsageError(f"the lines of {file} name a user after their times: pass --system")
    zone = tz or crontab.zone_of_host()
    if zone is None:
        raise click.UsageError("the time zone of this host is unknown: pass one, such as --tz Europe/Berlin")
    return crontab.read(_text(file), zone, has_users=system)


def _text(file: str) -> str:
    """Return the text of the file; raise ``InvalidOption`` if there is none.

    A program that fails in a pipe writes nothing; importing that would remove all schedules.
    """
    name = "standard input" if file == "-" else file
    try:
        read = Path(file).read_bytes() if file != "-" else b"" if sys.stdin is None else sys.stdin.buffer.read()
        text = read.decode("utf-8-sig")
    except OSError as error:
        raise InvalidOption(f"{name} cannot be read ({error.strerror}): pass a crontab") from None
    except UnicodeDecodeError as error:
        raise InvalidOption(f"{name} is not UTF-8 text: {error}") from None
    if not text.strip():
        raise InvalidOption(f"{name} is empty: nothing is imported; to remove all of its schedules, pass a comment")
    return text


def _lines(changes: ScheduleChanges) -> Iterator[str]:
    """Yield a line for each schedule that changes."""
    for name in changes.added:
        yield f"add     {name}"
    for name, parts in changes.changed.items():
        yield f"change  {name}: {', '.join(parts)}"
    for name in changes.removed:
        yield f"remove  {name}"


def _report(context: StoreContext, schedule: NamedSchedule, *, as_json: bool) -> None:
    if as_json:
        output.write(json_shapes.schedule(schedule))
        return
    now = context.store.now()
    facts = {
        "name": schedule.name,
        "stage": f"{schedule.stage.value}{f': {schedule.reason}' if schedule.reason else ''}",
        "trigger": str(schedule.trigger),
        "next": f"{_next(schedule, now)}{f', {local(schedule.next_run_at)}' if schedule.next_run_at else ''}",
        "job": schedule.template.job,
        "data": schedule.template.data,
        "options": ", ".join(f"{name}={value!r}" for name, value in schedule.template.given.items())
        or "from the class",
        "rules": f"overlap {schedule.overlap.value}, misfire {schedule.misfire}, grace {span(schedule.grace)}",
        "declared": f"by application {schedule.application}" if schedule.application else "-",
        "started": f"{schedule.fired:,}",
        "missed": f"{schedule.missed:,}",
        "last jobs": ", ".join(ids.short(id) for id in schedule.recent[-5:]) or "-",
    }
    for name, value in facts.items():
        output.line(f"{name:<10} {value}")
    for miss in schedule.misses:
        output.line(f"missed     {count(miss.count, 'time')} from {local(miss.first)}: {miss.reason}")


def _next(schedule: NamedSchedule, now: datetime) -> str:
    if schedule.next_run_at is not None:
        seconds = (schedule.next_run_at - now).total_seconds()
        return f"in {span(seconds)}" if seconds > 0 else "now"
    if schedule.stage is Stage.ACTIVE and schedule.awaits is not None:
        return f"after job {ids.short(schedule.awaits)}"
    return "-"
