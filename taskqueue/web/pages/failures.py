"""The failures of a time by class and error, and the failed attempts of the last hour, judged by their fingerprint."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from taskqueue.insight.failure_groups import FailureGroup
from taskqueue.insight.failure_states import FailureDecision
from taskqueue.insight.overview import Failures, ended_jobs, failures_of
from taskqueue.model.history import OTHER, Step
from taskqueue.model.job_filter import JobFilter
from taskqueue.scheduler.operations import OPERATIONS
from taskqueue.web.charts import Chart, chart
from taskqueue.web.view import View

PERIODS: Mapping[str, tuple[str, Step, timedelta]] = {
    "1h": ("hour", Step.MINUTE, timedelta(hours=1)),
    "24h": ("24 hours", Step.HOUR, timedelta(hours=24)),
    "72h": ("72 hours", Step.HOUR, timedelta(hours=72)),
    "7d": ("7 days", Step.HOUR, timedelta(days=7)),
}
"""How far back the page may look: in words, by minute or hour, and how long."""

BARS = 24
"""The parts of the trend."""

MOST_JUDGED = 25
"""Judged groups on the page."""

MOST_DECIDED = 50
"""Muted and resolved errors on the page."""

MOST_RELEASES = 5
"""The last releases on the page."""

MOST = 60
"""Groups on the page: with more it is larger than 150 kB."""


def failures(view: View) -> Mapping[str, Any]:
    """Return the judged groups of the last hour, and the groups of a time, the most frequent first."""
    chosen = view.query.get("since", "24h")
    chosen = chosen if chosen in PERIODS else "24h"
    words, step, length = PERIODS[chosen]
    job = view.query.get("job", "").strip()
    now = datetime.now(timezone.utc)
    begin = now - length
    figures = view.overviews.figures()
    parts = figures.minutes(now) if step is Step.MINUTE else figures.hours(begin, now)
    ended_groups = [group for group in failures_of(ended_jobs(parts)) if job in ("", group.job)]
    ended = JobFilter.of({"status": "bad", "since": f"{begin:%Y-%m-%d %H:%M:%S} UTC"})
    state = view.overviews.read()
    judged = [group for group in state.groups if job in ("", group.job)]
    reported = [group for group in judged if not group.state.is_silent]
    return {
        "judged": [_judged(group) for group in reported[:MOST_JUDGED]],
        "not_judged": len(reported[MOST_JUDGED:]),
        "decided": _decided(state.decisions, judged, job),
        "may_decide": view.may_act_on(None),
        "mute": OPERATIONS["mute"],
        "groups": [
            {"failures": group, "trend": _trend(group, begin, length), "address": _address(group, ended)}
            for group in ended_groups[:MOST]
        ],
        "left_out": len(ended_groups[MOST:]),
        "total": sum(group.number for group in ended_groups),
        "releases": [
            {"release": release, "new": sum(group.release == release for group in judged)}
            for release in state.releases[: -MOST_RELEASES - 1 : -1]
        ],
        "periods": {name: period[0] for name, period in PERIODS.items()},
        "chosen": chosen,
        "words": words,
        "job": job,
        "may_act": view.may_act,
    }


def _judged(group: FailureGroup) -> Mapping[str, Any]:
    """Return a group with the filter of its jobs, and whether it can be muted or resolved."""
    is_one_error = OTHER not in (group.job, group.fingerprint)
    return {"group": group, "address": address_of(group.query), "may_be_decided": is_one_error}


def _decided(decisions: Iterable[FailureDecision], judged: Iterable[FailureGroup], job: str) -> list[Mapping[str, Any]]:
    """Return the decisions that apply, the last one first, with their groups of the last hour."""
    groups = {group.id: group for group in judged}
    decided: list[Mapping[str, Any]] = []
    for decision in decisions:
        group = groups.get(decision.id)
        if job in ("", decision.job) and (group is None or group.state.is_silent):
            decided.append({"decision": decision, "group": group, "address": address_of(group.query) if group else ""})
    return decided[::-1][:MOST_DECIDED]


def address_of(query: Mapping[str, Any] | None) -> str:
    """Return the filter of the jobs of an error; empty if no query can distinguish them."""
    if query is None:
        return ""
    error = {name: value for name, value in query.items() if name != "job"}
    return JobFilter.of({"class": query["job"], "query": json.dumps(error, ensure_ascii=False)}).address()


def _address(group: Failures, ended: JobFilter) -> str:
    """Return the filter of the jobs of a group; empty if no query can distinguish them."""
    if OTHER in (group.job, group.error):
        return ""
    error = json.dumps({"error.type": group.error or None}, ensure_ascii=False)
    return ended.adding("class", group.job).adding("query", error).address()


def _trend(group: Failures, begin: datetime, length: timedelta) -> Chart:
    parts = [0] * BARS
    for at, number in group.numbers.items():
        parts[min(max(int((at - begin) / length * BARS), 0), BARS - 1)] += number
    return chart((("", 0, number) for number in parts), f"{group.number:,} failures over the time")
