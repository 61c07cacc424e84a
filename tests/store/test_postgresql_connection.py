"""Servers and sessions of PostgreSQL that die, stop or lose an answer: a transaction happens once, or not at all."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest

from taskqueue.errors import StoreUnavailable
from taskqueue.model.job import Interrupted
from taskqueue.model.lifecycle.outcomes import Declared, Failed
from taskqueue.model.query import parse
from taskqueue.model.record import Cause, Options, Record, Status
from taskqueue.store import Store
from taskqueue.store.open import open_store
from taskqueue.store.postgresql import PostgreSQLStore
from taskqueue.store.postgresql.connection import TRIES, Connection
from taskqueue.store.postgresql.database import PostgreSQLDatabase
from taskqueue.store.postgresql.roles import Role, grants
from taskqueue.store.postgresql.url import parse as parsed
from taskqueue.store.relational import inserts
from taskqueue.store.relational.columns import ALL_NAMES
from taskqueue.store.relational.engine import Sync
from taskqueue.store.relational.transaction import Transaction
from tests.forking import fork
from tests.nodes import eventually
from tests.postgresql import USER, PostgreSQL
from tests.store.records import (
    BROKEN,
    HOUR,
    NOON,
    PATIENCE,
    WEB_1,
    a_record,
    claim,
    ids,
    kept,
    postponed,
    running,
    settle,
    settlement,
)

Interference = Callable[[PostgreSQLDatabase], None]


@pytest.fixture
def store(postgresql_server: PostgreSQL) -> Iterator[Store]:
    """Open a store on a server that the test may hurt."""
    with closing(open_store(postgresql_server.url)) as opened:
        yield opened


@pytest.fixture
def connection(postgresql_server: PostgreSQL) -> Iterator[Connection]:
    """Open an engine on a server that the test may hurt."""
    with closing(Connection(parsed(postgresql_server.url))) as opened:
        yield opened


def terminate(server: PostgreSQL, database: PostgreSQLDatabase) -> None:
    """End the session of the connection, as an operator does."""
    with psycopg.connect(server.url) as operator:
        operator.execute("SELECT pg_terminate_backend(%s, 60000)", (database.raw.info.backend_pid,))


def stand_between(database: PostgreSQLDatabase) -> tuple[socket.socket, socket.socket]:
    """Return the socket of the server and one of the connection, which hear of each other only what is passed on."""
    ours, theirs = socket.socketpair()
    server = socket.socket(fileno=os.dup(database.raw.fileno()))
    with ours:
        os.dup2(ours.fileno(), database.raw.fileno())
        ours.setblocking(False)
    server.setblocking(True)
    return server, theirs


def lose_answers(database: PostgreSQLDatabase) -> None:
    """Let the server hear and answer the next message of the connection, and lose the connection with the answer."""
    server, theirs = stand_between(database)

    def pass_on() -> None:
        with server, theirs:
            server.sendall(theirs.recv(65536))
            server.recv(65536)

    threading.Thread(target=pass_on, daemon=True).start()


def read_no_answer(database: PostgreSQLDatabase, until: threading.Event) -> None:
    """Let the server answer the next message of the connection, and read nothing of the answer until the event."""
    server, theirs = stand_between(database)

    def pass_on() -> None:
        with server, theirs, contextlib.suppress(OSError):
            server.sendall(theirs.recv(65536))
            until.wait(PATIENCE)
            while data := server.recv(65536):
                theirs.sendall(data)

    threading.Thread(target=pass_on, daemon=True).start()


def add(connection: Connection, new: Record, interfere: Interference, level: Sync = Sync.FULL) -> int:
    """Add a job in a transaction, at whose end something happens to the connection; return how often it was run."""
    runs = 0

    def body(database: PostgreSQLDatabase) -> tuple[Transaction, None]:
        nonlocal runs
        runs += 1
        work = Transaction(database, tells_ends=False)
        inserts.add(work, [new])
        work.finish()
        interfere(database)
        return work, None

    connection.write(level, body)
    return runs


def await_lock(server: PostgreSQL, pid: int) -> None:
    """Wait until the session with this pid waits for a lock."""
    with psycopg.connect(server.url, autocommit=True) as operator:
        waits = "SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted"
        eventually(lambda: operator.execute(waits, [pid]).fetchone())


def run_of(database: PostgreSQLDatabase) -> str:
    """Return which run of the server answers."""
    database.raw.execute("SELECT 1")
    return database.run


def once(interfere: Interference) -> Interference:
    """Interfere with the first transaction alone."""
    left = [interfere]

    def first(database: PostgreSQLDatabase) -> None:
        while left:
            left.pop()(database)

    return first


def test_a_store_works_again_after_its_server_was_killed(store: Store, postgresql_server: PostgreSQL) -> None:
    added = a_record()
    store.add([added])

    for _ in range(2):
        postgresql_server.kill()
        postgresql_server.start()
        assert kept(store, added.id).status is Status.WAITING
        postgresql_server.kill()
        postgresql_server.start()
        store.add([a_record()])

    assert store.count(parse({})) == 3


def test_a_server_that_is_away_is_named_with_the_way_out(store: Store, postgresql_server: PostgreSQL) -> None:
    postgresql_server.kill()

    with pytest.raises(StoreUnavailable, match=r"does not answer .* may be repeated, with id= or unique=") as caught:
        store.add([a_record()])
    assert postgresql_server.password not in str(caught.value)
    with pytest.raises(StoreUnavailable, match="does not answer"):
        store.count(parse({}))


def test_added_jobs_and_outcomes_survive_a_server_that_is_killed_at_once(
    store: Store, postgresql_server: PostgreSQL
) -> None:
    for _ in range(5):
        run = running(store, a_record())
        added = postponed(NOON + HOUR)
        settle(store, run)
        store.add([added])
        postgresql_server.kill()
        postgresql_server.start()

        assert kept(store, added.id).status is Status.POSTPONED
        assert kept(store, run.id).status is Status.DONE


def test_no_other_server_confirms_what_the_last_one_may_have_lost(
    connection: Connection, postgresql_server: PostgreSQL
) -> None:
    """Another thread has opened a new connection before this one has waited for the disk."""
    add(connection, a_record(), lambda _: None, Sync.NORMAL)
    postgresql_server.kill()
    postgresql_server.start()
    assert connection.look(run_of)

    with pytest.raises(StoreUnavailable, match=r"has restarted before .* may be repeated, with id= or unique="):
        connection.reach_the_disk()
    add(connection, a_record(), lambda _: None, Sync.NORMAL)
    connection.reach_the_disk()


def test_a_key_that_an_application_adds_at_that_moment_fails_no_outcome(
    store: Store, connection: Connection, postgresql_server: PostgreSQL
) -> None:
    run = running(store, a_record(options=Options(undeclared=True)))
    declared = settlement(run, Declared(options={"unique": "only"}))._replace(defined=run)
    with (
        ThreadPoolExecutor(1) as thread,
        closing(psycopg.connect(postgresql_server.url)) as theirs,
        closing(psycopg.connect(postgresql_server.url, autocommit=True)) as operator,
    ):
        theirs.execute("SELECT 1")
        connection.within(theirs, None).add([a_record(unique="only")])
        settling = thread.submit(store.settle, [declared], NOON)
        eventually(lambda: operator.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone())
        theirs.commit()

        assert settling.result(PATIENCE) == {run.id}
    assert kept(store, run.id).cause is Cause.REPLACED


def test_a_transaction_whose_session_ends_is_run_again(connection: Connection, postgresql_server: PostgreSQL) -> None:
    new = a_record()

    runs = add(connection, new, once(lambda database: terminate(postgresql_server, database)))

    assert runs == 2
    with closing(open_store(postgresql_server.url)) as store:
        assert ids(store.find(parse({}))) == [new.id]


def test_a_commit_whose_answer_is_lost_is_looked_up(connection: Connection, postgresql_server: PostgreSQL) -> None:
    new = a_record()

    assert add(connection, new, lose_answers) == 1

    with closing(open_store(postgresql_server.url)) as store:
        assert ids(store.find(parse({}))) == [new.id]


def test_a_transaction_whose_session_always_ends_fails(connection: Connection, postgresql_server: PostgreSQL) -> None:
    runs: list[int] = []

    def interfere(database: PostgreSQLDatabase) -> None:
        runs.append(database.raw.info.backend_pid)
        terminate(postgresql_server, database)

    with pytest.raises(StoreUnavailable, match="does not answer"):
        add(connection, a_record(), interfere)

    assert len(set(runs)) == TRIES
    with closing(open_store(postgresql_server.url)) as store:
        assert store.count(parse({})) == 0


def test_a_commit_is_not_certain_after_a_crash_of_the_server(
    connection: Connection, postgresql_server: PostgreSQL
) -> None:
    """Its number may be that of another transaction by then."""

    def crash(database: PostgreSQLDatabase) -> None:
        lose_answers(database)
        database.run = "another one"

    with pytest.raises(StoreUnavailable, match="which may have succeeded"):
        add(connection, a_record(), crash)


def test_a_commit_is_not_certain_while_another_session_has_the_lock(
    connection: Connection, postgresql_server: PostgreSQL
) -> None:
    """As the lost session has it while it waits for a synchronous standby: its transaction must not be run again."""
    runs: list[int] = []
    with psycopg.connect(postgresql_server.url) as holder:
        thread = threading.Thread(target=holder.execute, args=["LOCK TABLE taskqueue.store IN EXCLUSIVE MODE"])

        def lose(database: PostgreSQLDatabase) -> None:
            run_of(database)  # so that it has the lock before the other session asks for it
            runs.append(database.raw.info.backend_pid)
            if not thread.ident:
                thread.start()
                await_lock(postgresql_server, holder.info.backend_pid)
            lose_answers(database)

        with pytest.raises(StoreUnavailable, match="which may have succeeded"):
            add(connection, a_record(), lose)
        thread.join(PATIENCE)

    assert len(runs) == 1


def count_jobs(connection: Connection) -> object:
    """Return the number of jobs."""
    return connection.read(lambda database: database.execute("SELECT count(*) FROM jobs").fetchone())


@pytest.mark.parametrize("call", [count_jobs, lambda connection: add(connection, a_record(), lambda _: None)])
def test_a_call_that_was_interrupted_leaves_a_connection_that_works(
    call: Callable[[Connection], object], connection: Connection, postgresql_server: PostgreSQL
) -> None:
    """As the job is that uses its scheduler when its time is over: a worker has one scheduler for all its jobs."""
    pid = connection.read(lambda database: database.raw.info.backend_pid)

    def interrupt() -> None:
        await_lock(postgresql_server, pid)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def on_signal(*_: object) -> None:
        raise Interrupted("timeout")

    before = signal.signal(signal.SIGUSR1, on_signal)
    try:
        with psycopg.connect(postgresql_server.url) as holder:
            holder.execute("LOCK TABLE taskqueue.jobs, taskqueue.store")
            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(Interrupted):
                call(connection)
            thread.join(PATIENCE)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert add(connection, a_record(), lambda _: None) == 1
    assert count_jobs(connection) == (1,)


def test_each_run_of_a_server_is_told_from_the_others(connection: Connection, postgresql_server: PostgreSQL) -> None:
    """Also if the server itself survives the crash of a session."""

    def run() -> str:
        with contextlib.suppress(StoreUnavailable):  # while the server recovers
            return connection.read(run_of)
        return ""

    first = run()
    postgresql_server.kill()
    postgresql_server.start()
    second = run()
    os.kill(connection.read(lambda database: database.raw.info.backend_pid), signal.SIGKILL)

    assert len({first, second, eventually(run)}) == 3


def test_a_server_that_stands_still_is_given_up_in_time(connection: Connection, postgresql_server: PostgreSQL) -> None:
    connection.read(lambda database: setattr(database.raw, "answers_within", 0.5))
    postgresql_server.send(signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable, match="does not answer"):
            add(connection, a_record(), lambda _: None)
    finally:
        postgresql_server.send(signal.SIGCONT)

    assert add(connection, a_record(), lambda _: None) == 1


def test_a_holder_of_the_lock_that_does_nothing_is_ended_by_the_server(
    store: Store, postgresql_server: PostgreSQL
) -> None:
    with psycopg.connect(postgresql_server.url) as idle:
        idle.execute("SET LOCAL idle_in_transaction_session_timeout = '1s'")
        idle.execute("LOCK TABLE taskqueue.store IN EXCLUSIVE MODE")

        store.add([a_record()])

        with pytest.raises(psycopg.Error, match="idle-in-transaction timeout"):
            idle.execute("SELECT 1")
    assert store.count(parse({})) == 1


def test_a_transaction_that_does_nothing_for_long_is_run_again(
    connection: Connection, postgresql_server: PostgreSQL
) -> None:
    """The server ends its session, say because its process was stopped, so that others get the lock."""
    new = a_record()

    def wait(database: PostgreSQLDatabase) -> None:
        database.raw.execute("SET LOCAL idle_in_transaction_session_timeout = '100ms'")
        select.select([database.raw.fileno()], [], [], PATIENCE)

    assert add(connection, new, once(wait)) == 2

    with closing(open_store(postgresql_server.url)) as store:
        assert ids(store.find(parse({}))) == [new.id]


def test_a_transaction_that_reads_no_answer_for_long_is_run_again(connection: Connection, store: Store) -> None:
    """The server ends its session, say because its process was stopped, so that others get the lock."""
    new, other = a_record(), a_record()
    is_added = threading.Event()

    with ThreadPoolExecutor(1) as threads:

        def stand_still(database: PostgreSQLDatabase) -> None:
            database.send()
            read_no_answer(database, is_added)
            threads.submit(store.add, [other]).add_done_callback(lambda _: is_added.set())
            database.raw.execute("SELECT repeat('x', 1000000) FROM generate_series(1, 100)")

        assert add(connection, new, once(stand_still)) == 2

    assert {record.id for record in store.find(parse({}))} == {new.id, other.id}


def test_reads_wait_for_no_lock(store: Store, postgresql_server: PostgreSQL) -> None:
    store.add([a_record()])
    with psycopg.connect(postgresql_server.url) as holder:
        holder.execute("LOCK TABLE taskqueue.store IN EXCLUSIVE MODE")

        assert store.count(parse({})) == 1
        assert store.tally() == {("default", Status.WAITING): 1}


def test_a_forked_child_has_a_connection_of_its_own(store: Store) -> None:
    store.add([a_record()])

    child = fork()
    if not child:
        store.add([a_record()])
        store.close()
        os._exit(0)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.count(parse({})) == 2
    assert len(claim(store, 9).records) == 2


def test_threads_take_turns(store: Store) -> None:
    def add_some() -> None:
        for _ in range(20):
            store.add([a_record()])

    threads = [threading.Thread(target=add_some) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)

    assert store.count(parse({})) == 80


def test_a_claim_of_a_lost_session_is_given_up_whole(store: Store, postgresql_server: PostgreSQL) -> None:
    """A claim commits without waiting for the disk: a crash may undo it, and then the job waits again."""
    store.add([a_record()])

    [taken] = claim(store).records
    postgresql_server.kill()
    postgresql_server.start()

    found = kept(store, taken.id)
    assert (found.status, found.holder) in ((Status.PROCESSING, WEB_1), (Status.WAITING, None))


def test_no_outcome_is_forgotten_if_the_look_for_one_in_doubt_fails(postgresql_server: PostgreSQL) -> None:
    columns = ", ".join({"rowid", *ALL_NAMES} - {"ended_at"})
    with psycopg.connect(postgresql_server.url, autocommit=True) as operator:
        open_store(postgresql_server.url).close()
        operator.execute("CREATE ROLE web LOGIN PASSWORD 'secret'")
        operator.execute("".join(grants("taskqueue", Role.NODE, "web")))
        url = postgresql_server.url.replace(f"{USER}:{postgresql_server.password}@", "web:secret@")
        with closing(open_store(f"{url}?taskqueue.lock=shared")) as store:
            assert isinstance(store, PostgreSQLStore)
            store.add([a_record(), a_record(), a_record()])
            lost, done, failed = claim(store, 3).records
            settle(store, lost)
            store._in_doubt.add(lost.id)
            outcomes = [settlement(lost), settlement(done), settlement(failed, Failed(failure=BROKEN))]
            operator.execute(
                f"REVOKE SELECT ON taskqueue.jobs FROM web; GRANT SELECT ({columns}) ON taskqueue.jobs TO web"
            )
            with pytest.raises(StoreUnavailable):
                store.settle(outcomes, NOON)
            operator.execute("GRANT SELECT ON taskqueue.jobs TO web")

            assert store.settle(outcomes, NOON) == {lost.id, done.id, failed.id}
            assert store.settle(outcomes, NOON) == set()
            assert store.tally() == {("default", Status.DONE): 2, ("default", Status.FAILED): 1}
