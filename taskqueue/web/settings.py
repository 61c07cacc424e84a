"""The settings of the dashboard, checked: who may come in, under which host names, and what they may see and add."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from taskqueue.errors import ConfigError
from taskqueue.web.users import Role

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
"""The host names that are answered if ``hosts`` is empty: the names of this host."""

LONGEST_PATH = 200

_HEADER = r"[A-Za-z][A-Za-z0-9-]{0,63}"
_PATH = r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]+)+"
_HOST = r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9])?|\[[0-9a-f:]+\]"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one dashboard; see ``taskqueue.web.application.app``."""

    users: Path | None = None
    local: bool = False
    header: str | None = None
    header_role: Role = Role.READER
    proxies: tuple[Network, ...] = ()
    hosts: tuple[str, ...] = LOOPBACK_HOSTS
    secrets: tuple[str, ...] = ()
    addable: frozenset[str] = frozenset()
    site: bool = False
    """Whether it is a view of a site, which finds the user of each request, checks the host and sends no streams."""
    path: str = ""
    """The path that every address of the dashboard begins with, such as ``/jobs``; empty for the top."""

    def is_proxy(self, address: str) -> bool:
        """Return whether the address of a peer belongs to a trusted proxy."""
        try:
            peer = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(peer in network for network in self.proxies)


def settings_from(
    *,
    users: str | Path | None = None,
    local: bool = False,
    header: str | None = None,
    header_role: str = "reader",
    proxies: Sequence[str] = (),
    hosts: Sequence[str] = (),
    secrets: Sequence[str] = (),
    addable: Sequence[str] = (),
) -> Settings:
    """Return the settings; raise ``ConfigError`` for invalid settings, or if they would admit anybody."""
    if users is None and header is None and not local:
        raise ConfigError(
            "refusing to start without authentication: pass a file of users, a header of a trusted proxy, "
            "or local for everybody on this host"
        )
    if local and (users is not None or header is not None):
        raise ConfigError("local admits everybody on this host without a password: pass it without users and header")
    if local and proxies:
        raise ConfigError(
            f"local admits everybody on this host without a password, and proxies such as {proxies[0]} admit others: "
            "pass users or a header (--users, --header) with them"
        )
    if header is not None and not proxies:
        raise ConfigError(
            f"header {header} could be sent by anybody: name the proxies that set it (--proxy ADDRESS, proxies=[…])"
        )
    if header is not None and not re.fullmatch(_HEADER, header):
        raise ConfigError(f"header {header!r} is not the name of an HTTP header: pass one such as X-Remote-User")
    return Settings(
        users=None if users is None else Path(users),
        local=local,
        header=None if header is None else header.lower(),
        header_role=_role(header_role),
        proxies=tuple(map(_network, proxies)),
        hosts=tuple(map(_host, hosts)) or LOOPBACK_HOSTS,
        secrets=tuple(secrets),
        addable=frozenset(addable),
    )


def path_from(text: str) -> str:
    """Return the path that addresses begin with, without a slash at its end. Raises ``ConfigError``."""
    path = text.removesuffix("/")
    if path and (len(path) > LONGEST_PATH or not re.fullmatch(_PATH, path)):
        raise ConfigError(
            f"path {text[:LONGEST_PATH]!r} is not a URL path: pass one such as /jobs, of letters, digits "
            f"and ._~- after each slash, {LONGEST_PATH} characters at most"
        )
    return path


def _role(name: str) -> Role:
    try:
        return Role(name)
    except ValueError:
        raise ConfigError(f"there is no role {name!r}: use {' or '.join(role.value for role in Role)}") from None


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ConfigError(f"proxy {text!r} is not an address: {error}") from None


def _host(text: str) -> str:
    host = text.strip().lower()
    if not re.fullmatch(_HOST, host):
        raise ConfigError(f"host {text!r} is not a host name: pass one such as jobs.example.org, without port")
    return host
