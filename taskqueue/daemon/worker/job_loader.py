"""Loads the code of a worker: jobs of the modules allowed here, and the hooks of its bootstrap file."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import CoroutineType, ModuleType
from typing import Any

from taskqueue.daemon.protocol.messages import APPLY_SCHEDULES, CHECK_OUTBOX, RELAY_OUTBOX, WATCH
from taskqueue.execution.loader import CannotLoad, Loaded, load, load_policy, load_predicate
from taskqueue.execution.run_hooks import RunHooks, hooks_in
from taskqueue.model.record import Failure
from taskqueue.scheduler.declared_schedules import apply_declared
from taskqueue.scheduler.job_meta import BeforeAdd, check_plain


class JobLoader:
    """Loads jobs, policies and predicates by path; it caches jobs."""

    def __init__(self, *, allow: Collection[str], scheduler: Callable[[], Any]) -> None:
        self._allow = allow
        self._scheduler = scheduler
        self._bootstrap: ModuleType | None = None
        self.run_hooks: RunHooks | None = None
        """The hooks that surround each run."""
        self.before_add: BeforeAdd | None = None
        """The hook for each job that jobs of this worker add with ``self.scheduler``."""
        self.importing: Callable[[], AbstractContextManager[None]] = nullcontext
        """The context in which the module of a job is imported, before its first run."""
        self.keeping_settings: Callable[[], AbstractContextManager[None]] = nullcontext
        """The context in which other modules are imported; code of a job may have run before."""
        self._loaded: dict[str, Loaded] = {}

    def boot(self, path: Path) -> None:
        """Run the bootstrap file as a module; let its exceptions pass."""
        self._bootstrap = module = run_file(path)
        around_run, run_ended = (getattr(module, name, None) for name in RunHooks._fields)
        self.run_hooks = hooks_in(around_run, run_ended)
        self.before_add = check_plain(getattr(module, "before_add", None))

    def find(self, path: str) -> Loaded:
        """Return the job with this path; raise ``CannotLoad``."""
        loaded = self._loaded.get(path)
        if loaded is None:
            with self.importing():
                loaded = self._loaded[path] = self._job(path)
        return loaded

    def find_policy(self, path: str) -> type:
        """Return the class of retry policies with this path; raise ``CannotLoad``."""
        self._check_allowed(path.partition(":")[0])
        with self._importing_module_of(path):
            return load_policy(path, self._check_allowed)

    def find_predicate(self, path: str) -> Callable[..., object]:
        """Return the predicate of a condition with this path; raise ``CannotLoad``."""
        self._check_allowed(path.partition(":")[0])
        with self._importing_module_of(path):
            return load_predicate(path, self._check_allowed)

    def _importing_module_of(self, path: str) -> AbstractContextManager[None]:
        return nullcontext() if path.partition(":")[0] in sys.modules else self.keeping_settings()

    def _job(self, path: str) -> Loaded:
        if path == WATCH:
            from taskqueue.notifications.watch import Watch

            return Loaded(path=path, make=Watch, work="start", target=Watch)
        self._check_allowed(path.partition(":")[0])
        return load(path, self._check_allowed)

    def _check_allowed(self, module: str) -> None:
        """Raise ``CannotLoad`` for a module that ``--allow`` does not admit.

        Check the module named in the path before importing it, and the module where the object found was defined: an
        object that a module has imported is not its own.
        """
        if self._allow and not any(module == prefix or module.startswith(f"{prefix}.") for prefix in self._allow):
            message = f"this node runs jobs of {', '.join(self._allow)} only: start one with --allow {module}"
            raise CannotLoad(Failure(type="taskqueue.NotAllowed", message=message))

    def load_hook(self, name: str, source: str = "") -> None:
        """Load the hook ``name``, with the ``source`` that ``RunHook`` names; ``find`` returns it.

        A node hook does nothing if the bootstrap file has none.
        """
        if name == WATCH:  # imported when it runs: a worker that takes long before that counts as stuck
            return
        hook: Callable[[Any], Any] | None
        if name == APPLY_SCHEDULES:
            hook = partial(apply_declared, source)
        elif source:
            hook = partial(_call_with_outbox, name, source)
        else:
            hook = getattr(self._bootstrap, name, None)
        scheduler = self._scheduler

        class Hook:
            """Calls the hook, if the bootstrap file has it."""

            def call(self) -> Any:
                called = None if hook is None else hook(scheduler())
                return _without_result(called) if type(called) is CoroutineType else None

        self._loaded[name] = Loaded(path=name, make=Hook, work="call")


def run_file(path: Path) -> ModuleType:
    """Run the file as a module, under the name by which jobs import it, and return the module."""
    name = _importable_name(path.resolve()) or f"taskqueue_bootstrap_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _call_with_outbox(name: str, path: str, scheduler: Any) -> None:
    from taskqueue.outbox import outbox  # few nodes have an outbox

    if name == CHECK_OUTBOX:
        outbox.find(path)
    elif name == RELAY_OUTBOX:
        outbox.relay_endlessly(path, scheduler)
    else:
        outbox.relay_until_empty(path, scheduler)


async def _without_result(coroutine: CoroutineType[Any, Any, Any]) -> None:
    await coroutine


def _importable_name(path: Path) -> str | None:
    """Return the name under which jobs import this file, so that they share its context variables and clients.

    None for a file that cannot be imported, or that is imported already, by ``--preload`` say: it runs in each worker.
    """
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    name = ".".join(parts)
    if name in sys.modules or folder not in {Path(entry).resolve() for entry in sys.path}:
        return None
    spec = importlib.util.find_spec(name) if all(part.isidentifier() for part in parts) else None
    return name if spec is not None and spec.origin is not None and Path(spec.origin).resolve() == path else None
