"""Reads the log lines that are kept with a job."""

from __future__ import annotations

from taskqueue.errors import JobNotFound
from taskqueue.model.ids import JobId
from taskqueue.model.log_lines import LogLine, lines_of
from taskqueue.scheduler.wait import present
from taskqueue.store import Store


def logs(store: Store, id: JobId) -> list[LogLine]:
    """Return the lines in their order; raise ``JobNotFound``."""
    kept = store.log_lines(id)
    if not kept and next(iter(present(store, [id])), None) is None:
        raise JobNotFound(id)
    return [line for run, text in sorted(kept.items()) for line in lines_of(run, text)]
