"""Keeps the audit as documents whose ids sort by time."""

from __future__ import annotations

import json

from bson import ObjectId

from taskqueue.model.audit import KEPT_FOR, AuditEntry
from taskqueue.model.reading import mapping, readable, text
from taskqueue.store.arguments import wrong_audit_cursor
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document, needed_time_in


def record(connection: Connection, entry: AuditEntry) -> None:
    """Store the entry, and remove entries that are too old."""
    audit = connection.collections.audit
    document = {
        "at": entry.at,
        "by": entry.by,
        "action": entry.action,
        "target": entry.target,
        "source": entry.source,
        "about": json.dumps(dict(entry.about)),  # as text: its keys may hold any character
    }
    audit.insert_one(document)
    ends = entry.at - KEPT_FOR
    audit.delete_many({"_id": {"$lt": ObjectId.from_datetime(ends)}, "at": {"$lt": ends}})


def entries(connection: Connection, limit: int, before: str | None = None) -> list[AuditEntry]:
    """Return up to ``limit`` entries before the cursor, the newest first."""
    if before is not None and not ObjectId.is_valid(before):
        raise wrong_audit_cursor(before)
    where: Document = {} if before is None else {"_id": {"$lt": ObjectId(before)}}
    documents = connection.collections.audit.find(where).sort("_id", -1).limit(limit)
    return list(readable(documents, _entry, "an entry of the audit"))


def _entry(document: Document) -> AuditEntry:
    return AuditEntry(
        at=needed_time_in(document["at"]),
        by=text(document["by"]),
        action=text(document["action"]),
        target=text(document["target"]),
        source=text(document["source"]),
        about=mapping(document["about"]),
        cursor=str(document["_id"]),
    )
