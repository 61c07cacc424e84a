"""The routes of the API and its OpenAPI document: requests are checked against the schemas that this shows."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from inspect import iscoroutinefunction
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from taskqueue.errors import TaskqueueError
from taskqueue.model.version import VERSION
from taskqueue.model.wording import or_nearest
from taskqueue.web.api import ROUTES
from taskqueue.web.api.route import Answer, ApiRoute, Call, Param, Schema
from taskqueue.web.api.schemas import COMPONENTS, ref
from taskqueue.web.dashboard import Dashboard, root_of
from taskqueue.web.problems import MEDIA_TYPE, STATUSES, Problem, problem_of, problem_response
from taskqueue.web.rendering import JsonResponse
from taskqueue.web.viewers import Viewer, token_of


class ApiRoutes:
    """The API of one dashboard."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard

    def routes(self) -> list[Route]:
        """Return the routes, one for each path."""
        paths: dict[str, dict[str, ApiRoute]] = {}
        for route in ROUTES:
            paths.setdefault(route.path, {})[route.method] = route
        made = [
            Route(PREFIX + path, self._endpoint(by_method), methods=[*by_method]) for path, by_method in paths.items()
        ]
        return [*made, Route(f"{PREFIX}/openapi.json", self._document)]

    def _endpoint(self, by_method: Mapping[str, ApiRoute]) -> Callable[[Request], Awaitable[Response]]:
        async def answered(request: Request) -> Response:
            return await self.answer(request, by_method["GET" if request.method == "HEAD" else request.method])

        return answered

    async def answer(self, request: Request, route: ApiRoute) -> Response:
        """Answer a request, or report its error."""
        try:
            return await self._answer(request, route)
        except (Problem, TaskqueueError) as error:
            problem = problem_of(error)
            if problem.name == "invalid-job" and not route.has_job:  # an option of ours, which is a parameter here
                problem = _wrong(problem.detail)
            return problem_response(problem)

    async def _answer(self, request: Request, route: ApiRoute) -> Response:
        viewer = self._viewer(request)
        if route.method != "GET":
            self._dashboard.viewers.check_csrf(request, viewer, None)
        call = Call(
            dashboard=self._dashboard,
            viewer=viewer,
            request=request,
            path={name: str(value) for name, value in request.path_params.items()},
            query=_parameters(request, route),
            body={},
        )
        if iscoroutinefunction(route.do):
            streamed: Response = await route.do(call)
            return streamed
        in_thread = self._dashboard.compute if route.is_slow else self._dashboard.in_thread
        response = await in_thread(viewer, _done, route, call, await request.body())
        if route.method != "GET":
            self._dashboard.overviews.forget()
        return response

    def _viewer(self, request: Request) -> Viewer:
        viewer = self._dashboard.viewers.viewer(request)
        if viewer is None:
            raise Problem("unknown-user", self._unknown(request), {"www-authenticate": "Bearer"})
        return viewer

    def _unknown(self, request: Request) -> str:
        """Return why the user is unknown, and how to log in."""
        if token_of(request) is None:
            return "nobody is logged in: send a token as Authorization: Bearer TOKEN"
        if self._dashboard.viewers.users is None:
            return "this dashboard has no file of users, and so no tokens: send none, or start it with --users FILE"
        return "no user has this token: `taskqueue web user add NAME --token` makes one, and shows it once"

    async def _document(self, request: Request) -> Response:
        try:
            viewer = self._viewer(request)
            return await self._dashboard.in_thread(viewer, lambda: JsonResponse(document(root_of(request))))
        except (Problem, TaskqueueError) as error:
            return problem_response(problem_of(error))


def _done(route: ApiRoute, call: Call, body: bytes) -> Response:
    """Do the operation and return the answer: all of it, from reading to writing JSON, takes the share of the user."""
    done = route.do(replace(call, body=_json(call.request, route, body)))
    if isinstance(done, Response):
        return done
    return JsonResponse(done.document, done.status) if isinstance(done, Answer) else JsonResponse(done)


def _parameters(request: Request, route: ApiRoute) -> dict[str, Any]:
    """Return the parameters as values of their types, with defaults. Raises ``Problem``."""
    params = {param.name: param for param in route.params if param.place == "query"}
    pairs = request.query_params.multi_items()
    for name, _ in pairs:
        if name not in params:
            near = or_nearest(name, params)
            raise _wrong(f"there is no parameter {name[:100]!r}: use {', '.join(params) or 'none'}{near}")
        if len(request.query_params.getlist(name)) > 1:
            raise _wrong(f"{name} is given more than once")
    values: dict[str, Any] = {}
    for param in route.params:
        given = dict(pairs) if param.place == "query" else request.headers
        if param.name in given:
            values[param.name] = _value(given[param.name], param.schema)
            param.check(values[param.name], param.name)
        elif "default" in param.schema:
            values[param.name] = param.schema["default"]
    return values


def _value(text: str, schema: Schema) -> Any:
    """Return the text as the number or truth value that the schema asks for, or else as it is."""
    match schema.get("type"):
        case "boolean" if text in ("true", "false"):
            return text == "true"
        case "integer" | "number" as kind:
            try:
                return int(text[:20]) if kind == "integer" else float(text[:40])
            except ValueError:
                return text
    return text


def _json(request: Request, route: ApiRoute, raw: bytes) -> Mapping[str, Any]:
    """Return the JSON object of the body. Raises ``Problem``."""
    if route.body is None or (not raw and not route.needs_body):
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem("unsupported-media-type", f"a body must be application/json, not {kind[:100]!r}")
    try:
        body = json.loads(raw.decode(), parse_constant=_no_constant)
        json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Problem("malformed-request", f"the body is not JSON: {error}") from None
    route.body.check(body, "body")
    return body  # type: ignore[no-any-return]  # the schemas of bodies are those of objects


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _wrong(detail: str) -> Problem:
    return Problem("invalid-parameter", detail)


PREFIX = "/api/v1"

ALWAYS = (400, 401, 403, 422, 429, 431, 503)
"""Statuses that every operation may have.

A wrong host or text, no known user, not allowed, a wrong value, too many requests by the user, no store.
"""

OF_BODIES = (413, 415)

SUBJECTS = {
    "jobs": "Jobs",
    "workflows": "Jobs",
    "queues": "Queues and limits",
    "controls": "Queues and limits",
    "limits": "Queues and limits",
    "schedules": "Schedules",
    "nodes": "Nodes",
}
"""The subject of each operation by the first word of its path; all others are about figures and events."""


def document(root: str) -> dict[str, Any]:
    """Return the document for the dashboard that is mounted at ``root``."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "taskqueue", "version": VERSION, "summary": "Jobs, queues and nodes."},
        "servers": [{"url": f"{root}{PREFIX}"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {"schemas": COMPONENTS, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
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
