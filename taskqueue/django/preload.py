"""Sets Django up in a process that runs jobs: a node's manager imports it once, before it forks workers.

Workers share what it imports: the project's applications with their models, jobs and tasks. A connection that a module
has opened is closed, since all workers would share it.
"""

from __future__ import annotations

import importlib
import logging
from importlib.util import find_spec

import django
from django.apps import apps
from django.db import connections

log = logging.getLogger(__name__)


def _enable_own_loggers() -> None:
    """Enable the loggers of taskqueue again, which ``LOGGING`` of a project disables unless it says otherwise."""
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("taskqueue.") and isinstance(logger, logging.Logger):
            logger.disabled = False


if not apps.ready:
    django.setup()
    _enable_own_loggers()
# Jobs of tasks are loaded with the backend, whatever the settings were at the start. The framework of tasks need not be
# installed, and jobs that are no tasks run with a version of it that the backend cannot use.
try:
    importlib.import_module("taskqueue.django.backend")
except ImportError as error:
    if any(map(find_spec, ("django.tasks", "django_tasks"))):
        log.warning("tasks of Django cannot run here: %s", error)
connections.close_all()
