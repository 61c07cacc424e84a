"""The entry in the index of Django's admin that links to the dashboard, for users who may see it."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseRedirect
from django.urls import NoReverseMatch, reverse

from taskqueue.django.models import Dashboard


@admin.register(Dashboard)
class DashboardAdmin(admin.ModelAdmin):
    """Has one page, the dashboard; a project that does not include its URLs has no entry."""

    def changelist_view(self, request: HttpRequest, *_: Any, **__: Any) -> HttpResponseRedirect:
        """Redirect to the dashboard."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return HttpResponseRedirect(reverse("taskqueue:dashboard"))

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may see the dashboard."""
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, *_: Any) -> bool:
        """Return whether there is a dashboard that the user may see."""
        try:
            reverse("taskqueue:dashboard")
        except NoReverseMatch:
            return False
        from taskqueue.django.views import dashboard_user  # late: a project without the dashboard lacks its packages

        return dashboard_user(request.user) is not None

    def has_add_permission(self, *_: Any) -> bool:
        """Return False, also for superusers: there is nothing to add."""
        return False

    def has_change_permission(self, *_: Any) -> bool:
        """Return False: the dashboard has its own actions."""
        return False
