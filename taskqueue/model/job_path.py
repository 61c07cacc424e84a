"""The import path under which a job is stored, so that a worker on another host finds the same thing."""

from __future__ import annotations

import functools
import re
import sys
from typing import Any

from taskqueue.errors import InvalidJob
from taskqueue.model.job import Job, TaskFunction
from taskqueue.model.main_module import defining_module, main_module, standard_namesake
from taskqueue.model.shown_text import as_code

PATH_SHAPE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)?")
"""``module:Class``, ``module:function`` or ``module:Class.method``, with dots in the module."""


def path_of(job: Any) -> str:
    """Return the import path of a ``Job`` subclass, a ``@task`` function or a path as text.

    A path as text is checked for its form only, not imported. Raises ``InvalidJob`` if a worker could not import it.
    """
    if isinstance(job, str):
        return _checked(job)
    if isinstance(job, type) and issubclass(job, Job):
        if job is Job:
            raise InvalidJob("Job itself does no work: subclass it and define start()")
        return _importable(job, "class")
    if getattr(job, "__name__", "") == "<lambda>":
        check_name("<lambda>", "function")
    if isinstance(job, TaskFunction):
        return _importable(job, "function")
    if isinstance(job, Job):
        raise InvalidJob(f"{type(job).__qualname__}() is an instance: pass the class, and what it needs as data")
    if isinstance(job, functools.partial):
        raise InvalidJob(f"{as_code(job)} binds arguments: pass the task itself, and its arguments as data")
    if job is None:
        raise InvalidJob("None is not a job: pass the task or the class itself, not what a call of it returns")
    if callable(job) and not isinstance(job, type):
        name = getattr(job, "__qualname__", as_code(job))
        raise InvalidJob(f"{name} is a plain function: decorate it with @task, or pass 'module:Class.method'")
    raise InvalidJob(
        f"{as_code(job)} is not a job: pass a subclass of Job, a function with @task, or 'module:Class.method'"
    )


def check_name(name: str, kind: str) -> None:
    """Raise ``InvalidJob`` for the qualified name of a class or function that a worker cannot import."""
    if name.endswith("<lambda>"):
        raise InvalidJob(
            "a lambda has no name that a worker could import: write it with def and @task at the top level of a module"
        )
    if "." in name:
        wrapped = kind == "function" and "<locals>" in name
        more = ", or write @functools.wraps(function) above it if it is part of a decorator" if wrapped else ""
        raise InvalidJob(
            f"{kind} {name} is nested, so a worker cannot import it: move it to the top level of its module{more}"
        )


def class_path(kind: Any, method: str) -> str:
    """Return the import path of a class of the user's that has this method; raise ``InvalidJob``."""
    if not isinstance(kind, type) or not callable(getattr(kind, method, None)):
        raise InvalidJob(f"{as_code(kind)} is not a class with {method}(): pass one, or its path 'module:Class'")
    return _importable(kind, "class")


def dotted(kind: type[BaseException]) -> str:
    """Return the name of an error's class: without a module if it is built in, as users import it if it is ours."""
    if kind.__module__ == "builtins":
        return kind.__qualname__
    module = "taskqueue" if kind.__module__ == Job.__module__ else defining_module(kind)
    return f"{module}.{kind.__qualname__}"


def _checked(path: str) -> str:
    if not PATH_SHAPE.fullmatch(path) or ".py:" in path:
        raise InvalidJob(f"{path!r} is not an import path: {_meant(path)}")
    return path


def _meant(path: str) -> str:
    """Return a hint: the path of a file as that of a module, or a colon for the last dot."""
    file, separator, name = path.removesuffix("()").rpartition(":")
    near = f"{file.removeprefix('./').removesuffix('.py').replace('/', '.')}:{name}"
    if separator and PATH_SHAPE.fullmatch(near):
        return f"did you mean {near}?"
    module, names = [], path.split(".")
    while len(names) > 1 and not names[0][:1].isupper():
        module.append(names.pop(0))
    near = f"{'.'.join(module)}:{'.'.join(names)}"
    if PATH_SHAPE.fullmatch(near):
        return f"did you mean {near}?"
    return "write 'module:Class', 'module:function' or 'module:Class.method'"


def _importable(job: Any, kind: str) -> str:
    name = job.__qualname__
    check_name(name, kind)
    clash = standard_namesake(job)
    if clash:
        raise InvalidJob(f"{kind} {name} {clash}")
    module = job.__module__
    if module == "__main__":
        return f"{_script(name, kind)}:{name}"
    loaded = sys.modules.get(module)
    if loaded is None or getattr(loaded, name, None) is not job:
        raise InvalidJob(
            f"{kind} {name} is not what {module}.{name} names, so a worker would import something else: "
            f"define it at the top level of {module} under its own name"
        )
    return f"{module}:{name}"


def _script(name: str, kind: str) -> str:
    module = main_module()
    if module is None:
        raise InvalidJob(
            f"{kind} {name} is defined interactively or in a file that cannot be imported by name: "
            "move it to a file whose name is an identifier, such as jobs.py"
        )
    if getattr(sys.modules["__main__"], name, None) is None:
        raise InvalidJob(f"{kind} {name} is not at the top level of {module}: define it there under its own name")
    return module
