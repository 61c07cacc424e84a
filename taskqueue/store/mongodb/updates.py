"""Applies an owner's changes to a pending record, only if it is still as it was read."""

from __future__ import annotations

from datetime import datetime

from bson import ObjectId

from taskqueue.model.record import Record
from taskqueue.model.serializer import decode
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document, lane, moving, setting
from taskqueue.store.mongodb.effects import effects_of
from taskqueue.store.mongodb.settlements import Settlements, unmoved

_MOVED_BY_OWNER = ("status", "cause", "queue", "ready_at", "due", "rank")


class Updates:
    """Changes pending records. Each write touches only differing fields, if those are still as they were read."""

    def __init__(self, connection: Connection, settlements: Settlements) -> None:
        self._connection = connection
        self._settlements = settlements

    def update(self, before: Record, after: Record, now: datetime) -> bool:
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
        change["$set"]["revised"] = ObjectId()  # a claim that has read the record before does not take it unchanged
        follows = None
        if after.status is not before.status:
            token = ObjectId()
            follows = effects_of(after, token, now)
            change["$set"]["swapped"] = token
            change["$push"] = {"after": follows.kept()}
        if not self._connection.collections.jobs.update_one(where, change).matched_count:
            return False
        if follows is not None:
            self._settlements.follow([follows])
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
