"""``taskqueue add``: add a job from a shell, with every option that ``add_job`` has."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from taskqueue.cli import completion, ids, output, record_facts
from taskqueue.cli.context import StoreContext, pass_new_store
from taskqueue.cli.job_options import data_option, job_options
from taskqueue.cli.param_types import duration
from taskqueue.cli.wait import outcome, wait_and_report
from taskqueue.errors import ConfigError, InvalidJob, InvalidOption, StoreUnavailable, TaskqueueError
from taskqueue.execution.failures import brief
from taskqueue.execution.loader import CannotLoad, load
from taskqueue.exit_codes import Exit
from taskqueue.model.job_path import path_of
from taskqueue.model.meta import ADDED_BY, META, checked_meta
from taskqueue.model.query import parse
from taskqueue.model.record import Cause, Status
from taskqueue.scheduler import json_shapes
from taskqueue.scheduler.controls import user_and_host
from taskqueue.scheduler.scheduler import Scheduler

RECENT = 200
"""How many jobs are searched for a similar class."""

ALIKE = 0.85
"""How similar two class names must be, from 0 to 1, for one to be a typo of the other."""


def _run_here(
    context: StoreContext, job: str, data: Any, options: Mapping[str, Any], bootstrap: Path | None, *, as_json: bool
) -> int:
    """Run the job in this process, print how it ended, and return the exit code."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    hooks = {} if bootstrap is None else _hooks_of(bootstrap)
    try:
        load(job)  # before anything else, so that a mistyped class creates neither a store nor a record
    except CannotLoad as refused:
        raise InvalidJob(str(refused)) from None
    with Scheduler(context.url, **hooks) as scheduler:
        process = scheduler.run_job(job, data, **options)
    record = process.snapshot
    if as_json:
        output.write(json_shapes.job_in_full(record) | {"existed": process.existed})
    else:
        next_run = "" if record.status.is_final else f", {record_facts.cause(record, context.store.now())}".rstrip(", ")
        output.line(f"{record.id} is {outcome(record)}{next_run}")
    if process.existed:
        output.line("nothing was run: a job with the same id or unique key already exists", err=True)
    elif record.status is Status.WAITING and not record.claims:
        output.line("nothing was run: the job's limits are used up; a node will run it when there is room", err=True)
    elif not record.status.is_final and record.course is not None and record.cause is Cause.CLAIMED:
        output.line(
            "a node took over one of its steps, and nodes may run the rest: `taskqueue wait` waits for them", err=True
        )
    return Exit.OK if record.status is Status.DONE else Exit.UNSUCCESSFUL


def _hooks_of(bootstrap: Path) -> Mapping[str, Any]:
    """Run the bootstrap file, and return its hooks in the form that a scheduler takes."""
    from taskqueue.daemon.worker.job_loader import JobLoader

    loader = JobLoader(allow=(), scheduler=lambda: None)
    try:
        loader.boot(bootstrap)
    except TaskqueueError:
        raise
    except Exception as error:
        raise ConfigError(f"--bootstrap {bootstrap}: {brief(error)}") from None
    hooks = {} if loader.run_hooks is None else loader.run_hooks._asdict()
    return {"before_add": loader.before_add, **hooks}


def _check_options(*, once: bool, here: bool, bootstrap: Path | None, wait: bool, wait_timeout: float | None) -> None:
    """Refuse options that exclude each other, and options that need another one that is missing."""
    if here and once:
        raise click.UsageError("--here runs a job now, but --once may not add one: pass only one of them")
    if here and wait:
        raise click.UsageError("--here always waits; --wait is for a job that a node runs: pass only one of them")
    if bootstrap is not None and not here:
        raise click.UsageError("--bootstrap is for a run in this process; nodes have their own: pass --here too")
    if wait_timeout is not None and not wait:
        raise click.UsageError("--wait-timeout limits --wait: pass --wait too")


def _check_path(context: StoreContext, job: str) -> None:
    """Refuse a class that is not an import path before creating a store; suggest a recent job's class of this name."""
    try:
        path_of(job)
    except InvalidJob as refused:
        with suppress(StoreUnavailable), closing(StoreContext(context.url)) as existing:
            near = [path for path in completion.recent_classes(existing.store) if path.rpartition(":")[2] == job]
            if near:
                raise InvalidJob(f"{job!r} is not an import path: did you mean {near[0]}?") from None
        raise refused from None


def _unknown_class(context: StoreContext, id: str, job: str) -> str:
    """Return a question if this is the first job of its class and recent jobs have a class of a similar name."""
    if context.store.find(parse({"job": job, "id": {"$ne": id}}), limit=1):
        return ""
    near = get_close_matches(job, completion.recent_classes(context.store) - {job}, n=1, cutoff=ALIKE)
    return f"this is the first job of class {job}: did you mean {near[0]}?" if near else ""


def _signed(own: Sequence[str]) -> Sequence[str] | Mapping[str, str]:
    """Return the meta with user and host added, unless it already names them or has no room left."""
    try:
        return checked_meta([*own, f"{ADDED_BY}={user_and_host()}"])
    except InvalidOption:
        return own


@click.command("add")
@click.argument("job", metavar="CLASS", shell_complete=completion.classes)
@data_option
@job_options
@click.option("--once", is_flag=True, help="If such a job is pending, add nothing; replace it if it differs.")
@click.option("--here", is_flag=True, help="Run it now, in this process; nodes run only its retries.")
@click.option(
    "--bootstrap",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path),
    metavar="FILE",
    help="With --here: a Python file to run first; its hooks run around the job, as on a node.",
)
@click.option("--wait", is_flag=True, help="Wait until the job has ended; the exit code says whether it is DONE.")
@click.option("--wait-timeout", type=duration, metavar="S", help="With --wait: wait no longer than this.")
@output.json_option("JSON")
@pass_new_store
def add_command(
    context: StoreContext,
    job: str,
    data: Any,
    once: bool,
    here: bool,
    bootstrap: Path | None,
    wait: bool,
    wait_timeout: float | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Add a job and print its id.

    CLASS is an import path such as shop.mail:MailJob, shop.mail:send (a function with @task), shop.mail:Mailer.send or
    taskqueue:ShellJob. It is not imported here: the first worker that loads it reports the options that the class
    declares, and what you pass wins. With --here it is imported, also from the current folder, and the exit code says
    whether it is DONE. The meta of the job gets your user and host, as added_by.
    """
    given = {name: value for name, value in options.items() if value not in (None, ())}
    given[META] = _signed(options[META])
    _check_options(once=once, here=here, bootstrap=bootstrap, wait=wait, wait_timeout=wait_timeout)
    _check_path(context, job)
    if here:
        return _run_here(context, job, data, given, bootstrap, as_json=as_json)
    scheduler = context.scheduler
    process = scheduler.add_job_once(job, data, **given) if once else scheduler.add_job(job, data, **given)
    if process.existed:
        output.line("nothing was added: a job with the same id or unique key already exists", err=True)
    elif note := _unknown_class(context, str(process.id), job):
        output.line(note, err=True)
    if wait:
        output.line(str(process.id), err=True)
        return wait_and_report(context, [process.id], wait_timeout, as_json=as_json)
    if as_json:
        output.write(
            json_shapes.job_in_full(ids.resolve(context.store, str(process.id))) | {"existed": process.existed}
        )
    else:
        output.line(str(process.id))
    return 0
