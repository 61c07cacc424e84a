"""Opens the store of an address, or of the default address."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

from taskqueue.errors import ConfigError, StoreUnavailable
from taskqueue.store import Store
from taskqueue.store.redaction import split
from taskqueue.store.sqlite import open_sqlite
from taskqueue.store.sqlite.url import location

MONGODB_SCHEMES = ("mongodb://", "mongodb+srv://")
POSTGRESQL_SCHEMES = ("postgresql://", "postgres://")
SERVER_SCHEMES = (*MONGODB_SCHEMES, *POSTGRESQL_SCHEMES)
"""The schemes of stores on a server; any other address is a file."""


def open_store(url: str | None = None, clock: Callable[[], datetime] | None = None) -> Store:
    """Open the store at ``url``: ``sqlite:///path``, a path, ``postgresql://…/database`` or ``mongodb://…/database``.

    None means ``default_url()``.
    ``clock`` gives the time by which this store decides, as an aware datetime in whole milliseconds; without it that
    is the clock of this host, on MongoDB and PostgreSQL of the server. All processes of a store need the same one.
    Raises ``ConfigError`` for an address that is none, and ``StoreUnavailable``.
    """
    if url is None and not os.environ.get("TASKQUEUE_URL"):
        _make_private(_default_file().parent)
    address = address_of(url)
    if address.startswith(MONGODB_SCHEMES):
        # Importing the driver takes a third of a second, which an embedded store need not pay.
        from taskqueue.store.mongodb import open_mongodb

        return open_mongodb(address, clock=clock)
    if address.startswith(POSTGRESQL_SCHEMES):
        from taskqueue.store.postgresql import open_postgresql

        return open_postgresql(address, clock)
    return open_sqlite(address) if clock is None else open_sqlite(address, clock)


def open_existing(url: str | None = None) -> Store:
    """Open the store at ``url`` if it exists; never create one. Raises ``ConfigError`` and ``StoreUnavailable``."""
    store, name = _existing(address_of(url))
    if store is None:
        raise StoreUnavailable(
            name,
            "there is no such store",
            "name it with --url or TASKQUEUE_URL (`taskqueue health` names those in use on this host); "
            "the first job or node creates it",
        )
    return store


def exists(url: str | None = None) -> bool:
    """Return whether there is a store at ``url``; never create one. Raises ``ConfigError`` and ``StoreUnavailable``."""
    store, _ = _existing(address_of(url))
    if store is not None:
        store.close()
    return store is not None


def _existing(address: str) -> tuple[Store | None, str]:
    """Return the store, None if there is none, and its name for people."""
    if address.startswith(MONGODB_SCHEMES):
        from taskqueue.store import mongodb

        return mongodb.open_existing(address), mongodb.name_of(address)
    if address.startswith(POSTGRESQL_SCHEMES):
        from taskqueue.store import postgresql

        return postgresql.open_existing(address), postgresql.name_of(address)
    place = location(address)
    return (open_sqlite(address) if place.path.exists() else None), str(place.path)


def resolved(url: str | None = None) -> str:
    """Return the address that opens the same store from any folder and process; it may hold a password.

    Raises ``ConfigError`` for an address that is none.
    """
    address = address_of(url)
    if address.startswith(SERVER_SCHEMES):
        split(address)
        return address
    query = split(address).query if address.startswith("sqlite:") else ""
    return location(address).url + (f"?{query}" if query else "")


def database_of(url: str) -> str | None:
    """Return the file of the embedded store at ``url``; None for another kind of store."""
    return None if url.startswith(SERVER_SCHEMES) else str(location(url).path)


def address_of(url: str | None) -> str:
    """Return the address, or the default one for None; raise ``ConfigError`` for an empty one."""
    if url == "":
        raise ConfigError(
            "the address of the store is empty: name the store, or leave the address out for TASKQUEUE_URL or a file "
            "of this user"
        )
    return default_url() if url is None else url


def default_url() -> str:
    """Return ``TASKQUEUE_URL``, or else the embedded database in the state directory of this user or systemd unit.

    Raises ``ConfigError`` if the user has no home folder.
    """
    return os.environ.get("TASKQUEUE_URL") or f"sqlite://{quote(str(_default_file()))}"


def _default_file() -> Path:
    given = os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    if given:
        return Path(given) / "jobs.db"
    home = os.environ.get("XDG_STATE_HOME", "")
    try:
        return (Path(home) if home.startswith("/") else Path.home() / ".local" / "state") / "taskqueue" / "jobs.db"
    except RuntimeError:  # of home
        raise ConfigError(
            f"user {os.getuid()} has no home folder for a store: name the store, or set TASKQUEUE_URL or HOME"
        ) from None


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(
            str(folder), f"cannot be created ({error.strerror})", "set TASKQUEUE_URL to a path that can be written"
        ) from None
