"""The decorator ``schedule``, and the schedules that imported modules declare with it.

A declaration stays with its task or class: what a module no longer defines is no longer declared.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from taskqueue.errors import ConfigError, InvalidOption
from taskqueue.model.job import Job, TaskFunction
from taskqueue.model.job_path import path_of
from taskqueue.model.shown_text import as_code
from taskqueue.scheduler.schedules import OF_SCHEDULES, check_name, refuse_names, trigger_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from taskqueue.model.options.table import ScheduleEntry, ScheduleOptions
    from taskqueue.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

Scheduled = TypeVar("Scheduled", bound=Callable[..., Any])

ATTRIBUTE = "_taskqueue_schedules"
"""Where a task or a class keeps what is declared for it."""


def schedule(name: str | None = None, /, **definition: Unpack[ScheduleOptions]) -> Callable[[Scheduled], Scheduled]:
    """Declare a schedule of the task or class below: ``@schedule(cron="15 3 * * *")`` above ``@task``.

    It takes what ``Scheduler.schedule`` takes; ``data`` goes by name. Without a name, the schedule has the import path
    of the job, ``module:function``. Nothing is stored before ``taskqueue schedule sync`` is called, or a node
    with ``--schedules`` starts. Raises ``InvalidOption``.
    """
    if name is not None and not isinstance(name, str):
        raise InvalidOption(
            f"schedule({as_code(name)}): write @schedule(cron='15 3 * * *') above @task, or above a class"
        )
    shown = name or "without a name"
    if name is not None:
        check_name(name)
    given: Mapping[str, Any] = definition
    refuse_names(shown, {option: value for option, value in given.items() if option not in (*OF_SCHEDULES, "data")})
    trigger_of(given.get("every"), given.get("cron"), given.get("at"), given.get("tz"))

    def declare(job: Scheduled) -> Scheduled:
        if not _is_job(job):
            raise InvalidOption(
                f"schedule {shown}: {as_code(job)} is not a job: write @schedule(…) above @task, or above a class"
            )
        setattr(job, ATTRIBUTE, ((name, given), *vars(job).get(ATTRIBUTE, ())))
        return job

    return declare


def declared() -> dict[str, ScheduleEntry]:
    """Return the schedules that imported modules declare, by name; raise ``InvalidOption`` for a name used twice."""
    entries: dict[str, Any] = {}
    for job in _jobs():
        path = path_of(job)
        for name, definition in vars(job).get(ATTRIBUTE, ()):
            other = entries.setdefault(name or path, {"job": job, **definition})
            holder = path_of(other["job"])
            if holder != path or other != {"job": other["job"], **definition}:
                raise InvalidOption(
                    f"schedule {name or path} is declared twice, by {holder} and {path}: give one another name, "
                    "@schedule('name', …)"
                )
    return entries


def apply_declared(module: str, scheduler: Scheduler) -> None:
    """Import the module, and store exactly the schedules that are declared then, once per deployment."""
    import_application(module)
    changes = scheduler.schedules(declared(), application=module)
    for what, names in (("adds", changes.added), ("changes", tuple(changes.changed)), ("removes", changes.removed)):
        if names:
            log.info("application %s %s schedules: %s", module, what, ", ".join(names))


def import_application(module: str) -> None:
    """Import the module, and with it everything that declares schedules. Raises ``ConfigError``."""
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"module {module} cannot be imported: {type(error).__name__}: {error}") from error


def _jobs() -> Iterator[Any]:
    """Yield the jobs of all imported modules, each where it was defined."""
    for name, module in list(sys.modules.items()):
        for value in list(getattr(module, "__dict__", {}).values()):
            if _is_job(value) and value.__module__ == name and ATTRIBUTE in vars(value):
                yield value


def _is_job(value: Any) -> bool:
    """Return whether it is a task or a class of jobs; its type is asked, since proxies answer for other objects."""
    kind = type(value)
    return issubclass(kind, TaskFunction) or (issubclass(kind, type) and issubclass(value, Job))
