"""Updates a waiting job: read, change, write, and again if it has moved meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskqueue.model.ids import JobId
from taskqueue.model.options.update import checked_changes, revised
from taskqueue.model.record import Record
from taskqueue.model.serializer import encode
from taskqueue.scheduler import wait
from taskqueue.store import Store


def update(store: Store, id: JobId, changes: Mapping[str, Any]) -> Record:
    """Return the record after the changes; raise ``WrongStatus``, ``InvalidJob`` or a kind of it, ``JobNotFound``."""
    options = checked_changes(changes)
    data = encode(changes["data"], "data") if "data" in changes else None
    while True:  # a turn fails only if another process has moved the job
        [before] = wait.read(store, [id])
        now = store.now()
        after = revised(before, options, data, now)
        if store.update(before, after, now):
            return after
