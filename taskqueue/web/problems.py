"""Problem documents (RFC 9457): each error as JSON, in the words of the error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from taskqueue import errors

MEDIA_TYPE = "application/problem+json"

ERRORS: Sequence[tuple[type[errors.TaskqueueError], str]] = (
    (errors.JobNotFound, "job-not-found"),
    (errors.ScheduleNotFound, "schedule-not-found"),
    (errors.CursorTooOld, "cursor-too-old"),
    (errors.WrongStatus, "wrong-status"),
    (errors.DuplicateId, "duplicate-id"),
    (errors.KeyTaken, "key-taken"),
    (errors.Unreadable, "unreadable"),
    (errors.InvalidQuery, "invalid-query"),
    (errors.InvalidJob, "invalid-job"),
    (errors.WaitTimeout, "wait-timeout"),
    (errors.StackUnavailable, "stack-unavailable"),
    (errors.StoreUnavailable, "store-unavailable"),
    (errors.ConfigError, "config-error"),
    (errors.TaskqueueError, "error"),
)
"""The problem for each error: the first class that fits."""

STATUSES: Mapping[str, int] = {
    "malformed-request": 400,
    "unknown-host": 400,
    "unknown-user": 401,
    "wrong-login": 401,
    "class-not-allowed": 403,
    "csrf": 403,
    "forbidden": 403,
    "proxied": 403,
    "job-not-found": 404,
    "node-not-found": 404,
    "not-found": 404,
    "schedule-not-found": 404,
    "method-not-allowed": 405,
    "duplicate-id": 409,
    "key-taken": 409,
    "unreadable": 409,
    "wrong-status": 409,
    "cursor-too-old": 410,
    "body-too-large": 413,
    "unsupported-media-type": 415,
    "invalid-job": 422,
    "invalid-parameter": 422,
    "invalid-query": 422,
    "key-reused": 422,
    "masked-value": 422,
    "too-many-logins": 429,
    "too-many-requests": 429,
    "head-too-large": 431,
    "config-error": 500,
    "error": 500,
    "internal-error": 500,
    "stack-unavailable": 503,
    "store-unavailable": 503,
    "too-many-listeners": 503,
    "wait-timeout": 504,
}
"""The HTTP status of each problem."""


class Problem(Exception):
    """An error as it is answered."""

    def __init__(self, name: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = STATUSES[name]
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
    """Return the problem for an error of ours."""
    if isinstance(error, Problem):
        return error
    return Problem(next(name for kind, name in ERRORS if isinstance(error, kind)), str(error))


def problem_of_routing(error: HTTPException, method: str, root: str, path: str) -> Problem:
    """Return the problem for a path below the root that is not there, or not for this method."""
    named = repr(f"{root}{path}"[:200])
    if error.status_code == 405:
        return Problem("method-not-allowed", f"{named} does not accept {method}", error.headers)
    if path.startswith("/api/"):
        return Problem(
            "not-found", f"there is no operation at {named}: {root}/api/v1/openapi.json lists them all", error.headers
        )
    return Problem("not-found", f"there is no page at {named}", error.headers)


def problem_response(problem: Problem) -> Response:
    """Return the answer."""
    return JSONResponse(problem.document(), problem.status, problem.headers, MEDIA_TYPE)
