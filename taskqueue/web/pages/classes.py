"""The classes of the last day: how much each did, how much of it failed, and how long it ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskqueue.insight.work_report import ClassState, Period, class_states
from taskqueue.web.charts import Chart, chart
from taskqueue.web.paging import part_of
from taskqueue.web.view import View


def classes(view: View) -> Mapping[str, Any]:
    """Return the classes by name."""
    state, figures = view.overview(), view.figures()
    hours, runs = figures.hours(Period.DAY.begin(state.at), state.at), figures.runs(state.at)
    part = part_of(class_states(hours, runs, state.groups, state.at), lambda one: one.name, view.query)
    return {"part": part, "charts": {one.name: _chart(one) for one in part.rows}}


def _chart(state: ClassState) -> Chart:
    says = f"ended in the last 24 hours: {state.work.ended:,}"
    return chart((("hour", part.done, part.failed) for part in state.parts), says)
