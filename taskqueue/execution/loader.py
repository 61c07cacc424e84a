"""Loads the job that an import path names."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

from taskqueue.execution.failures import kept, message_of, traceback_of
from taskqueue.model.job import Job, TaskFunction
from taskqueue.model.job_path import PATH_SHAPE, dotted
from taskqueue.model.job_types import JobTypes, types_of
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.main_module import defining_module, main_module
from taskqueue.model.record import Failure

FORMER_PATHS = {
    "taskqueue.scheduler.asking:NextTime": "taskqueue.execution.custom_schedule:NextTime",
    "taskqueue.scheduler.shell:ShellJob": "taskqueue.execution.shell_job:ShellJob",
}
"""Former paths of built-in jobs, which records in a store may still name."""


ADAPTERS: dict[type, type[Job]] = {}
"""The class of jobs that runs the objects of another framework's class; a path names such an object."""

_HOOKS = ("on_success", "on_failure", "on_last_failure", "finalize")


class CannotLoad(Exception):
    """The path names no job that this process can run; ``failure`` says why, for ``outcomes.Unloadable``."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """The job that a path names: ``make`` returns a new instance, and ``work`` names the method that does the work."""

    path: str
    make: Callable[[], Any]
    work: str
    target: Any = None
    """The class or the task that declares the options."""
    has_check: bool = False
    """The class of jobs defines ``is_ready``."""
    has_hooks: bool = False
    """The class of jobs defines one of the hooks."""

    @cached_property
    def types(self) -> JobTypes | None:
        """The types that the job declares; raise ``InvalidJob`` for one that cannot be resolved."""
        return types_of(self.target) if self.work in ("start", "function") else None


Admit = Callable[[str], None]
"""Checks the module that defines the class or function of a path; raises ``CannotLoad``."""


_NO_DJANGO = ("django.core.exceptions.ImproperlyConfigured", "django.core.exceptions.AppRegistryNotReady")
"""Raised by the modules of a Django project in a process that has not set it up."""


def load(path: str, admit: Admit | None = None) -> Loaded:
    """Return the job of ``module:Class``, ``module:function`` or ``module:Class.method``; raise ``CannotLoad``.

    A module is not imported twice, but an import that failed is tried again each time.
    """
    path = FORMER_PATHS.get(path, path)
    if not PATH_SHAPE.fullmatch(path):
        raise _cannot(path, "is not of the form module:Class, module:function or module:Class.method")
    module_name, _, rest = path.partition(":")
    module = _module(path, module_name)
    name, _, method = rest.partition(".")
    target = getattr(module, name, None)
    if target is None:
        raise _cannot(
            path, f"module {module_name} has no {name}{_newer(module, name) or _near(module, name) or _origin(module)}"
        )
    for kind, adapter in ADAPTERS.items():
        if isinstance(target, kind) and not method:
            _admit(admit, getattr(target, "func", target))
            return _runnable(path, adapter, method)
    loaded = _runnable(path, target, method)
    _admit(admit, target)
    return loaded


def load_policy(path: str, admit: Admit | None = None) -> type:
    """Return the class of retry policies that ``module:Class`` names; raise ``CannotLoad``."""
    return _class(path, "decide", "retry policy", admit)


def load_trigger(path: str) -> type:
    """Return the class of triggers that ``module:Class`` names; raise ``CannotLoad``."""
    return _class(path, "next", "trigger", None)


def load_predicate(path: str, admit: Admit | None = None) -> Callable[..., object]:
    """Return the function that ``module:function`` or ``module:Class.method`` names; raise ``CannotLoad``."""
    module_name, _, rest = path.partition(":")
    name, _, method = rest.partition(".")
    target: Any = getattr(_module(path, module_name), name, None)
    is_class = isinstance(target, type)
    if not callable(getattr(target, method, None) if is_class and method else None if is_class else target):
        raise _cannot(path, f"module {module_name} has no function {rest}")
    _admit(admit, target)
    predicate: Callable[..., object] = getattr(target(), method) if is_class else target
    return predicate


def _class(path: str, method: str, what: str, admit: Admit | None) -> type:
    """Return the class if it has the method; no other class that a record names is instantiated."""
    module_name, _, name = path.partition(":")
    target = getattr(_module(path, module_name), name, None)
    if not isinstance(target, type):
        raise _cannot(path, f"module {module_name} has no class {name}")
    if not callable(getattr(target, method, None)):
        raise _cannot(path, f"is not a {what}: it has no method {method}")
    _admit(admit, target)
    return target


def _admit(admit: Admit | None, target: Any) -> None:
    """Check the module that defines it, since another module may only have imported it."""
    if admit is not None:
        admit(defining_module(target))


def _module(path: str, name: str) -> Any:
    if name == main_module():
        return sys.modules["__main__"]
    if name not in sys.modules:
        importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        message = kept(f"{path} cannot be loaded: {message_of(error)}{_way_out(error, name)}")
        raise CannotLoad(Failure(type=dotted(type(error)), message=message, traceback=traceback_of(error))) from error


def _way_out(error: BaseException, name: str) -> str:
    """Return the way out if the module is not here, or is of a Django project; empty for another error."""
    if dotted(type(error)) in _NO_DJANGO:
        return ": a Django project has nodes of its own, `manage.py taskqueue node`"
    if not isinstance(error, ModuleNotFoundError) or not f"{name}.".startswith(f"{error.name}."):
        return ""
    return f": it is neither in {Path.cwd()} nor installed: name its folder with --chdir, or install it"


def _near(module: Any, name: str) -> str:
    """Ask whether a job of the module with a similar name was meant; empty if there is none."""
    from difflib import get_close_matches

    jobs = {job.lower(): job for job, value in vars(module).items() if isinstance(value, TaskFunction | type)}
    near = get_close_matches(name.lower(), jobs, n=1)
    return f": did you mean {module.__name__}:{jobs[near[0]]}?" if near else ""


def _newer(module: Any, name: str) -> str:
    """Say that the module's file now defines the name, so that this process has an older version."""
    import ast

    file = getattr(module, "__file__", None)
    try:
        body = ast.parse(Path(file).read_bytes()).body if file else []
        changed_at = datetime.fromtimestamp(os.stat(file).st_mtime, timezone.utc) if file else None
    except (OSError, SyntaxError, ValueError):
        return ""
    defined = {node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)}
    if name not in defined or changed_at is None:
        return ""
    since = f"{changed_at:%Y-%m-%d %H:%M:%S} UTC"
    return f", but its file {file}, changed {since}, has it: this process loaded it before, so reload the node"


def _origin(module: Any) -> str:
    """Return the file of the module, which may be another module of the same name; empty if it has none."""
    file = getattr(module, "__file__", None)
    return f": it was loaded from {file}" if file else ""


def _runnable(path: str, target: Any, method: str) -> Loaded:
    if isinstance(target, TaskFunction) and not method:
        return Loaded(path=path, make=lambda: target, work="function", target=target)
    if not isinstance(target, type):
        raise _cannot(path, "is neither a class nor a function with @task: subclass Job, or decorate it with @task")
    if not method and not issubclass(target, Job):
        raise _cannot(path, "is not a subclass of Job: subclass it, or name one of its methods as module:Class.method")
    if method and not callable(getattr(target, method, None)):
        raise _cannot(path, f"class {target.__qualname__} has no method {method}")
    return Loaded(
        path=path,
        make=target,
        work=method or "start",
        target=target,
        has_check=issubclass(target, Job) and target.is_ready is not Job.is_ready,
        has_hooks=issubclass(target, Job) and any(getattr(target, hook) is not getattr(Job, hook) for hook in _HOOKS),
    )


def _cannot(path: str, reason: str) -> CannotLoad:
    return CannotLoad(Failure(type="taskqueue.CannotLoad", message=f"{path}: {reason}"))
