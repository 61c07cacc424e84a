"""One operation of the API: its path, parameters, body and answers as JSON Schema, and the function that does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from jsonschema import Draft202012Validator
from starlette.requests import Request

from taskqueue.model.wording import or_nearest
from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.web.actions import Actions
from taskqueue.web.dashboard import Dashboard
from taskqueue.web.problems import Problem
from taskqueue.web.viewers import Viewer

Schema: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request whose parameters and body conform to their schemas."""

    dashboard: Dashboard
    viewer: Viewer
    request: Request
    path: Mapping[str, str]
    query: Mapping[str, Any]
    body: Mapping[str, Any]

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler."""
        return self.dashboard.scheduler

    @cached_property
    def actions(self) -> Actions:
        """The actions of the user."""
        return self.dashboard.actions(self.viewer)

    def masked(self, document: Any) -> Any:
        """Return the JSON value with secret values masked."""
        return self.dashboard.masking.masked(document)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A JSON answer with another status than 200."""

    status: int
    document: Any


class Checked:
    """Checks values against a schema, the same one that the document shows."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    @cached_property
    def _validator(self) -> Draft202012Validator:
        return Draft202012Validator(self.schema)

    def check(self, value: Any, where: str) -> None:
        """Raise ``Problem`` for a value that does not conform to the schema."""
        error = next(self._validator.iter_errors(value), None)
        if error is not None:
            path = ".".join(map(str, (where, *error.absolute_path)))
            near = or_nearest(error.instance, error.validator_value) if error.validator == "enum" else ""
            raise Problem("invalid-parameter", f"{path}: {error.message[:300]}{near}")


class Param(Checked):
    """A parameter of the query, or a header."""

    def __init__(self, name: str, schema: Schema, meaning: str, place: str = "query") -> None:
        super().__init__(schema)
        self.name = name
        self.meaning = meaning
        self.place = place


Do: TypeAlias = Callable[[Call], Any]
"""Runs in a thread and returns JSON values or an answer; or, if it is a coroutine function, in the event loop, and
returns the response."""


class ApiRoute:
    """An operation, named and described by the function that does it."""

    is_slow = False

    def __init__(
        self,
        request: str,
        do: Do,
        answer: Schema,
        *params: Param,
        body: Schema | None = None,
        needs_body: bool = False,
        statuses: tuple[int, ...] = (),
        created: bool = False,
        media_type: str = "application/json",
        users: str = "",
    ) -> None:
        """Make it for ``request``, such as ``GET /jobs``.

        ``statuses`` are added to the statuses that every operation may have; ``created`` says that it answers 201;
        ``users`` says who may request it, if not all users for GET and operators for a change.
        """
        self.method, self.path = request.split()
        self.do = do
        self.answer = answer
        self.params = params
        self.body = None if body is None else Checked(body)
        self.needs_body = needs_body
        self.statuses = (*statuses, *((404,) if "{" in self.path else ()))
        self.created = created
        self.media_type = media_type
        self.users = users or (
            "all users" if self.method == "GET" else "operators; those of some queues in these alone"
        )

    @property
    def name(self) -> str:
        """Return the name of the operation."""
        return self.do.__name__

    @property
    def has_job(self) -> bool:
        """Return whether the request describes a job: its body may hold data."""
        return self.body is not None and "data" in self.body.schema["properties"]

    @property
    def meaning(self) -> str:
        """Return what it does."""
        return (self.do.__doc__ or "").partition("\n")[0].replace("``", "`")


class SlowRoute(ApiRoute):
    """One that computes figures of any period, so that a user waits for one before the next begins."""

    is_slow = True
