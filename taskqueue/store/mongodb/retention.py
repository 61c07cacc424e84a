"""What is removed: final records and events that are old enough, or every job at once."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from taskqueue.model.record import Status
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document
from taskqueue.store.mongodb.indexes import OUTCOMES
from taskqueue.store.mongodb.news import News
from taskqueue.store.mongodb.slots import Slots


class Retention:
    """Removes in bounded steps; never a pending job, never one whose consequences are still to be carried out."""

    def __init__(self, connection: Connection, news: News, slots: Slots) -> None:
        self._connection = connection
        self._slots = slots
        self._news = news

    def prune(self, before: Mapping[Status, datetime], events_before: datetime, limit: int) -> int:
        """Remove up to ``limit`` final records that ended before the time for their status, and old events."""
        self._news.prune(events_before, limit)
        self._slots.prune(events_before)
        collections = self._connection.collections
        gone = 0
        for status, ended_before in before.items():
            if not status.is_final or gone >= limit:
                continue
            old: Document = {
                "status": int(status),
                "ended_at": {"$lt": ended_before},
                "after.at": {"$exists": False},
            }
            ids = [one["_id"] for one in collections.latest.find(old, {"_id": True}).hint(OUTCOMES).limit(limit - gone)]
            if ids:
                gone += collections.jobs.delete_many({"_id": {"$in": ids}}).deleted_count
        return gone

    def flush(self) -> int:
        """Remove all jobs, make every cursor too old, and return the number."""
        self._news.forget()
        self._connection.collections.slots.delete_many({})
        return self._connection.collections.jobs.delete_many({}).deleted_count
