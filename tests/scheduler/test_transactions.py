"""Jobs in the caller's own transaction: a rollback leaves none, a commit leaves them, and wrong use is said clearly."""

from __future__ import annotations

import os
import secrets
import select
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.errors import OperationFailure

from taskqueue import Scheduler, Status
from taskqueue.errors import ConfigError, DuplicateId, InvalidOption, JobNotFound, StoreUnavailable, WaitTimeout
from taskqueue.model.ids import JobId
from taskqueue.store.bell import WORK
from taskqueue.store.open import open_store
from tests.nodes import LIMIT, eventually, node
from tests.scheduler.jobs import Echo
from tests.servers import PATIENCE, with_database

Client = MongoClient[dict[str, Any]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a store's file that has a table of an application too."""
    path = tmp_path / "jobs.db"
    open_store(str(path)).close()
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("CREATE TABLE orders (number INTEGER)")
    return path


@pytest.fixture
def database(file: Path) -> Iterator[sqlite3.Connection]:
    """Return the application's connection, as Python opens one."""
    with closing(sqlite3.connect(file, timeout=0.1)) as raw:
        yield raw


@pytest.fixture
def observer(file: Path) -> Iterator[Scheduler]:
    """Return a scheduler that sees what was committed."""
    with Scheduler(file) as scheduler:
        yield scheduler


@pytest.mark.parametrize("isolation", ["", "IMMEDIATE", None])
def test_a_rollback_leaves_neither_order_nor_job(
    database: sqlite3.Connection, observer: Scheduler, isolation: str | None
) -> None:
    database.isolation_level = isolation  # type: ignore[assignment]  # any text is allowed
    if isolation is None:
        database.execute("BEGIN IMMEDIATE")
    scheduler = Scheduler(connection=database)
    process = scheduler.add_job(Echo, 1)  # Python would open a transaction before an INSERT, and so does this
    database.execute("INSERT INTO orders VALUES (1)")
    assert scheduler.get_job(process.id).is_waiting
    assert observer.stats()["total"] == 0

    database.rollback()

    assert observer.stats()["total"] == 0
    assert database.execute("SELECT count(*) FROM orders").fetchone() == (0,)


def test_a_commit_leaves_both_and_closing_the_scheduler_after_it_rings(
    file: Path, database: sqlite3.Connection, observer: Scheduler
) -> None:
    with closing(open_store(str(file))) as store, closing(store.bell(WORK)) as bell:
        with Scheduler(connection=database) as scheduler, database:
            database.execute("INSERT INTO orders VALUES (1)")
            process = scheduler.add_job(Echo, 1)
            assert not select.select([bell], [], [], 0)[0]

        assert select.select([bell], [], [], LIMIT)[0]
    assert observer.get_job(process.id).status is Status.WAITING
    assert database.execute("SELECT number FROM orders").fetchall() == [(1,)]  # the connection is still the caller's


def test_closing_the_scheduler_before_the_commit_rings_nobody(file: Path, database: sqlite3.Connection) -> None:
    with closing(open_store(str(file))) as store, closing(store.bell(WORK)) as bell:
        with Scheduler(connection=database) as scheduler:
            scheduler.add_job(Echo, 1)

        assert not select.select([bell], [], [], 0)[0]
        assert database.in_transaction


def test_a_node_runs_what_was_committed(file: Path, database: sqlite3.Connection, observer: Scheduler) -> None:
    database.execute(f"PRAGMA busy_timeout = {LIMIT * 1000:.0f}")  # the node writes, too
    with node(str(file), file.parent, "--chdir", str(Path.cwd())):
        with database:
            process = Scheduler(connection=database).add_job(Echo, {"to": "a"})
        [ended] = observer.wait_for([process.id], timeout=LIMIT)

    assert ended.result == {"to": "a"}


def test_a_job_that_is_refused_leaves_the_rest_of_the_transaction(
    database: sqlite3.Connection, observer: Scheduler
) -> None:
    scheduler = Scheduler(connection=database)
    with database:
        database.execute("INSERT INTO orders VALUES (1)")
        kept = scheduler.add_job(Echo, 1)
        with pytest.raises(DuplicateId):
            scheduler.add_job(Echo, 2, id=kept.id)

    assert [process.id for process in observer.get_jobs()] == [kept.id]
    assert database.execute("SELECT count(*) FROM orders").fetchone() == (1,)


def test_everything_else_works_on_the_connection_too(database: sqlite3.Connection, observer: Scheduler) -> None:
    database.row_factory = sqlite3.Row
    scheduler = Scheduler(connection=database, priority=3)
    with database:
        once = scheduler.add_job_once(Echo, 1)
        assert scheduler.add_job_once(Echo, 1).id == once.id
        assert [found.id for found in scheduler.get_jobs({"status": "WAITING"})] == [once.id]
        assert scheduler.stats()["total"] == scheduler.count_jobs({"job": once.job}) == 1
        scheduler.cancel_job(once.id)
        scheduler.add_job_once(Echo, 1)

    assert scheduler.stats()["total"] == len(scheduler.find_jobs(order="-ended_at")) == 2
    assert not database.in_transaction
    assert observer.stats()["statuses"]["CANCELED"] == 1
    assert [job.options["priority"] for job in observer.get_jobs()] == [3]


def test_a_connection_that_commits_each_statement_is_refused(database: sqlite3.Connection) -> None:
    database.isolation_level = None

    with pytest.raises(ConfigError, match=r"no transaction is open .*: execute BEGIN IMMEDIATE first, or "):
        Scheduler(connection=database).add_job(Echo)


def test_a_transaction_of_another_connection_is_in_the_way_and_that_is_said(
    file: Path, database: sqlite3.Connection
) -> None:
    scheduler = Scheduler(connection=database)
    with closing(sqlite3.connect(file)) as another:
        another.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match=r"another connection writes.*: roll back and begin with BEGIN IMM"):
            scheduler.add_job(Echo)
        with pytest.raises(sqlite3.OperationalError):
            database.execute("INSERT INTO orders VALUES (1)")  # what Python itself would have said
        another.rollback()
        database.rollback()
        database.isolation_level = "IMMEDIATE"
        another.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="another connection writes"):
            scheduler.add_job(Echo)


def test_what_is_no_connection_to_a_store_is_refused(tmp_path: Path, database: sqlite3.Connection) -> None:
    with pytest.raises(ConfigError, match=r"connection='jobs.db' is not a SQLite connection: pass an open"):
        Scheduler(connection="jobs.db")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="both an address and a connection: pass only one"):
        Scheduler(tmp_path / "jobs.db", connection=database)
    with closing(sqlite3.connect(":memory:")) as memory, pytest.raises(ConfigError, match="in memory"):
        Scheduler(connection=memory)
    with (
        closing(sqlite3.connect(tmp_path / "new.db")) as new,
        pytest.raises(ConfigError, match="not a store yet: open it"),
    ):
        Scheduler(connection=new)
    database.text_factory = bytes
    with pytest.raises(ConfigError, match="text_factory"):
        Scheduler(connection=database)
    database.text_factory = str
    database.close()
    with pytest.raises(ConfigError, match="the connection cannot be used"):
        Scheduler(connection=database)


def test_a_statement_of_ours_that_sqlite_refuses_is_passed_on(database: sqlite3.Connection) -> None:
    scheduler = Scheduler(connection=database)
    database.execute("PRAGMA query_only = ON")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        scheduler.add_job(Echo)
    database.close()
    with pytest.raises(sqlite3.ProgrammingError):
        scheduler.stats()
    with pytest.raises(sqlite3.ProgrammingError):
        scheduler.add_job(Echo)


def test_a_connection_is_not_used_after_a_fork(database: sqlite3.Connection) -> None:
    scheduler = Scheduler(connection=database)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            scheduler.add_job(Echo)
        except ConfigError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as said:
        assert said.read().startswith(f"the connection belongs to process {os.getpid()}: ")


@pytest.fixture
def url(mongo_set: str) -> str:
    """Return the URL of an empty database of a replica set."""
    return f"{with_database(mongo_set, f'transactions_{secrets.token_hex(6)}')}&timeoutMS={PATIENCE * 1000:.0f}"


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    """Return the application's own client."""
    with Client(url) as client:
        client.get_default_database().create_collection("orders")
        yield client


@pytest.fixture
def scheduler(url: str) -> Iterator[Scheduler]:
    """Return a scheduler on the database."""
    with Scheduler(url) as scheduler:
        scheduler.stats()
        yield scheduler


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_an_aborted_session_leaves_neither_order_nor_job(client: Client, scheduler: Scheduler) -> None:
    with client.start_session() as session:
        session.start_transaction()
        client.get_default_database().orders.insert_one({}, session=session)
        process = scheduler.add_job(Echo, 1, session=session)
        with pytest.raises(JobNotFound):
            scheduler.get_job(process.id)
        session.abort_transaction()

    assert scheduler.stats()["total"] == 0
    assert client.get_default_database().orders.count_documents({}) == 0


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_a_job_of_an_aborted_session_is_waited_for_by_a_look(client: Client, scheduler: Scheduler, url: str) -> None:
    with pytest.raises(WaitTimeout):
        scheduler.add_job(Echo).wait(0.001)
    with client.start_session() as session, session.start_transaction():
        process = scheduler.add_job(Echo, 1, session=session)
        session.abort_transaction()

    assert scheduler.add_job(Echo)._silence is not None
    assert process._silence is None
    with pytest.raises(JobNotFound):
        process.wait(LIMIT)


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_a_committed_session_leaves_both_and_a_node_runs_the_job(
    client: Client, scheduler: Scheduler, url: str, tmp_path: Path
) -> None:
    def order(session: ClientSession) -> JobId:
        client.get_default_database().orders.insert_one({}, session=session)
        return scheduler.add_job(Echo, {"to": "a"}, session=session).id

    with node(url, tmp_path, "--chdir", str(Path.cwd())), client.start_session() as session:
        id = session.with_transaction(order)
        [ended] = scheduler.wait_for([id], timeout=LIMIT)

    assert ended.result == {"to": "a"}
    assert client.get_default_database().orders.count_documents({}) == 1
    told = eventually(lambda: [event.name for event in scheduler.events({"id": str(id)}, "oldest", 0)])
    assert told[0] == "processing"  # only the commit knows when it was added


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_in_a_session_the_same_job_is_added_once(client: Client, scheduler: Scheduler) -> None:
    pending = scheduler.add_job(Echo, 1, unique="one")
    with client.start_session() as session, session.start_transaction():
        first = scheduler.add_job(Echo, 2, session=session)
        assert scheduler.add_job(Echo, 2, id=first.id, session=session).id == first.id
        assert scheduler.add_job(Echo, 3, unique="one", session=session).id == pending.id
        with pytest.raises(DuplicateId):
            scheduler.add_job(Echo, 4, id=first.id, session=session)

    assert scheduler.stats()["total"] == 2


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_many_jobs_and_each_once_are_part_of_the_session(client: Client, scheduler: Scheduler) -> None:
    pending, before = scheduler.add_job(Echo, 1, unique="one"), scheduler.add_job(Echo, {"a": 1, "b": 2})
    id = JobId()
    entries: list[tuple[type[Echo], int, Any]] = [
        (Echo, 3, {"unique": "two"}),
        (Echo, 3, {"unique": "one"}),
        (Echo, 3, {"unique": "two"}),
        (Echo, 4, {"id": id}),
        (Echo, 4, {"id": id}),
    ]
    with client.start_session() as session, session.start_transaction():
        scheduler.add_jobs(entries, session=session)
        scheduler.add_job_once(Echo, 5, session=session)
        session.abort_transaction()
    assert scheduler.stats()["total"] == 2
    with client.start_session() as session, session.start_transaction():
        processes = scheduler.add_jobs(entries, session=session)
        once = scheduler.add_job_once(Echo, 5, session=session)
        assert scheduler.add_job_once(Echo, 5, session=session).id == once.id
        assert scheduler.add_job_once(Echo, 4, session=session).id == id
        assert scheduler.add_job_once(Echo, {"b": 2, "a": 1}, session=session).id == before.id
        assert scheduler.add_job_once(Echo, 1, unique="one", session=session).id == pending.id
        with pytest.raises(
            InvalidOption, match=f"pending job {before.id} has other options or data, and a call in your"
        ):
            scheduler.add_job_once(Echo, {"a": 1, "b": 2}, priority=1, session=session)

    assert [process.id for process in processes] == [processes[0].id, pending.id, processes[0].id, id, id]
    assert [process.existed for process in processes] == [False, True, True, False, True]
    assert scheduler.stats()["total"] == 5


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_a_repeated_transaction_of_once_has_one_job(client: Client, scheduler: Scheduler) -> None:
    def order(session: ClientSession) -> JobId:
        calls.append(session)
        client.get_default_database().orders.find_one({}, session=session)  # takes the snapshot
        if len(calls) == 1:
            scheduler.add_job_once(Echo, 1)  # another caller is faster
        return scheduler.add_job_once(Echo, 1, session=session).id

    calls: list[ClientSession] = []
    with client.start_session() as session:
        id = session.with_transaction(order)

    assert len(calls) == 2
    assert [process.id for process in scheduler.get_jobs()] == [id]


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_a_job_in_a_session_may_wait_for_another_that_has_ended(client: Client, scheduler: Scheduler) -> None:
    first = scheduler.add_job(Echo, 1)
    with client.start_session() as session, session.start_transaction():
        second = scheduler.add_job(Echo, 2, depends_on=[first.id], session=session)
    store = scheduler._connections.store
    kept = client.get_default_database().taskqueue_jobs.find_one({"_id": second.id})

    assert kept is not None
    assert kept["after"][0]["look"]
    scheduler.run_pending()
    assert store.repair(store.now()) >= 0
    assert scheduler.get_job(second.id).is_done


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_a_transaction_that_has_to_be_repeated_as_a_whole_says_so_in_the_driver_s_words(
    client: Client, scheduler: Scheduler
) -> None:
    with client.start_session() as mine, client.start_session() as other:
        mine.start_transaction()
        other.start_transaction()
        id = JobId()
        scheduler.add_job(Echo, 1, id=id, session=mine)
        with pytest.raises(OperationFailure) as conflict:
            scheduler.add_job(Echo, 1, id=id, session=other)
        assert conflict.value.has_error_label("TransientTransactionError")
        mine.commit_transaction()

    assert scheduler.get_job(id).is_waiting


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_what_is_no_open_transaction_here_is_refused(
    client: Client, scheduler: Scheduler, mongo_standalone: str, file: Path
) -> None:
    with pytest.raises(InvalidOption, match="a session of type str cannot be used: pass what start_session"):
        scheduler.add_job(Echo, session="s")
    with client.start_session() as session:
        with pytest.raises(InvalidOption, match="no transaction is open on it: call this inside"):
            scheduler.add_job(Echo, session=session)
        session.start_transaction()
        with (
            Scheduler(file) as embedded,
            pytest.raises(InvalidOption, match="session is for PostgreSQL and MongoDB: on SQLite"),
        ):
            embedded.add_job(Echo, session=session)
    with Client(mongo_standalone) as another, another.start_session() as session:
        session.start_transaction()
        with pytest.raises(InvalidOption, match="its client is not one of the servers of mongodb://"):
            scheduler.add_job(Echo, session=session)
        with (
            Scheduler(with_database(mongo_standalone, "alone")) as alone,
            pytest.raises(StoreUnavailable, match="Transaction numbers are only allowed on a replica set"),
        ):
            alone.add_job(Echo, session=session)
    assert scheduler.stats()["total"] == 0
