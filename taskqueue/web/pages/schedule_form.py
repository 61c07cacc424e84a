"""The form of a schedule: define a new one, or change one, after a preview of its next times."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from taskqueue.errors import InvalidJob, ScheduleNotFound
from taskqueue.model.schedules import Again, Cron, Every, moment_of
from taskqueue.model.schedules.schedule import NamedSchedule
from taskqueue.model.schedules.series import AT_ONCE
from taskqueue.web.pages.job_forms import (
    CHANGED_SINCE,
    Difference,
    decoded,
    differences_of_data,
    given_of,
    integer,
    tags_of,
    word_of,
)
from taskqueue.web.pages.schedules import OVERLAPS, shown_time, zone_of
from taskqueue.web.problems import Problem
from taskqueue.web.view import View, see_other

NEW: Mapping[str, str] = {
    **dict.fromkeys(("name", "job", "queue", "priority", "tags", "cron", "tz", "every", "until", "max_runs"), ""),
    "data": "null",
    "overlap": "skip",
    "misfire": "once",
}
"""The fields of the form, as those of a new schedule are."""

SHOWN: Mapping[str, str] = {"max_runs": "jobs in all"}
"""What the form calls a field, if that is not its name."""

UNITS = ((86_400, "d"), (3600, "h"), (60, "m"))


def schedule_form(view: View) -> Mapping[str, Any]:
    """Return the form of a new schedule, or of the one that the address names."""
    old = _stored(view, view.query.get("name", ""))
    if not view.may_act_on(old.template.queue if old else None) and not (old is None and view.may_act):
        raise Problem("forbidden", f"user {view.user.name} may not define this schedule: an operator of its queue can")
    if old is not None:
        view.actions.check_class(old.template.job)
    return _form(view, old, _fields(view, old))


def save_schedule(view: View) -> Any:
    """Preview the schedule, or with ``confirm`` define it; if a value is refused, return the form with the error."""
    old = _stored(view, view.form.get("was", ""))
    current = _fields(view, old)
    given = given_of(view, current)
    name = old.name if old else given["name"]
    if given["tags"] != current["tags"]:
        given["tags"] = "\n".join(tags_of(given["tags"], old.template.tags if old else ()))
    try:
        if given["until"] and given["until"] != current["until"]:
            given["until"] = _time(moment_of(given["until"], view.overviews.now().replace(microsecond=0)))
        options = _options(view, old, current, given)
        if old is None and _is_taken(view, name):
            raise InvalidJob(f"there is a schedule {name} already: change that one, or choose another name")
        if view.form.get("seen", word_of(current.values())) != word_of(current.values()):
            raise InvalidJob(CHANGED_SINCE.format("schedule"))
        definition = (name, given["job"], decoded(given["data"]), options)
        if view.form.get("confirm"):
            view.actions.define_schedule(*definition)
            return see_other(view, f"/schedules/{quote(name, safe='')}?done=schedule-defined")
        times = view.actions.preview_schedule(*definition, view.overviews.now())
    except (InvalidJob, Problem) as error:
        if isinstance(error, Problem) and error.name == "forbidden":
            raise
        return _form(view, old, given, str(error))
    return {**_form(view, old, given), **_preview(view, old, given, current, times)}


def remove(view: View) -> Response:
    """Remove a schedule."""
    view.actions.remove_schedule(view.path["name"])
    return see_other(view, "/schedules?done=schedule-removed")


def _stored(view: View, name: str) -> NamedSchedule | None:
    return view.scheduler.get_schedule(name).snapshot if name else None


def _is_taken(view: View, name: str) -> bool:
    try:
        view.scheduler.get_schedule(name)
    except ScheduleNotFound:
        return False
    return True


def _fields(view: View, old: NamedSchedule | None) -> dict[str, str]:
    """Return the fields of the form for a schedule as it is stored, secret values of its data masked."""
    if old is None:
        return dict(NEW)
    trigger, template = old.trigger, old.template
    data = view.masking.masked(json.loads(template.data))
    return {
        **NEW,
        "name": old.name,
        "job": template.job,
        "queue": template.queue,
        "data": json.dumps(data, ensure_ascii=False, indent=2),
        "priority": str(template.priority),
        "tags": "\n".join(template.tags),
        "cron": trigger.expr if isinstance(trigger, Cron) else "",
        "tz": trigger.tz if isinstance(trigger, Cron) else "",
        "every": _span(trigger.seconds) if isinstance(trigger, Every) else "-1" if isinstance(trigger, Again) else "",
        "overlap": old.overlap.value,
        "misfire": old.misfire,
        "until": _time(old.until) if old.until else "",
        "max_runs": str(old.max_runs or ""),
    }


def _time(moment: datetime) -> str:
    """Return the time as the form takes it: ``2030-01-31 12:00:00 UTC``, with milliseconds if it has some."""
    return f"{moment.replace(tzinfo=None).isoformat(' ', 'milliseconds' if moment.microsecond else 'seconds')} UTC"


def _span(seconds: float) -> str:
    """Return the interval as the form takes it: ``2h``."""
    return next((f"{seconds / unit:.0f}{word}" for unit, word in UNITS if seconds % unit == 0), f"{seconds:g}s")


def _options(
    view: View, old: NamedSchedule | None, current: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, Any]:
    """Return the options of the form, and the options that the schedule keeps. Raises ``InvalidJob``.

    What the schedule has from its class, such as a queue, stays the class's, unless the form gives something else; a
    user of some queues alone may not leave the queue to the class.
    """
    kept: dict[str, Any] = {}
    of_class: set[str] = set()
    if old is not None:
        kept = {name: getattr(old, name) for name in ("grace", "stop_after_failures")}
        kept |= {name: value for name, value in old.template.given.items() if name not in ("queue", "priority")}
        names = ("queue", "priority") if view.user.queues is None else ("priority",)
        of_class = {name for name in names if name not in old.template.given and given[name] == current[name]}
    options = {**kept, **{name: given[name] for name in ("overlap", "misfire")}, **_trigger(old, current, given)}
    options["until"] = given["until"] or None
    options["max_runs"] = integer("max_runs", given["max_runs"], "a whole number") if given["max_runs"] else None
    if given["tags"] != current["tags"]:
        options["tags"] = tuple(filter(None, given["tags"].split("\n")))
    if given["queue"] and "queue" not in of_class:
        options["queue"] = given["queue"]
    if given["priority"] and "priority" not in of_class:
        options["priority"] = integer("priority", given["priority"])
    return options


def _trigger(old: NamedSchedule | None, current: Mapping[str, str], given: Mapping[str, str]) -> dict[str, Any]:
    if old is not None and all(given[name] == current[name] for name in ("cron", "tz", "every")):
        kind = "cron" if given["cron"] else "every" if given["every"] else "at"
        return {kind: old.trigger}
    trigger: dict[str, Any] = {name: given[name] for name in ("cron", "tz") if given[name]}
    if given["every"]:
        same = {"anchor": old.trigger.anchor} if old is not None and isinstance(old.trigger, Every) else {}
        trigger["every"] = AT_ONCE if given["every"] == str(AT_ONCE) else Every(given["every"], **same)
    return trigger


def _preview(
    view: View,
    old: NamedSchedule | None,
    given: Mapping[str, str],
    current: Mapping[str, str],
    times: list[datetime],
) -> Mapping[str, Any]:
    zone = given["tz"] or "UTC"
    return {
        "confirmed": given,
        "times": [shown_time(at, zone_of(zone)) for at in times],
        "zone": zone,
        "differences": [] if old is None else list(_differences(view, old, current, given)),
    }


def _differences(
    view: View, old: NamedSchedule, current: Mapping[str, str], given: Mapping[str, str]
) -> Iterator[Difference]:
    for name in ("cron", "tz", "every", "until", "max_runs", "overlap", "misfire", "queue", "priority", "tags"):
        if given[name] != current[name]:
            yield Difference(SHOWN.get(name, name), *(fields[name].replace("\n", ", ") for fields in (current, given)))
    before, written = json.loads(old.template.data), decoded(given["data"])
    yield from differences_of_data(view.masking, before, view.masking.restored(written, before), written)


def _form(view: View, old: NamedSchedule | None, given: Mapping[str, str], problem: str = "") -> Mapping[str, Any]:
    return {
        "old": old,
        "given": given,
        "problem": problem,
        "seen": word_of(_fields(view, old).values()),
        "classes": view.actions.addable,
        "queues": list(view.scheduler.stats()["queues"]),
        "overlaps": OVERLAPS,
        "has_own_trigger": old is not None and not isinstance(old.trigger, Cron | Every | Again),
        "times": None,
        "differences": [],
    }
