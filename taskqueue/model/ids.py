"""Ids of jobs: made by clients, or derived from a series, a schedule or a job that is recovered."""

from __future__ import annotations

from datetime import datetime

from bson import ObjectId

from taskqueue.model.timestamps import milliseconds

JobId = ObjectId

WORKFLOW_TAG = "workflow:"
"""The prefix of the tag that all members of a workflow have; the id of the first member follows."""


def occurrence_id(series: JobId, occurrence: int) -> JobId:
    """Return the id of an occurrence, the same in every process."""
    return _derived(series.binary[:4], f"series {series} {occurrence}")


def scheduled_id(schedule: str, slot: datetime, what: str = "job") -> JobId:
    """Return the id of the job that a schedule starts for a scheduled time, the same on every node."""
    at = milliseconds(slot)
    return _derived((at // 1000 % 2**32).to_bytes(4, "big"), f"schedule {what} {at} {schedule}")


def copy_id(of: JobId, ended_at: datetime) -> JobId:
    """Return the id of the copy that a query makes of a job that ended then, the same in every process."""
    return _derived((milliseconds(ended_at) // 1000 % 2**32).to_bytes(4, "big"), f"copy {of}")


def _derived(time: bytes, of: str) -> JobId:
    """Return an id that sorts by its time and whose rest follows from the text."""
    import hashlib  # it loads a library for ciphers; few programs derive ids

    return ObjectId(time + hashlib.sha256(of.encode()).digest()[:8])
