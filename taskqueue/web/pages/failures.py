"""The failures of a time by class and error, and the failed attempts of the last hour, judged by their fingerprint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from taskqueue.insight.failure_groups import FailureGroup
from taskqueue.insight.overview import Failures, ended_jobs, failures_of
from taskqueue.model.history import OTHER, Step
from taskqueue.model.timestamps import milliseconds
from taskqueue.web.charts import Chart, chart
from taskqueue.web.job_filter import JobFilter
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

MOST_JUDGED = 50
"""Judged groups on the page."""

MOST = 100
"""Groups on the page: with more it is larger than 150 kB."""


def failures(view: View) -> Mapping[str, Any]:
    """Return the judged groups of the last hour, and the groups of a time, the most frequent first."""
    chosen = view.query.get("since", "24h")
    chosen = chosen if chosen in PERIODS else "24h"
    words, step, length = PERIODS[chosen]
    job = view.query.get("job", "").strip()
    now = datetime.now(timezone.utc)
    begin = now - length
    figures = view.figures()
    parts = figures.minutes(now) if step is Step.MINUTE else figures.hours(begin, now)
    found = [one for one in failures_of(ended_jobs(parts)) if job in ("", one.job)]
    ended = JobFilter(status="bad", since=str(milliseconds(begin)))
    judged = [group for group in view.overview().groups if job in ("", group.job)]
    return {
        "judged": [{"group": group, "address": _address_of(group)} for group in judged[:MOST_JUDGED]],
        "not_judged": len(judged[MOST_JUDGED:]),
        "groups": [
            {"failures": one, "trend": _trend(one, begin, length), "address": _address(one, ended)}
            for one in found[:MOST]
        ],
        "left_out": len(found[MOST:]),
        "total": sum(one.number for one in found),
        "periods": {name: period[0] for name, period in PERIODS.items()},
        "chosen": chosen,
        "words": words,
        "job": job,
        "may_act": view.may_act,
    }


def _address_of(group: FailureGroup) -> str:
    """Return the filter of the jobs of a judged group; nothing if they cannot be told from jobs of other groups."""
    query = group.query
    if query is None:
        return ""
    error = {name: value for name, value in query.items() if name != "job"}
    return JobFilter(job=group.job, q=json.dumps(error, ensure_ascii=False)).address()


def _address(group: Failures, ended: JobFilter) -> str:
    """Return the filter of the jobs of a group; nothing if they cannot be told from jobs of other groups."""
    if OTHER in (group.job, group.error):
        return ""
    return ended.address(job=group.job, q=json.dumps({"error.type": group.error or None}, ensure_ascii=False))


def _trend(group: Failures, begin: datetime, length: timedelta) -> Chart:
    parts = [0] * BARS
    for at, number in group.numbers.items():
        parts[min(max(int((at - begin) / length * BARS), 0), BARS - 1)] += number
    return chart((("", 0, number) for number in parts), f"{group.number:,} failures over the time")
