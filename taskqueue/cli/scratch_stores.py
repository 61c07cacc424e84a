"""Makes empty stores beside a given one, on the same disk or in the same database, and removes them."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from taskqueue.errors import StoreUnavailable
from taskqueue.store.open import MONGODB_SCHEMES, SERVER_SCHEMES, default_url
from taskqueue.store.sqlite.url import SqliteUrl, location

_PREFIX = "taskqueue-bench-"


class ScratchStores:
    """Makes empty stores of one kind; a measurement writes only into ``folder`` and into these stores."""

    def __init__(self, folder: Path, beside: SqliteUrl | str) -> None:
        self.folder = folder
        self._beside = beside

    @property
    def file_store(self) -> SqliteUrl | None:
        """The address of the SQLite store beside which files are made; None for a server."""
        return self._beside if isinstance(self._beside, SqliteUrl) else None

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """Yield the address of an empty store, and remove it afterwards."""
        if isinstance(self._beside, SqliteUrl):
            folder = Path(tempfile.mkdtemp(dir=self.folder))
            try:
                yield f"sqlite://{quote(str(folder / 'jobs.db'))}?synchronous={self._beside.synchronous}"
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return
        name = f"bench_{secrets.token_hex(4)}"
        if self._beside.startswith(MONGODB_SCHEMES):
            from taskqueue.store.mongodb.existing_store import remove

            url = _with_option(self._beside, "taskqueue.prefix", f"{name}_")
        else:
            from taskqueue.store.postgresql.existing_store import remove

            url = _with_option(self._beside, "taskqueue.schema", name)
        try:
            yield url
        finally:
            remove(url)


@contextmanager
def scratch_stores(url: str | None) -> Iterator[ScratchStores]:
    """Yield a maker of stores beside the one that ``url`` names: on the same disk, or in the same database.

    Raises ``ConfigError`` and ``StoreUnavailable``.
    """
    address = url or default_url()
    if address.startswith(SERVER_SCHEMES):
        with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
            yield ScratchStores(Path(folder), address)
        return
    beside = location(address)
    parent = beside.path.parent
    try:
        if url is None:
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent)
    except OSError as error:
        raise StoreUnavailable(
            str(parent), f"no folder can be made there ({error.strerror})", "name a file in another one with --url"
        ) from None
    with scratch as folder:
        yield ScratchStores(Path(folder), beside)


def _with_option(url: str, name: str, value: str) -> str:
    parts = urlsplit(url)
    others = [option for option in parts.query.split("&") if option and not option.startswith(f"{name}=")]
    return urlunsplit(parts._replace(path=parts.path or "/", query="&".join([*others, f"{name}={value}"])))
