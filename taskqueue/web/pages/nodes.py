"""The nodes: what each does, its workers and what they run, and its drain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskqueue.insight.nodes import Node
from taskqueue.insight.releases import Release
from taskqueue.scheduler.operations import Target
from taskqueue.web.paging import part_of
from taskqueue.web.view import View

PAGE = 20
"""Nodes on one page."""

MOST_RUNS = 10
"""Running jobs that are shown for one node: the ones that have run longest."""


def nodes(view: View) -> Mapping[str, Any]:
    """Return the nodes by name, each with its running jobs."""
    state = view.overviews.read()
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
                "before": next((release for release in reversed(state.releases) if _is_older(node, release)), None),
                "offered": view.offered(Target.NODE, node.name, node.drain),
            }
            for node in part.rows
        ],
    }


def _is_older(node: Node, release: Release) -> bool:
    """Return whether a worker may run code that is older than the release."""
    return node.is_live and node.code_since is not None and node.code_since < release.at


def _queues(queues: object) -> str:
    """Return which queues a node takes, in words."""
    if not isinstance(queues, Mapping) or not queues:
        return "every queue"
    return ", ".join(f"{name}={most}" if most else str(name) for name, most in queues.items())
