"""Finds the folder and the module of an application that a command line names by file or by module."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from taskqueue.errors import ConfigError


def folder_of(application: str) -> Path:
    """Return the folder that must be importable for the application. Raises ``ConfigError``."""
    path = Path(application)
    if path.suffix != ".py":
        return _folder_of_module(application)
    if not path.is_file():
        raise ConfigError(f"there is no file {application}: pass a Python file, or the name of a module")
    try:
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{application} does not compile: {error}") from None
    file = path.resolve() if path.is_symlink() else path.absolute()  # a folder's link may change
    folder = file.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    top = file.relative_to(folder).with_suffix("").parts[0]
    if top in sys.stdlib_module_names:
        raise ConfigError(
            f"{application}: workers would import {top} of the standard library instead: "
            f"rename the file or folder, for example to my_{top}"
        )
    return folder


def module_of(application: str) -> str:
    """Return the name by which jobs import the application, from the folder of ``folder_of``."""
    path = Path(application)
    if path.suffix != ".py":
        return application
    file = path.resolve() if path.is_symlink() else path.absolute()
    parts = file.relative_to(folder_of(application)).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def _folder_of_module(name: str) -> Path:
    """Return the current folder if the module is found from there, without importing it."""
    here = Path.cwd()
    if not _is_found(name, [str(here)]) and not _is_found(name, None):
        raise ConfigError(f"there is no module {name} in {here}: pass a Python file, or the name of a module")
    return here


def _is_found(name: str, folders: Sequence[str] | None) -> bool:
    """Return whether each part of the dotted name is a module in the package before it."""
    for part in name.split("."):
        spec = PathFinder.find_spec(part, folders)
        if spec is None:
            return False
        folders = list(spec.submodule_search_locations or ())
    return True
