"""Describes what is seen from outside, without words for people."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import click

import taskqueue
from taskqueue import errors, otel, outbox, retry, testing
from taskqueue.cli import main, node
from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.node.context import NodeContext
from taskqueue.daemon.node.health import BacklogReader, NodeHealth
from taskqueue.daemon.node.leader_run import FindingsWatch
from taskqueue.daemon.node.metrics import Metrics
from taskqueue.daemon.node.status import NodeStage, NodeStatus
from taskqueue.daemon.runtime.loop import Loop
from taskqueue.daemon.settings import Settings
from taskqueue.exit_codes import Exit
from taskqueue.model.events import EVENTS
from taskqueue.model.record import Holder
from taskqueue.scheduler.operations import Operation
from taskqueue.store.mongodb import url as mongodb_url
from taskqueue.store.open import open_store
from taskqueue.store.sqlite import url as sqlite_url
from taskqueue.web.api_routes import document

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_FOR_PEOPLE = ("description", "summary", "title")


def commands() -> Mapping[str, Any]:
    """Return the parameters of each command, by its name in full."""
    ctx = click.Context(main.command)
    described = {"taskqueue": _parameters(main.command), "taskqueue-node": _parameters(node.command)}
    for name in main.COMMANDS:
        command = main.command.get_command(ctx, name)
        assert command is not None
        described |= _with_subcommands(f"taskqueue {name}", command)
    return described


def _with_subcommands(name: str, command: click.Command) -> Iterator[tuple[str, Any]]:
    yield name, _parameters(command)
    if isinstance(command, click.Group):
        for below, subcommand in command.commands.items():
            yield from _with_subcommands(f"{name} {below}", subcommand)


def _parameters(command: click.Command) -> Mapping[str, Any]:
    return {"/".join([*param.opts, *param.secondary_opts]): _parameter(param) for param in command.params}


def _parameter(param: click.Parameter) -> Mapping[str, Any]:
    choices = list(param.type.choices) if isinstance(param.type, click.Choice) else None
    facts = {
        "default": param.default if isinstance(param.default, (str, int, float)) else None,
        "variable": param.envvar,
        "choices": choices and [str(choice) for choice in choices],
        "required": param.required or None,
        "several": param.multiple or param.nargs != 1 or None,
    }
    return {name: fact for name, fact in facts.items() if fact is not None}


def exit_codes() -> Mapping[str, int]:
    """Return each exit code by its name."""
    return {code.name: code.value for code in Exit}


def openapi() -> Any:
    """Return the OpenAPI document without words for people and without the version."""
    described = _without_words(document("/"))
    described["info"].pop("version")
    return described


def _without_words(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {
            name: _without_words(below)
            for name, below in node.items()
            if not (name in _FOR_PEOPLE and isinstance(below, str))
        }
    return [_without_words(below) for below in node] if isinstance(node, (list, tuple)) else node


def metrics(folder: Path) -> Mapping[str, Any]:
    """Return type and labels of each metric of a node that leads, by its name."""
    settings = Settings(name="web-1", metrics="0", notify=("true",))
    status = NodeStatus(settings)
    status.leads = True
    with closing(Loop()) as loop, closing(open_store(f"sqlite://{folder}/jobs.db")) as store:
        breaker, holder = CircuitBreaker(lambda: None), Holder(seat="web-1", incarnation="1234567890")
        context = NodeContext(loop=loop, store=store, holder=holder, settings=settings, status=status, breaker=breaker)
        status.stage = NodeStage.SEATED
        backlog = BacklogReader(context)
        watch = FindingsWatch(context, lambda _: None)
        families = list(Metrics(context, NodeHealth(context, backlog), backlog, watch).collect())
    return {family.name: {"type": family.type, "labels": list(_labels(family))} for family in families}


def _labels(family: Any) -> Iterable[str]:
    return getattr(family, "_labelnames", ())


def events() -> list[str]:
    """Return the names of all events."""
    return list(EVENTS)


def addresses() -> Mapping[str, Any]:
    """Return the schemes of stores, each with the options of its own that a URL may have."""
    return {"sqlite": list(sqlite_url.OPTIONS), "/".join(mongodb_url.SCHEMES): [mongodb_url.PREFIX_OPTION]}


def public_names() -> Mapping[str, Any]:
    """Return the signatures of what each public module gives out."""
    return {module.__name__: dict(_names_of(module)) for module in (taskqueue, errors, retry, otel, testing, outbox)}


def _names_of(module: ModuleType) -> Iterator[tuple[str, Any]]:
    given = getattr(module, "__all__", None)
    named = given or [name for name, value in vars(module).items() if _is_own(module, name, value)]
    for name in sorted(named):
        yield name, _described(getattr(module, name))


def _is_own(module: ModuleType, name: str, value: object) -> bool:
    return not name.startswith("_") and getattr(value, "__module__", None) == module.__name__


def _described(value: Any) -> Any:
    if inspect.isclass(value):
        return _signature(value), {name: _member(member) for name, member in sorted(_members(value).items())}
    if inspect.ismodule(value):
        return dict(_names_of(value))
    return _signature(value) if callable(value) else type(value).__name__


def _members(described: type) -> Mapping[str, Any]:
    """Return the public members that the class has from this package."""
    ours = [base for base in reversed(described.__mro__) if base.__module__.startswith("taskqueue")]
    return {name: value for base in ours for name, value in vars(base).items() if not name.startswith("_")}


def _member(member: Any) -> Any:
    if isinstance(member, property):
        return "property"
    function = member.method if isinstance(member, Operation) else getattr(member, "__func__", member)
    return _signature(function) if callable(function) else "attribute"


def _signature(value: Callable[..., Any]) -> str:
    try:
        return _ADDRESS.sub("", str(inspect.signature(value)))
    except (TypeError, ValueError):
        return "no signature"
