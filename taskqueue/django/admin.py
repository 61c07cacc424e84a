"""The entries in Django's admin: pages that list and show jobs, read-only, and a link to the dashboard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse

from taskqueue.django.models import OPERATE, VIEW, Dashboard, Job
from taskqueue.django.project import scheduler
from taskqueue.errors import InvalidJob, JobNotFound, TaskqueueError
from taskqueue.insight.work_report import options_in_words
from taskqueue.model.job_filter import JobFilter
from taskqueue.model.record import Record
from taskqueue.model.secret_keys import SecretKeys
from taskqueue.scheduler.operator_api import explained

PAGE = 100
"""The jobs on a page of the list."""

MOST_CHARACTERS = 20_000
"""Characters of a value, a traceback or the log on the page of a job."""

MOST_LINES = 200

_SECRETS = SecretKeys()


class ReadOnly(admin.ModelAdmin):
    """Allows nobody to add, change or delete anything, not even superusers."""

    def has_add_permission(self, *_: Any) -> bool:
        """Return False: jobs are added by code."""
        return False

    def has_change_permission(self, *_: Any) -> bool:
        """Return False: the dashboard has its own actions."""
        return False

    def has_delete_permission(self, *_: Any) -> bool:
        """Return False."""
        return False

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may see the pages."""
        return bool(self.has_view_permission(request))

    def check_view(self, request: HttpRequest) -> None:
        """Raise ``PermissionDenied`` unless the user may see the pages."""
        if not self.has_view_permission(request):
            raise PermissionDenied


@admin.register(Job)
class JobAdmin(ReadOnly):
    """Lists and shows jobs to users with a permission for the dashboard; values that look secret are masked."""

    def has_view_permission(self, request: HttpRequest, *_: Any) -> bool:
        """Return whether the user has a permission for the dashboard."""
        return bool(request.user.has_perm(VIEW) or request.user.has_perm(OPERATE))

    def changelist_view(self, request: HttpRequest, *_: Any, **__: Any) -> TemplateResponse:
        """Return a page of the jobs that the filter ``q`` means, the newest first, after the job ``after``."""
        self.check_view(request)
        text, jobs, problem = request.GET.get("q", ""), [], ""
        try:
            query = JobFilter.read(text).query(datetime.now(timezone.utc))
            _SECRETS.check_query(query)
            jobs = scheduler().find_jobs(query, limit=PAGE + 1, after=request.GET.get("after"))
        except TaskqueueError as error:
            problem = str(error)
        shown = {"title": "Jobs", "text": text, "jobs": jobs[:PAGE], "problem": problem, "has_more": len(jobs) > PAGE}
        return self._page(request, shown)

    def change_view(self, request: HttpRequest, object_id: str, *_: Any, **__: Any) -> TemplateResponse:
        """Return what is known about a job, and why it is in its state. Raises ``Http404``."""
        self.check_view(request)
        try:
            job = scheduler().get_job(object_id)
            why, lines = explained(scheduler(), job.id, _SECRETS.limit), scheduler().logs(job.id)[-MOST_LINES:]
        except (JobNotFound, InvalidJob) as error:
            raise Http404(str(error)) from error
        except TaskqueueError as error:
            return self._page(request, {"title": "Job", "problem": str(error)})
        log = "\n".join(f"{line.at:%Y-%m-%d %H:%M:%S} {line.level} {line.message}" for line in lines)
        texts = [("why", why), *_texts(job.snapshot), ("log", log)]
        shown = {
            "title": job.snapshot.shown_job,
            "job": job,
            "facts": [fact for fact in _facts(job.snapshot) if fact[1]],
            "texts": [(name, _cut(text)) for name, text in texts if text],
        }
        return self._page(request, shown)

    def _page(self, request: HttpRequest, shown: dict[str, Any]) -> TemplateResponse:
        context = {**self.admin_site.each_context(request), "opts": self.opts, "dashboard": _dashboard(), **shown}
        return TemplateResponse(request, f"taskqueue/admin_{'job' if 'facts' in shown else 'jobs'}.html", context)


@admin.register(Dashboard)
class DashboardAdmin(ReadOnly):
    """Has one page, the dashboard; a project that does not include its URLs has no entry."""

    def changelist_view(self, request: HttpRequest, *_: Any, **__: Any) -> HttpResponseRedirect:
        """Redirect to the dashboard."""
        self.check_view(request)
        return HttpResponseRedirect(_dashboard())

    def has_view_permission(self, request: HttpRequest, *_: Any) -> bool:
        """Return whether there is a dashboard that the user may see."""
        if not _dashboard():
            return False
        from taskqueue.django.views import dashboard_user  # late: a project without the dashboard lacks its packages

        return dashboard_user(request.user) is not None


def _dashboard() -> str:
    """Return the address of the dashboard, empty if the project does not include it."""
    try:
        return str(reverse("taskqueue:dashboard"))
    except NoReverseMatch:
        return ""


def _facts(record: Record) -> list[tuple[str, Any]]:
    """Return the facts of a record by their names; some are empty."""
    return [
        ("id", f"{record.id} {record.id_text or ''}"),
        ("class", record.job),
        ("status", f"{record.status.name}, {record.cause.value.replace('_', ' ')}"),
        ("queue", f"{record.queue}, priority {record.priority}"),
        ("tags", ", ".join(record.tags)),
        ("unique key", record.unique),
        ("node", record.holder.seat if record.holder else ""),
        ("attempts", record.tries),
        ("added", record.created_at),
        ("started", record.started_at),
        ("ended", record.ended_at),
        *options_in_words(record),
    ]


def _texts(record: Record) -> Iterator[tuple[str, str]]:
    """Yield error, data, meta and result of a record under their names, with secrets masked."""
    if record.error is not None:
        yield "error", record.error.traceback.rstrip() or f"{record.error.type}: {record.error.message}"
    for name, text in (("data", record.data), ("meta", json.dumps(dict(record.meta))), ("result", record.result)):
        try:
            value = json.loads(text or "null")
            if value not in (None, {}):
                yield name, json.dumps(_SECRETS.masked(value), ensure_ascii=False, indent=2)
        except (RecursionError, ValueError):  # damaged
            yield name, "(cannot be read)"


def _cut(text: str) -> str:
    omitted = len(text) - MOST_CHARACTERS
    return text if omitted <= 0 else f"{text[:MOST_CHARACTERS]}\n… {omitted:,} more characters"
