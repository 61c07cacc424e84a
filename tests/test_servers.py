"""The servers of the tests are real, shared within a run and gone after it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest
from pymongo import MongoClient
from pymongo.write_concern import WriteConcern

from tests.conftest import compiled_once
from tests.keeper import Run, lost_servers, shared_server
from tests.nodes import LIMIT, eventually
from tests.postgresql import OLDEST, PostgreSQL
from tests.servers import Cluster, ServerMissing, with_database


def test_all_processes_collect_at_once_after_the_first(tmp_path: Path) -> None:
    run, together = Run(folder=tmp_path, controller=os.getpid()), threading.Barrier(2, timeout=LIMIT)

    def collect() -> None:
        with compiled_once(run):
            together.wait()

    def opened() -> int:
        return [file.path for file in psutil.Process().open_files()].count(str(tmp_path / "compiled"))

    with ThreadPoolExecutor(2) as others:
        with compiled_once(run):
            collections = [others.submit(collect) for _ in range(2)]
            eventually(lambda: opened() == 3)
        for collection in collections:
            collection.result()


def test_the_shared_replica_set_takes_majority_writes_and_has_change_streams(mongo_set: str) -> None:
    with MongoClient[dict[str, Any]](mongo_set) as client:
        collection = client["servers"].get_collection("notes", write_concern=WriteConcern("majority"))
        with collection.watch() as stream:
            collection.insert_one({"text": "hello"})

            assert next(stream)["fullDocument"]["text"] == "hello"


def test_the_standalone_server_is_in_no_set(mongo_standalone: str) -> None:
    with MongoClient[dict[str, Any]](mongo_standalone) as client:
        assert "setName" not in client.admin.command("hello")


def test_a_database_name_goes_between_the_hosts_and_the_options() -> None:
    assert with_database("mongodb://a:1,b:2/?replicaSet=rs0", "jobs") == "mongodb://a:1,b:2/jobs?replicaSet=rs0"


def test_a_set_of_three_survives_its_primary_and_takes_it_back(cluster: Cluster) -> None:
    with MongoClient[dict[str, Any]](cluster.url, w="majority") as client:
        client["servers"]["notes"].insert_one({"text": "before"})
        dead = cluster.kill_primary()
        assert cluster.primary() is not dead

        dead.start()
        cluster.step_down()
        assert client["servers"]["notes"].count_documents({"text": "before"}) == 1
        assert len(cluster.secondaries()) == 2


def test_the_shared_postgresql_server_is_of_a_supported_version_and_asks_for_the_password(postgresql_url: str) -> None:
    with psycopg.connect(postgresql_url) as connection:
        assert connection.info.server_version >= OLDEST * 10_000
        assert connection.info.parameter_status("server_encoding") == "UTF8"

    server = urlsplit(postgresql_url)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(host=server.hostname, port=server.port, user=server.username, password="wrong")


def test_a_postgresql_server_that_was_killed_comes_back_with_what_was_committed(postgresql_server: PostgreSQL) -> None:
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE notes (text TEXT)")
        connection.execute("INSERT INTO notes VALUES ('before')")
        connection.execute("BEGIN")
        connection.execute("INSERT INTO notes VALUES ('never committed')")
        address = postgresql_server.url

        postgresql_server.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("COMMIT")

    with pytest.raises(psycopg.OperationalError, match="Connection refused"):
        psycopg.connect(address)
    postgresql_server.start()
    assert postgresql_server.url == address
    with psycopg.connect(address) as connection:
        assert connection.execute("SELECT text FROM notes").fetchall() == [("before",)]


def test_a_postgresql_server_that_is_stopped_answers_once_it_continues(postgresql_server: PostgreSQL) -> None:
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        process = psutil.Process(connection.info.backend_pid)
        postgresql_server.send(signal.SIGSTOP)
        assert process.status() == psutil.STATUS_STOPPED

        postgresql_server.send(signal.SIGCONT)

        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_postgresql_server_that_is_stopped_can_be_killed_and_ended(tmp_path: Path) -> None:
    with PostgreSQL(tmp_path / "postgresql") as server:
        server.send(signal.SIGSTOP)
        server.kill()
        server.start()
        server.send(signal.SIGSTOP)

    assert server.process is not None
    assert server.process.returncode == 0


def test_a_postgresql_server_has_the_settings_of_its_test(tmp_path: Path) -> None:
    with (
        PostgreSQL(tmp_path / "postgresql", fsync="on", max_connections="20") as server,
        psycopg.connect(server.url) as connection,
    ):
        assert connection.execute("SHOW fsync").fetchone() == ("on",)
        assert connection.execute("SHOW max_connections").fetchone() == ("20",)


def test_a_postgresql_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ServerMissing, match='unrecognized configuration parameter "warp"'):
        PostgreSQL(tmp_path / "postgresql", warp="9").start()


def test_a_database_cluster_that_a_killed_process_was_making_is_not_copied(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from tests import postgresql
postgresql.template = Path({str(tmp_path / "template")!r})
with postgresql.PostgreSQL(Path({str(tmp_path)!r}) / sys.argv[1]): pass
"""
    with subprocess.Popen([sys.executable, "-c", code, "first"]) as first:
        eventually(lambda: any((tmp_path / "template").glob("data*")))
        first.send_signal(signal.SIGKILL)

    subprocess.run([sys.executable, "-c", code, "second"], check=True)


@pytest.fixture
def controlled(tmp_path: Path) -> Iterator[tuple[Run, subprocess.Popen[bytes]]]:
    """Return a run of its own, and the process that controls it."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as controller:
        run = Run(folder=tmp_path / "run", controller=controller.pid)
        run.folder.mkdir()
        yield run, controller
        controller.kill()


def process_of(url: str) -> int:
    """Return the pid of a MongoDB server."""
    with MongoClient[dict[str, Any]](url) as client:
        return int(client.admin.command("serverStatus")["pid"])


@pytest.mark.parametrize("kind", ["standalone", "postgresql"])
def test_a_kept_server_ends_with_a_run_that_was_killed(
    controlled: tuple[Run, subprocess.Popen[bytes]], kind: str
) -> None:
    run, controller = controlled
    url = shared_server(run, kind)
    postmaster = run.folder / "postgresql/data/postmaster.pid"
    server = os.pidfd_open(process_of(url) if kind == "standalone" else int(postmaster.read_text().split("\n")[0]))

    controller.send_signal(signal.SIGKILL)

    assert select.select([server], [], [], 60)[0]
    os.close(server)


def test_a_kept_server_that_has_ended_is_named_with_the_end_of_its_log(
    controlled: tuple[Run, subprocess.Popen[bytes]],
) -> None:
    run, controller = controlled
    server = process_of(shared_server(run, "standalone"))
    assert lost_servers(run) == ""

    os.kill(server, signal.SIGTERM)

    said = eventually(lambda: lost_servers(run))
    assert f"(standalone), pid {server}, ended by itself with 0" in said
    assert "SignalHandler" in said
    controller.kill()
    eventually(lambda: not run.folder.exists())
