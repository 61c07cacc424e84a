"""Sets Django up in a process that runs jobs: a node's manager imports it once, before it forks workers.

Workers share what it imports: the project's applications with their models, jobs and tasks. A connection that a module
has opened is closed, since all workers would share it.
"""

from __future__ import annotations

import contextlib
import importlib
import logging

import django
from django.apps import apps
from django.db import connections


def _enable_own_loggers() -> None:
    """Enable the loggers of taskqueue again, which ``LOGGING`` of a project disables unless it says otherwise."""
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("taskqueue.") and isinstance(logger, logging.Logger):
            logger.disabled = False


if not apps.ready:
    django.setup()
    _enable_own_loggers()
with contextlib.suppress(ImportError):  # the framework of tasks need not be installed
    importlib.import_module(
        "taskqueue.django.backend"
    )  # jobs are loaded with it, whatever the settings were at the start
connections.close_all()
