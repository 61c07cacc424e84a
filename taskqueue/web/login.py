"""Logs users in with name and password, at a limited rate, and out again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response

from taskqueue.web.problems import Problem
from taskqueue.web.user_shares import network_of
from taskqueue.web.viewers import COOKIE, Viewers, address_of, check_origin

log = logging.getLogger(__name__)

MOST_FAILURES = 10
"""After this many failed logins within ``PERIOD``, a name or an address has to wait.

Failures of a name elsewhere do not count at the addresses from which this user has logged in.
"""

PERIOD = 300.0
REMEMBERED = 10_000
"""Names and addresses whose failures are remembered; the oldest are forgotten first."""


class FailedLogins:
    """Counts failed logins by name and by address."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures: dict[str, list[float]] = {}

    def begin(self, keys: Sequence[str]) -> None:
        """Count an attempt for each key as failed until ``forget``; raise ``Problem`` if there were too many."""
        now = self._clock()
        with self._lock:
            for key in keys:
                recent = [at for at in self._failures.get(key, ()) if now - at < PERIOD]
                if len(recent) >= MOST_FAILURES:
                    wait = int(PERIOD - (now - recent[0])) + 1
                    text = f"too many failed logins: try again in {wait} s"
                    raise Problem("too-many-logins", text, {"retry-after": str(wait)})
            for key in keys:
                recent = [at for at in self._failures.pop(key, ()) if now - at < PERIOD]
                self._failures[key] = [*recent, now]
            while len(self._failures) > REMEMBERED:
                del self._failures[next(iter(self._failures))]

    def forget(self, keys: Sequence[str]) -> None:
        """Forget the failures of a user after a login."""
        with self._lock:
            for key in keys:
                self._failures.pop(key, None)


class Login:
    """Begins and ends sessions."""

    def __init__(self, viewers: Viewers) -> None:
        self._viewers = viewers
        self._failed = FailedLogins()
        self._usual: set[str] = set()
        """Address and name of each login: nobody locks a user out there by guessing elsewhere."""

    def begin(self, request: Request, name: str, password: str) -> str:
        """Return the id of a new session. Raises ``Problem`` for a wrong password, and after too many; takes long."""
        check_origin(request)
        network = network_of(address_of(request))
        usual = f"address {network} name {name[:100]}"
        keys = [f"address {network}", usual if usual in self._usual else f"name {name[:100]}"]
        self._failed.begin(keys)
        users = self._viewers.users
        account = None if users is None else users.by_password(name, password)
        if account is None:
            log.warning("a login as %r from %s failed", name[:100], address_of(request))
            raise Problem("wrong-login", "name or password is wrong")
        self._failed.forget(keys)
        if len(self._usual) >= REMEMBERED:
            self._usual.clear()
        self._usual.add(usual)
        log.info("%s logged in from %s", account.user.name, address_of(request))
        return self._viewers.sessions.begin(account.user.name, account.password, replaced=request.cookies.get(COOKIE))

    def end(self, request: Request) -> None:
        """End the session of the request."""
        id = request.cookies.get(COOKIE)
        if id is not None:
            self._viewers.sessions.end(id)


def with_session(response: Response, request: Request, id: str) -> Response:
    """Return the response with the cookie of the session; no script can read it, and no other site sends it."""
    response.set_cookie(
        COOKIE, id, path=_path(request), secure=request.url.scheme == "https", httponly=True, samesite="lax"
    )
    return response


def without_session(response: Response, request: Request) -> Response:
    """Return the response that makes the browser forget the cookie."""
    response.delete_cookie(
        COOKIE, path=_path(request), secure=request.url.scheme == "https", httponly=True, samesite="lax"
    )
    return response


def safe_next(path: str) -> str:
    """Return the path to continue with after the login; a path of another site is ignored."""
    is_ours = path.startswith("/") and not path.startswith("//") and "\\" not in path and path.isprintable()
    return path if is_ours else "/"


def _path(request: Request) -> str:
    return request.scope.get("root_path", "") or "/"
