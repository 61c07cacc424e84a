"""Applies an owner's changes to a pending record, only if it is still as it was read."""

from __future__ import annotations

from datetime import datetime

from bson import ObjectId

from taskqueue.model.record import Record
from taskqueue.model.serializer import decode
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document, lane, moving, setting, unmoved
from taskqueue.store.mongodb.effects import effects_of
from taskqueue.store.mongodb.settlements import Settlements

_MOVED_BY_OWNER = ("status", "cause", "queue", "ready_at", "rank")


class Updates:
    """Changes pending records, if their owners' fields are still as they were read.

    Each write touches the differing fields, and derives those anew that repeat others (``due``, ``expires``, ``lane``).
    """

    def __init__(self, connection: Connection, settlements: Settlements) -> None:
        self._connection = connection
        self._settlements = settlements

    def update(self, before: Record, after: Record, now: datetime) -> bool:
        old, new = _fields(before), _fields(after)
        differing = {name: value for name, value in new.items() if value != old[name]}
        where = unmoved(before) | {name: old[name] for name in differing}
        change = setting(differing)
        if after.data != before.data:
            where["data"] = decode(before.data)
            change.setdefault("$set", {})["data"] = decode(after.data)
        if not change.get("$set") and "$unset" not in change:
            return self._connection.collections.jobs.count_documents(where, limit=1) == 1
        for operator, derived in setting(_derived(after)).items():
            change.setdefault(operator, {}).update(derived)
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
        "expires_at": record.expires_at,
        "tags": list(record.tags) or None,
        "given": dict(record.given),
    }


def _derived(record: Record) -> Document:
    """Return the fields that repeat others; they are written with each change, and so never compared."""
    moved = moving(record)
    return {"due": moved["due"], "expires": moved["expires"], "lane": lane(record)}
