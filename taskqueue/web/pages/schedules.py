"""The schedules, and one of them: its times in words and in any zone, its last runs, and what it missed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from taskqueue.model.schedules import Cron
from taskqueue.scheduler.schedule import Schedule
from taskqueue.web.pages.jobs import rows_of
from taskqueue.web.paging import part_of
from taskqueue.web.view import View
from taskqueue.web.words import trigger_times

NEXT, LAST = 5, 20

OVERLAPS: Mapping[str, str] = {
    "skip": "no job while the one before waits or runs",
    "queue_one": "one job more may wait while the one before runs",
    "allow": "jobs may wait and run side by side",
    "cancel_previous": "the job before is canceled",
}
"""What each way of an overlap means."""


def schedules(view: View) -> Mapping[str, Any]:
    """Return a page of schedules, by name."""
    part = part_of(view.scheduler.get_schedules(), lambda schedule: schedule.name, view.query)
    return {
        "part": part,
        "schedules": [
            {"schedule": schedule, "words": trigger_times(schedule.snapshot.trigger)} for schedule in part.rows
        ],
        "may_define": view.may_act and view.actions.addable,
    }


def schedule(view: View) -> Mapping[str, Any]:
    """Return the schedule with its next times and last runs."""
    schedule = view.scheduler.get_schedule(view.path["name"])
    trigger = schedule.snapshot.trigger
    zone_name = view.query.get("zone", "").strip() or (trigger.tz if isinstance(trigger, Cron) else "UTC")
    zone = zone_of(zone_name)
    recent = list(schedule.job_ids[-LAST:])
    runs = view.scheduler.find_jobs({"id": {"$in": recent}}, limit=LAST, order="-created_at") if recent else []
    return {
        "schedule": schedule,
        "named": schedule.snapshot,
        "words": trigger_times(trigger),
        "zone": zone_name,
        "overlaps": OVERLAPS,
        "problem": "" if zone else f"there is no time zone {zone_name!r}: write for example Europe/Berlin",
        "times": [shown_time(at, zone) for at in _next(schedule)] if zone else [],
        "runs": rows_of(view, runs),
        "misses": list(reversed(schedule.misses)),
        "may_act": view.may_act_on(schedule.snapshot.template.queue),
        "may_change": view.actions.may_add(schedule.snapshot.template.job) and not schedule.snapshot.damage,
    }


def _next(found: Schedule) -> list[datetime]:
    return found.preview(NEXT) if found.stage == "active" and not found.snapshot.damage else []


def zone_of(name: str) -> tzinfo | None:
    """Return the time zone of this name, None if there is none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def shown_time(at: datetime, zone: tzinfo | None) -> str:
    """Return a time in the zone, with its day of the week."""
    return f"{at.astimezone(zone):%a %Y-%m-%d %H:%M:%S %Z}"
