"""The system check of the setting ``TASKQUEUE``."""

from __future__ import annotations

import os
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured

from taskqueue.django import project
from taskqueue.errors import ConfigError


def check_setting(**_: Any) -> list[CheckMessage]:
    """Return what is wrong with the setting."""
    try:
        address = project.address()
        project.node_variables()
    except (ConfigError, ImproperlyConfigured) as error:
        return [Error(str(error), id="taskqueue.E001")]
    if address is None and not settings.DEBUG and not os.environ.get("TASKQUEUE_URL"):
        return [
            Warning(
                "TASKQUEUE names no store: each user of this host has one of its own, so a node finds the jobs of "
                "the web server only if both run as the same user",
                hint="Name it: TASKQUEUE = {'URL': BASE_DIR / 'jobs.db'}",
                id="taskqueue.W001",
            )
        ]
    return []
