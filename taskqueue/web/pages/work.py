"""The classes of the last day; one class or queue: how much and how fast it works, and by which errors it fails."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from taskqueue.insight.overview import QueueState
from taskqueue.insight.promises import promise_in_words, share_in_words
from taskqueue.insight.work_report import (
    PERCENTS,
    Bucket,
    ClassState,
    ErrorGroup,
    Period,
    Scope,
    Share,
    WorkOf,
    WorkReport,
    class_states,
    figures_in_words,
    histogram,
    lead,
    options_in_words,
)
from taskqueue.model.controls import Control
from taskqueue.model.history import Durations
from taskqueue.model.job_filter import JobFilter, Token
from taskqueue.model.wording import count
from taskqueue.scheduler.operations import Target
from taskqueue.web.charts import Chart, OverTime, ShareChart, chart, marked, share_chart
from taskqueue.web.pages.failures import address_of
from taskqueue.web.pages.queues import shown_limits
from taskqueue.web.paging import part_of
from taskqueue.web.view import View

PERIODS: Mapping[Period, str] = {Period.HOUR: "hour", Period.DAY: "24 hours", Period.WEEK: "7 days"}
"""The periods in words, after *last*."""

BEGINS: Mapping[Period, str] = {Period.HOUR: "1 h ago", Period.DAY: "24 h ago", Period.WEEK: "7 d ago"}


def class_page(view: View) -> Mapping[str, Any]:
    """Return what is known about a class."""
    return _shown(view, WorkOf(Scope.CLASS, view.path["name"]))


def queue_page(view: View) -> Mapping[str, Any]:
    """Return what is known about a queue."""
    return _shown(view, WorkOf(Scope.QUEUE, view.path["name"]))


def _shown(view: View, of: WorkOf) -> Mapping[str, Any]:
    chosen = view.query.get("over", Period.DAY.value)
    period = Period(chosen) if chosen in [*Period] else Period.DAY
    report = view.overviews.report(of, period)
    is_queue = of.scope is Scope.QUEUE
    jobs = JobFilter((Token("queue" if is_queue else "class", of.name),))
    limits = view.scheduler.limits(families) if (families := report.limit_families) else []
    return {
        "report": report,
        "lead": lead(report),
        "is_queue": is_queue,
        "queue": (report.state or QueueState(name=of.name)) if is_queue else None,
        "offered": view.offered(Target.QUEUE, of.name, _pause_of(report)) if is_queue else (),
        "jobs": jobs,
        "periods": PERIODS,
        "begin": BEGINS[period],
        "work": report.work[period],
        "percents": PERCENTS,
        "chart": _over_time(_chart(report), view, report),
        "failures": _over_time(_failures(report), view, report),
        "figures": figures_in_words(report),
        "spreads": [
            (name, durations, _rows(durations))
            for name, durations in (
                ("Run time", report.work[period].running),
                ("Waiting time", report.work[period].waiting),
            )
        ],
        "errors": [_error(report, error) for error in report.errors],
        "shares": [shown for share in report.last.shares if (shown := _share(view, jobs, share))],
        "limits": shown_limits(view, limits),
        "may_limit": view.may_act_on(None),
        "promise": "" if report.promise is None else promise_in_words(report.promise.promise),
        "kept_share": "" if report.promise is None else share_in_words(report.promise),
        "options": [] if report.example is None else options_in_words(report.example),
    }


def _pause_of(report: WorkReport) -> Control | None:
    """Return the pause of the queue itself; None if there is none, or all queues are paused."""
    pause = report.state.pause if report.state is not None else None
    return pause if pause is not None and pause.name else None


def _chart(report: WorkReport) -> Chart:
    """Return how many jobs ended in each part of the period."""
    form = "{:%H:%M} UTC" if report.period is Period.HOUR else "{:%a %H:00} UTC"
    work = report.work[report.period]
    says = f"Ended in the last {PERIODS[report.period]}: {work.done:,} done, {work.failed:,} failed"
    return chart(((form.format(part.at), part.done, part.failed) for part in report.parts), says)


def _failures(report: WorkReport) -> ShareChart:
    """Return the share of the attempts that failed in each part of the period."""
    pairs = [(part.failed_attempts, part.done + part.failed_attempts) for part in report.parts]
    return share_chart(pairs, f"Share of failed attempts in the last {PERIODS[report.period]}")


def _over_time(drawn: OverTime, view: View, report: WorkReport) -> OverTime:
    """Return the chart with the releases of its time."""
    begin = report.parts[0].at
    return marked(drawn, view.overviews.read().releases, begin, begin + report.period.length)


def _rows(durations: Durations) -> list[tuple[Bucket, float, float]]:
    """Return the buckets with the width of their bars, 0 to 100, and their shares."""
    return [(bucket, round(100 * bucket.height, 1), bucket.jobs / durations.number) for bucket in histogram(durations)]


def _error(report: WorkReport, error: ErrorGroup) -> dict[str, Any]:
    """Return an error with its trend, and the filter of its jobs; empty if no query can distinguish them."""
    times = [part.at for part in report.parts]
    numbers = [0] * len(times)
    for moment, failed in error.numbers.items():
        numbers[max(0, bisect_right(times, moment) - 1)] += failed
    return {
        "group": error,
        "text": error.fingerprint.removeprefix("builtins.") or "no error",
        "trend": chart((("", 0, number) for number in numbers), f"trend of {count(error.number, 'failed attempt')}"),
        "address": address_of(error.query),
    }


def _share(view: View, jobs: JobFilter, share: Share) -> dict[str, Any] | None:
    """Return a tag or a pair of meta with the filter of its jobs; None for a secret value."""
    if share.value is None:
        return {
            "share": share,
            "text": share.name,
            "address": JobFilter((*jobs.tokens, Token("tag", share.name))).address(),
        }
    if view.masking.masked({share.name: share.value}) != {share.name: share.value}:
        return None
    address = JobFilter((*jobs.tokens, Token(f"meta.{share.name}", share.value))).address()
    return {"share": share, "text": f"{share.name}: {share.value}", "address": address}


def classes(view: View) -> Mapping[str, Any]:
    """Return the classes by name."""
    overview, figures = view.overviews.read(), view.overviews.figures()
    hours, runs = figures.hours(Period.DAY.begin(overview.at), overview.at), figures.runs(overview.at)
    part = part_of(class_states(hours, runs, overview.groups, overview.at), lambda state: state.name, view.query)
    return {"part": part, "charts": {state.name: _day_chart(state) for state in part.rows}}


def _day_chart(state: ClassState) -> Chart:
    says = f"ended in the last 24 hours: {state.work.ended:,}"
    return chart((("hour", part.done, part.failed) for part in state.parts), says)
