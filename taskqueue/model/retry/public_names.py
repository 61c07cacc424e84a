"""The names of exception classes: one name for each class, and the class that another public name of it means.

A name is looked up among the modules that this process has loaded. Nothing is imported: a record may hold any name.
"""

from __future__ import annotations

import sys
from typing import Any

from taskqueue.model.main_module import defining_module, main_module


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
        found = _module(".".join(parts[:length]), parts[length])
        if found is None:
            continue
        for part in parts[length:]:
            found = _namespace(found).get(part)
        return name_of(found) if isinstance(found, type) and issubclass(found, BaseException) else None
    return None


def _module(name: str, first: str) -> Any:
    """Return the loaded module in which ``first`` is looked up; ours imports its names when they are first used."""
    if name == main_module():
        name = "__main__"
    module = sys.modules.get(name)
    if name == "taskqueue":
        return sys.modules.get(_namespace(module)["_FILES"].get(first, name))
    return module


def _namespace(found: Any) -> Any:
    """Return the names in a module or class, so that no code of it runs: a module may import when it is asked."""
    try:
        return object.__getattribute__(found, "__dict__")
    except AttributeError:
        return {}
