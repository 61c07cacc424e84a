"""The OpenAPI 3.1 document, made from the table of operations."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from taskqueue.model.version import VERSION
from taskqueue.web.api import ROUTES
from taskqueue.web.api.route import ApiRoute, Param
from taskqueue.web.api.schemas import COMPONENTS, ref
from taskqueue.web.problems import MEDIA_TYPE, STATUSES

PREFIX = "/api/v1"

ALWAYS = (400, 401, 403, 422, 429, 431, 503)
"""Statuses that every operation may have.

A wrong host or text, nobody known, not allowed, a wrong value, too many requests of the user, no store.
"""

OF_BODIES = (413, 415)

SUBJECTS = {
    "jobs": "Jobs",
    "queues": "Queues and limits",
    "controls": "Queues and limits",
    "limits": "Queues and limits",
    "schedules": "Schedules",
    "nodes": "Nodes",
}
"""The subject of each operation by the first word of its path; all others are of figures and events."""


def document(root: str) -> dict[str, Any]:
    """Return the document for the dashboard that is mounted at ``root``."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "taskqueue",
            "version": VERSION,
            "summary": "Jobs, queues and nodes.",
        },
        "servers": [{"url": f"{root}{PREFIX}"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": COMPONENTS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: ApiRoute) -> dict[str, Any]:
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    in_path = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    operation: dict[str, Any] = {
        "operationId": route.name,
        "tags": [SUBJECTS.get(route.path.split("/")[1], "Figures and events")],
        "summary": route.meaning,
        "description": f"For {route.users}.",
        "parameters": [*in_path, *map(_parameter, route.params)],
        "responses": _responses(route),
    }
    if route.body is not None:
        content = {"application/json": {"schema": route.body.schema}}
        operation["requestBody"] = {"required": route.needs_body, "content": content}
    return operation


def _parameter(param: Param) -> dict[str, Any]:
    return {"name": param.name, "in": param.place, "description": param.meaning, "schema": param.schema}


def _responses(route: ApiRoute) -> Mapping[str, Any]:
    fine = {"description": "Done.", "content": {route.media_type: {"schema": route.answer}}}
    problem = {MEDIA_TYPE: {"schema": ref("Problem")}}
    responses = {"200": fine, **({"201": fine} if route.created else {})}
    for status in sorted({*ALWAYS, *route.statuses, *(OF_BODIES if route.body is not None else ())}):
        names = ", ".join(name for name, of in STATUSES.items() if of == status)
        responses[str(status)] = {"description": f"{HTTPStatus(status).phrase}: {names}", "content": problem}
    return responses
