"""The dashboard as a view of a project, under WSGI and ASGI: with Django's users, sessions and CSRF protection.

The view is synchronous. It calls the ASGI application of the dashboard once for each request, and sends whole answers:
there are no streams, and open pages poll.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from asgiref.sync import async_to_sync
from django.conf import global_settings, settings
from django.contrib.auth import logout
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.middleware.csrf import get_token
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch, Resolver404, resolve, reverse
from django.views.decorators.csrf import csrf_exempt, csrf_protect

from taskqueue.django.models import OPERATE, VIEW
from taskqueue.django.project import scheduler

try:
    from taskqueue.web.application import application
    from taskqueue.web.problems import Problem
    from taskqueue.web.settings import Settings
    from taskqueue.web.users import Role, User
    from taskqueue.web.viewers import CSRF_FIELD, CSRF_HEADER, SITE, Viewer
except ModuleNotFoundError as missing:
    raise ImproperlyConfigured(
        f"the dashboard needs the package {(missing.name or '').partition('.')[0]}: pip install 'taskqueue-jobs[web]'"
    ) from missing


@csrf_exempt  # it is protected below, where the token of the dashboard's forms is known
def dashboard(request: HttpRequest, path: str = "") -> HttpResponse:
    """Answer a request for the page, file or operation of the dashboard at this path."""
    body = request.body  # first: once a form is read from the stream, there is no body left
    token = request.headers.get(CSRF_HEADER) or request.POST.get(CSRF_FIELD)
    if token:
        request.META[settings.CSRF_HEADER_NAME] = token
    return _protected(request, path, body)


dashboard.login_required = False  # for Django's LoginRequiredMiddleware: files need no login, programs no redirect


@csrf_protect
def _protected(request: HttpRequest, path: str, body: bytes) -> HttpResponse:
    root = request.path[: len(request.path) - len(path)]
    if path == "logout" and request.method == "POST":
        logout(request)
        return HttpResponseRedirect(resolve_url(settings.LOGOUT_REDIRECT_URL or root))
    viewer = None if path.startswith("static/") else _viewer(request)
    is_page = not path.startswith("api/") and "x-part" not in request.headers
    if isinstance(viewer, Problem) and viewer.name == "unknown-user" and is_page:
        return redirect_to_login(request.get_full_path() if request.method == "GET" else root, _login_address())
    return _answer({**_scope(request, root, len(body)), SITE: viewer}, body)


def _viewer(request: HttpRequest) -> Viewer | Problem:
    """Return the viewer who is logged in, or the reason why there is none."""
    if not hasattr(request, "user"):
        raise ImproperlyConfigured(
            "the dashboard needs the users of the project: add django.contrib.auth.middleware.AuthenticationMiddleware"
        )
    if not request.user.is_authenticated:
        return Problem("unknown-user", "nobody is logged in: log in to the site, and send its cookies")
    user = dashboard_user(request.user)
    if user is None:
        name = request.user.get_username()
        return Problem(
            "forbidden", f"user {name} is not staff and has no permission {VIEW}: an administrator can grant it"
        )
    address = request.META.get("REMOTE_ADDR", "")
    return Viewer(user=user, address=address, proof="site", csrf=get_token(request))


def dashboard_user(user: Any) -> User | None:
    """Return the project's user as a user of the dashboard; None if the user may not see the dashboard.

    Staff see it without a permission. Superusers have all permissions, and may see secret values.
    """
    if user.has_perm(OPERATE):
        role = Role.OPERATOR
    elif user.is_active and (getattr(user, "is_staff", False) or user.has_perm(VIEW)):
        role = Role.READER
    else:
        return None
    return User(name=user.get_username(), role=role, unmask=getattr(user, "is_superuser", False))


def _login_address() -> str:
    """Return where users log in: at ``LOGIN_URL``, or in the admin if the site has nothing at Django's default."""
    address: str = resolve_url(settings.LOGIN_URL)
    if settings.LOGIN_URL == global_settings.LOGIN_URL:
        try:
            resolve(address)
        except Resolver404:
            try:
                return str(reverse("admin:login"))
            except NoReverseMatch:
                pass
    return address


def _scope(request: HttpRequest, root: str, length: int) -> dict[str, Any]:
    """Return the request as an ASGI scope; the host, the scheme and the length are what Django found them to be."""
    headers = {**request.headers, "Host": request.get_host(), "Content-Length": str(length)}
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "root_path": root.rstrip("/"),
        "query_string": request.META.get("QUERY_STRING", "").encode("latin-1", "replace"),
        "headers": [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers.items()],
        "client": (request.META.get("REMOTE_ADDR", ""), 0),
        "server": None,
    }


def _answer(scope: dict[str, Any], body: bytes) -> HttpResponse:
    """Return the dashboard's response."""
    response = HttpResponse()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            response.status_code = message["status"]
            for name, value in message["headers"]:
                response[name.decode("latin-1")] = value.decode("latin-1")
        else:
            response.write(message.get("body", b""))

    async_to_sync(_application())(scope, receive, send)
    return response


@cache
def _application() -> Any:
    """Return the dashboard of this process."""
    return application(scheduler(), Settings(site=True))
