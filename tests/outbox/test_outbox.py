"""An outbox refuses what its table and its relay cannot do, and says what to write instead."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from taskqueue import NewJob
from taskqueue.errors import ConfigError, InvalidJob, InvalidOption
from taskqueue.outbox import Outbox, connections
from tests.outbox.jobs import Declaring, Echo, tell


def connect() -> sqlite3.Connection:
    """Connect to a database in memory."""
    return sqlite3.connect(":memory:")


@pytest.fixture
def mine() -> Any:
    """Return a connection of an application, with an outbox."""
    raw = connect()
    raw.execute(Outbox(connect).create_sql("sqlite"))
    yield raw
    raw.close()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Outbox("shop.db"), r"Outbox\('shop.db'\): pass a function that connects to your database"),  # type: ignore[arg-type]
        (lambda: Outbox(connect, table="jobs; DROP"), "table='jobs; DROP': pass a name of letters, digits and _"),
        (lambda: Outbox(connect, table=7), "table=7: pass a name"),  # type: ignore[arg-type]
        (lambda: Outbox(connect, every=0), "every=0: pass seconds"),
        (
            lambda: Outbox(connect).create_sql("oracle"),
            r"create_sql\('oracle'\): pass one of sqlite, postgresql, mysql",
        ),
    ],
)
def test_a_wrong_outbox_is_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql", "mysql"])
def test_the_table_is_made_once_and_has_the_name_that_was_given(dialect: str) -> None:
    sql = Outbox(connect, table="app.outbox_of_jobs").create_sql(dialect)

    assert sql.startswith(
        "CREATE TABLE IF NOT EXISTS app.outbox_of_jobs (id VARCHAR(64) NOT NULL PRIMARY KEY CHECK (id <> ''), "
    )
    assert ("LONGTEXT" in sql) is (dialect == "mysql")
    assert "LONGTEXT NOT NULL, declared LONGTEXT, error LONGTEXT) ENGINE=InnoDB" in sql or dialect != "mysql"


@pytest.mark.parametrize(
    ("job", "data", "options", "said"),
    [
        (Echo, object(), {}, "data is builtins.object, which cannot be stored"),
        (Echo, 1, {"retries": 5}, "there is no option 'retries': did you mean retry"),
        (Echo, 1, {"priority": 99}, "priority=99"),
        (Declaring, {"number": "seven"}, {}, "data"),
        (tell, {"txt": "a"}, {}, "missing a required argument: 'text'"),
        ("no path", 1, {}, "no path"),
    ],
)
def test_a_job_is_refused_where_it_is_added_and_the_transaction_continues(
    mine: sqlite3.Connection, job: Any, data: Any, options: Any, said: str
) -> None:
    with mine:
        mine.execute("CREATE TABLE orders (number INTEGER)")
        with pytest.raises(InvalidJob, match=said):
            Outbox(connect).add_job(job, data, session=mine, **options)
        mine.execute("INSERT INTO orders VALUES (1)")

    assert mine.execute("SELECT count(*) FROM taskqueue_outbox").fetchone() == (0,)
    assert mine.execute("SELECT count(*) FROM orders").fetchone() == (1,)


def test_many_jobs_are_added_at_once_or_none(mine: sqlite3.Connection) -> None:
    outbox = Outbox(connect)

    with pytest.raises(InvalidJob, match=r"jobs\[1\]\.tests.outbox.jobs:Echo: priority=99"):
        outbox.add_jobs([(Echo, 1), (Echo, 2, {"priority": 99})], session=mine)
    with pytest.raises(InvalidJob, match=r"jobs\[0\] is .*: pass \(job, data\)"):
        outbox.add_jobs([Echo], session=mine)  # type: ignore[list-item]
    assert connections.execute(mine, "SELECT count(*) FROM taskqueue_outbox", {}) == [(0,)]

    ids = outbox.add_jobs([(Echo, 1), (tell, {"text": "a"}, {"priority": 3})], session=mine)
    rows = connections.execute(mine, "SELECT data, options FROM taskqueue_outbox ORDER BY id", {})
    assert len(set(ids)) == 2
    assert rows == [("1", "{}"), ('{"text":"a"}', '{"priority":3}')]


@pytest.mark.parametrize("id", [None, ""])
def test_the_table_takes_no_row_without_an_id_which_no_relay_would_read(mine: sqlite3.Connection, id: Any) -> None:
    columns = "id, added_at, job, data, options"
    with pytest.raises(sqlite3.IntegrityError, match="constraint failed"):
        mine.execute(f"INSERT INTO taskqueue_outbox ({columns}) VALUES (?, '', 'shop:Mail', '{{}}', '{{}}')", (id,))


def test_the_hook_before_adds_meta_to_the_row(mine: sqlite3.Connection) -> None:
    def trace(new: NewJob) -> None:
        new.meta["trace"] = f"of {new.job}"

    Outbox(connect, before_add=trace).add_job(Echo, 1, session=mine, meta={"tenant": "acme"})

    [(options,)] = connections.execute(mine, "SELECT options FROM taskqueue_outbox", {})
    assert options == '{"meta":{"tenant":"acme","trace":"of tests.outbox.jobs:Echo"}}'


def test_a_hook_that_would_have_to_be_awaited_is_refused() -> None:
    async def trace(_: NewJob) -> None:
        """Do nothing."""

    with pytest.raises(ConfigError, match="is a coroutine function"):
        Outbox(connect, before_add=trace)


def test_a_session_must_be_named(mine: sqlite3.Connection) -> None:
    with pytest.raises(TypeError, match="session"):
        Outbox(connect).add_job(Echo, 1)  # type: ignore[call-arg]
    with pytest.raises(InvalidOption, match="cannot be used"):
        Outbox(connect).add_job(Echo, 1, session=mine.cursor())
    assert repr(Outbox(connect)) == "<Outbox taskqueue_outbox>"
