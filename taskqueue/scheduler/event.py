"""The public view of one event: name, time, job or node, and the cursor after it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from taskqueue import store
from taskqueue.errors import JobNotFound
from taskqueue.model.ids import JobId
from taskqueue.model.record import Record, Status
from taskqueue.scheduler.process import Process

if TYPE_CHECKING:
    from taskqueue.scheduler.scheduler import Scheduler


class EventSnapshot:
    """An event of a job or of a node as it was stored; nothing here reads the store."""

    def __init__(self, stored: store.Event) -> None:
        self._stored = stored

    @property
    def id(self) -> str:
        """The id of the event: the same if it is delivered again."""
        return self._stored.id

    @property
    def name(self) -> str:
        """The name, such as ``done``, ``retried`` or ``worker_spawned``."""
        return self._stored.name

    @property
    def at(self) -> datetime:
        """When it happened."""
        return self._stored.at

    @property
    def cursor(self) -> str:
        """The cursor to continue from after this event: later events come after it."""
        return self._stored.cursor

    @property
    def job_id(self) -> JobId | None:
        """The id of the job; None for an event of a node."""
        return self._stored.job_id

    @property
    def status(self) -> Status | None:
        """The status that the event led to; None for an event of a node."""
        return self._stored.status

    @property
    def node(self) -> str:
        """The node of a node event; empty for an event of a job."""
        return self._stored.node

    @property
    def about(self) -> Mapping[str, Any]:
        """Details of a node event: ``pid`` of a worker, and how it ended as ``exit``."""
        return self._stored.about

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.job_id or self.node}>"


class Event(EventSnapshot):
    """An event of a job or of a node; times are aware UTC datetimes."""

    def __init__(self, scheduler: Scheduler, stored: store.Event, record: Record | None = None) -> None:
        super().__init__(stored)
        self._scheduler = scheduler
        self._process = None if record is None else Process(scheduler, record)

    @property
    def process(self) -> Process | None:
        """The job as read on first access, which may be later than the event; None without a job, or if it is gone.

        With a query it is the job as it was when it matched.
        """
        if self._process is None and self._stored.job_id is not None:
            try:
                self._process = self._scheduler.get_job(self._stored.job_id)
            except JobNotFound:
                return None
        return self._process
