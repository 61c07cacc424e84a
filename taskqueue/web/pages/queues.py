"""The queues: how old and large each backlog is, how fast it moves, its pause, and who holds the limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskqueue.model.controls import EVERY_QUEUE, Kind
from taskqueue.model.history import Step
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.scheduler.operator_api import numbers_of
from taskqueue.scheduler.overview_reader import Overview
from taskqueue.web.charts import Chart, chart
from taskqueue.web.view import View

MOST_HOLDERS = 5
"""Jobs that are named of those that hold a limit's places."""


def queues(view: View) -> Mapping[str, Any]:
    """Return all queues that have jobs, had some in the last minutes, or are paused; and limits in force."""
    state, controls = view.overview(), view.scheduler.controls()
    counts = numbers_of(state.tally)["queues"]
    known = {queue.name for queue in state.queues}
    return {
        "queues": state.queues,
        "idle": [name for name in counts if name not in known],
        "charts": _charts(state),
        "paused_all": next((one for one in controls if one.kind is Kind.PAUSE and one.name == EVERY_QUEUE), None),
        "limits": [{"state": one, "of": view.masking.limit(one.limit_key.of)} for one in view.scheduler.limits()],
        "most_holders": MOST_HOLDERS,
        "changed": [one for one in controls if one.kind is Kind.LIMIT],
        "may_act_on": view.may_act_on,
    }


def _charts(state: Overview) -> Mapping[str, Chart]:
    """Return what ended in the last hour for each queue, in parts of two minutes."""
    length = 2 * Step.MINUTE.length
    begin = moment(Step.MINUTE.begin(milliseconds(state.at))) - 59 * Step.MINUTE.length
    found: dict[str, list[list[int]]] = {}
    for at, part in state.minutes.items():
        place = (moment(at) - begin) // length
        for (queue, _), figures in part.items() if 0 <= place < 30 else ():
            bar = found.setdefault(queue, [[0, 0] for _ in range(30)])[place]
            bar[0] += figures.get("done", 0)
            bar[1] += figures.get("failed", 0) + figures.get("timeout", 0)
    return {
        queue: chart(
            (("2 min", done, failed) for done, failed in parts), f"ended in the last hour: {sum(map(sum, parts)):,}"
        )
        for queue, parts in found.items()
    }
