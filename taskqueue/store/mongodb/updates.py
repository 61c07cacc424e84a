"""How a record that waits is changed by its owner: swapped in only where it is still as it was read."""

from __future__ import annotations

from datetime import datetime

from bson import ObjectId

from taskqueue.model.record import Record
from taskqueue.model.serializer import decode
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document, lane, moving, setting
from taskqueue.store.mongodb.outbox import of_change
from taskqueue.store.mongodb.settlements import Settlements, unmoved

_MOVED_BY_OWNER = ("status", "cause", "queue", "ready_at", "due", "rank")


class Updates:
    """Changes what waits. Each write touches only what differs, and applies only where that is as it was read."""

    def __init__(self, connection: Connection, swaps: Settlements) -> None:
        self._connection = connection
        self._swaps = swaps

    def update(self, before: Record, after: Record, now: datetime) -> bool:
        """Put ``after`` in the place of ``before``; False if that has moved meanwhile."""
        old, new = _fields(before), _fields(after)
        differing = {name: value for name, value in new.items() if value != old[name]}
        where = {**unmoved(before), "rank": before.rank, "ready_at": before.ready_at, "given": old["given"]}
        where |= {name: old[name] for name in differing}
        change = setting(differing)
        if after.data != before.data:
            where["data"] = decode(before.data)
            change.setdefault("$set", {})["data"] = decode(after.data)
        if not change.get("$set") and "$unset" not in change:
            return self._connection.collections.jobs.count_documents(where, limit=1) == 1
        change["$set"]["revised"] = ObjectId()  # a claim that has read the record before does not take it as it was
        follows = None
        if after.status is not before.status:
            token = ObjectId()
            follows = of_change(after, token, now)
            change["$set"]["swapped"] = token
            change["$push"] = {"after": follows.kept()}
        if not self._connection.collections.jobs.update_one(where, change).matched_count:
            return False
        if follows is not None:
            self._swaps.follow([follows])
        return True


def _fields(record: Record) -> Document:
    moved = moving(record)
    return {
        **{name: moved[name] for name in _MOVED_BY_OWNER},
        "priority": record.priority,
        "lane": lane(record),
        "tags": list(record.tags) or None,
        "given": dict(record.given),
    }
