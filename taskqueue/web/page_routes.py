"""The routes of the pages: each request is checked, its page shown in a thread, and every error becomes a page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from taskqueue.errors import TaskqueueError
from taskqueue.web.dashboard import Dashboard, Form, form_in, path_of, root_of, small_form_of, wants_content
from taskqueue.web.event_hub import change_stream
from taskqueue.web.login import safe_next, with_session, without_session
from taskqueue.web.overviews import SharedAnswers
from taskqueue.web.pages import PAGES
from taskqueue.web.pages.changes import done_of
from taskqueue.web.problems import Problem, problem_of
from taskqueue.web.rendering import rendered, static_response
from taskqueue.web.view import Answer, Page, View
from taskqueue.web.viewers import LONGEST_NAME, Viewer

POLL_EVERY = 5
"""Seconds after which an open page reads its content again if there are no streams."""

Endpoint = Callable[[Request], Awaitable[Response]]


class PageRoutes:
    """The pages of one dashboard."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self._shared = SharedAnswers(dashboard.beats)

    def routes(self) -> list[Route]:
        """Return all routes, including login and static files; a Django site has its own login, and no streams."""
        shown = [Route(page.path, self._endpoint(page), methods=[page.method]) for page in PAGES]
        shown.append(Route("/static/{digest}/{name}", _static))
        if self._dashboard.settings.site:
            return shown
        return [
            *shown,
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/live", self._live),
        ]

    def problem_page(self, request: Request, problem: Problem, viewer: Viewer | None = None) -> Response:
        """Return an error as a page."""
        title = HTTPStatus(problem.status).phrase
        is_passing = problem.status == HTTPStatus.SERVICE_UNAVAILABLE and request.method == "GET"
        values = {"problem": {"title": title, "detail": problem.detail, "is_passing": is_passing}}
        html = self._html(request, viewer, "problem.html", values)
        return HTMLResponse(html, problem.status, problem.headers)

    def _endpoint(self, page: Page) -> Endpoint:
        async def show(request: Request) -> Response:
            viewer: Viewer | None = None
            try:
                viewer = self._dashboard.viewers.viewer(request)
                if viewer is None:
                    return self._to_login(request)
                form = Form()
                if page.method != "GET":
                    form = await self._dashboard.in_thread(viewer, form_in, request, await request.body())
                    self._dashboard.viewers.check_csrf(request, viewer, form)
                if page.asks_node:
                    job = str(request.path_params["id"])
                    return await self._dashboard.ask_node(viewer, job, self._shown, page, request, viewer, form)
                return await self._dashboard.in_thread(viewer, self._shown, page, request, viewer, form)
            except (Problem, TaskqueueError) as error:
                return self.problem_page(request, problem_of(error), viewer)

        return show

    def _shown(self, page: Page, request: Request, viewer: Viewer, form: Form) -> Response:
        dashboard, view = self._dashboard, self._view(request, viewer, form)
        show = partial(page.show, view)
        if page.method == "GET" and view.is_fragment:  # all viewers of the page request it when it has changed
            with dashboard.beats.answering():
                shared = self._shared.answer((str(request.url), replace(viewer.user, name="")), show)
                return self._response(page, request, viewer, view, shared)
        answer = show()
        if page.method != "GET":
            dashboard.overviews.forget()
        return self._response(page, request, viewer, view, answer)

    def _view(self, request: Request, viewer: Viewer, form: Form) -> View:
        dashboard = self._dashboard
        return View(
            scheduler=dashboard.scheduler,
            user=viewer.user,
            path={name: str(value) for name, value in request.path_params.items()},
            query=request.query_params,
            form=form,
            actions=dashboard.actions(viewer),
            masking=dashboard.masking,
            root=root_of(request),
            is_fragment=wants_content(request),
            overviews=dashboard.overviews,
        )

    def _response(self, page: Page, request: Request, viewer: Viewer, view: View, answer: Answer) -> Response:
        if isinstance(answer, Response):
            return answer
        needs = len(self._dashboard.overviews.needs())
        values = {"is_fragment": view.is_fragment, "done": done_of(view.query), **answer}
        html = self._html(request, viewer, page.template, {**values, "needs_you": needs})
        return HTMLResponse(html, headers={"X-Needs-You": str(needs)})

    def _html(self, request: Request, viewer: Viewer | None, template: str, values: dict[str, Any]) -> str:
        common = {
            "user": viewer.user if viewer else None,
            "proof": viewer.proof if viewer else "",
            "csrf": viewer.csrf if viewer else "",
            "here": path_of(request),
            "poll": POLL_EVERY if self._dashboard.settings.site else 0,
            "needs_you": 0,
            "navigation": [page for page in PAGES if page.title],
        }
        return rendered(template, root_of(request), {**common, **values})

    def _to_login(self, request: Request) -> Response:
        if wants_content(request):
            return Response(status_code=401)  # the script reloads the page
        if self._dashboard.viewers.users is None:
            problem = Problem("unknown-user", "nobody is logged in: use the proxy that knows the users")
            return self.problem_page(request, problem)
        path = path_of(request) if request.method == "GET" else "/"
        query = f"?{request.url.query}" if request.method == "GET" and request.url.query else ""
        headers = {"location": f"{root_of(request)}/login?next={quote(path + query, safe='/')}"}
        return Response(status_code=303, headers=headers)

    async def _login(self, request: Request) -> Response:
        next_path, name, problem = request.query_params.get("next", "/"), "", None
        if request.method == "POST":
            try:
                form = await small_form_of(request)
                next_path = safe_next(form.get("next", "/"))
                name, password = form.get("name", ""), form.get("password", "")
                id = await self._dashboard.log_in(request, name, password)
                response = Response(
                    status_code=303, headers={"location": f"{root_of(request)}{quote(next_path, safe='/?=&%')}"}
                )
                return with_session(response, request, id)
            except (Problem, TaskqueueError) as error:
                problem = problem_of(error)
        values = {"next": safe_next(next_path), "name": name[:LONGEST_NAME], "problem": problem and problem.detail}
        try:
            html = await self._dashboard.for_stranger(request, self._html, request, None, "login.html", values)
        except Problem as refused:
            return PlainTextResponse(refused.detail, refused.status, refused.headers)
        return HTMLResponse(html, problem.status if problem else 200, problem.headers if problem else None)

    async def _live(self, request: Request) -> Response:
        """Say when the page at the path ``of`` has changed."""
        try:
            viewer = self._dashboard.viewers.viewer(request)
            self._dashboard.hub.check_room(viewer)
        except (Problem, TaskqueueError) as error:
            return self.problem_page(request, problem_of(error))
        if viewer is None:
            return Response(status_code=401)
        page = request.query_params.get("of", "")
        runs = bool(request.query_params.get("runs"))
        still = partial(self._dashboard.viewers.still_knows, request, viewer)
        return change_stream(self._dashboard.hub, self._dashboard.beats, page, still, runs, viewer)

    async def _logout(self, request: Request) -> Response:
        try:
            viewer = self._dashboard.viewers.viewer(request)
            if viewer is not None:
                self._dashboard.viewers.check_csrf(request, viewer, await small_form_of(request))
                self._dashboard.login.end(request)
        except (Problem, TaskqueueError) as error:
            return self.problem_page(request, problem_of(error))
        return without_session(Response(status_code=303, headers={"location": f"{root_of(request)}/login"}), request)


async def _static(request: Request) -> Response:
    return static_response(request.path_params["digest"], request.path_params["name"])
