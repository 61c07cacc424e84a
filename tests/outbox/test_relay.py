"""The relay moves each row exactly once, whatever is killed, and a row that cannot become a job harms no other."""

from __future__ import annotations

import logging
import os
import random
import secrets
import select
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest
import sqlalchemy

from taskqueue import Scheduler, Status
from taskqueue.errors import ConfigError, StoreUnavailable
from taskqueue.model.ids import JobId
from taskqueue.outbox import Outbox, connections
from taskqueue.outbox.outbox import find, relay_endlessly, relay_until_empty
from taskqueue.outbox.relay import BATCH
from tests.forking import fork
from tests.outbox.jobs import Echo
from tests.servers import emptied


@pytest.fixture(params=["sqlite", "psycopg", "sqlalchemy-sqlite", "sqlalchemy-postgresql"])
def outbox(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Outbox]:
    """Return an empty outbox in a database of the application."""
    dialect = "sqlite" if "sqlite" in request.param else "postgresql"
    server = "" if dialect == "sqlite" else request.getfixturevalue("postgresql_url")
    address = f"sqlite:///{tmp_path}/app.db" if dialect == "sqlite" else f"postgresql+psycopg{server[10:]}"
    engine = sqlalchemy.create_engine(address)
    connects: dict[str, Callable[[], Any]] = {
        "sqlite": lambda: sqlite3.connect(tmp_path / "app.db"),
        "psycopg": lambda: psycopg.connect(server),
    }
    connect = connects.get(request.param, engine.connect)
    outbox = Outbox(connect, table=f"outbox_{secrets.token_hex(6)}", every=0.01)
    run(outbox, outbox.create_sql(dialect))
    yield outbox
    run(outbox, f"DROP TABLE {outbox.table}")
    engine.dispose()


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[Scheduler]:
    """Return a scheduler on an empty store."""
    with Scheduler(str(tmp_path / "jobs.db")) as scheduler:
        yield scheduler


def run(outbox: Outbox, statement: str, **values: Any) -> list[tuple[Any, ...]]:
    """Run a statement in a transaction of its own."""
    session = outbox.connect()
    with closing(session):
        rows = connections.execute(session, statement, values)
        session.commit()
        return rows


def add(outbox: Outbox, *data: Any, **options: Any) -> list[str]:
    """Add a job with each of the data in one transaction, and return their ids."""
    session = outbox.connect()
    with closing(session):
        ids = [str(outbox.add_job(Echo, one, session=session, **options)) for one in data]
        session.commit()
        return ids


def rows_left(outbox: Outbox) -> list[tuple[Any, ...]]:
    """Return data and error of the rows that are there."""
    return run(outbox, f"SELECT data, error FROM {outbox.table} ORDER BY id")


def data_in(scheduler: Scheduler) -> list[Any]:
    """Return the data of all jobs in the store."""
    return [job.data for job in scheduler.get_jobs({})]


def test_all_rows_become_jobs_and_are_deleted(outbox: Outbox, scheduler: Scheduler) -> None:
    ids = add(outbox, *range(2 * BATCH + 7))

    assert outbox.relay(scheduler) == 2 * BATCH + 7
    assert [str(job.id) for job in scheduler.get_jobs()] == ids
    assert data_in(scheduler) == list(range(2 * BATCH + 7))
    assert rows_left(outbox) == []
    assert outbox.relay(scheduler) == 0


def test_the_same_id_is_one_job_also_when_it_has_run(outbox: Outbox, scheduler: Scheduler) -> None:
    add(outbox, 1, id="invoice-7")
    add(outbox, 1, id="invoice-7")
    outbox.relay(scheduler)
    [ended] = scheduler.run_pending()
    add(outbox, 1, id="invoice-7")

    assert outbox.relay(scheduler) == 1
    assert [job.id for job in scheduler.get_jobs({})] == [ended.id]
    assert (ended.status, rows_left(outbox)) == (Status.DONE, [])


def test_jobs_may_depend_on_jobs_of_the_same_outbox_in_any_order(outbox: Outbox, scheduler: Scheduler) -> None:
    first, parent, missing = JobId(), JobId(), JobId()
    add(outbox, "second", depends_on=first, parent=parent)
    add(outbox, "waiting", depends_on=missing)
    add(outbox, "first", id=first)
    add(outbox, "parent", id=parent, unique="key")
    add(outbox, "third", depends_on=[first, parent])

    outbox.relay(scheduler)

    assert sorted(data_in(scheduler)) == ["first", "parent", "second", "third"]
    [(data, error)] = rows_left(outbox)
    assert data == '"waiting"'
    assert f"depends_on={missing}: there is no such job" in error


def test_a_row_that_cannot_become_a_job_is_named_and_the_others_move(
    outbox: Outbox, scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler.add_job(Echo, "another", id="taken")
    add(outbox, "a")
    add(outbox, "taken", id="taken")
    add(outbox, "broken", "worse")
    add(outbox, *range(2 * BATCH))
    run(outbox, f"UPDATE {outbox.table} SET options = :wrong WHERE data = :data", wrong="{", data='"broken"')
    run(outbox, f"UPDATE {outbox.table} SET job = :wrong WHERE data = :data", wrong="os.system", data='"worse"')

    with caplog.at_level(logging.ERROR):
        assert outbox.relay(scheduler) == 2 * BATCH + 1
        assert outbox.relay(scheduler) == 0

    assert sorted(data_in(scheduler), key=str) == sorted(["another", "a", *range(2 * BATCH)], key=str)
    [taken, broken, worse] = rows_left(outbox)
    assert "DuplicateId: job" in taken[1]
    assert broken[1].startswith("InvalidJob: the column options is not JSON")
    assert "os.system" in worse[1]
    assert len(caplog.messages) == 3
    assert f"of tests.outbox.jobs:Echo cannot become a job and stays in the table {outbox.table}: Dup" in caplog.text


def test_a_corrected_row_moves_when_its_error_is_removed(outbox: Outbox, scheduler: Scheduler) -> None:
    add(outbox, 1)
    run(outbox, f"UPDATE {outbox.table} SET data = :wrong", wrong="{")
    assert outbox.relay(scheduler) == 0

    run(outbox, f"UPDATE {outbox.table} SET data = :right, error = NULL", right="7")

    assert outbox.relay(scheduler) == 1
    assert data_in(scheduler) == [7]


def test_a_store_that_does_not_answer_leaves_the_rows_as_they_are(
    outbox: Outbox, scheduler: Scheduler, tmp_path: Path
) -> None:
    add(outbox, 1, 2)
    (tmp_path / "no.db").write_text("no database")

    with Scheduler(str(tmp_path / "no.db")) as broken, pytest.raises(StoreUnavailable):
        outbox.relay(broken)
    assert [error for _, error in rows_left(outbox)] == [None, None]
    assert outbox.relay(scheduler) == 2


def test_a_database_that_does_not_answer_raises_its_own_error(scheduler: Scheduler, tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError, match="unable to open database file"):
        Outbox(lambda: sqlite3.connect(tmp_path / "nowhere" / "app.db")).relay(scheduler)


def test_a_table_that_is_missing_or_has_other_columns_is_named_with_the_way_out(
    outbox: Outbox, scheduler: Scheduler
) -> None:
    for statement in (f"DROP TABLE {outbox.table}", f"CREATE TABLE {outbox.table} (id VARCHAR(64) PRIMARY KEY)"):
        run(outbox, statement)
        with pytest.raises(ConfigError, match=r"(?s)the table .* of the outbox cannot be read.*create_sql"):
            outbox.relay(scheduler)


def test_in_immediate_mode_the_jobs_run_when_they_are_relayed(outbox: Outbox) -> None:
    [id] = add(outbox, 7)
    with Scheduler(immediate=True) as scheduler:
        outbox.relay(scheduler)

        assert scheduler.get_job(id).result == 7


class Deadly(sqlite3.Connection):
    """A connection whose process is killed at the call that ``left`` counts down to."""

    left: ClassVar[int] = 0

    def cursor(self, *arguments: Any) -> Any:
        """Make a cursor, just before a statement."""
        self._step()
        return super().cursor(*arguments)

    def commit(self) -> None:
        """Commit."""
        self._step()
        super().commit()
        self._step()

    def rollback(self) -> None:
        """End a transaction that has only read."""
        self._step()
        super().rollback()
        self._step()

    def _step(self) -> None:
        Deadly.left -= 1
        if Deadly.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def in_child(act: Callable[[], object]) -> int:
    """Start a process that does this, and return its id; it exits with 0 if it comes to the end."""
    pid = fork()
    if pid:
        return pid
    code = 1
    try:
        act()
        code = 0
    finally:
        os._exit(code)


def test_a_relay_that_is_killed_at_any_call_has_moved_each_row_once_when_the_next_has_run(tmp_path: Path) -> None:
    file, store, point, ended = tmp_path / "app.db", str(tmp_path / "jobs.db"), 0, False
    deadly = Outbox(lambda: sqlite3.connect(file, factory=Deadly))
    run(deadly, deadly.create_sql("sqlite"))
    expected: list[str] = []

    def relay() -> None:
        Deadly.left = point
        with Scheduler(store) as scheduler:
            deadly.relay(scheduler)

    while not ended:
        point += 1
        expected += add(deadly, f"{point} a", f"{point} b")
        if point % 3 == 0:
            with Scheduler(store) as scheduler:  # what was moved may have run when the row is moved again
                scheduler.run_pending()
        ended = os.waitpid(in_child(relay), 0)[1] == 0

    assert point > 6  # select, rollback, delete and commit
    with Scheduler(store) as scheduler:
        assert sorted(str(job.id) for job in scheduler.get_jobs({})) == sorted(expected)
        assert all(len(job.attempts) <= 1 for job in scheduler.get_jobs({}))
    assert rows_left(deadly) == []


@pytest.mark.parametrize(
    "kind", ["sqlite", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("postgresql", "mongodb"))]
)
def test_of_transactions_and_killed_relays_each_commit_is_one_job_and_each_rollback_none(
    kind: str, request: pytest.FixtureRequest, outbox: Outbox, tmp_path: Path
) -> None:
    chance, store = random.Random(28), store_of(kind, request, tmp_path)
    run(outbox, f"CREATE TABLE {outbox.table}_orders (number INTEGER)")
    outcomes = ["commit"] * 150 + ["rollback"] * 50
    chance.shuffle(outcomes)
    relays: list[int] = []

    def relay() -> None:
        with Scheduler(store) as scheduler:
            relay_forever(outbox, scheduler)

    with closing(outbox.connect()) as session:
        for number, outcome in enumerate(outcomes):
            connections.execute(session, f"INSERT INTO {outbox.table}_orders VALUES (:number)", {"number": number})
            outbox.add_job(Echo, number, session=session)
            getattr(session, outcome)()
            if number % 8 == 0 and len(relays) < 2:
                relays.append(in_child(relay))
            if chance.random() < 0.3 and relays:
                select.select((), (), (), chance.random() * 0.03)
                kill(relays.pop(0))
    for pid in relays:
        kill(pid)
    with Scheduler(store) as scheduler:
        outbox.relay(scheduler)
        moved = data_in(scheduler)

    assert sorted(moved) == [number for number, outcome in enumerate(outcomes) if outcome == "commit"]
    assert sorted(moved) == [
        number for (number,) in run(outbox, f"SELECT number FROM {outbox.table}_orders ORDER BY 1")
    ]
    assert rows_left(outbox) == []
    run(outbox, f"DROP TABLE {outbox.table}_orders")


def relay_forever(outbox: Outbox, scheduler: Scheduler) -> None:
    """Relay until killed; errors of the database, which a killed relay may have locked, are those of one try."""
    while True:
        try:
            outbox.relay(scheduler)
        except Exception:
            logging.getLogger(__name__).debug("trying again", exc_info=True)


def kill(pid: int) -> None:
    """Kill a relay and wait until it is gone."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def store_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """Return the URL of an empty store of this kind."""
    if kind == "sqlite":
        return str(folder / "jobs.db")
    if kind == "mongodb":
        return emptied(request.getfixturevalue("mongo_set"), f"outbox_{os.getpid()}")
    return f"{request.getfixturevalue('postgresql_url')}?taskqueue.schema=outbox_{secrets.token_hex(6)}"


MODULE = """
import sqlite3
from taskqueue.outbox import Outbox

outbox = Outbox(lambda: sqlite3.connect({file!r}), every=0.01)
engine = 7
"""


def test_the_outbox_of_a_node_is_found_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: Scheduler
) -> None:
    name = f"app_{secrets.token_hex(6)}"
    (tmp_path / f"{name}.py").write_text(MODULE.format(file=str(tmp_path / "app.db")))
    monkeypatch.syspath_prepend(str(tmp_path))
    outbox = find(f"{name}:outbox")
    assert isinstance(outbox, Outbox)
    run(outbox, outbox.create_sql("sqlite"))
    add(outbox, 1, 2)

    relay_until_empty(f"{name}:outbox", scheduler)

    assert data_in(scheduler) == [1, 2]
    with pytest.raises(ConfigError, match=f"^--outbox {name}: write MODULE:NAME, such as shop:outbox$"):
        find(name)
    with pytest.raises(ConfigError, match=f"there is no outbx in {name}: did you mean {name}:outbox?"):
        find(f"{name}:outbx")
    with pytest.raises(
        ConfigError, match=f"--outbox {name}:engine: engine is 7 in {name}: did you mean {name}:outbox?"
    ):
        find(f"{name}:engine")
    with pytest.raises(
        ConfigError, match="--outbox no_such:outbox: module no_such cannot be imported: ModuleNotFoundError"
    ):
        relay_endlessly("no_such:outbox", scheduler)
