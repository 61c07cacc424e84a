"""The addresses of the dashboard: ``path("jobs/", include("taskqueue.django.urls"))`` in the project's URLconf."""

from __future__ import annotations

from django.urls import path

from taskqueue.django.views import dashboard

app_name = "taskqueue"
urlpatterns = [
    path("", dashboard, name="dashboard"),
    path("<path:path>", dashboard),
]
