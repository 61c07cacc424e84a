"""Checks every request before anything reads it (proxy, host, size), and gives every answer its headers."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from taskqueue.errors import ConfigError
from taskqueue.web.problems import Problem, problem_response
from taskqueue.web.settings import Settings, path_from

log = logging.getLogger(__name__)

LARGEST_BODY = 1024 * 1024
"""Bytes of a request that are read at most."""

LARGEST_HEAD = 16 * 1024
"""Bytes of the address and the headers of a request: reading many cookies would delay everybody."""

LONGEST_LENGTH = 20
"""Digits of a content-length."""

PEER = "taskqueue.peer"
"""The key in a scope for the address that a connection comes from, which may be a proxy's."""

SET_BY_PROXIES = frozenset({"forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"})
"""The headers by which a proxy reveals itself, in addition to ``x-forwarded-…``."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class BodyTooLarge(Exception):
    """The body of a request is larger than is read."""


class RequestChecks:
    """The outermost part of the application."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        problem = _head_refusal(scope) or self._refusal(headers)
        if problem is not None:
            await problem_response(problem)(scope, receive, _with_headers(send))
            return
        try:
            scope = _below_path(_behind_proxies(scope, headers, self._settings), self._settings)
        except Problem as wrong_path:
            await problem_response(wrong_path)(scope, receive, _with_headers(send))
            return
        try:
            await self._app(scope, _bounded(receive), _with_headers(send))
        except BodyTooLarge:
            await problem_response(_too_large())(scope, receive, _with_headers(send))
        except ClientDisconnect:
            log.debug("a client disconnected before its request was complete: %s", scope["path"])

    def _refusal(self, headers: Headers) -> Problem | None:
        if self._settings.local:
            header = next((name for name in headers if name.startswith("x-forwarded-") or name in SET_BY_PROXIES), None)
            if header is not None:
                return _proxied(header)
        named = headers.getlist("host")
        host = _name_of(named[0]) if len(named) == 1 else ""
        if not self._settings.site and host not in self._settings.hosts:
            return Problem(
                "unknown-host", f"host {host[:100]!r} is not served here: name it with --host-name, or use another"
            )
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or len(length) > LONGEST_LENGTH:
            return Problem("malformed-request", "the content-length is not a number")
        return _too_large() if int(length) > LARGEST_BODY else None


def _head_refusal(scope: Scope) -> Problem | None:
    length = len(scope["path"]) + len(scope["query_string"])
    length += sum(len(name) + len(value) for name, value in scope["headers"])
    if length <= LARGEST_HEAD:
        return None
    return Problem(
        "head-too-large",
        f"the address and the headers are {length:,} bytes, more than {LARGEST_HEAD:,}: remove the cookies of this "
        "host, or shorten the filter",
    )


def _proxied(header: str) -> Problem:
    return Problem(
        "proxied",
        f"the request comes through a proxy (header {header[:100]}), but this dashboard has no users, so everybody "
        "whom the proxy lets in would be an operator: serve it with --users or --header, and --proxy ADDRESS "
        "(users=, header=, proxies=)",
    )


def _too_large() -> Problem:
    return Problem("body-too-large", f"the body is larger than {LARGEST_BODY:,} bytes: send less at once")


def _name_of(host: str) -> str:
    """Return the name in a ``Host`` header, without the port."""
    if host.startswith("["):
        name, closed, rest = host.partition("]")
        host = name + closed if not rest or rest.startswith(":") else ""
    else:
        host = host.partition(":")[0]
    return host.lower().rstrip(".")


def _behind_proxies(scope: Scope, headers: Headers, settings: Settings) -> Scope:
    """Return the scope with the client, the scheme and the path that trusted proxies name; others are not believed.

    Raises ``Problem``.
    """
    peer = scope["client"][0] if scope.get("client") else ""
    changed: MutableMapping[str, Any] = {**scope, PEER: peer}
    if settings.is_proxy(peer):
        changed["client"] = (client_of(scope, settings), 0)
        if headers.get("x-forwarded-proto", "").strip().lower() == "https":
            changed["scheme"] = "https"
        prefix = _prefix(headers.getlist("x-forwarded-prefix"))
        changed["root_path"] = prefix + scope.get("root_path", "")
        changed["path"] = prefix + scope["path"]
    return changed


def _prefix(forwarded: list[str]) -> str:
    """Return the path that a proxy has removed from the address. Raises ``Problem``."""
    if len(forwarded) > 1:
        raise Problem(
            "malformed-request",
            "the header X-Forwarded-Prefix is given more than once: have the proxy replace the one that a client sends",
        )
    try:
        return path_from("".join(forwarded).strip())
    except ConfigError as error:
        raise Problem("malformed-request", f"the header X-Forwarded-Prefix is wrong: {error}") from None


def _below_path(scope: Scope, settings: Settings) -> Scope:
    """Return the scope of a request below the path of the dashboard. Raises ``Problem`` for others."""
    if not settings.path:
        return scope
    root = scope.get("root_path", "") + settings.path
    if scope["path"] == root or scope["path"].startswith(f"{root}/"):
        return {**scope, "root_path": root}
    raise Problem(
        "not-found",
        f"there is nothing at {scope['path'][:200]!r}: the dashboard is below {root}/. A proxy in front of it must not "
        "remove the path; one that does sends X-Forwarded-Prefix instead of --path",
    )


def client_of(scope: Scope, settings: Settings) -> str:
    """Return the address nearest to us that is not one of our proxies: a client may have made up those before it."""
    client: str = scope["client"][0] if scope.get("client") else ""
    forwarded = Headers(scope=scope).getlist("x-forwarded-for") if settings.is_proxy(client) else ()
    for address in reversed([part.strip() for line in forwarded for part in line.split(",") if part.strip()]):
        client = _without_port(address[:100])
        if not settings.is_proxy(client):
            break
    return client


def _without_port(address: str) -> str:
    """Return the address without the port of the connection, which some proxies add: it is another one each time."""
    host, _, port = address.rpartition(":")
    has_port = port.isdigit() and host and (":" not in host or host.endswith("]"))
    return (host if has_port else address).strip("[]")


def _bounded(receive: Receive) -> Receive:
    read = 0

    async def bounded() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > LARGEST_BODY:
            raise BodyTooLarge
        return message

    return bounded


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return sending
