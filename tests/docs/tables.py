"""The parts of pages that follow from the code; ``python -m tests.docs.tables`` writes them into the pages."""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
from bson import ObjectId

import taskqueue
from taskqueue import (
    Again,
    AsyncEvent,
    AsyncProcess,
    AsyncSchedule,
    AsyncScheduler,
    Check,
    CommandFailed,
    Control,
    Cron,
    Custom,
    Event,
    Every,
    Fail,
    Interrupted,
    Job,
    JobTimeout,
    Limit,
    NewJob,
    Process,
    Rate,
    Retry,
    RunningJob,
    RunOutcome,
    Schedule,
    Scheduler,
    ShellJob,
    Snooze,
    StepwiseJob,
    Task,
    current_job,
    errors,
    retry,
)
from taskqueue.cli import exit, main, node
from taskqueue.exit_codes import Exit
from taskqueue.model.job import RunFacilities
from taskqueue.model.options.table import OPTIONS
from taskqueue.model.query import IDS, NUMBERS, TEXTS, TIMES
from taskqueue.model.record import Record, Status
from taskqueue.scheduler import json_shapes
from taskqueue.scheduler.operations import DeclaredOperations, Operation
from taskqueue.scheduler.workflows import AsyncWorkflow, Workflow
from taskqueue.web.api import ROUTES
from taskqueue.web.api.route import ApiRoute
from tests.docs import scale
from tests.model.lifecycle.transitions import TRANSITIONS

CALLED = (Scheduler, AsyncScheduler, Limit, Rate, Every, Cron, Again, Custom, Check)
"""Public classes that applications call; of the others they get or subclass."""

JOB_COMMANDS = (*main.NEEDS["Jobs"], "events")
"""The commands on the page of commands for jobs; those of schedules have a page."""

FIGURE_COMMANDS = (
    "stats",
    "class",
    "queue",
    "analytics",
    "failures",
    "mute",
    "resolve",
    "reopen",
    "releases",
    "release",
    "unmark",
)
"""The commands on the page of what all commands have in common; all others are on the page for operators."""

INTERNAL = ("document", "own_method", "after", "follows_end", "in_thread", "learn")
DOCS = Path(__file__).parents[2] / "docs"

SYSTEMS = {
    "taskqueue": "**taskqueue**",
    "taskqueue-normal": "taskqueue, `synchronous=normal`",
    "pgqueuer": "PgQueuer (PostgreSQL)",
    "huey-sqlite": "Huey (SQLite, each job synced)",
    "huey-sqlite-no-sync": "Huey (SQLite, not synced)",
    "huey-redis": "Huey (Redis)",
    "dramatiq": "Dramatiq (Redis)",
    "celery-late": "Celery (Redis, late acknowledgement)",
    "rq-simple": "RQ (Redis, `SimpleWorker`)",
}
"""The systems that the front page shows, by their names in the benchmark."""

COMPARED = {
    "## drain, 2 workers: jobs/s": "jobs/s",
    "## adding: one by one, jobs/s": "added/s, one by one",
    "## round_trip: start p50, ms": "add to start, ms",
    "## lateness: late p50, ms": "late by, ms",
}
"""The tables of the benchmark whose medians the front page shows, with what it calls them."""


def job_options() -> str:
    """Return the options of a job."""
    rows = (
        (f"`{name}`", f"`{getattr(option.default, 'value', option.default)!r}`", option.meaning)
        for name, option in OPTIONS.items()
    )
    return _table(("option", "default", "meaning"), rows)


def node_options() -> str:
    """Return the options of ``taskqueue-node``."""
    rows = (
        (f"`{_written(option)}`", f"`{option.envvar}`", _default(option), (option.help or "").rstrip("."))
        for option in _options(node.command)
        if option.envvar
    )
    return _table(("option", "variable", "default", "meaning"), rows)


def exit_codes() -> str:
    """Return every exit code."""
    return _table(("code", "name", "meaning"), ((str(int(code)), f"`{code.name}`", code.meaning) for code in Exit))


def error_tree() -> str:
    """Return every error with what it means, what it is a kind of, and the exit code it leads to."""
    rows = []
    for name in errors.__all__:
        kind = getattr(errors, name)
        code = next(code for base, code in exit.EXITS if issubclass(kind, base))
        bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
        rows.append((f"`{name}`", bases, (inspect.getdoc(kind) or "").splitlines()[0].rstrip("."), str(int(code))))
    return _table(("error", "is a kind of", "means", "exit code"), rows)


def diagram() -> str:
    """Return the states and what leads from one to another, as a mermaid diagram."""
    verbs: Mapping[tuple[Status, Status], list[str]] = defaultdict(list)
    for (before, verb), afters in TRANSITIONS.items():
        for after in afters:
            verbs[before, after].append(verb)
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> WAITING: add", "    [*] --> POSTPONED: add with at"]
    lines += [f"    {a.name} --> {b.name}: {', '.join(words)}" for (a, b), words in sorted(verbs.items())]
    lines += [f"    {status.name} --> [*]" for status in Status if status.is_final]
    return "\n".join([*lines, "```"])


def job_commands() -> str:
    """Return the commands for jobs and events with their arguments and options."""
    return _commands(JOB_COMMANDS)


def schedule_commands() -> str:
    """Return the commands for schedules with their arguments and options."""
    return _commands(["schedule"])


def figure_commands() -> str:
    """Return the commands for figures with their arguments and options."""
    return _commands(FIGURE_COMMANDS)


def operator_commands() -> str:
    """Return all other commands with their arguments and options."""
    return _commands([name for name in main.COMMANDS if name not in (*JOB_COMMANDS, *FIGURE_COMMANDS, "schedule")])


def _commands(names: Iterable[str]) -> str:
    parts: list[str] = []
    with click.Context(main.command, info_name="taskqueue") as root:
        for name in names:
            command = main.command.get_command(root, name)
            assert command is not None
            parts += _with_verbs(name, command, root)
    return "\n\n".join(parts)


def _with_verbs(name: str, command: click.Command, root: click.Context) -> Iterator[str]:
    yield _command(name, command, root)
    if isinstance(command, click.Group):
        for verb, each in command.commands.items():
            yield from _with_verbs(f"{name} {verb}", each, root)


def fields() -> str:
    """Return the fields that queries may name."""
    kinds = {IDS: "an id, or its 24 digits", TEXTS: "text", NUMBERS: "a number", TIMES: "an aware datetime"}
    rows = []
    for names, kind in kinds.items():
        rows += [(f"`{name}`", "a status, its number or its name" if name == "status" else kind) for name in names]
    return _table(("field", "is compared with"), rows)


def api() -> str:
    """Return the classes through which applications add jobs and see what becomes of them."""
    return _classes(Scheduler, Process, Event, Workflow, Schedule, Control)


def job_api() -> str:
    """Return the classes with which jobs, their options and their times are written."""
    jobs = (Job, StepwiseJob, Task, ShellJob, CommandFailed)
    ends = (Retry, Fail, Snooze, Interrupted, JobTimeout)
    current = f"## `current_job()`\n\n{_sentences(current_job)}"
    classes = _classes(*jobs, *ends, Limit, Rate, Check, Every, Cron, Again, Custom, NewJob, RunningJob, RunOutcome)
    return f"{current}\n\n{classes}"


def asyncio_api() -> str:
    """Return the classes of asyncio applications."""
    return _classes(AsyncScheduler, AsyncProcess, AsyncEvent, AsyncSchedule, AsyncWorkflow)


def retry_policies() -> str:
    """Return the functions that make retry policies, and what they mean."""
    functions = [getattr(retry, name) for name in retry.__all__]
    rows = (
        (f"`retry.{made.__name__}{_arguments(made)}`", _sentences(made))
        for made in functions
        if inspect.isfunction(made)
    )
    return _table(("policy", "meaning"), rows)


def situation() -> str:
    """Return what a retry policy of a user's own is told."""
    source = ast.parse(inspect.getsource(retry.Situation)).body[0]
    assert isinstance(source, ast.ClassDef)
    rows = []
    for field, behind in zip(source.body, [*source.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(behind, ast.Expr):
            rows.append((f"`{ast.unparse(field.target)}`", ast.literal_eval(behind.value)))
    rows.append(("`is_a(name)`", _sentences(retry.Situation.is_a)))
    return _table(("it has", "meaning"), rows)


def json_keys() -> str:
    """Return the keys of a job as ``--json`` writes it."""
    now = datetime(2030, 1, 1, tzinfo=timezone.utc)
    record = Record(id=ObjectId(), job="shop:MailJob", created_at=now, ready_at=now)
    listed, full = json_shapes.job(record), json_shapes.job_in_full(record)
    more = [key for key in full if key not in listed]
    lines = [
        "In a list, a job has: ",
        ", ".join(f"`{key}`" for key in listed),
        ".\n\n`show`, `wait` and `add` write these too: ",
    ]
    return "".join([*lines, ", ".join(f"`{key}`" for key in more), "."])


def peers() -> str:
    """Return the figures of ``SYSTEMS`` from the page of the benchmark, the most jobs a second first."""
    text = page("explanation/peers.md")
    survives, *figures = (_column(text, heading) for heading in ("What an acknowledged job survives", *COMPARED))
    rows = [(shown, survives[name], *(each[name] for each in figures)) for name, shown in SYSTEMS.items()]
    rows.sort(key=lambda row: float(row[2].replace(",", "")), reverse=True)
    return _table(("system", "an acknowledged job survives", *COMPARED.values()), rows)


def operations() -> str:
    """Return the operations of the HTTP API."""
    return _table(("operation", "what it does", "parameters", "also answers"), map(_operation, ROUTES))


def _operation(route: ApiRoute) -> tuple[str, str, str, str]:
    body = ""
    if route.body is not None and route.body.schema["properties"]:
        needed = route.body.schema["required"]
        keys = (f"{name}{'*' if name in needed else ''}" for name in route.body.schema["properties"])
        body = f" `{{{', '.join(keys)}}}`"
    params = ", ".join(f"`{param.name}`" for param in route.params)
    statuses = ", ".join(map(str, (*((201,) if route.created else ()), *route.statuses)))
    return f"`{route.method} {route.path}`{body}", route.meaning.rstrip("."), params, statuses


PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "../README.md": {"peers": peers},
    "explanation/scale.md": {"many cores": scale.of_many_cores, "a day": scale.of_a_day},
    "reference/options.md": {"job options": job_options, "node options": node_options},
    "reference/exit-codes.md": {"exit codes": exit_codes},
    "reference/errors.md": {"errors": error_tree},
    "reference/states.md": {"diagram": diagram},
    "reference/commands.md": {"json keys": json_keys, "figures": figure_commands},
    "reference/job-commands.md": {"commands": job_commands},
    "reference/schedule-commands.md": {"commands": schedule_commands},
    "reference/operator-commands.md": {"commands": operator_commands},
    "reference/queries.md": {"fields": fields},
    "reference/api.md": {"api": api},
    "reference/job-api.md": {"api": job_api},
    "reference/asyncio-api.md": {"api": asyncio_api},
    "reference/http-api.md": {"operations": operations},
    "reference/retry.md": {"retry policies": retry_policies, "situation": situation},
}
"""For each page the parts between its marks."""


def page(path: str) -> str:
    """Return the page as it is."""
    return (DOCS / path).read_text()


def renewed(path: str) -> str:
    """Return the page with all its parts as the code has them. Raises ``ValueError`` where a mark is missing."""
    text = page(path)
    for name, part in PARTS[path].items():
        found = re.search(rf"<!-- from the code: {name} -->\n(.*?)<!-- end -->", text, flags=re.DOTALL)
        if found is None:
            raise ValueError(f"{path} has no part between marks named {name!r}")
        text = f"{text[: found.start(1)]}\n{part()}\n\n{text[found.end(1) :]}"
    return text


def _column(text: str, heading: str) -> dict[str, str]:
    """Return the second column of the table behind a heading, by the first."""
    table = text.partition(heading)[2].partition("\n\n")[2].partition("\n\n")[0]
    cells = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:])
    return {first: second for first, second, *_ in cells}


def _classes(*kinds: type) -> str:
    """Return these public classes with their members, in the words of their docstrings."""
    return "\n\n".join(_described(kind) for kind in kinds)


def _described(kind: type) -> str:
    parts = [f"## `{kind.__name__}{_arguments(kind) if kind in CALLED else ''}`\n\n{_sentences(kind)}"]
    rows = []
    for name, member in _members(kind):
        if name.startswith("_") or name in INTERNAL or not inspect.getdoc(member):
            continue
        if isinstance(member, property):
            rows.append((f"`{name}`", _sentences(member)))
        elif inspect.isfunction(member) and hasattr(member, "__wrapped__"):
            rows.append((f"`{name}{_arguments(member)}`", f"`{kind.__name__.removeprefix('Async')}.{name}`, awaited."))
        elif inspect.isfunction(member):
            rows.append((f"`{name}{_arguments(member)}`", _sentences(member)))
    return "\n\n".join([*parts, *([_table(("member", "meaning"), rows)] if rows else [])])


def _members(kind: type) -> Iterator[tuple[str, object]]:
    """Yield the members of a class, with those of its bases that are not public themselves."""
    for base in kind.__mro__:
        is_part = base.__module__.startswith("taskqueue.") and base.__name__ not in taskqueue.__all__
        is_said = kind.__name__.startswith("Async") or (base is RunFacilities and kind is not Job)  # of another class
        if base is kind or base is DeclaredOperations or (is_part and not is_said):
            for name, member in vars(base).items():
                yield name, getattr(kind, name) if isinstance(member, Operation) else member


def _sentences(thing: object) -> str:
    """Return the docstring as one paragraph, its literals in single backticks, without the numbers of our own rules."""
    text = " ".join((inspect.getdoc(thing) or "").split()).replace("``", "`")
    return re.sub(r" \((?:PTS|REC|GZ|LZQ|JB|X)\b[^.;]*\)", "", text)


def _arguments(called: Callable[..., Any]) -> str:
    """Return the parameters with their types, without the places of these and without those that take no value."""
    shown = []
    for parameter in inspect.signature(called).parameters.values():
        if parameter.name == "self" or parameter.annotation == "Never":
            continue
        star = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else star
        type_name = getattr(parameter.annotation, "__name__", str(parameter.annotation))
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        shown.append(f"{star}{parameter.name}: {type_name}{default}")
    return f"({', '.join(shown)})"


def _command(name: str, command: click.Command, root: click.Context) -> str:
    with click.Context(command, info_name=name, parent=root) as ctx:
        usage = " ".join(command.collect_usage_pieces(ctx))
    described = " ".join((command.help or "").split())
    rows = (
        (f"`{_written(option)}`", _default(option), (option.help or "").rstrip(".")) for option in _options(command)
    )
    return f"## `taskqueue {name} {usage}`\n\n{described}\n\n{_table(('option', 'default', 'meaning'), rows)}".rstrip()


def _options(command: click.Command) -> list[click.Option]:
    return [
        param
        for param in command.params
        if isinstance(param, click.Option) and param.name != "version" and not param.hidden
    ]


def _written(option: click.Option) -> str:
    name = ", ".join(sorted(option.opts, key=len))
    if option.is_flag:
        return " / ".join((name, *option.secondary_opts))
    if isinstance(option.type, click.Choice):
        return f"{name} {'|'.join(map(str, option.type.choices))}"
    return f"{name} {option.metavar or option.type.name.upper()}"


def _default(option: click.Option) -> str:
    shown: Any = option.default if option.show_default else None
    return "" if shown is None else f"`{shown}`"


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    if not body:
        return ""
    lines = [list(heads), ["---"] * len(body[0]), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    for path in PARTS:
        (DOCS / path).write_text(renewed(path))
