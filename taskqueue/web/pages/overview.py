"""The overview: is it working, is it keeping up, what needs me."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote

from taskqueue.model.analytics import Group
from taskqueue.model.finding import Level
from taskqueue.model.history import HistoryEntry
from taskqueue.model.wording import count
from taskqueue.scheduler.needs import Need, Subject
from taskqueue.scheduler.overview_reader import Overview
from taskqueue.web.charts import Chart, chart
from taskqueue.web.view import View
from taskqueue.web.words import number

MOST_QUEUES = 25
MOST_RUNS = 15
MOST_NEEDS = 12
"""The most lines of each list; the pages behind them have all."""


@dataclass(frozen=True, kw_only=True)
class Action:
    """A button beside a sentence."""

    label: str
    path: str
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ShownNeed:
    """Something that somebody should act on, with a link and a button where there are any."""

    says: str
    level: Level
    way_out: str = ""
    link: str = ""
    action: Action | None = None


def overview(view: View) -> Mapping[str, Any]:
    """Return the state of the whole store."""
    state = view.overview()
    minutes = view.scheduler.history("1h")
    hours = view.scheduler.analytics("hour", "72h")
    return {
        "lead": _lead(state, minutes),
        "needs": [_shown(need) for need in state.needs[:MOST_NEEDS]],
        "oldest": max((queue.oldest for queue in state.queues if queue.oldest is not None), default=None),
        "hour": _by_minute(minutes, state.at),
        "hour_says": _says(minutes),
        "days": _by_hour(hours.groups, state.at),
        "days_says": f"{hours.whole.done:,} done, {hours.whole.failed + hours.whole.timeout:,} failed",
        "queues": state.queues[:MOST_QUEUES],
        "runs": state.runs[:MOST_RUNS],
        "running": state.running,
        "may_act": view.may_act,
    }


def _lead(state: Overview, minutes: Sequence[HistoryEntry]) -> str:
    """Return in one sentence whether it works, and how much it does."""
    live = [node for node in state.nodes if node.is_live]
    if not live:
        return "Not working: no node is live. Start one: taskqueue-node"
    busy = sum(_number(node.seat.about.get("busy")) for node in live)
    most = sum(_number(node.seat.about.get("max_children")) for node in live)
    rate = sum(queue.ended_per_minute for queue in state.queues)
    nodes = count(len(live), "node")
    return f"Working. {nodes}, {busy} of {most} workers busy, {number(rate)} jobs/min{failed_share(minutes)}."


def failed_share(minutes: Sequence[HistoryEntry]) -> str:
    """Return how many of the jobs failed that came to an end by themselves: canceled ones say nothing of failures."""
    failed = sum(entry.failed + entry.timeout for entry in minutes)
    ended = failed + sum(entry.done for entry in minutes)
    return f", {100 * failed / ended:.1f} % failed in the last hour" if ended else ""


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _shown(need: Need) -> ShownNeed:
    name, action, link = quote(need.name, safe=""), None, ""
    match need.subject:
        case Subject.QUEUE:
            link = f"/jobs?queue={name}&status=waiting" if need.name else "/queues"
            if need.control is not None:
                action = Action(label="Resume", path="/queues/resume", fields={"queue": need.name})
        case Subject.NODE:
            link = "/nodes"
            if need.control is not None:
                action = Action(label="Undrain", path="/nodes/undrain", fields={"node": need.name})
        case Subject.JOB if need.name:
            link = f"/jobs/{name}"
        case Subject.CLASS if need.name:
            link = f"/failures?job={name}"
        case Subject.SCHEDULE:
            link = f"/schedules/{name}"
    is_name = need.name and need.subject in (Subject.CLASS, Subject.JOB)
    says = need.says if is_name else f"{need.says[:1].upper()}{need.says[1:]}"
    return ShownNeed(says=says, level=need.level, way_out="" if link else need.do, link=link, action=action)


def _by_minute(entries: Iterable[HistoryEntry], now: datetime) -> Chart:
    begin = now.replace(second=0, microsecond=0) - timedelta(minutes=59)
    figures = {begin + timedelta(minutes=place): [0, 0] for place in range(60)}
    for entry in entries:
        if entry.at in figures:
            figures[entry.at][0] += entry.done
            figures[entry.at][1] += entry.failed + entry.timeout
    bars = ((f"{at:%H:%M} UTC", done, failed) for at, (done, failed) in figures.items())
    return chart(bars, f"Last hour by minute: {_says(entries)}")


def _by_hour(groups: Iterable[Group], now: datetime) -> Chart:
    begin = now.astimezone(timezone.utc).replace(minute=0, second=0, microsecond=0) - timedelta(hours=71)
    found = {group.name: group for group in groups}
    figures = []
    for place in range(72):
        at = begin + timedelta(hours=place)
        group = found.get(f"{at:%Y-%m-%dT%H:00Z}")
        done, failed = (group.done, group.failed + group.timeout) if group else (0, 0)
        figures.append((f"{at:%a %H:00} UTC", done, failed))
    return chart(figures, "Last 72 hours by hour")


def _says(entries: Iterable[HistoryEntry]) -> str:
    kept = list(entries)
    failed = sum(entry.failed + entry.timeout for entry in kept)
    return f"{sum(entry.done for entry in kept):,} done, {failed:,} failed"
