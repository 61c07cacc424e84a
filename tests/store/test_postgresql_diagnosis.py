"""A PostgreSQL store examines its server: what may lose jobs, and what keeps dead rows."""

from __future__ import annotations

import re
import subprocess
from contextlib import closing
from pathlib import Path

import psycopg

from taskqueue.model.finding import Finding, Level
from taskqueue.store.open import open_store
from taskqueue.store.postgresql import diagnosis
from taskqueue.store.postgresql.connection import Connection
from taskqueue.store.postgresql.url import parse
from tests.nodes import eventually
from tests.postgresql import USER, PostgreSQL


def findings(url: str) -> dict[str, Finding]:
    """Return what the store at this URL finds, by what each is about."""
    with closing(open_store(url)) as store:
        return {finding.about: finding for finding in store.diagnose()}


def test_a_server_that_waits_for_no_disk_is_an_error(postgresql_server: PostgreSQL) -> None:
    found = findings(postgresql_server.url)

    assert found["fsync"].level is Level.ERROR
    assert found["fsync"].do.startswith("ALTER SYSTEM SET fsync = on")
    assert found["full_page_writes"].level is Level.OK
    assert found["connection"].says == "it goes to the server itself"


def test_a_server_whose_connections_run_out_is_a_warning(tmp_path: Path) -> None:
    with PostgreSQL(tmp_path / "small", max_connections="12", fsync="on") as small:
        found = findings(small.url)

    assert (found["connections"].level, found["fsync"].level) == (Level.WARNING, Level.OK)
    assert found["connections"].do.startswith("raise max_connections")


def test_a_replication_slot_without_a_reader_is_named_once_it_keeps_much(postgresql_server: PostgreSQL) -> None:
    def slots() -> list[Finding]:
        return [finding for finding in store.strains() if finding.about == "replication slot"]

    with (
        closing(open_store(postgresql_server.url)) as store,
        psycopg.connect(postgresql_server.url, autocommit=True) as server,
    ):
        server.execute("SELECT pg_create_physical_replication_slot('standby', true)")
        try:
            [young] = slots()
            for _ in range(5):  # segments of 16 MiB
                server.execute("SELECT pg_switch_wal() FROM pg_logical_emit_message(false, 'test', 'x')")
            [long] = slots()
        finally:
            server.execute("SELECT pg_drop_replication_slot('standby')")
        assert slots() == []

    assert (young.level, long.level, long.name) == (Level.OK, Level.WARNING, "standby")
    assert re.fullmatch(r"standby has no reader, and keeps \d+ MiB of the write-ahead log", long.says)


def test_a_synchronous_standby_that_is_away_is_an_error(tmp_path: Path) -> None:
    def standbys(wanted: str) -> Finding:
        """Wait until the server says so, and return the finding."""

        def found() -> list[Finding]:
            about = [finding for finding in store.strains() if finding.about == "synchronous standbys"]
            return [finding for finding in about if finding.says.startswith(wanted)]

        return eventually(found)[0]

    primary = PostgreSQL(tmp_path / "primary")
    with primary, closing(open_store(primary.url)):
        pass
    subprocess.run(["cp", "-a", tmp_path / "primary", tmp_path / "standby"], check=True)
    (tmp_path / "standby/data/standby.signal").touch()
    with primary, closing(open_store(primary.url)) as store:
        follows = f"host=127.0.0.1 port={primary.port} user={USER} password={primary.password} application_name=s1"
        standby = PostgreSQL(tmp_path / "standby", primary_conninfo=follows)
        standby.password = primary.password
        with standby, psycopg.connect(primary.url, autocommit=True) as server:
            assert "synchronous standbys" not in {finding.about for finding in store.strains()}
            server.execute("ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (s1, s2)'")
            server.execute("SELECT pg_reload_conf()")
            connected = standbys("1 of 1")
        away = standbys("0 of 1")

    assert (connected.level, away.level) == (Level.OK, Level.ERROR)
    assert away.says == "0 of 1 are connected: no commit ends, so no job is added"


def test_an_old_transaction_is_named(postgresql_server: PostgreSQL) -> None:
    def oldest() -> Finding:
        found = connection.read(lambda database: diagnosis.diagnose(database, long_transaction=0.0))
        return next(finding for finding in found if finding.about == "oldest transaction")

    with closing(Connection(parse(postgresql_server.url))) as connection:
        assert oldest().says == "none is open"
        with psycopg.connect(postgresql_server.url) as reader:
            reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            reader.execute("SELECT count(*) FROM taskqueue.jobs")

            assert oldest().level is Level.WARNING
            assert f"pg_terminate_backend({reader.info.backend_pid})" in oldest().do
