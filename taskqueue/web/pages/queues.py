"""The queues: how old and large each backlog is, how fast it moves, its pause, and the limits that were changed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from taskqueue.model.controls import EVERY_QUEUE, Kind
from taskqueue.web.charts import Chart, chart
from taskqueue.web.view import View


def queues(view: View) -> Mapping[str, Any]:
    """Return all queues that have jobs, had some in the last minutes, or are paused; and limits in force."""
    state, controls = view.overview(), view.scheduler.controls()
    stats = view.scheduler.stats()
    known = {queue.name for queue in state.queues}
    return {
        "queues": state.queues,
        "idle": [name for name in stats["queues"] if name not in known],
        "charts": _charts(view, state.at),
        "counts": stats["queues"],
        "paused_all": next((one for one in controls if one.kind is Kind.PAUSE and one.name == EVERY_QUEUE), None),
        "limits": [one for one in controls if one.kind is Kind.LIMIT],
        "may_act": view.may_act,
    }


def _charts(view: View, now: datetime) -> Mapping[str, Chart]:
    """Return what ended in the last hour for each queue, in parts of two minutes."""
    begin = now.replace(second=0, microsecond=0) - timedelta(minutes=59)
    found: dict[str, list[list[int]]] = {}
    for entry in view.scheduler.history("1h"):
        place = int((entry.at - begin) / timedelta(minutes=2))
        if 0 <= place < 30:
            part = found.setdefault(entry.queue, [[0, 0] for _ in range(30)])[place]
            part[0] += entry.done
            part[1] += entry.failed + entry.timeout
    return {
        queue: chart(
            (("2 min", done, failed) for done, failed in parts), f"ended in the last hour: {sum(map(sum, parts)):,}"
        )
        for queue, parts in found.items()
    }
