"""All pages; a new one is a function in a file of its own, a template, and a line here."""

from __future__ import annotations

from collections.abc import Sequence

from taskqueue.web.pages import bulk, changes
from taskqueue.web.pages.audit import audit
from taskqueue.web.pages.failures import failures
from taskqueue.web.pages.job import job, stack, unmasked
from taskqueue.web.pages.job_forms import change_form, edit_form, run_edited, save_change
from taskqueue.web.pages.jobs import jobs, suggestions
from taskqueue.web.pages.nodes import nodes
from taskqueue.web.pages.overview import overview
from taskqueue.web.pages.queues import limit_form, queues, set_limit
from taskqueue.web.pages.schedule_form import remove, save_schedule, schedule_form
from taskqueue.web.pages.schedules import schedule, schedules
from taskqueue.web.pages.work import class_page, classes, queue_page
from taskqueue.web.pages.workflows import failed_part, list_page, workflow_page
from taskqueue.web.view import Page

PAGES: Sequence[Page] = (
    Page(path="/", show=overview, template="overview.html", title="Overview"),
    Page(path="/jobs", show=jobs, template="jobs.html", title="Jobs"),
    Page(path="/queues", show=queues, template="queues.html", title="Queues"),
    Page(path="/classes", show=classes, template="classes.html", title="Classes"),
    Page(path="/workflows", show=list_page, template="workflows.html", title="Workflows"),
    Page(path="/schedules", show=schedules, template="schedules.html", title="Schedules"),
    Page(path="/nodes", show=nodes, template="nodes.html", title="Nodes"),
    Page(path="/failures", show=failures, template="failures.html", title="Failures"),
    Page(path="/audit", show=audit, template="audit.html", title="Audit"),
    Page(path="/jobs/suggestions", show=suggestions),
    Page(path="/jobs/matching", show=bulk.ask, template="matching.html"),
    Page(path="/jobs/matching", show=bulk.act, method="POST"),
    Page(path="/bulk", show=bulk.begin, method="POST"),
    Page(path="/bulk/{name}", show=bulk.bulk, template="bulk.html"),
    Page(path="/bulk/{name}/rest", show=bulk.rest, method="POST"),
    Page(path="/bulk/{name}/stop", show=bulk.stop, method="POST"),
    Page(path="/jobs/{id}", show=job, template="job.html"),
    Page(path="/jobs/{id}/unmask", show=unmasked, template="job.html", method="POST"),
    Page(path="/jobs/{id}/stack", show=stack, template="stack.html", asks_node=True),
    Page(path="/jobs/{id}/change", show=change_form, template="job_form.html"),
    Page(path="/jobs/{id}/change", show=save_change, template="job_form.html", method="POST"),
    Page(path="/jobs/{id}/edit", show=edit_form, template="job_form.html"),
    Page(path="/jobs/{id}/edit", show=run_edited, template="job_form.html", method="POST"),
    Page(path="/jobs/{id}/cancel", show=changes.cancel, method="POST"),
    Page(path="/jobs/{id}/now", show=changes.now, method="POST"),
    Page(path="/jobs/{id}/give-up", show=changes.give_up, method="POST"),
    Page(path="/jobs/{id}/again", show=changes.again, method="POST"),
    Page(path="/workflows/{id}", show=workflow_page, template="workflow.html"),
    Page(path="/workflows/{id}/failed-part", show=failed_part, method="POST"),
    *changes.OF_OPERATIONS,
    Page(path="/limits/change", show=limit_form, template="limit.html"),
    Page(path="/limits/change", show=set_limit, method="POST"),
    Page(path="/queues/{name:path}", show=queue_page, template="work.html"),
    Page(path="/classes/{name:path}", show=class_page, template="work.html"),
    Page(path="/define-schedule", show=schedule_form, template="schedule_form.html"),
    Page(path="/define-schedule", show=save_schedule, template="schedule_form.html", method="POST"),
    Page(path="/schedules/{name}", show=schedule, template="schedule.html"),
    Page(path="/schedules/{name}/remove", show=remove, method="POST"),
    Page(path="/schedules/{name}/trigger", show=changes.trigger_schedule, method="POST"),
    Page(path="/schedules/{name}/pause", show=changes.pause_schedule, method="POST"),
    Page(path="/schedules/{name}/resume", show=changes.resume_schedule, method="POST"),
)
"""The pages; the pages of the navigation stand in its order."""
