"""Users of PostgreSQL who may only add jobs, only read, or run a node; who may not is told which rights are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from taskqueue import Scheduler
from taskqueue.errors import DuplicateId, InvalidOption, SchemaMismatch, StoreUnavailable
from taskqueue.model.query import parse
from taskqueue.model.record import Status
from taskqueue.store import Store
from taskqueue.store.bell import WORK
from taskqueue.store.migration import open_sql_migration
from taskqueue.store.open import open_existing, open_store
from tests.nodes import LIMIT, node
from tests.postgresql import PostgreSQL
from tests.scheduler.jobs import Echo
from tests.store.records import a_record, behind, claim, ids, kept, rings, running, settle

Call = Callable[[Scheduler], object]
UrlFor = Callable[..., str]

ADD = "`taskqueue migrate --grants add odd user` prints"
READ = "`taskqueue migrate --grants read odd user` prints"
NODE = "`taskqueue migrate --grants node odd user` prints"


@pytest.fixture
def operator(postgresql_server: PostgreSQL) -> Iterator[psycopg.Connection[object]]:
    """Return a session of the administrator of a server of the test's own."""
    with psycopg.connect(postgresql_server.url, autocommit=True) as session:
        yield session


@pytest.fixture
def url_for(postgresql_server: PostgreSQL, operator: psycopg.Connection[object]) -> UrlFor:
    """Return what makes a user with the rights of these roles, and returns the URL of the store for the user."""
    open_store(postgresql_server.url).close()
    user = "odd user"
    operator.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x'").format(sql.Identifier(user)))

    def url_for(*roles: str) -> str:
        with closing(open_sql_migration(postgresql_server.url)) as migration:
            for role in roles:
                operator.execute(migration.grants(role, user))
        return postgresql_server.url.replace(f"postgres:{postgresql_server.password}", f"{user.replace(' ', '%20')}:x")

    return url_for


@pytest.fixture
def owner(postgresql_server: PostgreSQL) -> Iterator[Store]:
    """Return the store as its owner opens it."""
    with closing(open_store(postgresql_server.url)) as store:
        yield store


def test_a_user_who_may_only_add_adds_jobs_that_a_node_runs(
    url_for: UrlFor, postgresql_server: PostgreSQL, tmp_path: Path
) -> None:
    with Scheduler(url_for("add")) as web, Scheduler(postgresql_server.url) as operator:
        first = web.add_job(Echo, 1)
        others = web.add_jobs([(Echo, number) for number in range(250)])
        with psycopg.connect(url_for()) as mine:
            in_mine = web.add_job(Echo, 2, session=mine)
            mine.commit()

        with node(postgresql_server.url, tmp_path, "--name", "web-1"):
            operator.wait_for([first.id, in_mine.id, *(process.id for process in others)], timeout=LIMIT)

        assert operator.get_job(first.id).result == 1


def test_a_pending_job_with_the_key_is_returned_to_a_user_who_may_only_add(url_for: UrlFor) -> None:
    with Scheduler(url_for("add")) as web, psycopg.connect(url_for()) as mine:
        first = web.add_job(Echo, 1, unique="one")
        again = web.add_job(Echo, 2, unique="one")
        in_mine = web.add_job(Echo, 3, unique="one", session=mine)

        assert [again.id, in_mine.id] == [first.id] * 2
        assert (again.existed, again.data, again.status) == (True, 1, Status.WAITING)
        with pytest.raises(InvalidOption, match=r"unique_for: this database user may not read .* --grants read"):
            web.add_job(Echo, 4, unique="two", unique_for="1h", session=mine)
        assert mine.execute("SELECT 1").fetchone() == (1,)


def test_the_same_job_twice_is_one_job_and_another_one_with_its_id_is_refused(url_for: UrlFor, owner: Store) -> None:
    new = a_record()
    with closing(open_store(url_for("add"))) as web:
        assert ids(web.add([new])) == ids(web.add([new])) == [new.id]
        with pytest.raises(DuplicateId):
            web.add([a_record(id=new.id, data="2")])

    assert ids(owner.find(parse({}))) == [new.id]


def test_a_job_waits_for_jobs_that_the_user_may_not_see(url_for: UrlFor, owner: Store) -> None:
    done = running(owner, a_record())
    settle(owner, done)
    pending = a_record()
    owner.add([pending])
    free, bound = behind(done.id), behind(pending.id)
    with closing(open_store(url_for("add"))) as web, closing(owner.bell(WORK)) as bell:
        web.add([free, bound])
        assert rings(bell)

    assert ids(claim(owner, 9).records) == sorted([pending.id, free.id])
    assert kept(owner, bound.id).status is Status.POSTPONED


def test_an_add_is_repeated_if_its_session_was_ended(
    url_for: UrlFor, operator: psycopg.Connection[object], owner: Store
) -> None:
    first = a_record()
    with closing(open_store(url_for("add"))) as web:
        for new in (first, first, a_record()):  # the second time as if the answer to the commit had been lost
            [added] = web.add([new])
            assert (added.id, added.existed) == (new.id, False)
            operator.execute("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = 'odd user'")

    assert owner.count(parse({})) == 2


CALLS: dict[str, tuple[Call, str]] = {
    "read": (lambda web: web.find_jobs(), READ),
    "wait": (lambda web: web.add_job(Echo, 1).wait(timeout=1), READ),
    "add behind": (lambda web: web.add_job(Echo, 1, depends_on=[web.add_job(Echo, 1)]), READ),
    "add once": (lambda web: web.add_job_once(Echo, 1), READ),
    "cancel": (lambda web: web.add_job(Echo, 1).cancel(), NODE),
    "run": (lambda web: web.run_job(Echo, 1), NODE),
    "add for an hour": (lambda web: web.add_job(Echo, 1, unique="one", unique_for="1h"), NODE),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_user_who_may_only_add_is_refused_everything_else(url_for: UrlFor, what: str) -> None:
    call, grant = CALLS[what]
    with Scheduler(url_for("add")) as web:
        with pytest.raises(StoreUnavailable, match=r"refuses this user \(permission denied for table") as caught:
            call(web)

        assert grant in str(caught.value)
        web.add_job(Echo, 2)


def test_a_user_who_may_also_read_waits_for_jobs(
    url_for: UrlFor, postgresql_server: PostgreSQL, tmp_path: Path
) -> None:
    with node(postgresql_server.url, tmp_path, "--name", "web-1"), Scheduler(url_for("add", "read")) as web:
        first = web.add_job(Echo, 1)
        assert web.add_job(Echo, 2, depends_on=[first]).wait(timeout=LIMIT).result == 2
        assert web.add_job_once(Echo, 3).wait(timeout=LIMIT).result == 3


def test_a_user_who_may_only_read_reads_jobs_that_nobody_has_taken_in(
    url_for: UrlFor, postgresql_server: PostgreSQL
) -> None:
    with (
        Scheduler(postgresql_server.url) as operator,
        psycopg.connect(postgresql_server.url) as mine,
        Scheduler(url_for("read")) as dashboard,
    ):
        process = operator.add_job(Echo, 1, session=mine)
        mine.commit()

        assert [job.id for job in dashboard.find_jobs()] == [process.id]
        assert dashboard.stats()
        with pytest.raises(StoreUnavailable) as caught:
            dashboard.get_job(process.id).cancel()
        assert NODE in str(caught.value)
        with pytest.raises(StoreUnavailable) as caught:
            dashboard.add_job(Echo, 1)
        assert ADD in str(caught.value)


def test_a_refused_add_leaves_the_transaction_of_the_application_open(
    url_for: UrlFor, postgresql_server: PostgreSQL
) -> None:
    with Scheduler(postgresql_server.url) as scheduler, psycopg.connect(url_for()) as mine:
        with pytest.raises(StoreUnavailable, match="odd user lacks rights in the schema taskqueue to add") as caught:
            scheduler.add_job(Echo, 1, session=mine)

        assert ADD in str(caught.value)
        assert mine.execute("SELECT 1").fetchone() == (1,)


def test_a_node_works_with_its_rights_alone(url_for: UrlFor, tmp_path: Path) -> None:
    with node(url_for("node"), tmp_path, "--name", "web-1"), Scheduler(url_for()) as scheduler:
        assert scheduler.add_job(Echo, 1).wait(timeout=LIMIT).result == 1
        assert scheduler.add_job(Echo, 1, at="+1 day").cancel()


def test_a_user_without_any_right_is_told_of_all_roles(url_for: UrlFor) -> None:
    with pytest.raises(StoreUnavailable, match="permission denied for schema taskqueue") as caught:
        open_store(url_for())

    assert "`taskqueue migrate --grants KIND odd user` prints, with add, read or node for KIND" in str(caught.value)


def test_an_administrator_creates_the_store_for_others(
    postgresql_server: PostgreSQL, operator: psycopg.Connection[object]
) -> None:
    operator.execute("CREATE ROLE web LOGIN PASSWORD 'x'")
    address = (
        f"{postgresql_server.url.replace(f'postgres:{postgresql_server.password}', 'web:x')}?taskqueue.schema=jobs"
    )
    with pytest.raises(StoreUnavailable, match=r"denied for database .*run what `taskqueue migrate --sql` prints"):
        open_store(address)

    with closing(open_sql_migration(address)) as migration:
        operator.execute(migration.statements())
        operator.execute(migration.grants("node", "web"))
        left = migration.statements()

    assert left == "-- the store has the schema of this version: nothing to do\n"
    with closing(open_existing(address)) as store:
        store.add([a_record()])
        assert store.count(parse({})) == 1
    operator.execute("UPDATE jobs.store SET schema = 99")
    with closing(open_sql_migration(address)) as migration, pytest.raises(SchemaMismatch):
        migration.statements()
