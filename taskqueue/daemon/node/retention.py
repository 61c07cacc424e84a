"""Housekeeping of the store: leftovers are completed by every node, what ended long ago is removed by the leader."""

from __future__ import annotations

import logging
from datetime import timedelta

from taskqueue.daemon.settings import Settings
from taskqueue.model.record import Status
from taskqueue.store import Store

log = logging.getLogger(__name__)

AT_ONCE = 1000
"""Records that one call removes."""

EVENTS_KEPT = timedelta(days=1)


class Retention:
    """What one node does for the store besides its jobs."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._keep = {
            Status.DONE: timedelta(seconds=settings.keep_done),
            Status.FAILED: timedelta(seconds=settings.keep_failed),
            Status.CANCELED: timedelta(seconds=settings.keep_failed),
            Status.TIMEOUT: timedelta(seconds=settings.keep_failed),
        }

    def mend(self) -> None:
        """Complete what others left half done."""
        repaired = self._store.mend(self._store.now())
        if repaired:
            log.warning("completed %d outcomes that their nodes left half done", repaired)

    def prune(self) -> None:
        """Remove what has been kept long enough, as the leader."""
        now = self._store.now()
        before = {status: now - kept for status, kept in self._keep.items()}
        removed = self._store.prune(before, now - EVENTS_KEPT, AT_ONCE)
        if removed:
            log.info("removed %d jobs that ended long ago", removed)
