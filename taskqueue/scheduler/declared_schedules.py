"""The decorator ``schedule``, and the schedules that an application declares in its code: these exist, and no others.

A declaration stays with its task or class: what a module no longer defines is no longer declared. A set of declarations
applies once, with the deployment that brings it. A lease remembers which sets were applied, so that an older
deployment that restarts does not undo a newer one; a second lease gives the turn to one process at a time.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from taskqueue.errors import ConfigError, InvalidOption, StoreContended
from taskqueue.model.job import Job, TaskFunction
from taskqueue.model.job_path import path_of
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.record import Holder
from taskqueue.model.schedules import is_relative
from taskqueue.model.schedules.schedule import NamedSchedule, definition
from taskqueue.model.shown_text import as_code
from taskqueue.scheduler import schedules
from taskqueue.store import Lease, Store
from taskqueue.store.tries import Tries

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from taskqueue.model.options.table import ScheduleEntry, ScheduleOptions
    from taskqueue.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

Scheduled = TypeVar("Scheduled", bound=Callable[..., Any])

ATTRIBUTE = "_taskqueue_schedules"
"""The attribute of a task or a class that holds its declared schedules."""


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
        schedules.check_name(name)
    given: Mapping[str, Any] = definition
    schedules.refuse_names(
        shown, {option: value for option, value in given.items() if option not in (*schedules.OF_SCHEDULES, "data")}
    )
    schedules.trigger_of(given.get("every"), given.get("cron"), given.get("at"), given.get("tz"))

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
        for name, given in vars(job).get(ATTRIBUTE, ()):
            other = entries.setdefault(name or path, {"job": job, **given})
            holder = path_of(other["job"])
            if holder != path or other != {"job": other["job"], **given}:
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


APPLIED, TURN = "schedules of ", "turn of schedules of "
"""The prefixes of the two leases of an application."""

REMEMBERED = 100
"""How many of the last sets an application is remembered to have had."""

TURN_LASTS = timedelta(seconds=30)
"""How long a process that was killed in the middle keeps others from their turn."""

LOOKS_EVERY = 0.3
"""Seconds after which a process that waits for its turn tries again, up to ``MOST_TRIES`` times."""


@dataclass(frozen=True, kw_only=True)
class ScheduleChanges:
    """What the schedules of an application become, or would become."""

    added: tuple[str, ...] = ()
    """The names of new schedules."""
    changed: Mapping[str, tuple[str, ...]]
    """The names of redefined schedules, each with the parts that change."""
    removed: tuple[str, ...] = ()
    """The names of schedules that the code no longer declares."""
    is_outdated: bool = False
    """Whether nothing was done because another set has replaced this one since it was applied."""


_PARTS = ("trigger", "job", "data", "overlap", "misfire", "grace", "until", "max_runs", "stop_after_failures")
"""The parts of a definition that are not options of its jobs."""

NOTHING = ScheduleChanges(changed={})
"""Nothing changes."""


def plans_of(entries: Any, application: Any, defaults: Mapping[str, Any], now: datetime) -> list[NamedSchedule]:
    """Return the checked schedules of a set, by name; raise ``InvalidOption``."""
    if not schedules.is_name(application):
        raise InvalidOption(
            f"application={as_code(application)}: pass the name of your application, text of 1 to 200 characters "
            "without spaces and '/'"
        )
    if not isinstance(entries, Mapping):
        raise InvalidOption(f"schedules={as_code(entries)}: pass a mapping of names to schedules")
    return [_plan(name, entries[name], application, defaults, now) for name in sorted(entries, key=str)]


def _plan(name: Any, entry: Any, application: str, defaults: Mapping[str, Any], now: datetime) -> NamedSchedule:
    if not isinstance(entry, Mapping) or "job" not in entry:
        raise InvalidOption(
            f"schedule {name}: {as_code(entry)} is not a schedule: pass a mapping such as "
            "{'job': CleanJob, 'cron': '15 3 * * *'}"
        )
    until = entry.get("until")
    if is_relative(until) or isinstance(until, timedelta):
        raise InvalidOption(f"schedule {name}: until={until!s} is a different time at each start: pass a fixed time")
    given = {key: value for key, value in entry.items() if key not in ("job", "data")}
    return schedules.plan_of(name, entry["job"], entry.get("data"), given, defaults, now, application)


def apply_once(store: Store, application: str, plans: Sequence[NamedSchedule]) -> ScheduleChanges:
    """Make these the schedules of the application if no process has done that before."""
    digest = _digest(plans)
    known = _applied(store, application)
    if _last(known) == digest or not (known or plans):
        return NOTHING
    with _turn(store, application) as turn:
        applied = _applied(store, application)
        if _last(applied) == digest:
            return NOTHING
        if digest in applied:
            log.warning(
                "the schedules of application %s stay unchanged: another deployment has replaced this one's, which "
                "were applied at %s; to restore them, pass force=True or run `taskqueue schedule sync`",
                application,
                applied[digest],
            )
            return ScheduleChanges(changed={}, is_outdated=True)
        return _apply(store, application, plans, turn)


def apply_again(store: Store, application: str, plans: Sequence[NamedSchedule]) -> ScheduleChanges:
    """Make these the schedules of the application, whatever was applied before."""
    with _turn(store, application) as turn:
        return _apply(store, application, plans, turn)


def compare(store: Store, application: str, plans: Sequence[NamedSchedule]) -> ScheduleChanges:
    """Return what would change; raise ``InvalidOption`` if a name belongs to another application, or to an operator."""
    stored, now = {schedule.name: schedule for schedule in store.schedules()}, store.now()
    conflicts = [
        words
        for plan in plans
        if (old := stored.get(plan.name)) is not None and (words := schedules.conflict(old, plan))
    ]
    if conflicts:
        raise InvalidOption(f"application {application}: nothing was changed: {'; '.join(conflicts)}")
    new = [plan for plan in plans if plan.name not in stored]
    for plan in new:
        schedules.check_end(plan, now)
    declared = {plan.name for plan in plans}
    changes = {plan.name: _difference(stored[plan.name], plan) for plan in plans if plan.name in stored}
    return ScheduleChanges(
        added=tuple(plan.name for plan in new),
        changed={name: parts for name, parts in changes.items() if parts},
        removed=tuple(name for name, old in stored.items() if old.application == application and name not in declared),
    )


def _difference(old: NamedSchedule, new: NamedSchedule) -> tuple[str, ...]:
    """Return the parts of the definition that change."""
    if old.damage:
        return ("unreadable parts",)
    before, after = definition(old), definition(new)
    parts = [name for name in _PARTS if before[name] != after[name]]
    options = before["given"].keys() | after["given"].keys()
    parts += sorted(name for name in options if before["given"].get(name) != after["given"].get(name))
    if not parts and before != after:
        parts.append("options of its class")
    if old.application != new.application:
        parts.append("application")
    return tuple(parts)


class _Turn:
    """The right to change the schedules of an application, which one process has at a time."""

    def __init__(self, store: Store, application: str) -> None:
        self._store = store
        self._name = f"{TURN}{application}"
        self._what = f"the set of schedules of application {application}"
        self._holder = Holder(seat=f"process {os.getpid()} of {socket.gethostname()}", incarnation=secrets.token_hex(8))

    def wait(self) -> None:
        """Return when it is this process's turn."""
        tries = Tries(self._store.url, self._what)
        while not self._is_taken():
            tries.another()
            time.sleep(LOOKS_EVERY)  # no bell rings when a turn ends

    def extend(self) -> None:
        """Keep the turn for longer; raise ``StoreContended`` if this process stood still and lost it."""
        if not self._is_taken():
            raise StoreContended(self._store.url, self._what, 1)

    def end(self) -> None:
        """Give the turn to another process."""
        self._store.resign(self._name, self._holder)

    def _is_taken(self) -> bool:
        now = self._store.now()
        turn = Lease(name=self._name, holder=self._holder, since=now, until=now + TURN_LASTS)
        return self._store.acquire(turn, now).holder == self._holder


@contextmanager
def _turn(store: Store, application: str) -> Iterator[_Turn]:
    turn = _Turn(store, application)
    turn.wait()
    try:
        yield turn
    finally:
        turn.end()


def _apply(store: Store, application: str, plans: Sequence[NamedSchedule], turn: _Turn) -> ScheduleChanges:
    """Define all, remove the others, and remember the set last: a process that was killed before is done again."""
    changes = compare(store, application, plans)
    for plan in plans:
        turn.extend()
        schedules.define(store, plan, store.now())
    for name in changes.removed:
        turn.extend()
        schedules.remove_of(store, name, application)
    turn.extend()
    _remember(store, application, _digest(plans))
    return changes


def _digest(plans: Sequence[NamedSchedule]) -> str:
    """Return a text that two sets have in common only if they are equal."""
    return hashlib.sha256(repr([(plan.name, definition(plan)) for plan in plans]).encode()).hexdigest()[:32]


def _applied(store: Store, application: str) -> dict[str, str]:
    """Return the sets that were applied, the last one last, each with its time."""
    lease = next((lease for lease in store.leases() if lease.name == f"{APPLIED}{application}"), None)
    sets: Any = {} if lease is None else lease.about.get("sets")
    return {str(digest): str(at) for digest, at in sets} if isinstance(sets, list) else {}


def _last(applied: Mapping[str, str]) -> str | None:
    return next(reversed(list(applied)), None)


def _remember(store: Store, application: str, digest: str) -> None:
    now = store.now()
    applied = _applied(store, application)
    applied.pop(digest, None)
    sets = [*applied.items(), (digest, now.isoformat(timespec="seconds"))][-REMEMBERED:]
    store.acquire(
        Lease(
            name=f"{APPLIED}{application}",
            holder=Holder(seat="schedules", incarnation=application),
            since=now,
            until=now,
            about={"sets": [list(one) for one in sets]},
        ),
        now,
    )
