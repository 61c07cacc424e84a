"""The options of jobs on the command line, each read and checked as ``add_job`` does, with errors for a shell."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import click

from taskqueue.cli.param_types import extended_json, job_data
from taskqueue.errors import InvalidOption
from taskqueue.model.options.table import OPTIONS, Option

_NUMBER = re.compile(r"-?\d+(\.\d+)?")

_TIME = "'now', '+1 hour', Unix seconds or ISO text with a zone: '2030-07-20 00:15 Europe/Berlin'"
_CONDITION = "'module:function' or '#method' of the job's class"
_LIMIT = "'5', '5 by=bucket', '100/60' or '100/60 name=api'"
_ID = "the 24 digits of a job's id, or its text with its class: 'shop:Invoice:invoice-7'"

HELP: Mapping[str, str] = {
    "at": f"When to run: {_TIME}.",
    "retry": "How many more attempts a failed job gets (-1: no limit), or a retry policy as a JSON object.",
    "retry_on": "Retry only after this exception (a dotted name) and its subclasses; default: after all errors.",
    "timeout": "How long one attempt may take: seconds or '5m'; 0 means no limit.",
    "stall_timeout": "How long an attempt may run without progress() or checkpoint(): seconds or '5m'; 0 for no limit.",
    "depends_on": "The id of a job that must be DONE first, or a check as for --ready.",
    "ready": f"What must hold before each run: {_CONDITION}.",
    "limits": f"How many may run at once, or start within N seconds: {_LIMIT}.",
    "meta": "A KEY=VALUE to pass on to the job's runs, copies, children and log lines.",
    "parent": "The id of the parent job; this job is canceled with it.",
    "interval": "How long after a run the job runs again: seconds or '5m'; -1 means at once, 0 never.",
    "interval_reference": "What the interval counts from: the end or start of a run, or a base time as for --at.",
    "ignore_data": "With --once: jobs of one class count as equal, whatever their data.",
}
"""Help for options whose description in Python names objects that a shell lacks."""

WAYS_OUT: Mapping[str, str] = {
    **dict.fromkeys(("at", "expires", "until"), _TIME),
    **dict.fromkeys(
        ("timeout", "stall_timeout", "retry_interval"), "seconds (30), '5m', '1h30m', '200 ms' or 'HH:MM:SS'"
    ),
    "retry": "the number of further attempts, -1 for no limit, or a policy as `show --json` writes it",
    "interval_reference": f"'end', 'start', {_TIME}",
    "ready": _CONDITION,
    "depends_on": _ID,
    "meta": "KEY=VALUE",
    "parent": _ID,
    "id": "text of 1 to 64 printable characters, or the 24 digits of an id; for a key that is free again when the job "
    "has ended, use --unique",
    "limits": _LIMIT,
}
"""The notations that an error suggests in place of the Python objects that the model names."""

_ALSO: Mapping[str, tuple[str, ...]] = {"tags": ("--tag",)}
"""Second names of options, by which other commands know them."""

_NAMED = r"datetime|timedelta|Limit\(|ObjectId|retry\.|function at"
_PYTHON = re.compile(rf"(?P<before>^|.*?: )pass [^:]*({_NAMED}).*", re.DOTALL)

data_option = click.option(
    "--data", type=job_data, metavar="JSON|@FILE|-",
    help="The job's data, as JSON or Extended JSON; from a file with @, or from standard input with -.",
)  # fmt: skip
"""The decorator for the data of jobs, for every command that takes it."""


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Declare every option of jobs as the table describes it."""
    for name, option in reversed([(name, option) for name, option in OPTIONS.items() if not option.is_of_class]):
        command = _declared(name, option)(command)
    return command


def option_of_jobs(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the decorator for one option of jobs, as in ``add``."""
    return _declared(name, OPTIONS[name])


def _declared(name: str, option: Option) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    written = f"--{name.replace('_', '-')}"
    help = HELP.get(name, f"{option.meaning[0].upper()}{option.meaning[1:]}.")
    if option.check(option.default) is True:
        off = f"--no-{name.replace('_', '-')}"
        return click.option(f"{written}/{off}", name, default=None, help=help)
    if option.check(option.default) is False:
        return click.option(written, name, is_flag=True, default=None, help=help)
    if isinstance(option.default, tuple | Mapping):
        reader = _one_of_several(name, option)
        names = (written, *_ALSO.get(name, ()), name)
        return click.option(*names, type=reader, multiple=True, metavar="TEXT", help=f"{help} May be repeated.")
    return click.option(written, name, type=_reader(name, option), metavar="VALUE", help=help)


def _one_of_several(name: str, option: Option) -> Callable[[str], str]:
    """Return the function that checks one value of an option that takes several."""

    def read(text: str) -> str:
        _checked(name, option, [text], text)
        return text

    return read


def _reader(name: str, option: Option) -> Callable[[str], Any]:
    """Return the reader of the option's value: as text if text is allowed, else as a number.

    A retry policy is written as its JSON document.
    """

    def read(text: str) -> Any:
        if text.startswith("{"):
            return _checked(name, option, extended_json(text), text)
        number = _number(text)
        try:
            option.check(text)
        except InvalidOption as refused:
            if number is None:
                raise _refusal(name, text, refused) from None
        else:
            return text
        return _checked(name, option, number, text)

    return read


def _checked(name: str, option: Option, value: Any, text: str) -> Any:
    try:
        return option.check(value)
    except InvalidOption as refused:
        raise _refusal(name, value if isinstance(value, int | float) else text, refused) from None


def _refusal(name: str, value: Any, refused: InvalidOption) -> click.BadParameter:
    """Return the error about a value; it names the value once, and the forms that a shell can write."""
    said = str(refused)
    match = _PYTHON.fullmatch(said)
    if match is not None and name in WAYS_OUT:
        said = f"{match['before']}write {WAYS_OUT[name]}"
    return click.BadParameter(said if said.startswith(f"{value!r} ") else f"{value!r}: {said}")


def _number(text: str) -> int | float | None:
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    return float(text) if match[1] else int(text)
