"""The application ``taskqueue.django``: names the store, checks its setting, and imports all jobs."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules

from taskqueue.django import project
from taskqueue.errors import ConfigError
from taskqueue.model.environment import NODE_COMMAND


class TaskqueueConfig(AppConfig):
    """Reads the setting ``TASKQUEUE`` before any model is imported, and ``jobs.py`` and ``tasks.py`` after all are."""

    name = "taskqueue.django"
    label = "taskqueue"
    default_auto_field = "django.db.models.BigAutoField"

    def __init__(self, app_name: str, app_module: ModuleType | None) -> None:
        super().__init__(app_name, app_module)
        project.name_store()
        os.environ[NODE_COMMAND] = "manage.py taskqueue node"

    def ready(self) -> None:
        """Register the system check, and import the jobs of the installed applications."""
        register(check_setting)
        autodiscover_modules("jobs", "tasks")


def check_setting(**_: Any) -> list[CheckMessage]:
    """Return the problems in the setting."""
    try:
        address = project.address()
        project.node_variables()
    except (ConfigError, ImproperlyConfigured) as error:
        return [Error(str(error), id="taskqueue.E001")]
    if address is None and not settings.DEBUG and not os.environ.get("TASKQUEUE_URL"):
        return [
            Warning(
                "TASKQUEUE does not name a store: each user of this host has one of its own, so a node finds the jobs "
                "of the web server only if both run as the same user",
                hint="Name it: TASKQUEUE = {'URL': BASE_DIR / 'jobs.db'}",
                id="taskqueue.W001",
            )
        ]
    return []
