"""Parses the address of a PostgreSQL store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit, urlunsplit

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
_OWN = "taskqueue."
_SCHEMA_ALLOWED = re.compile(r"[a-z_][a-z0-9_]{0,40}")
_DEFAULTS = {
    "application_name": "taskqueue",
    "connect_timeout": "5",
    "target_session_attrs": "read-write",  # of several hosts, the one that takes writes
    "keepalives_idle": "10",
    "tcp_user_timeout": "10000",
}
"""Options of the driver that have these values, unless the URL says otherwise."""


@dataclass(frozen=True, kw_only=True)
class PostgreSQLUrl:
    """One store: several may live in one database in different schemas."""

    client_url: str
    """The URL for the driver, with its secrets and without the store's own options."""
    schema: str = SCHEMA

    @property
    def options(self) -> dict[str, str]:
        """The options of a connection."""
        given = {name: str(value) for name, value in conninfo_to_dict(self.client_url).items() if value is not None}
        return {**_DEFAULTS, **given}

    @property
    def shown(self) -> str:
        """The URL for messages and logs, without secrets."""
        parts = urlsplit(concealed(self.client_url).replace(":***@", "@"))
        option = "" if self.schema == SCHEMA else f"{SCHEMA_OPTION}={self.schema}"
        return urlunsplit(parts._replace(query="&".join(text for text in (parts.query, option) if text)))


def parse(url: str) -> PostgreSQLUrl:
    """Return the address that ``url`` names.

    Every option of the driver is passed on; the store's own begin with ``taskqueue.``. Raises ``ConfigError`` for
    another scheme, an option that does not exist and what the driver cannot read.
    """
    parts = split(url)
    if parts.scheme not in SCHEMES:
        raise ConfigError(f"{parts.scheme!r} is not a PostgreSQL scheme: use postgresql://host/database")
    check_plain(url, parts)
    kept, schema = [], SCHEMA
    for option in parts.query.split("&") if parts.query else []:
        name, _, value = option.partition("=")
        if not name.startswith(_OWN):
            kept.append(option)
        elif name == SCHEMA_OPTION:
            schema = checked_schema(unquote(value))
        else:
            raise ConfigError(f"the store URL has the option {name!r}, which does not exist: use {SCHEMA_OPTION}=NAME")
    address = PostgreSQLUrl(client_url=urlunsplit(parts._replace(query="&".join(kept))), schema=schema)
    try:
        address.options  # noqa: B018 - the driver reads the URL
    except psycopg.ProgrammingError as error:
        reason = str(error).strip()
        if reveals(reason, url):
            raise ConfigError(f"store {address.shown} has a URL that the driver refuses: {ESCAPE}") from None
        raise ConfigError(f"store {address.shown}: {reason}: correct the URL{_meant(parts.query)}") from error
    return address


def _meant(query: str) -> str:
    """Return the question whether another option was meant by the first one that the driver does not know."""
    known = [SCHEMA_OPTION, *(option.keyword.decode() for option in Conninfo.get_defaults())]
    unknown = [name for name in (option.partition("=")[0] for option in query.split("&")) if name and name not in known]
    if not unknown:
        return ""
    return f"; did you mean {SCHEMA_OPTION}?" if unknown[0] == "schema" else or_nearest(unknown[0], known)


def checked_schema(name: str) -> str:
    """Return the name of a schema, or raise ``ConfigError`` if none can be named so."""
    if not _SCHEMA_ALLOWED.fullmatch(name) or name.startswith("pg_"):
        raise ConfigError(
            f"{SCHEMA_OPTION}={name!r} is not the name of a schema: use up to 41 lowercase letters, digits and '_', "
            "beginning with a letter or '_', but not with pg_"
        )
    return name
