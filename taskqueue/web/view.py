"""One page: its route, and what its function gets to see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeAlias

from starlette.datastructures import QueryParams
from starlette.responses import Response

from taskqueue.errors import InvalidQuery
from taskqueue.model.controls import Control
from taskqueue.scheduler.operations import AnyOperation, Target, of_target
from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.web.actions import Actions
from taskqueue.web.masking import Masking
from taskqueue.web.users import Role, User

if TYPE_CHECKING:
    from taskqueue.web.overviews import Overviews


@dataclass(frozen=True, kw_only=True)
class View:
    """A request for a page, as the function of the page gets it; the function runs in a thread, and may block."""

    scheduler: Scheduler
    user: User
    path: Mapping[str, str]
    """The parts of the path that the route names, such as ``id``."""
    query: QueryParams
    """The parameters after the question mark."""
    form: Mapping[str, str]
    """The fields of a form that was sent; empty for GET."""
    actions: Actions
    """All that the user may do, each checked and kept in the audit."""
    masking: Masking
    """Masks values that look secret."""
    root: str
    """The path that the dashboard is mounted at, to be put before paths of links."""
    is_fragment: bool
    """Whether the script of the page asks for its content alone."""
    overviews: Overviews
    """The state of the whole store as it was a moment ago at most, figures of recent times, and the store's time."""

    @property
    def may_act(self) -> bool:
        """Return whether the user may act on anything at all."""
        return self.user.role is Role.OPERATOR

    def may_act_on(self, queue: str | None) -> bool:
        """Return whether the user may act on jobs of the queue; None stands for things without a single queue."""
        return self.user.may_act_on(queue)

    def offered(self, target: Target, name: str, control: Control | None) -> list[AnyOperation]:
        """Return the declared operations that the user may do to the target, and that change something."""
        may_act = self.may_act_on(name or None if target is Target.QUEUE else None)
        return [operation for operation in of_target(target) if may_act and operation.fits(control)]


@dataclass(frozen=True, kw_only=True)
class Button:
    """A form of one button, which does one thing."""

    label: str
    path: str
    fields: Mapping[str, str] = field(default_factory=dict)


def path_of(operation: AnyOperation) -> str:
    """Return the path of the form of a declared operation."""
    return f"/{operation.target}s/{operation.verb}"


def button_of(operation: AnyOperation, name: str) -> Button:
    """Return the button that does the operation to the target of this name, or with "" to every queue."""
    label = operation.verb.capitalize() if name else operation.words("")
    return Button(label=label, path=path_of(operation), fields={operation.target.value: name})


Answer: TypeAlias = "Mapping[str, Any] | Response"
"""The values of a template, or a whole response, such as ``see_other``."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """One route of the pages: its path below the root, its function and its template."""

    path: str
    show: Callable[[View], Answer]
    template: str = ""
    """Empty if the function returns a response."""
    title: str = ""
    """The text of its link in the navigation; empty if it has none."""
    method: str = "GET"
    asks_node: bool = False
    """Whether it waits for the node of the job ``id`` in its path."""


def see_other(view: View, path: str) -> Response:
    """Return the answer to a form: the browser continues with the page at ``path``."""
    return Response(status_code=303, headers={"location": f"{view.root}{path}"})


def moment(name: str, text: str) -> datetime:
    """Return the time that a parameter names in milliseconds since 1970. Raises ``InvalidQuery``."""
    try:
        return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=int(text))
    except (ValueError, OverflowError):
        raise InvalidQuery(f"{name}={text[:50]!r}: pass milliseconds since 1970") from None
