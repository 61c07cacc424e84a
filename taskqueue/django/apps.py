"""The application ``taskqueue.django``: names the store in each process, and imports the jobs of all applications."""

from __future__ import annotations

from types import ModuleType

from django.apps import AppConfig
from django.core.checks import register
from django.utils.module_loading import autodiscover_modules

from taskqueue.django import project
from taskqueue.django.checks import check_setting


class TaskqueueConfig(AppConfig):
    """Reads the setting ``TASKQUEUE`` before any model is imported, and ``jobs.py`` and ``tasks.py`` after all are."""

    name = "taskqueue.django"
    label = "taskqueue"
    default_auto_field = "django.db.models.BigAutoField"

    def __init__(self, app_name: str, app_module: ModuleType | None) -> None:
        super().__init__(app_name, app_module)
        project.name_store()

    def ready(self) -> None:
        """Register the system check, and import the jobs of the installed applications."""
        register(check_setting)
        autodiscover_modules("jobs", "tasks")
