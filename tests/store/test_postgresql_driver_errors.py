"""What a PostgreSQL server refuses is said with the reason and the way out, and never with the password."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest
from psycopg import errors

from taskqueue.errors import ConfigError, SchemaMismatch, StoreUnavailable, TaskqueueError
from taskqueue.model.query import parse
from taskqueue.store.caller_transaction import session_inserts
from taskqueue.store.open import open_store
from taskqueue.store.postgresql.driver_errors import in_words
from tests.chaos.proxy import Proxy
from tests.nodes import eventually
from tests.postgresql import USER, PostgreSQL, programs, version
from tests.store.records import a_record


@pytest.fixture
def run(postgresql_server: PostgreSQL) -> Iterator[Callable[[str], object]]:
    """Return what runs a statement as the operator of the server."""
    with psycopg.connect(postgresql_server.url, autocommit=True) as operator:
        yield operator.execute


def test_a_wrong_password_is_refused_without_being_shown(postgresql_server: PostgreSQL) -> None:
    wrong = postgresql_server.url.replace(postgresql_server.password, "swordfish")

    with pytest.raises(StoreUnavailable, match=r"rejects the user or password .*: correct them in the URL") as caught:
        open_store(wrong)

    assert "swordfish" not in str(caught.value)


def test_a_server_without_the_encryption_asked_for_is_no_silent_one(postgresql_server: PostgreSQL) -> None:
    with pytest.raises(StoreUnavailable, match=r"speaks no TLS .*: set it up there, or correct sslmode in the URL"):
        open_store(f"{postgresql_server.url}?sslmode=require")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('root certificate file "/root/.postgresql/root.crt" does not exist', "cannot be verified .*sslrootcert=/path"),
        ("SSL error: certificate verify failed", "is not trusted .*sslrootcert=/path"),
        ('server certificate for "db-1" does not match host name "db"', "certificate of another host .*into the URL"),
    ],
)
def test_a_certificate_that_cannot_be_trusted_is_no_missing_database(text: str, words: str) -> None:
    """The words of libpq; a server with certificates is not started here."""
    assert re.search(words, str(in_words("postgresql://db/shop", psycopg.OperationalError(text))))


def test_a_database_that_is_not_there_is_named(postgresql_server: PostgreSQL) -> None:
    with pytest.raises(StoreUnavailable, match=r"no such database or user .*CREATE DATABASE"):
        open_store(f"{postgresql_server.url.removesuffix('postgres')}none")


def test_an_encoding_that_cannot_keep_all_text_is_refused(
    postgresql_server: PostgreSQL, run: Callable[[str], object]
) -> None:
    run("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")

    with pytest.raises(StoreUnavailable, match=r"has the encoding LATIN1: create one with CREATE DATABASE"):
        open_store(f"{postgresql_server.url.removesuffix('postgres')}latin")


def test_a_schema_of_another_program_is_left_alone(postgresql_server: PostgreSQL, run: Callable[[str], object]) -> None:
    run("CREATE SCHEMA taskqueue")

    with pytest.raises(StoreUnavailable, match=r"the schema taskqueue belongs to another program: name another one"):
        open_store(postgresql_server.url)


def test_a_store_of_a_newer_version_is_refused(postgresql_server: PostgreSQL, run: Callable[[str], object]) -> None:
    open_store(postgresql_server.url).close()
    run("UPDATE taskqueue.store SET schema = 99")

    with pytest.raises(SchemaMismatch, match="schema version 99"):
        open_store(postgresql_server.url)


def test_a_role_without_a_grant_is_told_so(postgresql_server: PostgreSQL, run: Callable[[str], object]) -> None:
    open_store(postgresql_server.url).close()
    run("CREATE ROLE reader LOGIN PASSWORD 'open'")
    run("GRANT USAGE ON SCHEMA taskqueue TO reader")
    run("GRANT SELECT ON ALL TABLES IN SCHEMA taskqueue TO reader")
    url = postgresql_server.url.replace(f"postgres:{postgresql_server.password}", "reader:open")

    with closing(open_store(url)) as store:
        assert store.count(parse({})) == 0
        with pytest.raises(StoreUnavailable, match=r"reader lacks rights in the schema taskqueue to add .*: have an"):
            store.add([a_record()])


def test_a_server_that_takes_no_writes_is_named_as_a_standby(
    postgresql_server: PostgreSQL, run: Callable[[str], object]
) -> None:
    open_store(postgresql_server.url).close()
    run("ALTER DATABASE postgres SET default_transaction_read_only = on")

    with pytest.raises(StoreUnavailable, match=r"accepts no writes, as a standby does .*: name all servers"):
        open_store(postgresql_server.url)


def test_a_server_without_room_for_a_connection_is_named(tmp_path: Path) -> None:
    def open_many(url: str) -> None:
        with ExitStack() as opened:
            for _ in range(20):
                opened.enter_context(closing(open_store(url)))

    refused = pytest.raises(StoreUnavailable, match=r"has no free connections .* max_connections")
    with PostgreSQL(tmp_path / "small", max_connections="8") as small, refused:
        open_many(small.url)


def changed_on_the_way(server: PostgreSQL, was: bytes, becomes: bytes) -> StoreUnavailable:
    """Return the error of a store whose server says something else than it does."""
    assert len(was) == len(becomes)
    proxy = Proxy(lambda: server.port, lambda sent: sent.replace(was, becomes))
    try:
        with pytest.raises(StoreUnavailable) as caught:
            open_store(server.url.replace(f":{server.port}/", f":{proxy.port}/"))
        return caught.value
    finally:
        proxy.close()


def test_a_server_that_is_too_old_is_refused(postgresql_server: PostgreSQL) -> None:
    newest = version(programs())
    shown = f"server_version\0{newest}".encode()

    refused = changed_on_the_way(postgresql_server, shown, shown[:-2] + b"14")

    assert "the server is older than PostgreSQL 15 (PostgreSQL" in str(refused)
    assert "upgrade the server" in str(refused)


@pytest.mark.parametrize(
    ("said", "name"),
    [(b"CockroachDB 2", "CockroachDB"), (b"YugabyteDB  2", "YugabyteDB"), (b"PG 8 Redshift", "Redshift")],
)
def test_a_database_that_only_speaks_the_protocol_is_refused_by_name(
    postgresql_server: PostgreSQL, said: bytes, name: str
) -> None:
    shown = f"PostgreSQL {version(programs())}".encode()

    refused = changed_on_the_way(postgresql_server, shown, said)

    assert f"the server is not PostgreSQL but {name}" in str(refused)
    assert "use a PostgreSQL server" in str(refused)


def test_a_hot_standby_answers_reads_and_refuses_writes(tmp_path: Path) -> None:
    primary = PostgreSQL(tmp_path / "primary")
    with primary:
        with closing(open_store(primary.url)) as store:
            store.add([a_record()])
            with psycopg.connect(primary.url) as mine:  # a job that is not taken in yet
                session_inserts(store, mine).add([a_record()])
        with psycopg.connect(primary.url, autocommit=True) as operator:
            operator.execute("CHECKPOINT")  # so the copy has the job before it takes connections
    subprocess.run(["cp", "-a", tmp_path / "primary", tmp_path / "standby"], check=True)
    (tmp_path / "standby/data/standby.signal").touch()
    with primary:
        follows = f"host=127.0.0.1 port={primary.port} user={USER} password={primary.password}"
        standby = PostgreSQL(tmp_path / "standby", primary_conninfo=follows)
        standby.password = primary.password
        with standby:
            with pytest.raises(StoreUnavailable, match=r"accepts no writes, as a standby does .*: name all servers"):
                open_store(standby.url)
            with closing(open_store(f"{standby.url}?target_session_attrs=any")) as store:
                assert store.count(parse({})) == 2
                with pytest.raises(
                    StoreUnavailable, match=r"accepts no writes, as a standby does .*: name all servers in"
                ) as caught:
                    store.add([a_record()])
            assert caught.value.only_reads
            both = f"127.0.0.1:{standby.port},127.0.0.1:{primary.port}"
            with closing(open_store(primary.url.replace(f"127.0.0.1:{primary.port}", both))) as store:
                store.add([a_record()])
                assert store.count(parse({})) == 3


def test_a_call_keeps_its_place_among_those_that_wait_for_the_lock(postgresql_server: PostgreSQL) -> None:
    lock = "LOCK TABLE taskqueue.store IN EXCLUSIVE MODE"
    waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'taskqueue.store'::regclass AND NOT granted"
    with (
        closing(open_store(postgresql_server.url)) as store,
        psycopg.connect(postgresql_server.url) as holder,
        psycopg.connect(postgresql_server.url) as following,
        ThreadPoolExecutor() as threads,
    ):
        store.flush()
        holder.execute(lock)
        adding = threads.submit(store.add, [a_record()])
        eventually(lambda: holder.execute(waiting).fetchone() == (1,))
        locking = threads.submit(following.execute, lock)
        eventually(lambda: holder.execute(waiting).fetchone() == (2,))
        holder.execute("SELECT pg_sleep(3)")
        holder.commit()

        locking.result()
        count = following.execute("SELECT count(*) FROM taskqueue.jobs").fetchone()
        following.commit()
        assert count == (1,)
        adding.result()


def test_a_lock_that_is_held_all_the_time_is_refused_with_the_name_of_its_holder(
    postgresql_server: PostgreSQL,
) -> None:
    with (
        closing(open_store(postgresql_server.url)) as store,
        psycopg.connect(postgresql_server.url, application_name="a report") as holder,
    ):
        holder.execute("LOCK TABLE taskqueue.store IN EXCLUSIVE MODE")

        with pytest.raises(StoreUnavailable, match="stayed locked by another transaction") as caught:
            store.add([a_record()])

        pid = holder.info.backend_pid
        held = rf"held by pid {pid} 'a report' from 127.0.0.1 state 'idle in transaction' since 20\d\d-.* UTC\)"
        assert re.search(held, str(caught.value))
        assert "pg_terminate_backend(pid)" in str(caught.value)
        holder.rollback()
        store.add([a_record()])
        assert store.count(parse({})) == 1


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.DiskFull("no space"), "has a full disk"),
        (errors.OutOfMemory("out"), "lacks memory"),
        (errors.QueryCanceled("late"), "locked by another transaction"),
        (errors.UndefinedTable("gone"), "has no store in this schema"),
        (errors.AdminShutdown("stops"), "does not answer"),
        (errors.InternalError_("odd"), r"refuses \(XX000: odd\)"),
        (psycopg.OperationalError("closed"), "does not answer"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_is_said_by_its_state(error: psycopg.Error, expected: str) -> None:
    with pytest.raises(StoreUnavailable, match=expected):
        raise in_words("postgresql://host/db", error)


def test_a_mistake_in_the_url_is_the_operators() -> None:
    said: TaskqueueError = in_words("postgresql://host/db", psycopg.ProgrammingError("invalid option"))

    assert isinstance(said, ConfigError)
