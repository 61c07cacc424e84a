"""The overview: is it working, is it keeping up, what needs me."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote

from taskqueue.insight.needs import Need, Subject
from taskqueue.insight.overview_reader import Overview
from taskqueue.model.finding import Level
from taskqueue.model.history import Parts, Step
from taskqueue.model.job_filter import JobFilter
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.model.wording import count
from taskqueue.scheduler.operations import OPERATIONS
from taskqueue.web.charts import Chart, chart, marked
from taskqueue.web.view import Button, View, button_of
from taskqueue.web.words import number

MOST_QUEUES = 25
MOST_RUNS = 15
MOST_NEEDS = 12
"""The most lines of each list; the linked pages show all."""

HOURS = 72
"""The hours of the longer chart."""

Ends: TypeAlias = Mapping[int, tuple[int, int]]
"""How many jobs were done, and how many failed, in each minute or hour from a time in milliseconds on."""


@dataclass(frozen=True, kw_only=True)
class ShownNeed:
    """Something that somebody should act on, with a link and a button if it has them."""

    says: str
    level: Level
    way_out: str = ""
    link: str = ""
    action: Button | None = None


def overview(view: View) -> Mapping[str, Any]:
    """Return the state of the whole store."""
    state = view.overview()
    hour = ends_of(state.minutes)
    days = ends_of(view.figures().hours(state.at - (HOURS - 1) * Step.HOUR.length, state.at))
    return {
        "lead": _lead(state, hour),
        "needs": [_shown(need, view) for need in state.needs[:MOST_NEEDS]],
        "oldest": max((queue.oldest for queue in state.queues if queue.oldest is not None), default=None),
        "hour": _chart(hour, state, Step.MINUTE, 60, "{:%H:%M} UTC", f"Last hour by minute: {_says(hour)}"),
        "hour_says": _says(hour),
        "days": _chart(days, state, Step.HOUR, HOURS, "{:%a %H:00} UTC", "Last 72 hours by hour"),
        "days_says": _says(days),
        "queues": state.queues[:MOST_QUEUES],
        "runs": state.runs[:MOST_RUNS],
        "running": state.running,
    }


def _lead(state: Overview, hour: Ends) -> str:
    """Return in one sentence whether it works, and how much it does."""
    live = [node for node in state.nodes if node.is_live]
    if not live:
        return "Not working: no node is live. Start one: `taskqueue-node`"
    busy = sum(_number(node.about.get("busy")) for node in live)
    most = sum(_number(node.about.get("max_children")) for node in live)
    rate = sum(queue.ended_per_minute for queue in state.queues)
    nodes = count(len(live), "node")
    return f"Working. {nodes}, {busy} of {most} workers busy, {number(rate)} jobs/min{failed_share(hour)}."


def failed_share(hour: Ends) -> str:
    """Return how many of the jobs failed that came to an end by themselves: canceled ones say nothing of failures."""
    done, failed = _all(hour)
    return f", {100 * failed / (done + failed):.1f} % failed in the last hour" if done + failed else ""


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _shown(need: Need, view: View) -> ShownNeed:
    name, action, link = quote(need.name, safe=""), None, ""
    match need.subject:
        case Subject.QUEUE:
            link = f"/jobs?queue={name}&status=waiting" if need.name else "/queues"
            if need.control is not None and view.may_act_on(need.name or None):
                action = button_of(OPERATIONS["resume"], need.name)
        case Subject.NODE:
            link = "/nodes"
            if need.control is not None and view.may_act_on(None):
                action = button_of(OPERATIONS["undrain"], need.name)
        case Subject.JOB | Subject.RUN if need.name:
            link = f"/jobs/{name}"
        case Subject.CLASS if need.name:
            link = f"/failures?job={name}"
        case Subject.RETRIED:
            link = f"/jobs?{JobFilter.of({'status': 'retrying', 'class': need.name}).address()}"
        case Subject.UNLOADABLE:
            link = f"/jobs?{JobFilter.of({'status': 'unloadable', 'class': need.name}).address()}"
        case Subject.SCHEDULE:
            link = f"/schedules/{name}"
    first = need.says.partition(" ")[0].rstrip(":")
    says = f"{need.says[:1].upper()}{need.says[1:]}" if first.isalpha() else need.says
    way_out = need.do if not link or need.subject is Subject.UNLOADABLE else ""
    return ShownNeed(says=says, level=need.level, way_out=way_out, link=link, action=action)


def ends_of(parts: Parts) -> Ends:
    """Return how many jobs were done and how many failed in each minute, or hour."""
    return {
        at: (
            sum(figures.get("done", 0) for figures in part.values()),
            sum(figures.get("failed", 0) + figures.get("timeout", 0) for figures in part.values()),
        )
        for at, part in parts.items()
    }


def _chart(ends: Ends, state: Overview, step: Step, bars: int, title: str, says: str) -> Chart:
    """Return the last minutes, or hours, as bars, with the releases in them."""
    last = step.begin(milliseconds(state.at))
    times = [moment(last) - place * step.length for place in reversed(range(bars))]
    drawn = chart(((title.format(at), *ends.get(milliseconds(at), (0, 0))) for at in times), says)
    return marked(drawn, state.releases, times[0], times[-1] + step.length)


def _all(ends: Ends) -> tuple[int, int]:
    return sum(done for done, _ in ends.values()), sum(failed for _, failed in ends.values())


def _says(ends: Ends) -> str:
    done, failed = _all(ends)
    return f"{done:,} done, {failed:,} failed"
