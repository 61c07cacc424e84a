"""The nodes: what each does, its workers and what they run, and its drain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskqueue.scheduler.operations import Target
from taskqueue.web.paging import part_of
from taskqueue.web.view import View

PAGE = 20
"""Nodes on one page."""

MOST_RUNS = 10
"""Running jobs that are shown for one node: the ones that have run longest."""


def nodes(view: View) -> Mapping[str, Any]:
    """Return the nodes by name, each with its running jobs."""
    state = view.overview()
    runs: dict[str, list[Any]] = {}
    for run in state.runs:
        if run.record.holder is not None:
            runs.setdefault(run.record.holder.seat, []).append(run)
    part = part_of(state.nodes, lambda node: node.name, view.query, PAGE)
    return {
        "part": part,
        "nodes": [
            {
                "node": node,
                "runs": runs.get(node.name, [])[:MOST_RUNS],
                "queues": _queues(node.about.get("queues")),
                "offered": view.offered(Target.NODE, node.name, node.drain),
            }
            for node in part.rows
        ],
    }


def _queues(queues: object) -> str:
    """Return which queues a node takes, in words."""
    if not isinstance(queues, Mapping) or not queues:
        return "every queue"
    return ", ".join(f"{name}={most}" if most else str(name) for name, most in queues.items())
