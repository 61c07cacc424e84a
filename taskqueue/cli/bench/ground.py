"""Where measurements take place: empty stores beside the one that the address names, removed afterwards.

The jobs of the store itself are never touched.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from taskqueue.errors import ConfigError, StoreUnavailable
from taskqueue.store.open import MONGODB_SCHEMES, default_url
from taskqueue.store.sqlite.url import SqliteUrl, location

_PREFIX = "taskqueue-bench-"


class Ground:
    """Makes empty stores of one kind; everything that a measurement writes is in ``folder`` or in these stores."""

    def __init__(self, folder: Path, beside: SqliteUrl | str) -> None:
        self.folder = folder
        self._beside = beside

    @property
    def file_store(self) -> SqliteUrl | None:
        """What the address says of a store in a file; None for a server."""
        return self._beside if isinstance(self._beside, SqliteUrl) else None

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """Yield the address of an empty store, and remove it afterwards."""
        token = secrets.token_hex(4)
        if isinstance(self._beside, SqliteUrl):
            place = Path(tempfile.mkdtemp(dir=self.folder))
            try:
                yield f"sqlite://{quote(str(place / 'jobs.db'))}?synchronous={self._beside.synchronous}"
            finally:
                shutil.rmtree(place, ignore_errors=True)
            return
        url = _with_prefix(self._beside, f"bench_{token}_")
        from taskqueue.store.mongodb.removal import remove

        try:
            yield url
        finally:
            remove(url)


@contextmanager
def ground(url: str | None, synchronous: str | None) -> Iterator[Ground]:
    """Yield the ground beside the store that ``url`` names, on the same disk or in the same database.

    ``synchronous`` wins over that of the address. Raises ``ConfigError`` and ``StoreUnavailable``.
    """
    address = url or default_url()
    if address.startswith(MONGODB_SCHEMES):
        if synchronous is not None:
            raise ConfigError("--synchronous is for SQLite: MongoDB acknowledges what a majority has on disk")
        with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
            yield Ground(Path(folder), address)
        return
    place = location(address if synchronous is None else _with_level(address, synchronous))
    parent = place.path.parent
    try:
        if url is None:
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent)
    except OSError as error:
        raise StoreUnavailable(
            str(parent), f"no folder can be made there ({error.strerror})", "name a file in another one with --url"
        ) from None
    with made as folder:
        yield Ground(Path(folder), place)


def _with_level(address: str, synchronous: str) -> str:
    if not address.startswith("sqlite:"):
        address = location(address).url
    kept = [option for option in urlsplit(address).query.split("&") if option and not option.startswith("synchronous=")]
    return urlunsplit(urlsplit(address)._replace(query="&".join([*kept, f"synchronous={synchronous}"])))


def _with_prefix(url: str, prefix: str) -> str:
    parts = urlsplit(url)
    kept = [option for option in parts.query.split("&") if option and not option.startswith("taskqueue.prefix=")]
    return urlunsplit(parts._replace(path=parts.path or "/", query="&".join([*kept, f"taskqueue.prefix={prefix}"])))
