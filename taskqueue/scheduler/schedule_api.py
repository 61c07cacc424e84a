"""The schedules' part of the public API: define a schedule by its name, and find the defined ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from taskqueue.model.schedules import Duration
from taskqueue.scheduler import job_meta
from taskqueue.scheduler.connection import Connections

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from taskqueue.model.job import Data
    from taskqueue.model.options.table import Overlapping, ScheduledOptions, ScheduleEntry, ScheduleOptions, When
    from taskqueue.model.schedules import Again, Cron, Custom, Every
    from taskqueue.scheduler.declared_schedules import ScheduleChanges
    from taskqueue.scheduler.schedule import Schedule
    from taskqueue.scheduler.scheduler import Scheduler
    from taskqueue.scheduler.signatures import Addable

NO_DATA: Any = None
"""The data of a job that is added without data; of any type."""


class Schedules:
    """The methods for schedules by name; ``Scheduler`` inherits them."""

    _connections: Connections
    _defaults: Mapping[str, Any]

    def schedule(
        self,
        /,
        name: str,
        job: Addable[Data, Any],
        data: Data = NO_DATA,
        *,
        every: Duration | Every | Again | None = None,
        cron: str | Cron | None = None,
        at: type | str | Custom | None = None,
        tz: str | None = None,
        overlap: Overlapping = "skip",
        misfire: str = "once",
        grace: Duration = 60.0,
        until: When | None = None,
        max_runs: int | None = None,
        stop_after_failures: int | None = None,
        **options: Unpack[ScheduledOptions],
    ) -> Schedule:
        """Define the schedule of this name, or redefine it, and return it; it is durable when this returns.

        One trigger: ``every`` a duration (or ``Every``, ``Again``; -1 means at once), ``cron`` an expression in the
        zone ``tz`` (or ``Cron``), ``at`` your own class with ``next(after)`` (or its path, or ``Custom``). ``overlap``
        is ``skip``, ``queue_one``, ``allow`` or ``cancel_previous``; ``misfire`` says which times that passed more than
        ``grace`` ago are made up: ``once``, ``skip`` or ``all(N)``. ``options`` are the options of its jobs. A
        redefined schedule keeps its counters, and its next time if the trigger is the same.
        """
        from taskqueue.scheduler import schedule as handle
        from taskqueue.scheduler import schedules

        self._connections.refuse_if_immediate("schedule()")
        store = self._connections.store
        now = store.now()
        definition: ScheduleOptions = {
            "every": every,
            "cron": cron,
            "at": at,
            "tz": tz,
            "overlap": overlap,
            "misfire": misfire,
            "grace": grace,
            "until": until,
            "max_runs": max_runs,
            "stop_after_failures": stop_after_failures,
        }
        given = {**options, **definition}
        completed = job_meta.completed(None, job, data, given)
        plan = schedules.plan_of(name, job, data, completed, self._defaults, now)
        return handle.Schedule(cast("Scheduler", self), store, schedules.define(store, plan, now))

    def schedules(
        self,
        entries: Mapping[str, ScheduleEntry],
        *,
        application: str,
        dry_run: bool = False,
        force: bool = False,
    ) -> ScheduleChanges:
        """Make these the schedules of the application, exactly these, and return what changed.

        ``entries`` maps names to what ``schedule`` takes: ``{"nightly": {"job": CleanJob, "cron": "15 3 * * *"}}``.
        Schedules that the application declared before and that are missing here are removed; schedules of other
        applications, or that a call or a command has defined, stay as they are. A set is applied once: if it was
        applied already, nothing is done; if another set has replaced it since then, that is logged, and nothing is
        done unless ``force`` is true. With ``dry_run`` nothing is changed. Raises ``InvalidOption`` if a name is taken.
        """
        from taskqueue.scheduler import declared_schedules

        self._connections.refuse_if_immediate("schedules()")
        if dry_run:
            with self._connections.existing() as store:
                plans = declared_schedules.plans_of(entries, application, self._defaults, store.now())
                return declared_schedules.compare(store, application, plans)
        store = self._connections.store
        plans = declared_schedules.plans_of(entries, application, self._defaults, store.now())
        apply = declared_schedules.apply_again if force else declared_schedules.apply_once
        return apply(store, application, plans)

    def get_schedule(self, name: str) -> Schedule:
        """Return the schedule of this name; raise ``ScheduleNotFound`` if there is none."""
        from taskqueue.scheduler import schedule, schedules

        return schedule.Schedule(
            cast("Scheduler", self), self._connections.store, schedules.read(self._connections.store, name)
        )

    def get_schedules(self) -> list[Schedule]:
        """Return all schedules, by name."""
        from taskqueue.scheduler import schedule

        store = self._connections.store
        return [schedule.Schedule(cast("Scheduler", self), store, plan) for plan in store.schedules()]
