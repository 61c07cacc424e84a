"""Keeps controls as documents; each node reads them a few times a second, no matter how often it claims.

Setting a control waits until no node relies on an earlier read, so that no claim misses a pause.
"""

from __future__ import annotations

import time

from taskqueue.model.controls import NONE, Control, Controls, Kind
from taskqueue.model.reading import readable, text
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document, needed_time_in

FRESH_FOR = 0.25
"""Seconds for which claims rely on the last read. A read for each claim would delay every single job."""

MARGIN = 0.05
"""By how many seconds the clocks of hosts may drift apart over so short a time."""


class StoredControls:
    """Reads and writes the controls of a store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known = NONE
        self._read_at = float("-inf")

    def in_force(self) -> Controls:
        """Return the controls that claims must obey now."""
        if _now() - self._read_at >= FRESH_FOR:
            self._known = self.controls()
        return self._known

    def controls(self) -> Controls:
        began_at = _now()
        controls = Controls(
            readable(self._connection.collections.controls.find().sort("_id"), _control, "a decision of an operator")
        )
        self._known, self._read_at = controls, began_at
        return controls

    def set(self, control: Control) -> None:
        """Set the control, and wait until every new claim obeys it."""
        document = {
            "since": control.since,
            "by": control.by,
            "reason": control.reason,
            "count": control.count,
        }
        self._connection.collections.controls.replace_one(
            {"_id": _id(control.kind, control.name)}, document, upsert=True
        )
        self._read_at = float("-inf")
        time.sleep(FRESH_FOR + MARGIN)

    def clear(self, kind: Kind, name: str) -> bool:
        self._read_at = float("-inf")
        return self._connection.collections.controls.delete_one({"_id": _id(kind, name)}).deleted_count == 1


def _now() -> float:
    """Return a time that also passes while the host is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _id(kind: Kind, name: str) -> Document:
    return {"kind": kind.value, "name": name}


def _control(document: Document) -> Control:
    return Control(
        kind=Kind(document["_id"]["kind"]),
        name=document["_id"]["name"],
        since=needed_time_in(document["since"]),
        by=text(document["by"]),
        reason=document["reason"],
        count=document["count"],
    )
