"""Creates the application: the routes of pages and API, and the checks before every request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from taskqueue.scheduler.async_scheduler import AsyncScheduler
from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.web.api_routes import ApiRoutes
from taskqueue.web.dashboard import Dashboard, path_of, root_of
from taskqueue.web.page_routes import PageRoutes
from taskqueue.web.problems import Problem, problem_of_routing, problem_response
from taskqueue.web.request_checks import HEADERS, RequestChecks
from taskqueue.web.settings import Settings, settings_from
from taskqueue.web.viewers import check_users


def app(
    scheduler: Scheduler | AsyncScheduler,
    *,
    users: str | Path | None = None,
    local: bool = False,
    header: str | None = None,
    header_role: str = "reader",
    proxies: Sequence[str] = (),
    hosts: Sequence[str] = (),
    secrets: Sequence[str] = (),
    addable: Sequence[str] = (),
) -> Starlette:
    """Return the dashboard of a scheduler as an ASGI application, to be served or mounted.

    Someone has to say who may come in: a file of ``users`` (``taskqueue web user add``), a ``header`` that names the
    user, set by one of the ``proxies`` (addresses or networks), or ``local`` for everybody on this host.
    ``header_role`` is ``reader`` or ``operator``, for users who are not in the file. ``hosts`` are the host names
    under which it is reached; if there are none, only the names of this host. ``secrets`` are regular expressions for
    more keys whose values are masked, ``addable`` the classes (``module:Class``) that may be added over the API. The
    scheduler stays yours to close. Raises ``ConfigError``.
    """
    settings = settings_from(
        users=users,
        local=local,
        header=header,
        header_role=header_role,
        proxies=proxies,
        hosts=hosts,
        secrets=secrets,
        addable=addable,
    )
    return application(scheduler, settings)


def application(
    scheduler: Scheduler | AsyncScheduler, settings: Settings, open_anew: Callable[[], Scheduler] | None = None
) -> Starlette:
    """Return the application for checked settings.

    ``open_anew`` closes the scheduler and returns the next one to use, if the file of the store was replaced.
    """
    blocking = scheduler.blocking if isinstance(scheduler, AsyncScheduler) else scheduler
    dashboard = Dashboard(blocking, settings, open_anew)
    check_users(dashboard.viewers)
    pages = PageRoutes(dashboard)

    def answer(request: Request, problem: Problem) -> Response:
        is_of_api = path_of(request).startswith("/api/")
        return problem_response(problem) if is_of_api else pages.problem_page(request, problem)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return answer(request, problem_of_routing(error, request.method, root_of(request), path_of(request)))

    async def broken(request: Request, _: Exception) -> Response:
        """Answer an unexpected error without its text; the server logs it with its traceback."""
        problem = Problem("internal-error", "internal error: see the log of the dashboard")
        response = answer(request, problem)
        response.headers.update(HEADERS)  # it bypasses the checks, which add these headers to others
        return response

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        dashboard.end_threads()

    made = Starlette(
        routes=[*ApiRoutes(dashboard).routes(), *pages.routes()],
        middleware=[Middleware(RequestChecks, settings=settings)],
        exception_handlers={HTTPException: refused, Exception: broken},
        lifespan=lifespan,
    )
    made.state.dashboard = dashboard
    return made
