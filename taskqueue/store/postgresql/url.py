"""Parses the address of a PostgreSQL store."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from urllib.parse import SplitResult, unquote, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from taskqueue.errors import ConfigError
from taskqueue.model.wording import or_nearest
from taskqueue.store.redaction import ESCAPE, check_plain, concealed, reveals, split

SCHEMES = ("postgresql", "postgres")
SCHEMA = "taskqueue"
"""The schema of a URL that names none."""

SCHEMA_OPTION = "taskqueue.schema"
DIRECT_OPTION = "taskqueue.direct"
LOCK_OPTION = "taskqueue.lock"
_OWN = "taskqueue."
_SCHEMA_ALLOWED = re.compile(r"[a-z_][a-z0-9_]{0,40}")
_DEFAULTS = {
    "application_name": "taskqueue",
    "connect_timeout": "5",
    "target_session_attrs": "read-write",  # of several hosts, the one that takes writes
    "keepalives_idle": "10",
    "tcp_user_timeout": "10000",
}
"""Values of driver options, unless the URL sets others."""


class LockUse(Enum):
    """How plain claims and outcomes take the store's lock."""

    ADAPTIVE = "adaptive"
    """Shared while other sessions compete for it, alone otherwise: then events have their numbers at once."""
    SHARED = "shared"
    EXCLUSIVE = "exclusive"
    """As all other transactions, in the general way."""


_OF_THE_SERVER = {"host", "hostaddr", "port"}


@dataclass(frozen=True, kw_only=True)
class PostgreSQLUrl:
    """One store: several may live in one database in different schemas."""

    client_url: str
    """The URL for the driver, with its secrets and without the store's own options."""
    schema: str = SCHEMA
    lock: LockUse = LockUse.ADAPTIVE
    direct: str = ""
    """The URL of the server itself if ``client_url`` names a pooler; what it leaves out is as in ``client_url``."""

    @property
    def options(self) -> dict[str, str]:
        """The options of a connection."""
        return {**_DEFAULTS, **_given(self.client_url)}

    @property
    def direct_options(self) -> dict[str, str]:
        """The options of a connection that needs its own session."""
        if not self.direct:
            return self.options
        options = {name: value for name, value in self.options.items() if name not in _OF_THE_SERVER}
        return {**options, **_given(self.direct)}

    @property
    def direct_shown(self) -> str:
        """The URL that ``direct_options`` come from, for messages and logs, without secrets."""
        return f"{self.shown} ({DIRECT_OPTION}={concealed(self.direct)})" if self.direct else self.shown

    @property
    def shown(self) -> str:
        """The URL for messages and logs, without secrets."""
        parts = urlsplit(concealed(self.client_url).replace(":***@", "@"))
        option = "" if self.schema == SCHEMA else f"{SCHEMA_OPTION}={self.schema}"
        return _joined(parts, [text for text in (parts.query, option) if text])


def parse(url: str) -> PostgreSQLUrl:
    """Return the address that ``url`` names.

    Every option of the driver is passed on; those of the store begin with ``taskqueue.``. Raises ``ConfigError`` for
    another scheme, an option that does not exist and what the driver cannot read.
    """
    parts = split(url)
    if parts.scheme not in SCHEMES:
        raise ConfigError(f"{parts.scheme!r} is not a PostgreSQL scheme: use postgresql://host/database")
    check_plain(url, parts)
    kept, schema, direct, lock = [], SCHEMA, "", LockUse.ADAPTIVE
    for option in parts.query.split("&") if parts.query else []:
        name, _, value = option.partition("=")
        if not name.startswith(_OWN):
            kept.append(option)
        elif name == SCHEMA_OPTION:
            schema = checked_schema(unquote(value))
        elif name == DIRECT_OPTION:
            direct = _checked_direct(unquote(value))
        elif name == LOCK_OPTION:
            lock = _checked_lock(unquote(value))
        else:
            raise ConfigError(
                f"the store URL has the option {name!r}, which does not exist: "
                f"use {SCHEMA_OPTION}=NAME, {DIRECT_OPTION}=URL or {LOCK_OPTION}=USE"
            )
    address = PostgreSQLUrl(client_url=_joined(parts, kept), schema=schema, direct=direct, lock=lock)
    try:
        address.options  # noqa: B018 - the driver reads the URL
    except psycopg.ProgrammingError as error:
        reason = str(error).strip()
        if reveals(reason, url):
            raise ConfigError(f"store {address.shown} has a URL that the driver refuses: {ESCAPE}") from None
        raise ConfigError(f"store {address.shown}: {reason}: correct the URL{_meant(parts.query)}") from error
    return address


def _joined(parts: SplitResult, options: Sequence[str]) -> str:
    """Return the URL with these options; a URL without a server, for a socket, keeps its slashes."""
    return f"{parts.scheme}://{parts.netloc}{parts.path}{'?' if options else ''}{'&'.join(options)}"


def _given(url: str) -> dict[str, str]:
    """Return the options that the driver reads from a URL."""
    return {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}


def _checked_direct(url: str) -> str:
    """Return the URL of the server behind a pooler, or raise ``ConfigError`` for one that names no server."""
    try:
        address = parse(url)
    except ConfigError as error:
        raise ConfigError(f"{DIRECT_OPTION}: {error}") from None
    if url != address.client_url or not _OF_THE_SERVER & _given(url).keys():
        raise ConfigError(
            f"{DIRECT_OPTION}={concealed(url)} does not name only the server: "
            f"use {DIRECT_OPTION}=postgresql://HOST:PORT, with the options of libpq in which it differs"
        )
    return url


def _checked_lock(use: str) -> LockUse:
    """Return how the lock is used, or raise ``ConfigError`` for a word that does not say so."""
    uses = [each.value for each in LockUse]
    if use not in uses:
        raise ConfigError(f"{LOCK_OPTION}={use!r} does not exist: use {', '.join(uses[:-1])} or {uses[-1]}")
    return LockUse(use)


def _meant(query: str) -> str:
    """Return a question that suggests the option meant by the first one that the driver does not know."""
    known_options = [
        SCHEMA_OPTION,
        DIRECT_OPTION,
        LOCK_OPTION,
        *(option.keyword.decode() for option in Conninfo.get_defaults()),
    ]
    names = (option.partition("=")[0] for option in query.split("&"))
    unknown = [name for name in names if name and name not in known_options]
    if not unknown:
        return ""
    return f"; did you mean {SCHEMA_OPTION}?" if unknown[0] == "schema" else or_nearest(unknown[0], known_options)


def checked_schema(name: str) -> str:
    """Return the name of a schema, or raise ``ConfigError`` if no schema can have it."""
    if not _SCHEMA_ALLOWED.fullmatch(name) or name.startswith("pg_"):
        raise ConfigError(
            f"{SCHEMA_OPTION}={name!r} is not the name of a schema: use up to 41 lowercase letters, digits and '_', "
            "beginning with a letter or '_', but not with pg_"
        )
    return name
