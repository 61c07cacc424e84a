"""Finds out who sends a request: by a token, a session, a trusted proxy, the site around it, or this host.

It keeps the open sessions, and the tokens that distinguish our own pages from pages of other sites.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from starlette.requests import Request

from taskqueue.errors import ConfigError
from taskqueue.web.problems import Problem
from taskqueue.web.request_checks import PEER
from taskqueue.web.settings import Settings
from taskqueue.web.users import Role, User, UsersFile, digest

COOKIE = "taskqueue_session"
CSRF_HEADER = "x-csrf-token"
CSRF_FIELD = "csrf"
LOCAL = User(name="local", role=Role.OPERATOR, unmask=True)
"""Everybody on this host, if the dashboard serves only this host."""

SITE = "taskqueue.site"
"""The key in a scope for the viewer whom the site has found, or the ``Problem`` with it; no client can set it."""

LONGEST_NAME = 100


IDLE_FOR = 2 * 3600.0
"""Seconds without a request after which a session ends."""

LASTS = 12 * 3600.0
"""Seconds after the login at which it ends in any case."""

MOST_SESSIONS = 10_000
MOST_OF_USER = 100
"""Sessions that are kept, in all and of one user; the oldest ones go first."""


@dataclass(frozen=True, kw_only=True)
class Viewer:
    """The user of one request."""

    user: User
    address: str
    """Where the request comes from."""
    proof: str
    """How the user is known: ``token``, ``session``, ``header``, ``site`` or ``local``."""
    csrf: str = ""
    """The token that a change needs; empty if none is needed: no browser sends a bearer token by itself."""


class Viewers:
    """Knows the viewers of one dashboard."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.users = None if settings.users is None else UsersFile(settings.users)
        self.sessions = Sessions()
        self.csrf = CsrfTokens()

    def viewer(self, request: Request) -> Viewer | None:
        """Return who sends the request, None if it is nobody we know.

        Raises ``ConfigError``, and ``Problem`` for a request that the site around the dashboard refuses.
        """
        if self.settings.site:
            return _of_site(request)
        token = token_of(request)
        if token is not None:
            return self._by_token(request, token)
        return self._by_session(request) or self._by_header(request) or self._local(request)

    def still_knows(self, request: Request, viewer: Viewer) -> bool:
        """Return whether the sender of a long request may still see its answer."""
        try:
            now = self.viewer(request)
        except ConfigError:
            return False
        return now is not None and now.user == viewer.user

    def check_csrf(self, request: Request, viewer: Viewer, form: Mapping[str, str] | None) -> None:
        """Refuse a change that a page of another site may have sent. Raises ``Problem``."""
        if not viewer.csrf or viewer.proof == "site":  # the site checks its own token before
            return
        given = request.headers.get(CSRF_HEADER) or (form or {}).get(CSRF_FIELD) or ""
        check_origin(request)
        if not self.csrf.is_right(_csrf_of(request, viewer), given):
            raise Problem("csrf", "CSRF token missing or expired: reload the page and try again")

    def _by_token(self, request: Request, token: str) -> Viewer | None:
        user = None if self.users is None else self.users.by_token(token)
        return None if user is None else Viewer(user=user, address=address_of(request), proof="token")

    def _by_session(self, request: Request) -> Viewer | None:
        id = request.cookies.get(COOKIE)
        session = None if id is None else self.sessions.find(id)
        if id is None or session is None or self.users is None:
            return None
        account = self.users.accounts().get(session.name)
        if account is None or account.password != session.password:
            self.sessions.end(id)  # the user is gone, or has another password
            return None
        return self._viewer(request, account.user, "session")

    def _by_header(self, request: Request) -> Viewer | None:
        header = self.settings.header
        if header is None or not self.settings.is_proxy(request.scope.get(PEER, "")):
            return None
        named = request.headers.getlist(header)
        if len(named) != 1 or not named[0] or len(named[0]) > LONGEST_NAME or not named[0].isprintable():
            return None
        account = None if self.users is None else self.users.accounts().get(named[0])
        user = User(name=named[0], role=self.settings.header_role) if account is None else account.user
        return self._viewer(request, user, "header")

    def _local(self, request: Request) -> Viewer | None:
        is_local = self.settings.local and is_loopback(request.scope.get(PEER, ""))
        return self._viewer(request, LOCAL, "local") if is_local else None

    def _viewer(self, request: Request, user: User, proof: str) -> Viewer:
        viewer = Viewer(user=user, address=address_of(request), proof=proof)
        token = self.csrf.token(_csrf_of(request, viewer))
        return replace(viewer, csrf=token)


def _of_site(request: Request) -> Viewer:
    viewer: Viewer | Problem = request.scope[SITE]
    if isinstance(viewer, Problem):
        raise viewer
    return viewer


def token_of(request: Request) -> str | None:
    """Return the bearer token that is sent; a proxy passes on what else it has asked for, such as a password."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def address_of(request: Request) -> str:
    """Return the address of the client."""
    return request.client.host if request.client else ""


def is_loopback(address: str) -> bool:
    """Return whether the address is one of this host alone."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def check_origin(request: Request) -> None:
    """Refuse a change that a browser says comes from another site; programs say nothing. Raises ``Problem``."""
    host = request.headers.get("host", "")
    origin = request.headers.get("origin")
    if origin is None:
        is_ours = request.headers.get("sec-fetch-site", "none") in ("same-origin", "none")
    else:
        is_ours = origin.lower() == f"{request.url.scheme}://{host}".lower()
    if is_ours:
        return
    if origin is not None and origin.lower() == f"https://{host}".lower():
        raise Problem("csrf", "the browser uses TLS, but no trusted proxy says so: name the proxy with --proxy")
    raise Problem("csrf", "the request comes from a page of another site: open this dashboard and try again")


def check_users(viewers: Viewers) -> None:
    """Read the file of users once. Raises ``ConfigError`` if it cannot be read or names nobody."""
    if viewers.users is not None and not viewers.users.accounts():
        raise ConfigError(f"{viewers.users.path} has no users: add one with `taskqueue web user add NAME`")


def _csrf_of(request: Request, viewer: Viewer) -> str:
    """Return the owner of the token: the session, or the user if there is none."""
    if viewer.proof == "session":
        return f"session:{request.cookies.get(COOKIE, '')}"
    return f"{viewer.proof}:{viewer.user.name}"


@dataclass
class Session:
    """One login."""

    name: str
    password: str | None
    """The hash of the password that began it."""
    begun_at: float
    seen_at: float


class Sessions:
    """The open sessions; the ids are kept as hashes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, Session] = {}

    def begin(self, name: str, password: str | None, replaced: str | None) -> str:
        """Begin a session with an id of its own, end the one that the browser had, and return the id.

        ``password`` is the hash of the password: once the user has another one, the session ends.
        """
        id, now = secrets.token_urlsafe(32), self._clock()
        with self._lock:
            if replaced is not None:
                self._open.pop(digest(replaced), None)
            own = [key for key, session in self._open.items() if session.name == name]
            for key in own[: max(0, len(own) - MOST_OF_USER + 1)]:
                del self._open[key]
            while len(self._open) >= MOST_SESSIONS:
                del self._open[next(iter(self._open))]
            self._open[digest(id)] = Session(name, password, now, now)
        return id

    def find(self, id: str) -> Session | None:
        """Return the session, None if it has ended."""
        now, key = self._clock(), digest(id)
        with self._lock:
            session = self._open.get(key)
            if session is None:
                return None
            if now - session.seen_at > IDLE_FOR or now - session.begun_at > LASTS:
                del self._open[key]
                return None
            session.seen_at = now
            return session

    def end(self, id: str) -> None:
        """End the session."""
        with self._lock:
            self._open.pop(digest(id), None)


class CsrfTokens:
    """Tokens that a page of ours carries and a page of another site cannot know."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def token(self, of: str) -> str:
        """Return the token of a session, or of a user without a session."""
        return hmac.new(self._key, of.encode(errors="replace"), hashlib.sha256).hexdigest()

    def is_right(self, of: str, given: str) -> bool:
        """Return whether the token is the right one."""
        return hmac.compare_digest(self.token(of).encode(), given.encode(errors="replace"))
