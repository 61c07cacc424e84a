"""Jobs in the caller's own transaction on PostgreSQL: with psycopg, SQLAlchemy and Django, also asynchronous."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import select
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from taskqueue import AsyncScheduler, Scheduler, Status, task
from taskqueue.errors import DuplicateId, InvalidOption, JobNotFound, SchemaMismatch, StoreUnavailable
from taskqueue.model.ids import JobId
from taskqueue.store.bell import WORK
from taskqueue.store.open import open_store
from tests.nodes import LIMIT, eventually, node
from tests.scheduler.jobs import Echo


@task
def tell(text: str) -> str:
    """Return the text."""
    return text


ORDER = "INSERT INTO {}.orders VALUES (1)"


@pytest.fixture(scope="module")
def schema(postgresql_url: str) -> Iterator[str]:
    """Return the schema of a store that has a table of the application, too."""
    name = f"transactions_{secrets.token_hex(6)}"
    open_store(f"{postgresql_url}?taskqueue.schema={name}").close()
    with psycopg.connect(postgresql_url, autocommit=True) as raw:
        raw.execute(f"CREATE TABLE {name}.orders (number INTEGER)")
        yield name
        raw.execute(f"DROP SCHEMA {name} CASCADE")


@pytest.fixture
def url(postgresql_url: str, schema: str) -> str:
    """Return the URL of the store, which is empty."""
    address = f"{postgresql_url}?taskqueue.schema={schema}"
    with closing(open_store(address)) as store:
        store.flush()
    with psycopg.connect(postgresql_url, autocommit=True) as raw:
        raw.execute(f"DELETE FROM {schema}.orders")
    return address


@pytest.fixture
def scheduler(url: str) -> Iterator[Scheduler]:
    """Return a scheduler on the store."""
    with Scheduler(url) as scheduler:
        yield scheduler


@pytest.fixture
def mine(postgresql_url: str) -> Iterator[psycopg.Connection[Any]]:
    """Return a connection of the application."""
    with closing(psycopg.connect(postgresql_url)) as raw:
        yield raw


@pytest.fixture
def engine(postgresql_url: str) -> Iterator[sqlalchemy.Engine]:
    """Return an engine of SQLAlchemy on the same database."""
    engine = sqlalchemy.create_engine(_with_driver(postgresql_url, "psycopg"))
    yield engine
    engine.dispose()


def orders(mine: psycopg.Connection[Any], schema: str) -> int:
    """Return how many orders are committed."""
    mine.rollback()
    [found] = mine.execute(f"SELECT count(*) FROM {schema}.orders").fetchone() or [0]
    mine.rollback()
    return int(found)


def _with_driver(url: str, driver: str) -> str:
    return url.replace("postgresql:", f"postgresql+{driver}:")


def _psycopg(engine: sqlalchemy.Engine, text: str) -> contextlib.AbstractContextManager[Any]:
    raw = psycopg.connect(engine.url.set(drivername="postgresql").render_as_string(hide_password=False))
    raw.execute(text)
    return raw


def _session(engine: sqlalchemy.Engine, text: str) -> contextlib.AbstractContextManager[Any]:
    session = Session(engine)
    session.execute(sqlalchemy.text(text))
    return session


def _connection(engine: sqlalchemy.Engine, text: str) -> contextlib.AbstractContextManager[Any]:
    connection = engine.connect()
    connection.execute(sqlalchemy.text(text))
    return connection


Begun = Callable[[sqlalchemy.Engine, str], contextlib.AbstractContextManager[Any]]


def _scoped_session(engine: sqlalchemy.Engine, text: str) -> contextlib.AbstractContextManager[Any]:
    session = scoped_session(sessionmaker(engine))  # as db.session of Flask-SQLAlchemy is
    session.execute(sqlalchemy.text(text))
    return contextlib.closing(session)


@pytest.mark.parametrize("begun", [_psycopg, _session, _connection, _scoped_session])
def test_a_rollback_leaves_no_job_and_a_commit_leaves_it(
    begun: Begun, engine: sqlalchemy.Engine, scheduler: Scheduler, mine: psycopg.Connection[Any], schema: str
) -> None:
    with begun(engine, ORDER.format(schema)) as session:
        process = scheduler.add_job(Echo, 1, session=session)
        with pytest.raises(JobNotFound):
            scheduler.get_job(process.id)
        session.rollback()
    assert (scheduler.stats()["total"], orders(mine, schema)) == (0, 0)

    with begun(engine, ORDER.format(schema)) as session:
        process = scheduler.add_job(Echo, {"to": "a"}, session=session, tags=["b"], meta={"c": "d"})
        session.commit()
    assert (scheduler.stats()["total"], orders(mine, schema)) == (1, 1)
    found = scheduler.get_job(process.id)
    assert (found.status, found.data, found.tags) == (Status.WAITING, {"to": "a"}, ("b",))
    assert [event.name for event in scheduler.events_of(process.id)] == ["waiting"]


@contextlib.asynccontextmanager
async def _asynchronous_psycopg(engine: AsyncEngine) -> AsyncIterator[Any]:
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    async with await psycopg.AsyncConnection.connect(url) as raw:
        yield raw


@contextlib.asynccontextmanager
async def _asynchronous_scoped_session(engine: AsyncEngine) -> AsyncIterator[Any]:
    registry = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
    yield registry
    await registry.remove()


class _WrappedSession(AsyncSession):
    """A session whose ``execute`` does not look like a coroutine function, as that of SQLModel does not."""

    def execute(self, *arguments: Any, **options: Any) -> Any:
        """Return what is to be awaited."""
        return super().execute(*arguments, **options)


ASYNCHRONOUS = [
    _asynchronous_psycopg,
    AsyncSession,
    AsyncEngine.connect,
    _asynchronous_scoped_session,
    _WrappedSession,
]


@pytest.mark.parametrize("opened", ASYNCHRONOUS)
def test_asynchronous_sessions_are_used_on_their_own_loop(
    opened: Callable[[AsyncEngine], contextlib.AbstractAsyncContextManager[Any]], url: str, postgresql_url: str
) -> None:
    async def add() -> tuple[int, int, str]:
        engine = create_async_engine(_with_driver(postgresql_url, "psycopg"))
        async with AsyncScheduler(url) as scheduler:
            async with opened(engine) as session:
                await scheduler.add_job(Echo, 1, session=session)
                await session.rollback()
            none = (await scheduler.stats())["total"]
            async with opened(engine) as session:
                process = await scheduler.add_job(Echo, 2, session=session)
                await scheduler.add_jobs([(Echo, 3), (Echo, 4)], session=session)
                await scheduler.add_job_once(Echo, 4, session=session)
                await scheduler.add_job_once(Echo, 5, session=session)
                await session.commit()
            with pytest.raises(InvalidOption, match="is closed: pass an open"):
                await scheduler.add_job(Echo, 3, session=await _closed(engine, postgresql_url))
            total, status = (await scheduler.stats())["total"], (await scheduler.get_job(process.id)).status.name
        await engine.dispose()
        return none, total, status

    assert asyncio.run(add()) == (0, 4, "WAITING")


def test_a_registry_of_sessions_is_asked_in_the_thread_that_passes_it(
    engine: sqlalchemy.Engine, url: str, scheduler: Scheduler
) -> None:
    registry = scoped_session(sessionmaker(engine))  # with a session for each thread

    async def add() -> None:
        async with AsyncScheduler(url) as scheduler:
            await scheduler.add_job(Echo, 1, session=registry)

    asyncio.run(add())
    registry.commit()
    registry.remove()
    assert scheduler.stats()["total"] == 1


async def _closed(engine: AsyncEngine, url: str) -> Any:
    raw = await psycopg.AsyncConnection.connect(url)
    await raw.close()
    return raw


@pytest.mark.parametrize("times", [1, 2])
def test_a_canceled_call_ends_before_its_session_is_used_again(
    scheduler: Scheduler, url: str, postgresql_url: str, mine: psycopg.Connection[Any], times: int
) -> None:
    async def add() -> None:
        async with AsyncScheduler(url) as scheduler, await psycopg.AsyncConnection.connect(postgresql_url) as raw:
            adding = asyncio.ensure_future(scheduler.add_job(Echo, 1, unique="one", session=raw))
            await asyncio.to_thread(eventually, lambda: _waits(postgresql_url, raw.info.backend_pid))
            for _ in range(times):  # a timeout, say, and then the end of the program
                adding.cancel()
                for _ in range(20):  # the turns of the loop that a call takes to end
                    await asyncio.sleep(0)
            has_ended = adding.done()
            mine.rollback()
            with pytest.raises(asyncio.CancelledError):
                await adding
            assert not has_ended
            await raw.rollback()
            assert raw.info.transaction_status is psycopg.pq.TransactionStatus.IDLE

    scheduler.add_job(Echo, 1, unique="one", session=mine)
    asyncio.run(add())
    assert scheduler.stats()["total"] == 0


def _waits(url: str, pid: int) -> bool:
    """Return whether the session waits for a lock."""
    with psycopg.connect(url) as raw:
        return raw.execute("SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted", (pid,)).fetchone() is not None


DJANGO = """
    import sys
    from urllib.parse import urlsplit

    from django.conf import settings

    server = urlsplit(sys.argv[1])
    postgresql = {
        "ENGINE": "django.db.backends.postgresql", "NAME": server.path[1:], "USER": server.username,
        "PASSWORD": server.password, "HOST": server.hostname, "PORT": server.port,
    }
    sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    settings.configure(DATABASES={"default": postgresql, "other": sqlite})

    from django.db import DatabaseError, connection, connections, transaction
    from taskqueue import Scheduler
    from taskqueue.errors import InvalidOption
    from tests.scheduler.jobs import Echo

    def refused(session):
        try:
            scheduler.add_job(Echo, session=session)
        except InvalidOption as error:
            print(error)

    with Scheduler(sys.argv[2]) as scheduler:
        refused(connection)
        refused(connections["other"])
        with transaction.atomic():
            scheduler.add_job(Echo, 1, session=connection)
            transaction.set_rollback(True)
            refused(connection)
        print(scheduler.stats()["total"])
        with transaction.atomic():
            scheduler.add_job(Echo, 2, session=connection)
            try:
                with transaction.atomic():
                    scheduler.add_job(Echo, 3, session=connections["default"])
                    raise DatabaseError
            except DatabaseError:
                pass
        print(scheduler.stats()["total"])
"""


def test_django_s_connection_adds_within_atomic(url: str, postgresql_url: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(DJANGO), postgresql_url, url]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(Path.cwd())})

    assert done.returncode == 0, done.stderr
    outside, other, failed, none, one = done.stdout.splitlines()
    assert outside == "session: no transaction is open on it: call this inside django.db.transaction.atomic()"
    assert other.startswith("session: the database 'other' of Django is sqlite, but the store is in PostgreSQL:")
    assert failed == "session: its transaction has failed: roll it back, begin a new one and repeat its work"
    assert (none, one) == ("0", "1")


def test_a_commit_rings_and_a_node_runs_the_job(
    url: str, scheduler: Scheduler, mine: psycopg.Connection[Any], tmp_path: Path
) -> None:
    with closing(open_store(url)) as store, closing(store.bell(WORK)) as bell:
        scheduler.add_job(Echo, {"to": "a"}, session=mine)
        assert not select.select([bell], [], [], 0)[0]
        mine.commit()
        assert select.select([bell], [], [], LIMIT)[0]
    with node(url, tmp_path, "--chdir", str(Path.cwd())):
        process = scheduler.add_job(Echo, {"to": "b"}, session=mine)
        mine.commit()
        [ended] = scheduler.wait_for([process.id], timeout=LIMIT)

    assert ended.result == {"to": "b"}
    assert [event.name for event in scheduler.events_of(process.id)] == ["waiting", "processing", "done"]


def test_a_process_that_is_killed_before_its_commit_leaves_no_job_and_frees_its_unique_key(
    url: str, scheduler: Scheduler, postgresql_url: str
) -> None:
    script = """
        import signal, sys
        import psycopg
        from taskqueue import Scheduler
        from tests.scheduler.jobs import Echo

        with psycopg.connect(sys.argv[1]) as mine:
            Scheduler(sys.argv[2]).add_job(Echo, 1, session=mine, unique="one")
            print("added", flush=True)
            signal.pause()
    """
    command = [sys.executable, "-c", textwrap.dedent(script), postgresql_url, url]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as adding:
        assert adding.stdout is not None
        assert adding.stdout.readline() == "added\n"
        assert scheduler.add_job(Echo, 2).is_waiting  # others do not wait for that transaction
        adding.send_signal(signal.SIGKILL)

    def added() -> bool:
        with contextlib.suppress(StoreUnavailable):
            return not scheduler.add_job(Echo, 1, unique="one").existed
        return False

    eventually(added)
    assert scheduler.stats()["total"] == 2


def test_a_key_of_an_open_transaction_keeps_one_add_waiting_and_no_other(
    scheduler: Scheduler, mine: psycopg.Connection[Any]
) -> None:
    kept = scheduler.add_job(Echo, 1, unique="one", session=mine)
    with pytest.raises(StoreUnavailable, match="stayed locked by another transaction"):
        scheduler.add_job(Echo, 2, unique="one")
    assert scheduler.add_job(Echo, 2, unique="two").is_waiting
    mine.commit()

    assert scheduler.add_job(Echo, 2, unique="one").id == kept.id


def test_two_transactions_that_add_the_same_keys_in_opposite_orders_wait_in_no_circle(
    url: str, scheduler: Scheduler, mine: psycopg.Connection[Any], postgresql_url: str
) -> None:
    first = scheduler.add_job(Echo, 1, unique="a", session=mine)
    with (
        ThreadPoolExecutor(1) as thread,
        Scheduler(url) as another,
        closing(psycopg.connect(postgresql_url)) as theirs,
        closing(psycopg.connect(postgresql_url, autocommit=True)) as operator,
    ):
        entries: list[tuple[type[Echo], int, Any]] = [(Echo, 2, {"unique": "b"}), (Echo, 2, {"unique": "a"})]
        adding = thread.submit(another.add_jobs, entries, session=theirs)
        waits = f"SELECT 1 FROM pg_locks WHERE pid = {theirs.info.backend_pid} AND NOT granted"
        eventually(lambda: operator.execute(waits).fetchone())  # for the key of the first job
        second = scheduler.add_job(Echo, 1, unique="b", session=mine)
        mine.commit()

        assert [process.id for process in adding.result(LIMIT)] == [second.id, first.id]
        theirs.commit()


def test_a_store_is_flushed_while_a_job_waits_to_be_taken_in(
    scheduler: Scheduler, mine: psycopg.Connection[Any]
) -> None:
    scheduler.add_job(Echo, 1)
    scheduler.add_job(Echo, 2, session=mine)
    mine.commit()

    scheduler.flush()
    assert scheduler.stats()["total"] == 0


def test_in_a_transaction_the_same_job_is_added_once(scheduler: Scheduler, mine: psycopg.Connection[Any]) -> None:
    pending = scheduler.add_job(Echo, 1, unique="one")
    first = scheduler.add_job(Echo, 2, session=mine)
    assert scheduler.add_job(Echo, 2, id=first.id, session=mine).id == first.id
    assert scheduler.add_job(Echo, 3, unique="one", session=mine).id == pending.id
    mine_too = scheduler.add_job(Echo, 3, unique="two", session=mine)
    assert scheduler.add_job(Echo, 4, unique="two", session=mine).existed
    with pytest.raises(DuplicateId):
        scheduler.add_job(Echo, 4, id=first.id, session=mine)
    mine.commit()

    assert scheduler.stats()["total"] == 3
    assert scheduler.get_job(mine_too.id).is_waiting


@pytest.mark.parametrize("begun", [_psycopg, _session, _connection])
def test_many_jobs_and_each_once_are_part_of_the_transaction(
    begun: Begun, engine: sqlalchemy.Engine, scheduler: Scheduler, schema: str
) -> None:
    def add(session: Any) -> None:
        processes = scheduler.add_jobs(
            [(Echo, "ä\\ \"'%:x 😀"), (Echo, {"to": None}, {"tags": ["b"]})], session=session
        )
        assert [process.existed for process in processes] == [False, False]
        once = scheduler.add_job_once(Echo, 3, session=session)
        assert scheduler.add_job_once(Echo, 3, session=session).id == once.id
        assert scheduler.add_job_once(Echo, {"to": None}, session=session).id == processes[1].id
        assert tell.using(session=session, tags=["c"]).add(scheduler, "a").tags == ("c",)

    with begun(engine, ORDER.format(schema)) as session:
        add(session)
        session.rollback()
    assert scheduler.stats()["total"] == 0
    with begun(engine, ORDER.format(schema)) as session:
        add(session)
        session.commit()

    assert [process.data for process in scheduler.get_jobs()] == [
        "ä\\ \"'%:x 😀",
        {"to": None},
        3,
        {"text": "a"},
    ]
    assert [process.tags for process in scheduler.get_jobs()] == [(), ("b",), (), ("c",)]


def test_many_jobs_of_one_call_meet_others_and_each_other(scheduler: Scheduler, mine: psycopg.Connection[Any]) -> None:
    pending = scheduler.add_job(Echo, 1, unique="one")
    ended = scheduler.add_job(Echo, 2)
    scheduler.cancel_job(ended.id)
    id = JobId()
    entries: list[tuple[type[Echo], int, Any]] = [
        (Echo, 1, {"unique": "two"}),
        (Echo, 1, {"unique": "one"}),
        (Echo, 1, {"unique": "two"}),
        (Echo, 5, {"id": id}),
        (Echo, 5, {"id": id, "unique": "a"}),
        (Echo, 2, {"id": ended.id}),
    ]
    processes = scheduler.add_jobs(entries, session=mine)

    first = processes[0].id
    assert [process.id for process in processes] == [first, pending.id, first, id, id, ended.id]
    assert [process.existed for process in processes] == [False, True, True, False, True, True]
    with pytest.raises(DuplicateId):
        scheduler.add_jobs([(Echo, 6), (Echo, 6, {"id": id})], session=mine)
    with pytest.raises(InvalidOption, match="on_duplicate='replace': a call in your own transaction cannot change"):
        scheduler.add_jobs([(Echo, 7, {"unique": "one", "on_duplicate": "replace"})], session=mine)
    assert scheduler.add_jobs([], session=mine) == []
    mine.rollback()
    assert len(scheduler.add_jobs([(Echo, number) for number in range(1200)], session=mine)) == 1200
    mine.commit()
    assert scheduler.stats()["total"] == 1202


def test_a_job_once_is_found_by_its_data_and_replaces_none(scheduler: Scheduler, mine: psycopg.Connection[Any]) -> None:
    before, later = scheduler.add_job(Echo, {"a": 1, "b": 2}), datetime.now(timezone.utc) + timedelta(hours=1)
    keyed = scheduler.add_job_once(Echo, 2, unique="key", session=mine)

    assert scheduler.add_job_once(Echo, {"b": 2, "a": 1}, session=mine).id == before.id
    assert scheduler.add_job_once(Echo, 2, unique="key", session=mine).id == keyed.id
    assert scheduler.add_job_once(Echo, 2, ignore_data=True, session=mine).id == keyed.id
    with pytest.raises(InvalidOption, match=f"pending job {before.id} has other options or data, and a call in your"):
        scheduler.add_job_once(Echo, {"a": 1, "b": 2}, at=later, session=mine)
    with pytest.raises(InvalidOption, match=f"the pending job {before.id} has other options or data"):
        scheduler.add_job_once(Echo, 4, ignore_data=True, priority=1, session=mine)
    mine.commit()
    assert scheduler.stats()["total"] == 2


def test_a_unique_key_keeps_its_period_whoever_adds_the_job(
    scheduler: Scheduler, mine: psycopg.Connection[Any]
) -> None:
    first, twin = scheduler.add_jobs(
        [(Echo, number, {"unique": "a", "unique_for": 3600}) for number in (1, 2)], session=mine
    )
    mine.commit()
    assert twin.id == first.id
    assert scheduler.add_job(Echo, 3, unique="a", unique_for=60, session=mine).id == first.id
    scheduler.run_pending()

    assert scheduler.get_job(first.id).result == 1
    assert scheduler.add_job(Echo, 4, unique="a", unique_for=60, session=mine).id == first.id
    assert scheduler.add_job(Echo, 5, unique="a", unique_for=60).id == first.id
    again = scheduler.add_job(Echo, 1, id=first.id, unique="a", unique_for=60, session=mine)
    assert (again.id, again.existed) == (first.id, True)
    mine.commit()
    assert scheduler.stats()["total"] == 1


def test_a_period_that_has_ended_goes_to_the_job_of_a_transaction(
    scheduler: Scheduler, mine: psycopg.Connection[Any]
) -> None:
    past = scheduler.add_job(Echo, 1, unique="a", unique_for=0.001)
    scheduler.run_pending()

    rolled_back = scheduler.add_job(Echo, 2, unique="a", unique_for=3600, session=mine)
    mine.rollback()
    following = scheduler.add_job(Echo, 3, unique="a", unique_for=3600, session=mine)
    mine.commit()
    scheduler.run_pending()

    assert len({past.id, rolled_back.id, following.id}) == 3
    assert scheduler.get_job(following.id).result == 3
    assert scheduler.add_job(Echo, 4, unique="a", unique_for=60, session=mine).id == following.id
    assert scheduler.add_job(Echo, 5, unique="a", unique_for=60).id == following.id


def test_of_two_jobs_in_one_period_the_one_that_saw_nothing_of_the_other_is_canceled(
    scheduler: Scheduler, mine: psycopg.Connection[Any]
) -> None:
    mine.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    mine.execute("SELECT 1")
    first = scheduler.add_job(Echo, 1, unique="a", unique_for=3600)
    scheduler.run_pending()

    second = scheduler.add_job(Echo, 2, unique="a", unique_for=3600, session=mine)
    mine.commit()

    process = scheduler.get_job(second.id)
    assert process.status is Status.CANCELED
    assert f"unique_for: job {first.id} already has the unique key 'a' for this period" in process.why()
    assert scheduler.add_job(Echo, 3, unique="a", unique_for=60).id == first.id


def test_dependencies_and_parents_that_end_before_the_commit_count(
    scheduler: Scheduler, mine: psycopg.Connection[Any]
) -> None:
    first, parent = (
        scheduler.add_job(Echo, 1),
        scheduler.add_job(Echo, 2, at=datetime.now(timezone.utc) + timedelta(hours=1)),
    )
    after = scheduler.add_job(Echo, 3, depends_on=[first.id], session=mine)
    child = scheduler.add_job(Echo, 4, parent=parent.id, session=mine)
    scheduler.cancel_job(parent.id)
    scheduler.run_pending()
    mine.commit()

    assert scheduler.get_job(child.id).status is Status.CANCELED
    assert scheduler.get_job(after.id).is_waiting
    scheduler.run_pending()
    assert scheduler.get_job(after.id).result == 3
    assert scheduler.stats()["statuses"]["CANCELED"] == 2


def test_jobs_for_later_are_counted_and_a_long_open_transaction_passes_no_event(
    scheduler: Scheduler, mine: psycopg.Connection[Any]
) -> None:
    early = scheduler.add_job(Echo, 1, at=datetime.now(timezone.utc) + timedelta(hours=1), session=mine)
    others = [scheduler.add_job(Echo, 2) for _ in range(3)]
    seen = [event.job_id for event in scheduler.read_events("oldest")[0]]
    mine.commit()

    following = scheduler.read_events("oldest")[0]
    assert [event.job_id for event in following][: len(seen)] == seen
    assert following[-1].job_id == early.id
    assert [event.at for event in following] == sorted(event.at for event in following)
    assert scheduler.stats()["statuses"]["POSTPONED"] == 1
    assert len(others) == 3


def test_many_jobs_of_one_transaction_are_taken_in_by_parts(
    scheduler: Scheduler, mine: psycopg.Connection[Any]
) -> None:
    for number in range(1200):
        scheduler.add_job(Echo, number, session=mine)
    mine.commit()

    assert scheduler.stats()["total"] == 1200
    assert len({event.job_id for event in scheduler.read_events("oldest", 5000)[0]} - {None}) == 1200


def test_a_serializable_transaction_gets_the_driver_s_own_error(
    scheduler: Scheduler, mine: psycopg.Connection[Any]
) -> None:
    mine.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    mine.execute("SELECT 1")
    scheduler.add_job(Echo, 1, unique="one")

    with pytest.raises(psycopg.errors.SerializationFailure):
        scheduler.add_job(Echo, 2, unique="one", session=mine)
    mine.rollback()
    assert scheduler.add_job(Echo, 2, unique="one", session=mine).existed


def test_wrong_sessions_are_refused_and_leave_the_transaction_as_it_is(
    scheduler: Scheduler, mine: psycopg.Connection[Any], engine: sqlalchemy.Engine, postgresql_url: str, schema: str
) -> None:
    with pytest.raises(
        InvalidOption, match=r"a session of type str cannot be used: pass a Connection or AsyncConnection of psyc"
    ):
        scheduler.add_job(Echo, session="s")
    with (
        closing(sqlite3.connect(":memory:")) as file,
        pytest.raises(InvalidOption, match="its database is sqlite, but the store is in PostgreSQL: use an Outbox"),
    ):
        scheduler.add_job(Echo, session=file)
    mine.execute(ORDER.format(schema))
    with Scheduler(f"{postgresql_url}?taskqueue.schema=other_{schema}") as other:
        scheduler.add_job(Echo, session=mine)
        mine.commit()
        assert other.add_job(Echo, session=mine)
        mine.rollback()
    mine.execute(f"UPDATE {schema}.store SET id = 'another'")
    with pytest.raises(InvalidOption, match=r"session: it is connected to another store: use a connection to the data"):
        scheduler.add_job(Echo, session=mine)
    mine.rollback()
    mine.execute(f"UPDATE {schema}.store SET schema = 999")
    with pytest.raises(SchemaMismatch, match="999"):
        scheduler.add_job(Echo, session=mine)
    mine.execute(f"ALTER SCHEMA {schema} RENAME TO hidden_{schema}")
    with pytest.raises(
        InvalidOption, match=f"the database 'postgres' has no store in the schema {schema}: use a conne"
    ):
        scheduler.add_job(Echo, session=mine)
    with pytest.raises(psycopg.Error):
        mine.execute("nonsense")
    with pytest.raises(InvalidOption, match="its transaction has failed: roll it back, begin a new one and repeat"):
        scheduler.add_job(Echo, session=mine)
    mine.rollback()
    mine.autocommit = True
    with pytest.raises(InvalidOption, match=r"it commits each statement: call this inside connection\.transaction\(\)"):
        scheduler.add_job(Echo, session=mine)
    with mine.transaction():
        assert scheduler.add_job(Echo, session=mine)
    mine.close()
    with pytest.raises(InvalidOption, match=r"session=<psycopg.Connection .* is closed: pass an open connection"):
        scheduler.add_job(Echo, session=mine)
    assert scheduler.stats()["total"] == 2


def test_wrong_sessions_of_sqlalchemy_are_refused(
    scheduler: Scheduler, engine: sqlalchemy.Engine, postgresql_url: str
) -> None:
    def refused(session: Any) -> str:
        with pytest.raises(InvalidOption) as error:
            scheduler.add_job(Echo, session=session)
        return str(error.value)

    commits = engine.execution_options(isolation_level="AUTOCOMMIT")
    with commits.connect() as connection:
        assert refused(connection).startswith("session: it has the isolation level AUTOCOMMIT, which commits each")
    assert refused(connection).endswith("is closed: pass an open connection")
    with Session(engine) as session:
        with pytest.raises(sqlalchemy.exc.ProgrammingError):
            session.execute(sqlalchemy.text("nonsense"))
        assert refused(session).startswith("session: its transaction has failed: roll it back")
    with sqlalchemy.create_engine("sqlite://").connect() as elsewhere:
        assert refused(elsewhere).startswith("session: its database is sqlite, but the store is in PostgreSQL:")
        elsewhere.engine.dispose()
    assert "is asynchronous: pass it to a call of AsyncScheduler" in refused(
        AsyncSession(create_async_engine(_with_driver(postgresql_url, "psycopg")))
    )


def test_ids_are_kept(scheduler: Scheduler, mine: psycopg.Connection[Any]) -> None:
    id = JobId()
    assert scheduler.add_job(Echo, 1, id=id, session=mine).id == id
    mine.commit()
    assert scheduler.add_job(Echo, 1, id=id, session=mine).existed
