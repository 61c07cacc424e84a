"""Parses the address of a MongoDB store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from pymongo.database import Database
from pymongo.errors import ConfigurationError
from pymongo.uri_parser import parse_uri

from taskqueue.errors import ConfigError
from taskqueue.store.mongodb.driver_errors import DEADLINE
from taskqueue.store.redaction import check_plain, concealed, split

SCHEMES = ("mongodb", "mongodb+srv")
SYSTEM_DATABASES = ("admin", "local", "config")
DATABASE = "taskqueue"
"""The database of a URL that names none."""

PREFIX = "taskqueue_"
"""The prefix of the collections' names, unless the URL says ``taskqueue.prefix=…``."""

LEAST_TIMEOUT = 100
"""Milliseconds; a smaller number is probably meant as seconds."""

_OWN = "taskqueue."
PREFIX_OPTION = "taskqueue.prefix"
_TIMEOUT_OPTION = "timeoutms"
_PREFIX_ALLOWED = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,59}")


@dataclass(frozen=True, kw_only=True)
class MongoUrl:
    """One store; a database may hold several under different prefixes."""

    client_url: str
    """The URL for the driver, with its secrets and without the store's own options."""
    prefix: str = PREFIX
    timeout: float = DEADLINE
    """Seconds after which a call gives up."""

    @classmethod
    def of_database(cls, database: Database[Any], prefix: str) -> MongoUrl:
        """Return the address of a database of the caller's client."""
        hosts = ",".join(f"{host}:{port}" for host, port in database.client.topology_description.server_descriptions())
        timeout = database.client.options.timeout or DEADLINE
        return cls(client_url=f"mongodb://{hosts}/{database.name}", prefix=prefix, timeout=timeout)

    @property
    def names_database(self) -> bool:
        """Whether the URL names a database; if not, ``DATABASE`` is used."""
        return bool(urlsplit(self.client_url).path.strip("/"))

    @property
    def shown(self) -> str:
        """The URL for messages and logs, without secrets."""
        parts = urlsplit(concealed(self.client_url).replace(":***@", "@"))
        option = "" if self.prefix == PREFIX else f"{PREFIX_OPTION}={self.prefix}"
        query = "&".join(text for text in (parts.query, option) if text)
        return urlunsplit(parts._replace(path=parts.path or "/", query=query))


def parse(url: str) -> MongoUrl:
    """Return the address that ``url`` names.

    Options of the driver are passed on; the store's own options start with ``taskqueue.``. Raises ``ConfigError`` for
    another scheme, for a URL without a server, and for an option of ours that does not exist.
    """
    parts = split(url)
    if parts.scheme not in SCHEMES:
        raise ConfigError(f"{parts.scheme!r} is not a MongoDB scheme: use mongodb://host/database or mongodb+srv://…")
    if not parts.netloc:
        raise ConfigError(f"{concealed(url)} does not name a server: write mongodb://host/database or mongodb+srv://…")
    check_plain(url, parts)
    kept, prefix, timeout = [], PREFIX, DEADLINE
    for option in parts.query.split("&") if parts.query else []:
        name, _, value = option.partition("=")
        if not name.startswith(_OWN):
            kept.append(option)
            if name.isalnum() and not value:
                raise ConfigError(f"{concealed(url)}: the option {name} has no value: give it one, or leave it out")
            if name.lower() == _TIMEOUT_OPTION and value.isdecimal():  # the driver refuses any other value
                timeout = _seconds(name, int(value), url) or DEADLINE
        elif name == PREFIX_OPTION:
            prefix = checked_prefix(unquote(value))
        else:
            raise ConfigError(f"the store URL has the option {name!r}, which does not exist: use {PREFIX_OPTION}=NAME_")
    if parts.path.strip("/") in SYSTEM_DATABASES:
        raise ConfigError(
            f"{parts.path.strip('/')!r} is a database of the server itself: write mongodb://host/{DATABASE}, "
            "with ?authSource=admin after it if the user is defined there"
        )
    client_url = urlunsplit(parts._replace(path=parts.path or "/", query="&".join(kept)))
    return MongoUrl(client_url=client_url, prefix=prefix, timeout=timeout)


def _seconds(name: str, milliseconds: int, url: str) -> float:
    if 0 < milliseconds < LEAST_TIMEOUT:
        raise ConfigError(
            f"{concealed(url)}: {name}={milliseconds} is {milliseconds} milliseconds, too short for any call: "
            f"pass {LEAST_TIMEOUT} or more, or leave it out ({DEADLINE * 1000:.0f})"
        )
    return milliseconds / 1000


def unknown_option(client_url: str) -> str:
    """Return a sentence that names an option in the URL which the driver does not know; empty if there is none.

    The driver's own message omits the name, since a password may stand in its place.
    """
    for option in urlsplit(client_url).query.split("&"):
        name = option.partition("=")[0]
        if not name.isalnum():
            continue
        try:
            parse_uri(f"mongodb://host/?{option}")
        except (ConfigurationError, ValueError, TypeError) as error:
            if str(error).startswith("Unknown option"):
                return f"the driver knows no option {name!r}"
    return ""


def checked_prefix(prefix: str) -> str:
    """Return the prefix; raise ``ConfigError`` if it cannot be part of a collection's name."""
    if not _PREFIX_ALLOWED.fullmatch(prefix) or prefix.startswith("system."):
        raise ConfigError(
            f"{PREFIX_OPTION}={prefix!r} cannot start the name of a collection: "
            "use up to 60 letters, digits, '_', '.' and '-', beginning with a letter or '_'"
        )
    return prefix
