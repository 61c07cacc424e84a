"""Turns the driver's errors into one error that says what went wrong and what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pymongo
from pymongo import errors

from taskqueue.errors import ConfigError, StoreUnavailable

DEADLINE = 5.0
"""Seconds after which a call gives up, retries of the driver included, unless the URL has ``timeoutMS``."""

ADDED_A_SECOND = 500
"""How many records a busy server adds in a second; the time limit of a batch grows accordingly."""

# codes of the server: error_codes.yml of MongoDB
_CREDENTIALS = (18, 334)
_RIGHTS = (13,)
_DISK_FULL = (14031, 39)
_BAD_VALUE = 2
_REPEAT = "the call may be repeated, with id= or unique= if it adds a job"
_CHECK_SERVER = f"check that mongod runs and is reachable from here; {_REPEAT}"
_CHECK_SPEED = f"{_CHECK_SERVER}; if the server is slow, allow more time with timeoutMS=20000 in the URL"
_BY_CODE = (
    (_CREDENTIALS, "the server rejects the user or password", "check user, password and authSource in the URL"),
    (_DISK_FULL, "the server's disk is full", "make room on the server; the call may be repeated"),
)


class IndexMissing(StoreUnavailable):
    """An index, or the whole collection, was dropped during use."""


class RightsMissing(StoreUnavailable):
    """The user in the URL may not do this; for example, a user with the role ``read`` may not write."""


@contextlib.contextmanager
def reaching(
    shown: str, deadline: float = DEADLINE, on_logged_out: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Limit the time of the block's requests to the server; raise ``StoreUnavailable`` or ``ConfigError``.

    ``on_logged_out`` is called when the server has forgotten the login of a connection.
    """
    try:
        with pymongo.timeout(deadline):
            yield
    except (errors.ConfigurationError, errors.InvalidURI, errors.InvalidName) as error:
        raise ConfigError(f"store {shown}: {error}: correct the URL") from error
    except errors.DocumentTooLarge as error:  # not a subclass of the driver's errors
        why = f"the call is larger than the server accepts ({str(error)[:300]})"
        raise StoreUnavailable(shown, why, "pass fewer or shorter values at once") from error
    except errors.PyMongoError as error:
        if _is_logged_out(error):
            on_logged_out()
        raise unavailable(shown, error) from error


def unavailable(shown: str, error: errors.PyMongoError) -> StoreUnavailable:
    """Describe the driver's error to people."""
    codes = _codes(error)
    if _is_logged_out(error) or "Authentication failed" in str(error):  # the driver calls it unreachable
        codes = set(_CREDENTIALS)
    if misses_index(error):
        return IndexMissing(shown, f"an index is missing ({reason_of(error)})", "it is being built; repeat the call")
    if not codes.isdisjoint(_RIGHTS):
        reason = f"the user lacks rights ({reason_of(error).partition(', ')[0]})"
        return RightsMissing(shown, reason, "give it the role readWrite on the database")
    for known_codes, reason, way_out in _BY_CODE:
        if not codes.isdisjoint(known_codes):
            only_reads = known_codes is _DISK_FULL
            return StoreUnavailable(shown, f"{reason} ({reason_of(error)})", way_out, only_reads=only_reads)
    if isinstance(error, errors.ServerSelectionTimeoutError):
        return StoreUnavailable(shown, f"no server accepts writes ({reason_of(error)})", _CHECK_SERVER)
    if isinstance(error, errors.InvalidOperation):  # another thread has logged in again, and closed this call's client
        return StoreUnavailable(shown, f"the connection was closed ({reason_of(error)})", "repeat the call")
    if error.timeout:
        return StoreUnavailable(shown, f"no answer in time ({reason_of(error)})", _CHECK_SPEED)
    if isinstance(error, errors.AutoReconnect):
        return StoreUnavailable(shown, f"the connection broke ({reason_of(error)})", _CHECK_SERVER)
    return StoreUnavailable(shown, f"the server refuses ({reason_of(error)})", "see the server's log")


def misses_index(error: errors.PyMongoError) -> bool:
    """Return whether the server lacks an index that the call relies on."""
    return _BAD_VALUE in _codes(error) and "hint provided does not correspond" in reason_of(error)


def _is_logged_out(error: errors.PyMongoError) -> bool:
    """Return whether no user is logged in on the connection: the login was lost, or never made."""
    return not _codes(error).isdisjoint(_RIGHTS) and "requires authentication" in reason_of(error)


def _codes(error: errors.PyMongoError) -> set[int]:
    """Return every error code from the server, including those of single writes in a batch."""
    codes = {error.code or 0} if isinstance(error, errors.OperationFailure) else set()
    if isinstance(error, errors.BulkWriteError):
        written = error.details.get("writeErrors", ()) if error.details else ()
        codes.update(int(write_error["code"]) for write_error in written)
    return codes


def reason_of(error: errors.PyMongoError) -> str:
    """Return the server's reason, without the query and plan in front of it and without the topology."""
    text = _refused(error)
    if text is None:
        return str(error).partition("\n")[0].partition(", full error: ")[0].partition(", Timeout: ")[0][:300]
    return text.strip().rpartition("\n")[2].rpartition(" :: caused by :: ")[2].strip()[:300]


def _refused(error: errors.PyMongoError) -> str | None:
    """Return the server's message (for a batch, of its first refused write); None if the message is the driver's."""
    details: Any = (error.details or {}) if isinstance(error, errors.OperationFailure) else {}
    if isinstance(error, errors.BulkWriteError):
        refused = [*details.get("writeErrors", ()), *details.get("writeConcernErrors", ())]
        details = refused[0] if refused else {}
    text = details.get("errmsg")
    return text if isinstance(text, str) and text else None
