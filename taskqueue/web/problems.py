"""Problem documents (RFC 9457): each error as JSON, in the words of the error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from taskqueue.errors import (
    ConfigError,
    CursorTooOld,
    DuplicateId,
    InvalidJob,
    InvalidQuery,
    JobNotFound,
    KeyTaken,
    ScheduleNotFound,
    StackUnavailable,
    StoreUnavailable,
    TaskqueueError,
    Unreadable,
    WaitTimeout,
    WrongStatus,
)

MEDIA_TYPE = "application/problem+json"

STATUSES: Sequence[tuple[type[TaskqueueError], int, str]] = (
    (JobNotFound, 404, "job-not-found"),
    (ScheduleNotFound, 404, "schedule-not-found"),
    (CursorTooOld, 410, "cursor-too-old"),
    (WrongStatus, 409, "wrong-status"),
    (DuplicateId, 409, "duplicate-id"),
    (KeyTaken, 409, "key-taken"),
    (Unreadable, 409, "unreadable"),
    (InvalidQuery, 422, "invalid-query"),
    (InvalidJob, 422, "invalid-job"),
    (WaitTimeout, 504, "wait-timeout"),
    (StackUnavailable, 503, "stack-unavailable"),
    (StoreUnavailable, 503, "store-unavailable"),
    (ConfigError, 500, "config-error"),
    (TaskqueueError, 500, "error"),
)
"""The status and the name of each error: the first class that fits."""


class Problem(Exception):
    """An error as it is answered."""

    def __init__(self, status: int, name: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.name = name
        self.detail = detail
        self.headers = dict(headers or {})

    def document(self) -> dict[str, Any]:
        """Return the problem document."""
        return {
            "type": f"urn:taskqueue:problem:{self.name}",
            "title": self.name.replace("-", " "),
            "status": self.status,
            "detail": self.detail,
        }


def problem_of(error: Exception) -> Problem:
    """Return the problem for an error of ours, or of the routing."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        names = {404: "not-found", 405: "method-not-allowed"}
        detail = {404: "there is no such page", 405: "this cannot be done here"}.get(error.status_code, error.detail)
        return Problem(error.status_code, names.get(error.status_code, "error"), detail, error.headers)
    status, name = next((status, name) for kind, status, name in STATUSES if isinstance(error, kind))
    return Problem(status, name, str(error))


def problem_response(problem: Problem) -> Response:
    """Return the answer."""
    return JSONResponse(problem.document(), problem.status, problem.headers, MEDIA_TYPE)
