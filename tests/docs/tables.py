"""The parts of the reference that follow from the code; ``python -m tests.docs.tables`` writes them into the pages."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from taskqueue import errors
from taskqueue.cli import ending, main, node
from taskqueue.daemon.exits import MEANING, Exit
from taskqueue.model.lifecycle import TRANSITIONS
from taskqueue.model.options import OPTIONS
from taskqueue.model.record import Status

DOCS = Path(__file__).parents[2] / "docs"


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
    return _table(("code", "name", "meaning"), ((str(int(code)), f"`{code.name}`", MEANING[code]) for code in Exit))


def error_tree() -> str:
    """Return every error with what it means, what it is a kind of, and the exit code it leads to."""
    rows = []
    for name in errors.__all__:
        kind = getattr(errors, name)
        code = next(code for base, code in ending.EXITS if issubclass(kind, base))
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


def commands() -> str:
    """Return every command with its arguments and options."""
    parts = []
    with click.Context(main.command, info_name="taskqueue") as root:
        for name in main.COMMANDS:
            command = main.command.get_command(root, name)
            assert command is not None
            parts.append(_command(name, command, root))
    return "\n\n".join(parts)


PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "reference/options.md": {"job options": job_options, "node options": node_options},
    "reference/exit-codes.md": {"exit codes": exit_codes},
    "reference/errors.md": {"errors": error_tree},
    "reference/states.md": {"diagram": diagram},
    "reference/commands.md": {"commands": commands},
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


def _command(name: str, command: click.Command, root: click.Context) -> str:
    with click.Context(command, info_name=name, parent=root) as ctx:
        usage = " ".join(command.collect_usage_pieces(ctx))
    described = " ".join((command.help or "").split())
    rows = (
        (f"`{_written(option)}`", _default(option), (option.help or "").rstrip(".")) for option in _options(command)
    )
    return f"### `taskqueue {name} {usage}`\n\n{described}\n\n{_table(('option', 'default', 'meaning'), rows)}".rstrip()


def _options(command: click.Command) -> list[click.Option]:
    return [param for param in command.params if isinstance(param, click.Option) and param.name != "version"]


def _written(option: click.Option) -> str:
    name = max(option.opts, key=len)
    if option.is_flag:
        return name
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
