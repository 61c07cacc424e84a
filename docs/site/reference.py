"""The Python API on the site: entries with signatures and docstrings, in place of the tables of the pages."""

from __future__ import annotations

import re
from importlib import import_module

import taskqueue

PART = re.compile(r"<!-- from the code: api -->\n(.*?)<!-- end -->", re.DOTALL)
HEADING = re.compile(r"^## `(\w+)(?:\(.*\))?`$", re.MULTILINE)
MEMBER = re.compile(r"^\| `(\w+)[(`]", re.MULTILINE)
ELSEWHERE = ("taskqueue.scheduler.workflows",)
"""Modules of classes that applications get from calls, and never import."""


def with_docstrings(_page: str, text: str) -> str:
    """Return the page with the docstrings of the classes and members that its tables name."""
    return PART.sub(lambda part: _entries(part[1]), text)


def _entries(part: str) -> str:
    _, *pieces = HEADING.split(part)
    names, tables = pieces[::2], pieces[1::2]
    return "\n\n".join(_entry(name, MEMBER.findall(table)) for name, table in zip(names, tables, strict=True))


def _entry(name: str, members: list[str]) -> str:
    module = _module(name)
    if not isinstance(getattr(import_module(module), name), type):
        directives = [f".. autofunction:: {name}"]
    else:
        directives = [f".. autoclass:: {name}", *(["   :members: " + ", ".join(members)] if members else [])]
    return "\n".join([f"## {name}", "", "```{eval-rst}", f".. currentmodule:: {module}", "", *directives, "```"])


def _module(name: str) -> str:
    """Return the module that has the class or function."""
    if name in taskqueue.__all__:
        return "taskqueue"
    return next(module for module in ELSEWHERE if hasattr(import_module(module), name))
