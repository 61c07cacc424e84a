"""The queues: how old and large each backlog is, how fast it moves, its pause, and who holds the limits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from taskqueue.insight.overview import idle_queue
from taskqueue.insight.overview_reader import Overview
from taskqueue.model.controls import EVERY_QUEUE, Kind
from taskqueue.model.history import Step
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.scheduler.controls import MOST_KEYS
from taskqueue.scheduler.operations import Target
from taskqueue.web.charts import Chart, chart
from taskqueue.web.paging import part_of
from taskqueue.web.view import View

MOST_HOLDERS = 5
"""Maximum number of jobs that are named as holders of a limit's places."""

MOST_LIMITS = 25
"""Limits on the page, the full ones first."""


def queues(view: View) -> Mapping[str, Any]:
    """Return all queues that have jobs, had some in the last minutes, or are paused; and limits in force."""
    state, controls, limits = view.overviews.read(), view.scheduler.controls(), view.scheduler.limits()
    known = {queue.name for queue in state.queues}
    idle = [idle_queue(name) for name in sorted({name for name, _ in state.tally} - known)]
    part = part_of([*state.queues, *idle], lambda queue: queue.name, view.query)
    changed = [control for control in controls if control.kind is Kind.LIMIT]
    pauses = {control.name: control for control in controls if control.kind is Kind.PAUSE}
    return {
        "queues": part,
        "charts": _charts(state, {queue.name for queue in part.rows}),
        "paused_all": pauses.get(EVERY_QUEUE),
        "offered": {queue.name: view.offered(Target.QUEUE, queue.name, pauses.get(queue.name)) for queue in part.rows},
        "offered_of_all": view.offered(Target.QUEUE, EVERY_QUEUE, pauses.get(EVERY_QUEUE)),
        "limits": [{"state": limit, "of": view.masking.limit(limit.limit_key).of} for limit in limits[:MOST_LIMITS]],
        "more_limits": len(limits[MOST_LIMITS:]),
        "are_all_limits": len(limits) < MOST_KEYS,
        "most_holders": MOST_HOLDERS,
        "changed": changed[:MOST_LIMITS],
        "more_changed": len(changed[MOST_LIMITS:]),
    }


def _charts(state: Overview, wanted: Collection[str]) -> Mapping[str, Chart]:
    """Return what ended in the last hour for each of these queues, in parts of two minutes."""
    length = 2 * Step.MINUTE.length
    begin = moment(Step.MINUTE.begin(milliseconds(state.at))) - 59 * Step.MINUTE.length
    found: dict[str, list[list[int]]] = {}
    for at, part in state.minutes.items():
        place = (moment(at) - begin) // length
        for (queue, _), figures in part.items() if 0 <= place < 30 else ():
            if queue not in wanted:
                continue
            bar = found.setdefault(queue, [[0, 0] for _ in range(30)])[place]
            bar[0] += figures.get("done", 0)
            bar[1] += figures.get("failed", 0) + figures.get("timeout", 0)
    return {
        queue: chart(
            (("2 min", done, failed) for done, failed in parts), f"ended in the last hour: {sum(map(sum, parts)):,}"
        )
        for queue, parts in found.items()
    }
