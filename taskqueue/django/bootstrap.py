"""The bootstrap file of a project's workers: closes database connections before and after each run.

The file that ``TASKQUEUE["BOOTSTRAP"]`` names runs with it: its ``around_run`` is inside, and its other hooks,
``run_ended``, ``before_add``, and those of nodes and of the lead, are hooks of this file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections

import taskqueue.django.preload  # noqa: F401 - first: modules of jobs may import models
from taskqueue.daemon.worker.job_loader import run_file
from taskqueue.execution.event_loop import has_running_loop
from taskqueue.model.job import RunningJob

_file = os.environ.get("TASKQUEUE_BOOTSTRAP")
_own = run_file(Path(_file)) if _file else None
_around_run = getattr(_own, "around_run", None)

run_ended = getattr(_own, "run_ended", None)
before_add = getattr(_own, "before_add", None)
node_started = getattr(_own, "node_started", None)
node_stopping = getattr(_own, "node_stopping", None)
became_leader = getattr(_own, "became_leader", None)
stepped_down = getattr(_own, "stepped_down", None)


def _around_plain(job: RunningJob, proceed: Callable[[], Any]) -> None:
    """Run the job within the plain hook of the project's file."""
    close_old_connections()
    try:
        _around_run(job, proceed)  # type: ignore[misc]  # this is the hook if there is one
    finally:
        close_old_connections()


async def _around(job: RunningJob, proceed: Callable[[], Any]) -> None:
    """Run the job within the async hook of the project's file, if there is one.

    Connections belong to threads. An async job gets a thread of its own for what it calls with ``sync_to_async``, as
    an async request does, so that jobs beside it in the same event loop keep their connections.
    """
    run = proceed if _around_run is None else lambda: _around_run(job, proceed)
    if not has_running_loop():
        close_old_connections()
        try:
            await run()
        finally:
            close_old_connections()
        return
    async with ThreadSensitiveContext():
        try:
            await run()
        finally:
            await sync_to_async(connections.close_all)()


around_run = _around if _around_run is None or iscoroutinefunction(_around_run) else _around_plain
