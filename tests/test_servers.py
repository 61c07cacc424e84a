"""The MongoDB servers of the tests are real, shared within a run and gone after it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.write_concern import WriteConcern

from tests.keeper import Run, shared_server
from tests.servers import Cluster, with_database


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


def test_a_kept_server_ends_with_a_run_that_was_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as controller:
        run = Run(folder=tmp_path / "run", controller=controller.pid)
        run.folder.mkdir()
        url = shared_server(run, "standalone")
        with MongoClient[dict[str, Any]](url) as client:
            server = os.pidfd_open(client.admin.command("serverStatus")["pid"])

        controller.send_signal(signal.SIGKILL)

        assert select.select([server], [], [], 30)[0]
    os.close(server)
