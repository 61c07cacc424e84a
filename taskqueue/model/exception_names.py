"""The names of exception classes: one name for each class, and the class that another public name of it means.

A name is looked up among the modules that this process has loaded. Nothing is imported: a record may hold any name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable
from typing import Any

from taskqueue.errors import InvalidOption
from taskqueue.model.main_module import defining_module, main_module
from taskqueue.model.shown_text import as_code

TIMEOUT = "taskqueue.JobTimeout"
"""The error name of an attempt that took too long, in addition to ``Exception``."""

_NAME_SHAPE = r"[^\W\d]\w*(\.[^\W\d]\w*)*"


def name_of(kind: type[BaseException]) -> str:
    """Return the name by which policies compare an exception class: its name in the module that defines it."""
    return public(f"{defining_module(kind)}.{kind.__qualname__}")


def public(name: str) -> str:
    """Return the name under which users know the class."""
    if name.startswith("taskqueue.model.job."):
        return f"taskqueue.{name.rpartition('.')[2]}"
    return name.removeprefix("builtins.")


def defining_name(name: str) -> str | None:
    """Return the name of the class that is loaded under this name; None if there is none.

    ``json.JSONDecodeError`` is ``json.decoder.JSONDecodeError``, ``IOError`` is ``OSError``.
    """
    parts = name.split(".") if "." in name else ["builtins", name]
    for length in range(len(parts) - 1, 0, -1):
        loaded = _module(".".join(parts[:length]), parts[length])
        if loaded is None:
            continue
        for part in parts[length:]:
            loaded = _namespace(loaded).get(part)
        return name_of(loaded) if isinstance(loaded, type) and issubclass(loaded, BaseException) else None
    return None


def _module(name: str, first: str) -> Any:
    """Return the loaded module in which ``first`` is looked up; ours imports its names when they are first used."""
    if name == main_module():
        name = "__main__"
    module = sys.modules.get(name)
    if name == "taskqueue":
        return sys.modules.get(_namespace(module)["_FILES"].get(first, name))
    return module


def _namespace(module_or_class: Any) -> Any:
    """Return the names in a module or class, so that no code of it runs: a module may import when it is asked."""
    try:
        return object.__getattribute__(module_or_class, "__dict__")
    except AttributeError:
        return {}


def names_of(types: Iterable[object]) -> tuple[str, ...]:
    """Return the dotted names of exception classes; names as text stay as they are.

    Raises ``InvalidOption`` for anything else, and if there is none.
    """
    names = tuple(dict.fromkeys(_name_of(kind) for kind in types))
    check_names(names)
    return names


def defining_names(names: Collection[str]) -> tuple[str, ...]:
    """Return the defining names of these classes, if they are loaded here under other names."""
    defined_as = (defining_name(name) for name in names)
    return tuple(dict.fromkeys(name for name in defined_as if name is not None and name not in names))


def known_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of an error's classes, as policies compare them."""
    return tuple(public(name) for name in names)


def timed_out_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that the error of an attempt counts as which took too long."""
    return (*names, TIMEOUT, "Exception")


def _name_of(kind: object) -> str:
    if isinstance(kind, str):
        return public(kind)
    if not isinstance(kind, type) or not issubclass(kind, BaseException):
        raise InvalidOption(
            f"{as_code(kind)} is not an exception class: pass one, or its dotted name such as 'app.errors.Refused'"
        )
    return name_of(kind)


def check_names(names: Iterable[str]) -> None:
    """Raise ``InvalidOption`` unless these are dotted names of classes, at least one."""
    named = list(names)
    if not named:
        raise InvalidOption("a retry policy is bound to no types: pass exception classes or their dotted names")
    for name in named:
        if not isinstance(name, str) or not re.fullmatch(_NAME_SHAPE, name):
            raise InvalidOption(
                f"{name!r} is not a dotted name of an exception class: write one such as 'app.errors.Refused'"
            )
