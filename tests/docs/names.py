"""Finds the names of options, variables, commands, exit codes, attributes and arguments in the prose of a page."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import click

import taskqueue
from taskqueue import (
    Again,
    AsyncScheduler,
    Cron,
    Event,
    Every,
    Fail,
    Job,
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
    current_job,
    errors,
    retry,
    task,
    workflows,
)
from taskqueue.cli import main, node
from taskqueue.cli.exit import PREFIX, known_variables
from taskqueue.exit_codes import Exit
from taskqueue.model.analytics import Present
from taskqueue.model.options.table import OPTIONS
from taskqueue.model.record import Failure
from taskqueue.scheduler.workflows import Workflow
from taskqueue.testing.jobs import Jobs

CHECKOUT = Path(__file__).parents[2]
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
OPTION = re.compile(r"(?<![\w/-])--[a-z][\w-]*")
ATTRIBUTE = re.compile(r"(?<![\w./:\"'-])([A-Za-z_]\w*)\.([a-z_]\w*)")
COMMAND = re.compile(r"(?:\w+=\S+ )*(taskqueue|taskqueue-node)((?: [a-z][a-z-]*){1,3})?(?![\w:.@/-])")
EXIT = re.compile(r"(?:\bexit(?:s|ed)?(?: code| with| status)*|\bcode) `?(\d+)\b")
CALL = re.compile(r"(?<![\w.])(?:(?:scheduler|Scheduler|retry|workflows)\.)?([A-Za-z]\w*)\(([^`]*)\)")
KEYWORD = re.compile(r"(?<![\w\"'?&.-])([a-z_]\w*)=(?!=)")

OWNERS: Mapping[str, tuple[Any, ...]] = {
    "scheduler": (Scheduler,),
    "Scheduler": (Scheduler,),
    "AsyncScheduler": (AsyncScheduler,),
    "process": (Process,),
    "present": (Present,),
    "self": (Job, StepwiseJob, ShellJob),
    "job": (Job, Process, NewJob, RunningJob, RunOutcome),
    "event": (Event,),
    "error": (Failure,),
    "schedule": (Schedule,),
    "flow": (Workflow,),
    "retry": (retry,),
    "workflows": (workflows,),
    "errors": (errors,),
}
"""What these names stand for in prose."""

CALLABLES: tuple[Callable[..., Any], ...] = (
    *(Scheduler, AsyncScheduler, Limit, Rate, Every, Cron, Again, Retry, Fail, Snooze, current_job, task),
    *(getattr(Scheduler, name) for name in dir(Scheduler) if not name.startswith("_")),
    *(getattr(Jobs, name) for name in dir(Jobs) if not name.startswith("_")),
    *(getattr(Job, name) for name in dir(Job) if not name.startswith("_") and callable(getattr(Job, name))),
    *(getattr(retry, name) for name in retry.__all__),
    *(workflows.chain, workflows.group, workflows.map, workflows.recent),
)


def wrong_names(text: str, *, is_migration: bool = False) -> Iterator[str]:
    """Yield what the page names that does not exist; the first column of a page of migration is of another system."""
    prose = FENCED.sub("", text)
    if is_migration:
        prose = re.sub(r"^\|(?:[^|\\`]|\\.|`[^`]*`)*\|", "|", prose, flags=re.MULTILINE)
    for number in EXIT.findall(prose):
        if int(number) not in [*Exit]:
            yield f"exit code {number}"
    for span in SPAN.findall(prose):
        yield from _wrong_in(span.replace("\\|", "|"))


def _wrong_in(span: str) -> Iterator[str]:
    yield from _wrong_commands(span)
    for name in re.findall(rf"\b{PREFIX}[A-Z_]+\b", span):
        if name.removeprefix(PREFIX) not in [*known_variables(), "COMPLETE", ""]:
            yield name
    for owner, attribute in ATTRIBUTE.findall(span):
        owners = OWNERS.get(owner) or ((getattr(taskqueue, owner),) if owner in taskqueue.__all__ else ())
        if owners and not any(_has(one, attribute) for one in owners):
            yield f"{owner}.{attribute}"
    for path in re.findall(r"(?<![\w./-])taskqueue(?:\.\w+)+", span):
        if not _exists(path) and f'"{path}"' not in _code():
            yield path
    for attribute in re.findall(r"^\.([a-z_]\w*)(?:$|\()", span):  # of an owner that was named before
        if not any(_has(one, attribute) for owners in OWNERS.values() for one in owners):
            yield f".{attribute}"
    alone = re.match(r"([a-z_]\w*)=(?!=)", span)  # an option of a class or a call
    if alone is not None and alone[1] not in _every_argument():
        yield f"{alone[1]}="
    for name, arguments in CALL.findall(span):
        if name in _arguments():
            yield from (f"{name}({one}=)" for one in KEYWORD.findall(arguments) if one not in _every_argument())


def _wrong_commands(span: str) -> Iterator[str]:
    known = commands()
    options = set().union(*known.values(), _script_options())
    words, command = COMMAND.match(span), ""
    if words is not None and words[1] == "taskqueue-node":
        options, command = known["taskqueue-node"], words[1]
    elif words is not None and words[2]:
        named = words[2].split()
        name = next((" ".join(named[:length]) for length in (3, 2, 1) if " ".join(named[:length]) in known), "")
        if not name:
            yield f"taskqueue {named[0]}"
        options, command = known[name] | known[""], f"taskqueue {name}"
    for option in OPTION.findall(span.partition(" -- ")[0]):
        if option not in options:
            yield f"{command} {option}".strip()


@cache
def commands() -> dict[str, set[str]]:
    """Return the options of each command; of ``taskqueue`` itself as the empty name, of ``taskqueue-node`` as node."""
    found = {"taskqueue-node": _options(node.command)}
    with click.Context(main.command, info_name="taskqueue") as root:
        _add_commands(found, "", main.command, root)
        for alias, name in main.ALIASES.items():
            found[alias] = found[name]
    return found


def _add_commands(found: dict[str, set[str]], name: str, command: click.Command, root: click.Context) -> None:
    found[name] = _options(command)
    if isinstance(command, click.Group):
        for verb in command.list_commands(root):
            below = command.get_command(root, verb)
            assert below is not None, verb
            _add_commands(found, f"{name} {verb}".strip(), below, root)


@cache
def _script_options() -> set[str]:
    """Return the options of the scripts of the checkout: its measurements, storms and tests."""
    scripts = [*(CHECKOUT / "benchmarks").rglob("*.py"), *(CHECKOUT / "tests").rglob("*.py")]
    written = [
        re.findall(r"^ +(?:parser\.add_argument\()?\"(--[a-z-]+)\"", one.read_text(), re.MULTILINE) for one in scripts
    ]
    shells = [OPTION.findall((CHECKOUT / path).read_text()) for path in (".ci/run", "bin/docs", "bin/test")]
    return {option for each in (*written, *shells) for option in each}


@cache
def _code() -> str:
    return "\n".join(path.read_text() for path in (CHECKOUT / "taskqueue").rglob("*.py"))


def _options(command: click.Command) -> set[str]:
    written = {word for param in command.params for word in (*param.opts, *param.secondary_opts)}
    return {"--help", *written}


def _has(owner: Any, attribute: str) -> bool:
    annotated = {name for kind in getattr(owner, "__mro__", ()) for name in vars(kind).get("__annotations__", {})}
    own = set(re.findall(r"self\.(\w+)(?:: [^=]+)? = ", _source(owner)))
    return hasattr(owner, attribute) or attribute in annotated | own | ({*OPTIONS} if owner is Job else set())


@cache
def _source(owner: Any) -> str:
    kinds = [kind for kind in getattr(owner, "__mro__", ()) if kind.__module__.startswith("taskqueue")]
    return "\n".join(map(inspect.getsource, kinds))


def _exists(path: str) -> bool:
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for name in parts[length:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


@cache
def _arguments() -> dict[str, set[str]]:
    """Return the arguments of the public functions by their names."""
    return {one.__name__: set(inspect.signature(one).parameters) for one in CALLABLES if callable(one)}


@cache
def _every_argument() -> set[str]:
    """Return the arguments of all of them, since calls are nested, and the options of jobs."""
    return set().union(*_arguments().values(), OPTIONS)
