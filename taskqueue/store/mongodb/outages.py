"""What the driver reports when the server cannot be used, as one error that says why and what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pymongo
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConfigurationError,
    InvalidName,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from taskqueue.errors import ConfigError, StoreUnavailable

DEADLINE = 5.0
"""Seconds after which a call gives up, retries of the driver included."""

ADDED_A_SECOND = 500
"""How many records a server that is busy adds in a second; a batch has that much longer."""

_CREDENTIALS = (18, 334)
_RIGHTS = (13,)
_DISK_FULL = (14031, 39)
_CHECK_SERVER = "check that mongod runs and is reachable from here; the call may be repeated"
_BY_CODE = (
    (_CREDENTIALS, "the server refuses user or password", "check user, password and authSource in the URL"),
    (_RIGHTS, "the user lacks rights", "give it the role readWrite on the database"),
    (_DISK_FULL, "the server's disk is full", "make room on the server; the call may be repeated"),
)


@contextlib.contextmanager
def reaching(shown: str, deadline: float = DEADLINE) -> Iterator[None]:
    """Bound in time what the block asks of the server; raise ``StoreUnavailable`` or ``ConfigError`` when it fails."""
    try:
        with pymongo.timeout(deadline):
            yield
    except (ConfigurationError, InvalidURI, InvalidName) as error:
        raise ConfigError(f"store {shown}: {error}: correct the URL") from error
    except PyMongoError as error:
        raise unavailable(shown, error) from error


def deadline_of(records: int) -> float:
    """Return in how many seconds so many records must have been added."""
    return DEADLINE + records / ADDED_A_SECOND


def unavailable(shown: str, error: PyMongoError) -> StoreUnavailable:
    """Return what the driver's error means for people."""
    codes = _codes(error)
    for known, reason, way_out in _BY_CODE:
        if not codes.isdisjoint(known):
            return StoreUnavailable(shown, f"{reason} ({_first_line(error)})", way_out)
    if isinstance(error, ServerSelectionTimeoutError):
        return StoreUnavailable(shown, f"no server takes writes ({_first_line(error)})", _CHECK_SERVER)
    if error.timeout:
        return StoreUnavailable(shown, f"no answer in time ({_first_line(error)})", _CHECK_SERVER)
    if isinstance(error, AutoReconnect):
        return StoreUnavailable(shown, f"the connection broke ({_first_line(error)})", _CHECK_SERVER)
    return StoreUnavailable(shown, f"the server refuses ({_first_line(error)})", "see the server's log")


def _codes(error: PyMongoError) -> set[int]:
    """Return every code the server gave, also those of single writes in a batch."""
    codes = {error.code or 0} if isinstance(error, OperationFailure) else set()
    if isinstance(error, BulkWriteError):
        written = error.details.get("writeErrors", ()) if error.details else ()
        codes.update(int(one["code"]) for one in written)
    return codes


def _first_line(error: PyMongoError) -> str:
    """Return the beginning of the driver's message; its description of the whole topology helps nobody."""
    return str(error).partition("\n")[0].partition(", full error: ")[0].partition(", Timeout: ")[0][:300]
