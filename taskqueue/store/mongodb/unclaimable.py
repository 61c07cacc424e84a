"""Ends damaged waiting documents that no node can claim."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime

from taskqueue.model.record import Cause, Status
from taskqueue.store.mongodb.claim_candidates import Candidate
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import setting

log = logging.getLogger(__name__)


def without_unclaimable(
    connection: Connection, candidates: Sequence[Candidate], was: Status, now: datetime
) -> Sequence[Candidate]:
    """Return the candidates that have an id and a fence; all others are ended as FAILED."""
    damaged = [one for one in candidates if not one.is_whole]
    for one in damaged:
        log.error("ended an unclaimable job, as its id or fence cannot be read: job %s", one.kept["_id"])
        fields = {"status": int(Status.FAILED), "cause": Cause.UNREADABLE.value, "ended_at": now, "claims": 0}
        change = setting(fields | dict.fromkeys(("ready_at", "due", "expires", "unique")))
        connection.collections.jobs.update_one({"_id": one.kept["_id"], "status": int(was)}, change)
    return [one for one in candidates if one.is_whole] if damaged else candidates
