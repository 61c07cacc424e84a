"""The JSON Schemas of requests and answers: requests are checked against them, and the document shows them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from taskqueue.insight.failure_groups import Trend
from taskqueue.insight.failure_states import FailureState
from taskqueue.model.record import Status
from taskqueue.web.api.route import Param, Schema

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
INTEGER: Schema = {"type": "integer"}
BOOLEAN: Schema = {"type": "boolean"}
ANYTHING: Schema = {}
TIME: Schema = {"type": "string", "format": "date-time"}
WHEN: Schema = {
    "type": ["string", "number", "null"],
    "maxLength": 100,
    "description": "A time such as `2030-07-20T00:15:00Z` or `+1 hour`, or unix seconds; null is now.",
}
REASON: Schema = {"type": "string", "maxLength": 500}
STATUSES = tuple(status.name for status in Status)


def optional(schema: Schema) -> Schema:
    """Return the schema of a value that may be null."""
    return {**schema, "type": [schema["type"], "null"]}


def record(required: dict[str, Schema], **more: Schema) -> Schema:
    """Return the schema of an object that has all or some of these keys, and may get more in later versions."""
    return {"type": "object", "properties": {**required, **more}, "required": list(required)}


def exactly(required: dict[str, Schema] | None = None, **more: Schema) -> Schema:
    """Return the schema of an object in a request, in which any other key is a mistake."""
    needed = required or {}
    properties = {**needed, **more}
    return {"type": "object", "properties": properties, "required": list(needed), "additionalProperties": False}


def listed(name: str, item: Schema, **more: Schema) -> Schema:
    """Return the schema of a list under a name."""
    return record({name: {"type": "array", "items": item}, **more})


def ref(name: str) -> Schema:
    """Return a reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


_TEXTS: Schema = {"type": "array", "items": TEXT}
_FAILURE = record({"type": TEXT, "message": TEXT}, traceback=TEXT)
_ERROR: Schema = {"anyOf": [_FAILURE, {"type": "null"}]}
_JOB: dict[str, Schema] = {
    "id": {"type": "string", "pattern": "^[0-9a-f]{24}$"},
    "id_text": {**optional(TEXT), "description": "The text that was passed as its id."},
    "job": {"type": "string", "description": "The import path of its class."},
    "status": {"type": "string", "enum": list(STATUSES)},
    "cause": TEXT,
    "queue": TEXT,
    "priority": INTEGER,
    "tags": _TEXTS,
    "meta": {"type": "object", "additionalProperties": TEXT},
    "created_at": TIME,
    "ready_at": optional(TIME),
    "started_at": optional(TIME),
    "ended_at": optional(TIME),
    "progress": NUMBER,
    "progress_message": TEXT,
    "attempt": INTEGER,
    "failures": INTEGER,
    "crashes": INTEGER,
    "node": optional(TEXT),
    "error": _ERROR,
    "damage": optional(TEXT),
}
_IN_FULL: dict[str, Schema] = {
    "unique": optional(TEXT),
    "expires_at": optional(TIME),
    "options": {"type": "object"},
    "claims": INTEGER,
    "limits": _TEXTS,
    "parent": optional(TEXT),
    "depends_on": {"type": "object", "additionalProperties": TEXT},
    "waiting_for": _TEXTS,
    "cancel_requested_at": optional(TIME),
    "data": ANYTHING,
    "state": ANYTHING,
    "cursor": ANYTHING,
    "phase": optional(TEXT),
    "steps": INTEGER,
    "reports": ANYTHING,
    "result": ANYTHING,
    "attempts": {"type": "array", "items": {"type": "object"}},
}
_CONTROL = record(
    {"kind": TEXT, "name": TEXT, "since": optional(TIME), "by": TEXT, "reason": TEXT, "count": optional(INTEGER)}
)

COMPONENTS: dict[str, Schema] = {
    "Job": record(_JOB),
    "JobInFull": record({**_JOB, **_IN_FULL}, existed=BOOLEAN),
    "Control": _CONTROL,
    "Problem": record({"type": TEXT, "title": TEXT, "status": INTEGER, "detail": TEXT}),
    "Queue": record(
        {
            "name": TEXT,
            "statuses": {"type": "object", "additionalProperties": INTEGER},
            "waiting_since": optional(TIME),
            "oldest": {**optional(NUMBER), "description": "Seconds for which its first waiting job has waited."},
            "added_per_minute": NUMBER,
            "ended_per_minute": NUMBER,
            "paused": {"anyOf": [_CONTROL, {"type": "null"}]},
        }
    ),
    "Limit": record(
        {
            "limit": TEXT,
            "key": TEXT,
            "count": INTEGER,
            "per": optional(NUMBER),
            "used": INTEGER,
            "waiting": INTEGER,
            "changed": {"anyOf": [_CONTROL, {"type": "null"}]},
            "jobs": {"type": "array", "items": record({"id": TEXT, "job": TEXT, "node": optional(TEXT)})},
        }
    ),
    "Schedule": record({"name": TEXT, "stage": TEXT, "next_run_at": optional(TIME), "job": TEXT, "fired": INTEGER}),
    "Node": record({"name": TEXT, "jobs": INTEGER, "leader": BOOLEAN, "live": BOOLEAN, "state": TEXT}),
    "Event": record(
        {"event": TEXT, "event_id": TEXT, "at": TIME, "id": optional(TEXT), "status": optional(TEXT), "cursor": TEXT},
        job=optional(TEXT),
        node=optional(TEXT),
        about={"type": "object"},
        error=_ERROR,
    ),
    "LogLine": record(
        {"at": TIME, "level": TEXT, "logger": TEXT, "message": TEXT}, attempt=INTEGER, run=INTEGER, number=INTEGER
    ),
    "Failures": record(
        {"job": TEXT, "error": optional(TEXT), "count": INTEGER, "first": TIME, "last": TIME, "query": ANYTHING}
    ),
    "JudgedFailures": record(
        {
            "id": TEXT,
            "job": TEXT,
            "fingerprint": optional(TEXT),
            "state": {"type": "string", "enum": [state.value for state in FailureState]},
            "decision": ANYTHING,
            "trend": {"type": "string", "enum": [trend.value for trend in Trend]},
            "failed": INTEGER,
            "attempts": INTEGER,
            "seconds": INTEGER,
            "usual": optional(NUMBER),
            "release": optional(TEXT),
            "first": TIME,
            "last": TIME,
            "query": ANYTHING,
        }
    ),
    "Release": record({"name": TEXT, "at": TIME, "by": TEXT}),
    "FailureDecision": record(
        {
            "id": TEXT,
            "job": TEXT,
            "fingerprint": optional(TEXT),
            "state": {"type": "string", "enum": [FailureState.MUTED.value, FailureState.RESOLVED.value]},
            "since": TIME,
            "until": optional(TIME),
            "by": TEXT,
            "reason": TEXT,
        }
    ),
    "AuditEntry": record(
        {"at": TIME, "by": TEXT, "action": TEXT, "target": TEXT, "source": TEXT, "about": ANYTHING, "cursor": TEXT}
    ),
}
"""The named schemas."""


def limit(most: int, default: int, meaning: str = "How many at most.") -> Param:
    """Return the parameter for the length of a page."""
    return Param("limit", {"type": "integer", "minimum": 1, "maximum": most, "default": default}, meaning)


def text(name: str, meaning: str, **more: Any) -> Param:
    """Return a parameter of text."""
    return Param(name, {"type": "string", "maxLength": 10_000, **more}, meaning)


def choice(name: str, values: Iterable[str], meaning: str, **more: Any) -> Param:
    """Return a parameter that is one of these words."""
    return Param(name, {"type": "string", "enum": list(values), **more}, meaning)


FILTER = (
    choice("status", (*STATUSES, "pending", "final"), "Only this status.", examples=["FAILED"]),
    text("queue", "Only this queue."),
    text("job", "Only this class, as `module:Class`, or a part of its name."),
    text("tag", "Only jobs with this tag."),
    text("error", "Only jobs with this text in the class or the message of their error."),
    text(
        "query",
        "Only jobs that match, as in `taskqueue list --query`: `class:Mail customer:initech`, or JSON such as "
        '`{"data.to": "a@example.org"}`.',
    ),
)
"""The parameters for finding jobs."""
