"""The overview: is it working, is it keeping up, what needs me."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from taskqueue.insight.needs import Need, Subject
from taskqueue.insight.overview import Upcoming
from taskqueue.insight.overview_reader import Overview
from taskqueue.insight.releases import Release
from taskqueue.insight.work_report import Day, Period, WorkPart
from taskqueue.model.environment import node_command
from taskqueue.model.finding import Level
from taskqueue.model.job_filter import WORDS_OF_PARTS, JobFilter
from taskqueue.model.wording import count
from taskqueue.scheduler.operations import OPERATIONS
from taskqueue.web.charts import Chart, Line, chart, marked, share_line, trend_line
from taskqueue.web.view import Button, View, button_of
from taskqueue.web.words import number, trigger_times

MOST_QUEUES = 25
MOST_RUNS = 15
MOST_NEEDS = 12
MOST_QUIET = 100
MOST_SCHEDULES = 6
"""Maximum number of lines of each list; the linked pages show all."""

TITLES: Mapping[Period, tuple[str, str, str]] = {
    Period.HOUR: ("Last hour", "1 h ago", "minute"),
    Period.DAY: ("Last 24 hours", "24 h ago", "hour"),
}
"""The times of the charts: title, beginning and length of a bar."""

LINKS = ("/jobs?status=done", "/failures", "/queues", "/jobs?status=pending")
"""Where the figures of the day lead to."""


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
    state, day, upcoming = view.overviews.read(), view.overviews.day(), view.overviews.upcoming()
    busy = [queue for queue in state.queues if not queue.is_quiet]
    return {
        "lead": _lead(state),
        "needs": [_shown(need, view) for need in state.needs[:MOST_NEEDS]],
        "oldest": state.oldest,
        "figures": [
            (figure, trend_line(figure.trend, f"{figure.name}, hour by hour"), link)
            for figure, link in zip(day.figures, LINKS, strict=True)
        ],
        "charts": [_ends(day, period, state.releases) for period in TITLES],
        "queues": sorted(busy[:MOST_QUEUES], key=lambda queue: queue.name),
        "more_queues": len(busy[MOST_QUEUES:]),
        "quiet": sorted(queue.name for queue in state.queues if queue.is_quiet),
        "most_quiet": MOST_QUIET,
        "next": _next(upcoming),
        "runs": state.runs[:MOST_RUNS],
        "running": state.running,
    }


def _lead(state: Overview) -> str:
    """Return in one sentence whether it works, and how much it does."""
    if not state.live_nodes:
        return f"Not working: no node is live. Start one: `{node_command()}`"
    nodes = count(len(state.live_nodes), "node")
    return f"Working. {nodes}, {state.workers_in_words}, {number(state.ended_per_minute)} jobs/min."


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
        case Subject.PROMISE:
            link = f"/classes/{name}"
        case Subject.SCHEDULE:
            link = f"/schedules/{name}"
    first = need.says.partition(" ")[0].rstrip(":")
    says = f"{need.says[:1].upper()}{need.says[1:]}" if first.isalpha() else need.says
    way_out = need.do if not link or need.subject is Subject.UNLOADABLE else ""
    return ShownNeed(says=says, level=need.level, way_out=way_out, link=link, action=action)


@dataclass(frozen=True, kw_only=True)
class Ends:
    """How many jobs were done and failed in each part of a time as bars, and the share of failed attempts as a line."""

    title: str
    begin: str
    says: str
    bars: Chart
    failing: Line


def _ends(day: Day, period: Period, releases: Sequence[Release]) -> Ends:
    """Return the last hour by minute, or the last day by hour, with the releases in it."""
    title, begins, step = TITLES[period]
    parts = day.parts[period]
    begin = parts[0].at
    says = f"{sum(part.done for part in parts):,} done, {sum(part.failed for part in parts):,} failed"
    drawn = chart(((_time(part, period), part.done, part.failed) for part in parts), f"{title} by {step}: {says}")
    shares = [(_time(part, period), part.failed_attempt_share) for part in parts]
    return Ends(
        title=title,
        begin=begins,
        says=says,
        bars=marked(drawn, releases, begin, begin + period.length),
        failing=share_line(shares, f"{title}, share of failed attempts by {step}"),
    )


def _next(upcoming: Upcoming) -> Mapping[str, Any]:
    """Return the next 24 hours: the jobs that are due as bars, and the first schedules."""
    hours, says = upcoming.hours, f"Jobs that are due by hour: {upcoming.due}"
    bars = ((f"{hour.at:%a %H:00} UTC", hour.scheduled, hour.retried) for hour in hours)
    drawn = chart(bars, says, ("scheduled", "retried"))
    return {
        "chart": drawn,
        "due": upcoming.due,
        "parts": [
            (word, WORDS_OF_PARTS[word], number, JobFilter.of({"status": word}).address())
            for word, number in upcoming.numbers.items()
        ],
        "schedules": [(schedule, trigger_times(schedule.trigger)) for schedule in upcoming.schedules[:MOST_SCHEDULES]],
        "has_more": len(upcoming.schedules) > MOST_SCHEDULES,
    }


def _time(part: WorkPart, period: Period) -> str:
    return f"{part.at:%H:%M} UTC" if period is Period.HOUR else f"{part.at:%a %H:00} UTC"
