"""``taskqueue add``: add a job from a shell, with every option that ``add_job`` has."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from taskqueue.cli import ids, json_output, output, words
from taskqueue.cli.context import StoreContext, pass_new_store
from taskqueue.cli.param_types import duration, extended_json, job_data
from taskqueue.cli.wait import outcome, wait_and_report
from taskqueue.errors import InvalidOption
from taskqueue.exit_codes import Exit
from taskqueue.model.options.table import OPTIONS, Option
from taskqueue.model.record import Status

_NUMBER = re.compile(r"-?\d+(\.\d+)?")

data_option = click.option(
    "--data", type=job_data, metavar="JSON|@FILE|-",
    help="What the job works on, as JSON or Extended JSON; from a file, or with - from standard input.",
)  # fmt: skip
"""The decorator for the data of jobs, as every command that takes them has it."""


def _job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Declare every option of jobs, as the table describes them."""
    for name, option in reversed(list(OPTIONS.items())):
        command = _declared(name, option)(command)
    return command


def option_of_jobs(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the decorator for one option of jobs, as ``add`` has it."""
    return _declared(name, OPTIONS[name])


def _declared(name: str, option: Option) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    written = f"--{name.replace('_', '-')}"
    help = f"{option.meaning[0].upper()}{option.meaning[1:]}."
    if option.check(option.default) is True:
        off = f"--no-{name.replace('_', '-')}"
        return click.option(f"{written}/{off}", name, default=None, help=help)
    if option.check(option.default) is False:
        return click.option(written, name, is_flag=True, default=None, help=help)
    if isinstance(option.default, tuple):
        return click.option(written, name, multiple=True, metavar="TEXT", help=f"{help} May be repeated.")
    return click.option(written, name, type=_reader(option), metavar="VALUE", help=help)


def _reader(option: Option) -> Callable[[str], Any]:
    """Return what reads the option's value: as text where that is a value, else as the number that it looks like.

    A retry policy is written as its JSON document.
    """

    def read(text: str) -> Any:
        if text.startswith("{"):
            return _checked(option, extended_json(text))
        number = _number(text)
        try:
            option.check(text)
        except InvalidOption as refused:
            if number is None:
                raise _refusal(text, refused) from None
        else:
            return text
        return _checked(option, number)

    return read


def _checked(option: Option, value: Any) -> Any:
    try:
        return option.check(value)
    except InvalidOption as refused:
        raise _refusal(value, refused) from None


def _refusal(value: Any, refused: InvalidOption) -> click.BadParameter:
    """Return what is said of a value, which stands there once."""
    said = str(refused)
    return click.BadParameter(said if said.startswith(f"{value!r} ") else f"{value!r}: {said}")


def _run_here(place: StoreContext, job: str, data: Any, options: Mapping[str, Any], *, as_json: bool) -> int:
    """Run the job in this process, tell how it ended, and return the exit code."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    process = place.scheduler.run_job(job, data, **options)
    record = process.snapshot
    if as_json:
        json_output.write(json_output.job_in_full(record) | {"existed": process.existed})
    else:
        next_run = "" if record.status.is_final else f", {words.cause(record, place.store.now())}".rstrip(", ")
        output.line(f"{record.id} is {outcome(record)}{next_run}")
    if process.existed:
        output.line("nothing was run: this job was there before, with the same id or unique key", err=True)
    elif record.status is Status.WAITING and not record.claims:
        output.line("nothing was run: the limits of the job have no room, a node runs it when they have", err=True)
    return Exit.OK if record.status is Status.DONE else Exit.UNSUCCESSFUL


def _number(text: str) -> int | float | None:
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        return None
    return float(text) if found[1] else int(text)


@click.command("add")
@click.argument("job", metavar="CLASS")
@data_option
@_job_options
@click.option("--once", is_flag=True, help="Add nothing if such a job is pending; replace it if it differs.")
@click.option("--here", is_flag=True, help="Run it now, in this process; only its retries are left to the nodes.")
@click.option("--wait", is_flag=True, help="Wait until the job has ended; the exit code tells whether it is DONE.")
@click.option("--wait-timeout", type=duration, metavar="S", help="With --wait: wait no longer than this.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON for programs.")
@pass_new_store
def add_command(
    place: StoreContext,
    job: str,
    data: Any,
    once: bool,
    here: bool,
    wait: bool,
    wait_timeout: float | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Add a job and print its id.

    CLASS is an import path such as shop.mail:MailJob, shop.mail:send (a function with @task), shop.mail:Mailer.send or
    taskqueue:ShellJob. It is not imported here: the first worker that loads it reports the options that the class
    declares, and what you pass wins. With --here it is imported, from the present folder too, and the exit code tells
    whether it is DONE.
    """
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if here and once:
        raise click.UsageError("--here runs the job now, --once may add none: pass one of them")
    if here and wait:
        raise click.UsageError("--here waits for the job by itself, --wait for one that a node runs: pass one of them")
    if wait_timeout is not None and not wait:
        raise click.UsageError("--wait-timeout says how long to wait: pass --wait too")
    if here:
        return _run_here(place, job, data, given, as_json=as_json)
    add = place.scheduler.add_job_once if once else place.scheduler.add_job
    process = add(job, data, **given)
    if process.existed:
        output.line("nothing was added: this job was there before, with the same id or unique key", err=True)
    if wait:
        output.line(str(process.id), err=True)
        return wait_and_report(place, [process.id], wait_timeout, as_json=as_json)
    if as_json:
        json_output.write(
            json_output.job_in_full(ids.resolve(place.store, str(process.id))) | {"existed": process.existed}
        )
    else:
        output.line(str(process.id))
    return 0
