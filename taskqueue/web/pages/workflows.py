"""The workflows, the newest first, and one of them: how far it is, its graph, and what failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from taskqueue.model.job_filter import JobFilter, Token
from taskqueue.model.record import Status
from taskqueue.model.workflow import WorkflowSummary
from taskqueue.scheduler import workflows
from taskqueue.web.graph import graph_of_workflow
from taskqueue.web.pages.jobs import rows_of
from taskqueue.web.view import View, see_other
from taskqueue.web.words import WORDS

PAGE = 50

MOST_FAILED = 20
"""How many failed jobs the page of a workflow lists."""


def list_page(view: View) -> Mapping[str, Any]:
    """Return a page of workflows."""
    after = view.query.get("after") or None
    listed = workflows.recent(view.scheduler, PAGE + 1, after=after)
    now = view.overviews.now()
    return {
        "workflows": [_row(summary, summary.took(now)) for summary in listed[:PAGE]],
        "next": str(listed[PAGE - 1].id) if len(listed) > PAGE else "",
        "is_first": after is None,
    }


def workflow_page(view: View) -> Any:
    """Return one workflow; the id of a member leads to it."""
    summary = workflows.summary(view.scheduler, view.path["id"])
    if str(summary.id) != view.path["id"]:
        return see_other(view, f"/workflows/{summary.id}")
    failed = {"$and": [{"workflow": summary.id}, {"status": {"$in": [Status.FAILED.name, Status.TIMEOUT.name]}}]}
    jobs = view.scheduler.find_jobs(failed, order="ended_at", limit=MOST_FAILED) if summary.failed else []
    return {
        **_row(summary, summary.took(view.overviews.now())),
        "all": _members(summary).address(),
        "graph": graph_of_workflow(view.scheduler, summary.id),
        "failed": rows_of(view, [job for job in jobs if job.recovered_as is None]),
        "may_act": view.may_act,
    }


def failed_part(view: View) -> Response:
    """Run the failed part of the workflow again."""
    copies = view.actions.run_failed_part_again(view.path["id"])
    return see_other(view, f"/workflows/{view.path['id']}?done=matching&of={len(copies)}")


def _row(summary: WorkflowSummary, took: float | None) -> dict[str, Any]:
    """Return a workflow, with a link to its jobs in each status that any has."""
    counts = [
        {
            "status": status,
            "number": number,
            "address": _members(summary).adding("status", WORDS[status]).address(),
        }
        for status, number in summary.statuses.items()
    ]
    return {"workflow": summary, "took": took, "counts": counts}


def _members(summary: WorkflowSummary) -> JobFilter:
    return JobFilter((Token("workflow", str(summary.id)),))
