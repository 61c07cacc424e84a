"""Backs up an embedded store while it is in use: the copy is a consistent snapshot."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

from taskqueue.errors import ConfigError, StoreUnavailable
from taskqueue.store.open import MONGODB_SCHEMES, POSTGRESQL_SCHEMES, address_of
from taskqueue.store.permissions import set_mode
from taskqueue.store.sqlite import schema
from taskqueue.store.sqlite.url import location


def back_up(url: str | None, target: Path) -> int:
    """Write the store at ``url`` into the new file ``target``, completely or not at all, and return its size in bytes.

    It delays no other process: it reads one state and leaves the journal alone. Raises ``ConfigError`` for a
    server and for a target that exists or cannot be made, and ``StoreUnavailable``.
    """
    address = address_of(url)
    if address.startswith(MONGODB_SCHEMES):
        raise ConfigError(
            "a MongoDB store is not one file: back it up with mongodump, and restore it with mongorestore"
        )
    if address.startswith(POSTGRESQL_SCHEMES):
        raise ConfigError(
            "a PostgreSQL store is not one file: back it up with `pg_dump --schema=taskqueue`, or the schema that its "
            "URL names, and restore it with psql or pg_restore"
        )
    place = location(address)
    if not place.path.is_file():
        raise StoreUnavailable(str(place.path), "there is no such file", "name the store with --url")
    try:
        target = target.expanduser().absolute()
        str(target).encode()
    except RuntimeError:  # of expanduser
        raise ConfigError(f"{target} is in the home folder of an unknown user: write an absolute path") from None
    except UnicodeEncodeError:
        raise ConfigError(f"{str(target)!r} is not UTF-8, which SQLite needs: name another file") from None
    unfinished = _begun(target)
    try:
        _copy(place.path, unfinished)
        set_mode(unfinished, place.path.stat().st_mode & 0o777, stat.S_IFREG)
        _reach_the_disk(unfinished)
        os.link(unfinished, target)  # unlike a rename, it never replaces an existing file
        _reach_the_disk(target.parent)
        return target.stat().st_size
    except FileExistsError:
        raise ConfigError(f"{target} already exists: name a new file, or move that one away") from None
    except OSError as error:
        raise ConfigError(f"{target} cannot be written ({error.strerror}): name a file in another folder") from None
    finally:
        unfinished.unlink()
        with suppress(FileNotFoundError):
            Path(f"{unfinished}-journal").unlink()


def _begun(target: Path) -> Path:
    """Make an empty file beside the target, which becomes it when it is whole."""
    unfinished = target.with_name(f"{target.name}.{os.getpid()}.unfinished")
    try:
        os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        raise ConfigError(
            f"{unfinished} is left over from a backup that was killed: remove it, and start again"
        ) from None
    except OSError as error:
        raise ConfigError(f"{target} cannot be written ({error.strerror}): name a file in another folder") from None
    return unfinished


def _copy(database: Path, target: Path) -> None:
    try:
        with closing(sqlite3.connect(f"file:{quote(str(database))}?mode=rw", uri=True, isolation_level=None)) as raw:
            if not schema.check(raw, str(database)):
                raise StoreUnavailable(str(database), "has no jobs yet", "name the store with --url")
            raw.execute("VACUUM INTO ?", (str(target),))
    except sqlite3.Error as error:
        raise StoreUnavailable(str(database), f"cannot be backed up ({error})", "fix the cause, then retry") from error


def _reach_the_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
