"""A PostgreSQL store that exists is found, one that does not is not made, and one that is removed leaves the others."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest

from taskqueue import Scheduler
from taskqueue.errors import ConfigError, InvalidOption, StoreUnavailable
from taskqueue.model.query import parse
from taskqueue.model.record import Status
from taskqueue.store.backup import back_up
from taskqueue.store.caller_transaction import session_inserts
from taskqueue.store.open import open_existing, open_store
from taskqueue.store.postgresql import remove
from tests.nodes import LIMIT, eventually
from tests.postgresql import PostgreSQL
from tests.store.records import a_record

WITHOUT_DRIVER = """
import sys
sys.modules["psycopg"] = None
from taskqueue.errors import ConfigError
from taskqueue.store.open import open_store
try:
    open_store("postgresql://localhost/shop")
except ConfigError as error:
    print(error)
"""


def schemas(server: PostgreSQL) -> set[str]:
    """Return the schemas that somebody has made."""
    with psycopg.connect(server.url) as operator:
        rows = operator.execute("SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_|public)'")
        return {name for (name,) in rows.fetchall()}


def test_a_store_that_is_not_there_is_not_made(postgresql_server: PostgreSQL) -> None:
    with pytest.raises(StoreUnavailable, match="there is no such store") as caught:
        open_existing(postgresql_server.url)

    assert postgresql_server.password not in str(caught.value)
    assert schemas(postgresql_server) == set()


def test_a_store_that_is_there_is_opened(postgresql_server: PostgreSQL) -> None:
    with closing(open_store(postgresql_server.url)) as made:
        made.add([a_record()])

    with closing(open_existing(postgresql_server.url)) as found:
        assert found.count(parse({})) == 1


def test_a_store_is_removed_without_its_neighbours(postgresql_server: PostgreSQL) -> None:
    other = f"{postgresql_server.url}?taskqueue.schema=other"
    for url in (postgresql_server.url, other):
        open_store(url).close()

    remove(other)

    assert schemas(postgresql_server) == {"taskqueue"}


HELD = """
SELECT DISTINCT relation::regclass::text FROM pg_locks JOIN pg_class ON pg_class.oid = relation
WHERE granted AND relkind = 'r' AND relation >= 16384 AND mode = 'AccessExclusiveLock'
    AND pid IN (SELECT pid FROM pg_locks WHERE NOT granted)
"""


def test_a_store_is_removed_while_somebody_reads_it(postgresql_server: PostgreSQL) -> None:
    url = postgresql_server.url
    open_store(url).close()
    with (
        psycopg.connect(url, autocommit=True) as operator,
        psycopg.connect(url) as reader,
        ThreadPoolExecutor(1) as caller,
    ):
        reader.execute("SET deadlock_timeout = '30s'")  # so that the other session of the deadlock gives up
        reader.execute("SELECT FROM taskqueue.leases")
        removal = caller.submit(remove, url)
        [(table,), *_] = eventually(lambda: operator.execute(HELD).fetchall())
        with suppress(psycopg.errors.DeadlockDetected):  # on a slow machine it is this one
            reader.execute(f"SELECT FROM {table}")
        reader.rollback()
        removal.result(timeout=LIMIT)

    assert schemas(postgresql_server) == set()


def test_the_url_is_what_a_scheduler_takes(postgresql_server: PostgreSQL) -> None:
    with Scheduler(postgresql_server.url) as scheduler:
        assert scheduler.add_job("app:Mail").status is Status.WAITING
    assert schemas(postgresql_server) == {"taskqueue"}


def test_a_backup_is_left_to_the_server(postgresql_server: PostgreSQL, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"

    with pytest.raises(ConfigError, match="back it up with `pg_dump"):
        back_up(postgresql_server.url, target)

    assert not target.exists()


def test_what_is_no_session_is_refused_with_what_is(postgresql_server: PostgreSQL) -> None:
    refused = pytest.raises(InvalidOption, match="cannot be used: pass a Connection or AsyncConnection of psycopg, ")
    with closing(open_store(postgresql_server.url)) as store, refused:
        session_inserts(store, object())


def test_without_the_driver_the_package_to_install_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_DRIVER], check=True, capture_output=True, text=True)

    assert "a PostgreSQL store needs the package psycopg" in done.stdout
    assert "pip install 'taskqueue" in done.stdout
