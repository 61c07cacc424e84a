"""Servers that die, stop, refuse or forget: a clear error within a deadline, and work again as soon as they do."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from bson import ObjectId
from pymongo import MongoClient, WriteConcern

from taskqueue import Scheduler
from taskqueue.errors import ConfigError, SchemaMismatch, StoreUnavailable
from taskqueue.model.query import parse
from taskqueue.model.record import Status
from taskqueue.store import Store
from taskqueue.store.bell import NEWS, STOPS, WORK
from taskqueue.store.fan_out import LISTEN_PAUSE
from taskqueue.store.mongodb import open_mongodb
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.driver_errors import DEADLINE, reaching
from taskqueue.store.mongodb.indexes import UNIQUE
from taskqueue.store.mongodb.store import MongoStore
from taskqueue.store.mongodb.url import parse as parsed
from tests.servers import Cluster, Server, with_database
from tests.store.records import (
    HOUR,
    NOON,
    PATIENCE,
    WEB_1,
    a_record,
    behind,
    claim,
    kept,
    now_cursor,
    rings,
    running,
    settle,
    told,
)

Document: TypeAlias = dict[str, Any]

SLACK = 10.0
"""Seconds that a busy machine may add to a deadline."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a set of one member that the tests of this file may hurt."""
    with Cluster(tmp_path_factory.mktemp("hurt"), size=1) as cluster:
        yield cluster


@pytest.fixture
def url(server: Cluster) -> str:
    return with_database(server.url, f"outages-{ObjectId()}")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    open_mongodb(f"{url}&timeoutMS={PATIENCE * 1000:.0f}").close()  # a slow disk takes long to make it
    with closing(open_mongodb(url)) as store:
        yield store


@contextlib.contextmanager
def failing(server: Cluster, *commands: str, times: int = 1, **how: Any) -> Iterator[None]:
    """Make the server fail these commands of ours so many times."""
    data = {"failCommands": list(commands), "appName": "taskqueue", **how}
    with MongoClient[Document](server.url) as client:
        client.admin.command("configureFailPoint", "failCommand", mode={"times": times}, data=data)
        try:
            yield
        finally:
            client.admin.command("configureFailPoint", "failCommand", mode="off")


def works_again(store: Store) -> None:
    """Wait until the store takes a job."""
    patience = time.monotonic() + PATIENCE
    while True:
        try:
            store.add([a_record()])
        except StoreUnavailable:
            assert time.monotonic() < patience
        else:
            return


def test_a_killed_server_is_an_error_within_the_deadline_and_its_return_is_noticed(
    server: Cluster, store: Store
) -> None:
    acknowledged = a_record()
    store.add([acknowledged])
    bell = store.bell(WORK)
    server.members[0].kill()
    began = time.monotonic()

    with pytest.raises(
        StoreUnavailable, match=r"no server accepts writes|the connection broke|no answer in time"
    ) as caught:
        store.add([a_record()])

    assert time.monotonic() - began < DEADLINE + SLACK
    assert "may be repeated" in str(caught.value)
    server.members[0].start()
    server.primary()
    works_again(store)
    assert kept(store, acknowledged.id) == acknowledged
    assert rings(bell)


def test_a_store_is_closed_without_its_server(server: Cluster, url: str) -> None:
    store = open_mongodb(url)
    for topic in (WORK, STOPS, NEWS):
        store.bell(topic)
    server.members[0].kill()
    try:
        began = time.monotonic()
        store.close()
        assert time.monotonic() - began < SLACK
    finally:
        server.members[0].start()
        server.primary()


def test_a_server_that_accepts_and_never_answers_is_an_error_within_the_deadline(server: Cluster, store: Store) -> None:
    server.members[0].send(signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"no answer in time.* timeoutMS=20000|no server accepts writes"):
            store.count(parse({}))
        assert time.monotonic() - began < DEADLINE + SLACK
    finally:
        server.members[0].send(signal.SIGCONT)
    works_again(store)


def test_nobody_listens_there(tmp_path: Path) -> None:
    began = time.monotonic()

    with pytest.raises(
        StoreUnavailable, match=r"mongodb://127.0.0.1:1/jobs: no server accepts writes.* id= or unique="
    ):
        open_mongodb("mongodb://127.0.0.1:1/jobs")

    assert time.monotonic() - began < DEADLINE + SLACK


def test_a_call_gives_up_when_the_url_says(tmp_path: Path) -> None:
    began = time.monotonic()

    with pytest.raises(StoreUnavailable, match="no server accepts writes"):
        open_mongodb("mongodb://127.0.0.1:1/jobs?timeoutMS=100")

    assert time.monotonic() - began < DEADLINE


def test_a_user_who_was_removed_and_is_back_logs_in_again(tmp_path: Path) -> None:
    server = Server(tmp_path, "--auth")
    server.start()
    url = f"mongodb://{{}}@{server.address}/jobs?authSource=admin&heartbeatFrequencyMS=500"
    rights = [{"role": "readWrite", "db": "jobs"}]
    with MongoClient[Document](server.url) as first:
        first.admin.command("createUser", "root", pwd="secret", roles=["root"])
    with MongoClient[Document](url.format("root:secret")) as root, contextlib.ExitStack() as end:
        end.callback(server.kill)
        root.admin.command("createUser", "tq", pwd="secret", roles=rights)
        with closing(open_mongodb(url.format("tq:secret"))) as store:
            store.add([a_record()])
            root.admin.command("dropUser", "tq")
            with pytest.raises(StoreUnavailable, match=r"rejects the user or password.*authSource"):
                store.add([a_record()])
            root.admin.command("createUser", "tq", pwd="secret", roles=rights)
            works_again(store)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Start a server with users, and return what returns the URL of a new one with this role on the database."""
    server = Server(tmp_path, "--auth")
    server.start()
    with contextlib.ExitStack() as end:
        end.callback(server.kill)
        with server.client() as first:
            first.admin.command("createUser", "root", pwd="secret", roles=["root"])
        url = f"mongodb://{{}}:secret@{server.address}/jobs?authSource=admin"
        root = end.enter_context(MongoClient[Document](url.format("root")))

        def user(role: str) -> str:
            root.admin.command("createUser", role, pwd="secret", roles=[{"role": role, "db": "jobs"}])
            return url.format(role)

        yield user


def test_a_user_who_may_only_read_sees_everything_and_changes_nothing(guarded: Callable[[str], str]) -> None:
    with closing(open_mongodb(guarded("readWrite"))) as writing:
        writing.add([a_record()])

    with Scheduler(guarded("read")) as scheduler:
        [job] = scheduler.get_jobs()
        assert "No node is running" in scheduler.why(job.id)
        assert scheduler.stats()["total"] == 1
        assert [queue.name for queue in scheduler.overview_reader().read().queues] == ["default"]
        with pytest.raises(StoreUnavailable, match=r"lacks rights \(not authorized on jobs.*readWrite"):
            scheduler.cancel_job(job.id)
        assert scheduler.get_job(job.id).is_waiting


def test_a_user_who_may_only_read_makes_no_store(guarded: Callable[[str], str]) -> None:
    with pytest.raises(StoreUnavailable, match=r"lacks rights.*readWrite"):
        open_mongodb(guarded("read"))


def test_a_user_who_may_not_make_the_unique_index_opens_no_store_without_it(guarded: Callable[[str], str]) -> None:
    open_mongodb(guarded("readWrite")).close()
    with closing(Connection(parsed(guarded("dbAdmin")))) as connection:
        connection.collections.jobs.drop_index(UNIQUE)

    with pytest.raises(StoreUnavailable, match=r"lacks rights.*createIndexes.*readWrite"):
        open_mongodb(guarded("read"))


def test_wrong_credentials_are_named_and_the_password_is_not(url: str) -> None:
    wrong = url.replace("mongodb://", "mongodb://nobody:wr0ng-secret@")

    with pytest.raises(StoreUnavailable, match=r"rejects the user or password.*authSource") as caught:
        open_mongodb(wrong)

    assert "wr0ng-secret" not in str(caught.value)


def test_a_full_disk_and_missing_rights_are_named(server: Cluster, store: Store) -> None:
    with failing(server, "insert", errorCode=14031), pytest.raises(StoreUnavailable, match="disk is full"):
        store.add([a_record()])
    with failing(server, "insert", errorCode=13), pytest.raises(StoreUnavailable, match=r"lacks rights.*readWrite"):
        store.add([a_record()])
    with failing(server, "insert", errorCode=8), pytest.raises(StoreUnavailable, match="the server refuses"):
        store.add([a_record(), a_record()])


def test_a_broken_connection_is_named(server: Cluster, store: Store) -> None:
    run = running(store, a_record())

    with failing(server, "update", closeConnection=True), pytest.raises(StoreUnavailable, match="the connection broke"):
        settle(store, run)

    works_again(store)
    assert settle(store, run) == {run.id}


def test_a_job_that_is_in_is_acknowledged_though_its_event_could_not_be_told(
    server: Cluster, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    cursor = now_cursor(store)
    record = a_record()

    with failing(server, "findAndModify", errorCode=8), caplog.at_level(logging.WARNING):
        assert store.add([record]) == [record]
        assert now_cursor(store) == cursor

    assert "1 events could not be recorded" in caplog.text
    assert claim(store).records[0].id == record.id
    assert told(store, cursor) == ["processing"]


def test_a_store_of_another_schema_is_refused(server: Cluster, url: str) -> None:
    with MongoClient[Document](url) as client:
        client.get_default_database()["taskqueue_facts"].insert_one({"_id": "schema", "version": 99})

    with pytest.raises(SchemaMismatch, match="schema version 99"):
        open_mongodb(url)


def test_a_server_that_is_too_old_is_refused(url: str) -> None:
    class Old(Connection):
        def hello(self) -> Document:
            return super().hello() | {"maxWireVersion": 8}

    with pytest.raises(StoreUnavailable, match=r"older than MongoDB 4.4: upgrade"):
        MongoStore(Old(parsed(url)))


def test_a_call_whose_client_was_closed_by_a_login_of_another_thread_may_be_repeated() -> None:
    client: MongoClient[Any] = MongoClient("mongodb://127.0.0.1:1", connect=False)
    client.close()

    with pytest.raises(StoreUnavailable, match=r"was closed .*: repeat the call"), reaching("s"):
        client.admin.command("ping")


def test_a_url_that_cannot_be_read_is_the_operators_to_correct() -> None:
    with pytest.raises(ConfigError, match="correct the URL"):
        open_mongodb("mongodb://127.0.0.1:notaport/jobs")


def test_an_outcome_whose_acknowledgement_was_lost_is_accepted_when_it_is_settled_again(
    server: Cluster, store: Store
) -> None:
    run = running(store, a_record())
    lost_reply = {"code": 64, "errmsg": "waiting for replication timed out"}

    with failing(server, "update", writeConcernError=lost_reply), pytest.raises(StoreUnavailable):
        settle(store, run)

    assert settle(store, run) == {run.id}
    assert settle(store, run) == set()
    assert kept(store, run.id).status is Status.DONE


def test_what_follows_is_left_to_others_if_the_server_goes_just_then(
    server: Cluster, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    run = running(store, a_record())
    after = behind(run.id)
    store.add([after])
    cursor = now_cursor(store)

    with failing(server, "findAndModify", errorCode=8), caplog.at_level(logging.WARNING):
        assert settle(store, run) == {run.id}
        assert now_cursor(store) == cursor

    assert "postponed" in caplog.text
    assert told(store, cursor) == []
    assert store.repair(NOON + HOUR) == 2
    assert sorted(told(store, cursor)) == ["done", "waiting"]
    assert kept(store, after.id).status is Status.WAITING


def test_a_bell_whose_history_is_lost_rings_once_and_goes_on(
    server: Cluster, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    bell = store.bell(NEWS)

    with failing(server, "getMore", errorCode=286), caplog.at_level(logging.INFO):
        assert rings(bell)

    assert "the change stream broke" in caplog.text
    store.add([a_record()])
    assert rings(bell)
    assert bell.pause == LISTEN_PAUSE


def test_a_bell_rings_again_after_its_collection_was_dropped(server: Cluster, url: str, store: Store) -> None:
    bell = store.bell(NEWS)
    store.add([a_record()])
    assert rings(bell)

    with MongoClient[Document](url) as client:
        client.get_default_database().drop_collection("taskqueue_events")

    assert rings(bell)


def test_a_bell_that_cannot_be_opened_is_an_error(server: Cluster, store: Store) -> None:
    open_before = eventfds()

    with failing(server, "aggregate", errorCode=8), pytest.raises(StoreUnavailable):
        store.bell(NEWS)

    assert eventfds() == open_before


def eventfds() -> int:
    """Count those of our descriptors that are no files and no connections: the client opens and closes such at will."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(entry) == "anon_inode:[eventfd]"
    return count


def test_a_closed_store_leaves_no_thread_and_is_gone_within_a_second(server: Cluster, url: str) -> None:
    store = open_mongodb(url)
    bells = [store.bell(WORK), store.bell(NEWS)]
    began = time.monotonic()

    store.close()

    assert time.monotonic() - began < SLACK
    assert [bell.fileno() for bell in bells] == [-1, -1]
    assert not [name for name in thread_names() if "bell" in name]


def thread_names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_a_killed_primary_costs_no_acknowledged_job(cluster: Cluster) -> None:
    with closing(open_mongodb(with_database(cluster.url, "failover"))) as store:
        acknowledged = [a_record() for _ in range(5)]
        for record in acknowledged:
            store.add([record])

        cluster.kill_primary()

        works_again(store)
        taken = claim(store, 5, holder=WEB_1)
        assert {record.id for record in taken.records} <= {one.id for one in store.find(parse({}))}
        assert {record.id for record in acknowledged} <= {one.id for one in store.find(parse({}))}


def test_a_new_primary_that_cannot_vouch_for_the_last_events_yet_denies_no_cursor(
    server: Cluster, store: Store, url: str
) -> None:
    store.add([a_record()])
    start = now_cursor(store)
    database = url.rpartition("/")[2].partition("?")[0]
    with server.primary().client() as client:
        here = client[database].with_options(write_concern=WriteConcern(w=1))
        page = here["taskqueue_events"].find_one({}, sort=[("_id", -1)])
        assert page is not None
        cursor = str(page["_id"] + 1)
        client.admin.command("configureFailPoint", "disableSnapshotting", mode="alwaysOn")
        try:  # what a majority has and shows stands still from here on, as it does right after an election
            here["taskqueue_events"].insert_one({**page, "_id": page["_id"] + 1})
            here["taskqueue_facts"].update_one({"_id": "events"}, {"$inc": {"reached": 1}})

            assert store.events(start) == ([], start)
            assert store.events(cursor) == ([], cursor)
        finally:
            client.admin.command("configureFailPoint", "disableSnapshotting", mode="off")


def test_a_query_that_is_larger_than_the_server_takes_is_refused_with_the_way_out(store: Store) -> None:
    with pytest.raises(StoreUnavailable, match="pass fewer or shorter values at once"):
        store.count(parse({"data.to": "x" * 17_000_000}))
