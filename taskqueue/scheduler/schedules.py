"""Operations on named schedules: define, pause, resume, remove, start a job now, preview."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any, TypeGuard

from taskqueue.errors import InvalidOption, ScheduleNotFound, Unreadable
from taskqueue.execution.custom_schedule import next_of
from taskqueue.model.ids import JobId, new_id
from taskqueue.model.job_path import class_path
from taskqueue.model.options import named, value_of
from taskqueue.model.options.table import OPTIONS
from taskqueue.model.record import Record
from taskqueue.model.schedules import Again, Cron, Custom, Every, Trigger, fire, is_relative, moment_of, seconds_of
from taskqueue.model.schedules.cron_fields import DAY_NUMBERS, FIELDS
from taskqueue.model.schedules.schedule import (
    NAME_SHAPE,
    RECENT,
    NamedSchedule,
    Overlap,
    Stage,
    misfires,
    next_version,
    same_definition,
)
from taskqueue.model.schedules.series import AT_ONCE
from taskqueue.model.serializer import clean, clipped
from taskqueue.model.shown_text import as_code
from taskqueue.model.wording import nearest
from taskqueue.scheduler import new_jobs
from taskqueue.store import Store
from taskqueue.store.tries import Tries

ONE_JOB = (
    *("at", "id", "unique", "unique_for", "on_duplicate", "interval", "interval_reference", "ignore_data"),
    *("depends_on", "receives", "parent"),
)
"""Options of a single job, or that the schedule sets itself."""

RULES = ("until", "max_runs", "stop_after_failures")
"""Options of a series that a schedule has for itself."""


OF_SCHEDULES = (*("every", "cron", "at", "tz", "overlap", "misfire", "grace"), *RULES)
"""The options of a schedule itself, not of its jobs."""

OF_OTHERS: Mapping[str, str] = {
    **dict.fromkeys(("schedule", "trigger"), "every or cron"),
    "crontab": "cron",
    "timezone": "tz",
    "catchup": "misfire",
    "coalesce": "misfire",
    "misfire_grace_time": "grace",
    "max_instances": "overlap",
    "end_date": "until",
    **dict.fromkeys(("interval", "seconds", "minutes", "hours", "days"), "every"),
}
"""Options of schedules in other systems, with the equivalent here."""


def is_name(value: object) -> TypeGuard[str]:
    """Return whether this can be the name of a schedule, or of an application."""
    return isinstance(value, str) and re.fullmatch(NAME_SHAPE, value) is not None and value.isprintable()


def check_name(name: Any) -> None:
    """Raise ``InvalidOption`` for what cannot be the name of a schedule."""
    if not is_name(name):
        raise InvalidOption(
            f"a schedule's name is {as_code(name)}: pass text of 1 to 200 characters without spaces and '/'"
        )


def refuse_names(name: str, options: Mapping[str, Any]) -> None:
    """Refuse an option that no job has, and that looks like one of a schedule."""
    for option in options:
        if option in FIELDS and option not in OPTIONS:
            raise InvalidOption(
                f"schedule {name}: there is no option {option!r}: pass cron='15 3 * * mon' with minute, hour, day, "
                f"month and weekday; {DAY_NUMBERS}"
            )
        meant = OF_OTHERS.get(option)
        hint = f": did you mean {meant}?" if meant else "" if option in OPTIONS else nearest(option, OF_SCHEDULES)
        if hint:
            raise InvalidOption(f"schedule {name}: there is no option {option!r}{hint}")


def trigger_of(every: Any, cron: Any, at: Any, tz: str | None) -> Trigger:
    """Return the one trigger that was passed; raise ``InvalidOption``."""
    given = {name: value for name, value in (("every", every), ("cron", cron), ("at", at)) if value is not None}
    if len(given) != 1:
        raise InvalidOption(f"a schedule has one trigger: pass every, cron or at, not {' and '.join(given) or 'none'}")
    if tz is not None and not isinstance(cron, str):
        raise InvalidOption(f"tz={as_code(tz)} is the time zone of a cron expression: pass cron as text")
    if cron is not None:
        return cron if isinstance(cron, Cron) else Cron(cron, tz or "UTC")
    if every is not None:
        return every if isinstance(every, Every | Again) else Again() if every == AT_ONCE else Every(every)
    if isinstance(at, Custom):
        return at
    return Custom(at) if isinstance(at, str) else Custom(class_path(at, "next"))


DEFAULTS: Mapping[str, Any] = {
    "overlap": "skip",
    "misfire": "once",
    "grace": 60.0,
    **dict.fromkeys(RULES),
}
"""The rules of a schedule that passes none."""


def plan_of(
    name: Any,
    job: Any,
    data: Any,
    given: Mapping[str, Any],
    defaults: Mapping[str, Any],
    now: datetime,
    application: str | None = None,
) -> NamedSchedule:
    """Return the checked schedule of a call, which gives its trigger, its rules and the options of its jobs.

    Raises ``InvalidJob`` or ``InvalidOption``.
    """
    options = {option: value for option, value in given.items() if option not in OF_SCHEDULES}
    refuse_names(name, options)
    trigger = trigger_of(given.get("every"), given.get("cron"), given.get("at"), given.get("tz"))
    check_name(name)
    for option in ONE_JOB:
        if option in options:
            raise InvalidOption(f"schedule {name}: {option} belongs to one job, a schedule starts many: leave it out")
    order = new_jobs.order(job, data, options, _repeatable(defaults), now, f"schedule {name}: ")
    template = replace(order.record, origin=None)
    if template.unique is not None or template.depends_on:
        raise InvalidOption(f"schedule {name}: its job has unique or depends_on, which belong to one job: use overlap")
    expires = order.options["expires"]
    if expires is not None and not is_relative(expires):
        raise InvalidOption(f"schedule {name}: expires={expires!s} is absolute: pass a relative one such as '+1 hour'")
    rules = {rule: given.get(rule, default) for rule, default in DEFAULTS.items()}
    return NamedSchedule(
        name=name,
        trigger=trigger,
        template=template,
        expires_for=None if template.expires_at is None else (template.expires_at - now).total_seconds(),
        created_at=now,
        application=application,
        **_rules(rules, now),
    )


def define(store: Store, plan: NamedSchedule, now: datetime) -> NamedSchedule:
    """Store the schedule, or redefine the one with its name. Its counters stay, except that of failures, and so does
    its next time if its trigger stays.
    """
    tries = Tries(store.url, f"schedule {plan.name}")
    while True:
        tries.another()
        old = _find(store, plan.name)
        new, jobs = defined(old, plan, now)
        if new is old or store.replace_schedule(old, new, jobs, now):
            return new


def defined(old: NamedSchedule | None, plan: NamedSchedule, now: datetime) -> tuple[NamedSchedule, list[Record]]:
    """Return the schedule as ``define`` leaves it if ``old`` is stored, and the jobs that it starts; raise as it does.

    It is ``old`` itself if nothing changes.
    """
    if old is None:
        check_end(plan, now)
        return fire.begun(plan, now)
    if words := conflict(old, plan):
        raise InvalidOption(words)
    again = _redefined(old, plan)
    if again is None:
        return old, []
    if again.until != old.until:
        check_end(plan, now)
    if again.trigger == old.trigger and old.stage is not Stage.ENDED:
        return again, []
    again = replace(again, awaits=None, next_run_at=None)
    return (again, []) if again.stage is Stage.PAUSED else fire.begun(again, now)


def check_end(plan: NamedSchedule, now: datetime) -> None:
    """Refuse a last time before the first one; one that was defined when it lay ahead may be defined again."""
    first = fire.first_time(plan, now) or now
    if plan.until is not None and plan.until < first:
        raise InvalidOption(
            f"schedule {plan.name}: until={plan.until:%Y-%m-%d %H:%M:%S} UTC is before its first time, "
            f"{first:%Y-%m-%d %H:%M:%S} UTC: pass a later one"
        )


def conflict(old: NamedSchedule, plan: NamedSchedule) -> str:
    """Return why an application may not declare the stored schedule; empty if it may.

    One without an application, from a call or a command, is adopted if its definition is the same.
    """
    if plan.application in (None, old.application) or (old.application is None and same_definition(old, plan)):
        return ""
    owner = "a call or a command has defined it" if old.application is None else f"application {old.application} has it"
    return (
        f"schedule {plan.name} cannot be declared by application {plan.application}, {owner}: rename yours, or remove "
        f"that one with `taskqueue schedule remove {plan.name}`"
    )


def pause(store: Store, name: str, reason: str) -> NamedSchedule:
    """Stop the schedule from starting jobs until it is resumed."""

    def paused(plan: NamedSchedule, _now: datetime) -> tuple[NamedSchedule, list[Record]]:
        return next_version(plan, stage=Stage.PAUSED, reason=clipped(str(reason)), next_run_at=None, awaits=None), []

    return _changed(store, name, paused)


def resume(store: Store, name: str) -> NamedSchedule:
    """Resume the schedule from now on; missed times are not made up for."""

    def resumed(plan: NamedSchedule, now: datetime) -> tuple[NamedSchedule, list[Record]]:
        if plan.stage is Stage.ACTIVE:
            return plan, []
        _check_readable(plan)
        ended = {} if plan.stage is Stage.ENDED else plan.ended
        return fire.begun(next_version(plan, stage=Stage.ACTIVE, reason="", ended=ended), now)

    return _changed(store, name, resumed)


def remove_of(store: Store, name: str, application: str) -> None:
    """Remove the schedule if it is one of the application; jobs that it has started stay."""
    tries = Tries(store.url, f"schedule {name}")
    while True:
        tries.another()
        plan = _find(store, name)
        if plan is None or plan.application != application:
            return
        if store.replace_schedule(plan, None, [], store.now()):
            return


def remove(store: Store, name: str) -> None:
    """Remove the schedule; jobs that it has started stay."""
    tries = Tries(store.url, f"schedule {name}")
    while True:
        tries.another()
        plan = read(store, name)
        if store.replace_schedule(plan, None, [], store.now()):
            return


def trigger_now(store: Store, name: str) -> Record:
    """Start a job of the schedule at once, whatever its stage and its overlap rule, and return it."""
    job: list[Record] = []

    def triggered(plan: NamedSchedule, now: datetime) -> tuple[NamedSchedule, list[Record]]:
        _check_readable(plan)
        job[:] = [fire.job_for(plan, now, now, id=new_id())]
        return next_version(plan, recent=(*plan.recent, job[0].id)[-RECENT:]), job

    _changed(store, name, triggered)
    return job[0]


def preview(plan: NamedSchedule, count: int, now: datetime) -> list[datetime]:
    """Return the next times, ``count`` at most; those of a class of the user's are asked for in this process.

    Where the next time depends on the end of a run, each run is taken to end at once.
    """
    if type(count) is not int or not 1 <= count <= 1000:
        raise InvalidOption(f"a preview of {as_code(count)} times: pass a whole number from 1 to 1,000")
    return list(islice(_times(plan, now), count))


def learn(store: Store, name: str, asker: JobId, next_run_at: datetime | None) -> bool:
    """Store the next time that the job ``asker`` found, and return whether the schedule still awaited it."""
    tries = Tries(store.url, f"schedule {name}")
    while True:
        tries.another()
        plan = _find(store, name)
        if plan is None or plan.awaits != asker:
            return False
        if store.replace_schedule(plan, fire.informed(plan, next_run_at), [], store.now()):
            return True


def read(store: Store, name: str) -> NamedSchedule:
    """Return the schedule of this name; raise ``ScheduleNotFound``."""
    if not isinstance(name, str):
        raise InvalidOption(f"name={as_code(name)}: pass the name of a schedule")
    plan = _find(store, name) if clean(name) == name else None  # a store may refuse other text
    if plan is None:
        hint = nearest(name, [schedule.name for schedule in store.schedules()])
        raise ScheduleNotFound(name if is_name(name) else as_code(name), hint)
    return plan


def _find(store: Store, name: str) -> NamedSchedule | None:
    return next(iter(store.schedules([name])), None)


def _times(plan: NamedSchedule, now: datetime) -> Iterator[datetime]:
    rest = None if plan.max_runs is None else plan.max_runs - plan.fired
    upcoming = plan.next_run_at if plan.stage is Stage.ACTIVE else None
    upcoming = upcoming or _after(plan.trigger, now)
    while upcoming is not None and (plan.until is None or upcoming <= plan.until) and (rest is None or rest > 0):
        yield upcoming
        rest = None if rest is None else rest - 1
        upcoming = None if isinstance(plan.trigger, Again) else _after(plan.trigger, upcoming)


def _after(trigger: Trigger, reference: datetime) -> datetime | None:
    return next_of(trigger, reference) if isinstance(trigger, Custom) else trigger.after(reference)


def _redefined(old: NamedSchedule, new: NamedSchedule) -> NamedSchedule | None:
    """Return the old schedule with the new definition, None if both are the same."""
    is_intact = not old.damage and old.stage is not Stage.ENDED
    if is_intact and new.application in (None, old.application) and same_definition(old, new):
        return None
    stage = Stage.PAUSED if old.stage is Stage.PAUSED and not old.damage else Stage.ACTIVE
    return replace(
        new,
        stage=stage,
        reason=old.reason if stage is Stage.PAUSED else "",
        next_run_at=old.next_run_at,
        awaits=old.awaits,
        fired=old.fired,
        missed=old.missed,
        misses=old.misses,
        recent=old.recent,  # failures are counted from zero
        application=new.application or old.application,
        created_at=old.created_at,
        version=old.version + 1,
    )


def _check_readable(plan: NamedSchedule) -> None:
    if plan.damage:
        raise Unreadable(f"schedule {plan.name} {plan.damage}: correct it, define the schedule again, or remove it")


def _changed(
    store: Store, name: str, change: Callable[[NamedSchedule, datetime], tuple[NamedSchedule, list[Record]]]
) -> NamedSchedule:
    tries = Tries(store.url, f"schedule {name}")
    while True:
        tries.another()
        plan, now = read(store, name), store.now()
        after, jobs = change(plan, now)
        if after == plan or store.replace_schedule(plan, after, jobs, now):
            return after


def _repeatable(defaults: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in defaults.items() if name not in ONE_JOB}


def _rules(given: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return the rules of a schedule as they are kept."""
    try:
        overlap = Overlap(given["overlap"])
    except ValueError:
        names = ", ".join(repr(overlap.value) for overlap in Overlap)
        raise InvalidOption(f"overlap={as_code(given['overlap'])}: pass {names}") from None
    until = value_of("until", given["until"])
    return {
        "overlap": overlap,
        "misfire": misfires(given["misfire"]),
        "grace": named("grace", given["grace"], seconds_of),
        "until": None if until is None else moment_of(until, now),
        "max_runs": value_of("max_runs", given["max_runs"]),
        "stop_after_failures": value_of("stop_after_failures", given["stop_after_failures"]),
    }
