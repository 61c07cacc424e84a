"""Finds the import name of the running script, so that its definitions have one name in every process.

Conditions and retry policies need it, and `job_path` imports jobs, which have both.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Any


@cache
def main_module() -> str | None:
    """Return the import name of the running script, None if it has none."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return str(spec.name)
    file = getattr(main, "__file__", None)
    if file is None:
        return None
    path = Path(file)
    return path.stem if path.suffix == ".py" and path.stem.isidentifier() and path.stem != "__main__" else None


def defining_module(defined: Any) -> str:
    """Return the name by which workers import the module that defines this class or function."""
    module: str = getattr(defined, "__module__", None) or ""
    return (main_module() or module) if module == "__main__" else module


def standard_namesake(defined: Any) -> str:
    """Return why workers would import a standard library module instead of the user's; empty if they would not.

    A worker has imported many standard modules before it can import a file of the same name.
    """
    module = defining_module(defined)
    top = module.partition(".")[0]
    if top not in sys.stdlib_module_names:
        return ""
    file = getattr(sys.modules.get(defined.__module__), "__file__", None)
    if file is None or Path(file).is_relative_to(Path(os.__file__).parent):
        return ""
    return (
        f"is defined in {file}, and workers would import {top} of the standard library: "
        f"rename the file or folder, for example to my_{top}"
    )
