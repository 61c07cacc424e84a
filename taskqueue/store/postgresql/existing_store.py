"""Finds a store that exists on a server, without creating one: opens it, or drops it."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import psycopg

from taskqueue.store import Store
from taskqueue.store.postgresql import open_postgresql, schema
from taskqueue.store.postgresql.driver_errors import in_words
from taskqueue.store.postgresql.url import PostgreSQLUrl, parse


def open_existing(url: str) -> Store | None:
    """Return the store, None if it does not exist. Raises ``ConfigError`` and ``StoreUnavailable``."""
    address = parse(url)
    try:
        with closing(connected(address)) as raw:
            if schema.version(raw, address.schema, address.shown) is None:
                return None
    except psycopg.Error as error:
        raise in_words(address.shown, error) from error
    return open_postgresql(url)


def name_of(url: str) -> str:
    """Return the address of a store for messages, without secrets."""
    return parse(url).shown


def remove(url: str) -> None:
    """Drop the schema of the store at ``url`` with everything in it; other schemas of the database stay."""
    address = parse(url)
    try:
        with closing(connected(address)) as raw:
            raw.execute(f"DROP SCHEMA IF EXISTS {address.schema} CASCADE")
    except psycopg.Error as error:
        raise in_words(address.shown, error) from error


def connected(address: PostgreSQLUrl) -> psycopg.Connection[Any]:
    """Return a connection to the server at this address that commits each statement."""
    options: dict[str, Any] = address.options
    return psycopg.Connection.connect(autocommit=True, prepare_threshold=None, **options)
