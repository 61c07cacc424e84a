"""A store works through PgBouncer in transaction mode, and listens past it if the URL names the server itself."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest

from taskqueue import Scheduler
from taskqueue.errors import ConfigError, StoreUnavailable
from taskqueue.model.finding import Level
from taskqueue.model.ids import JobId
from taskqueue.model.query import parse
from taskqueue.model.record import Status
from taskqueue.store import Store
from taskqueue.store.bell import WORK
from taskqueue.store.fan_out import LISTEN_PAUSE, POLL_PAUSE
from taskqueue.store.open import open_store
from taskqueue.store.postgresql.message import PREPARED_AFTER
from tests.acceptance.work import Echo, Gate
from tests.nodes import LIMIT, eventually, node
from tests.pgbouncer import PgBouncer
from tests.postgresql import PostgreSQL
from tests.servers import free_port
from tests.store.records import PATIENCE, a_record, claim, ids, kept, rings, settle

LISTENING = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN %'"
PREPARED = "SELECT count(*) FROM pg_prepared_statements"


@pytest.fixture
def pooler(request: pytest.FixtureRequest, postgresql_server: PostgreSQL, tmp_path: Path) -> Iterator[PgBouncer]:
    """Start a pooler in front of a server of the test's own, in transaction mode unless the test names another."""
    mode = getattr(request, "param", "transaction")
    with PgBouncer(postgresql_server, tmp_path / "pgbouncer", mode) as started:
        yield started


@pytest.fixture
def direct_url(pooler: PgBouncer) -> str:
    """Return the URL of the store through the pooler that names the server, too."""
    return f"{pooler.url}?taskqueue.direct=postgresql://127.0.0.1:{pooler.server.port}"


def listening(server: PostgreSQL) -> int:
    """Return how many sessions of the server listen."""
    with psycopg.connect(server.url) as operator:
        [count] = operator.execute(LISTENING).fetchone() or (0,)
    return int(count)


def about(store: Store, what: str) -> tuple[Level, str, str]:
    """Return what the store finds about something: how bad it is, the words, and what to do."""
    [finding] = [finding for finding in store.diagnose() if finding.about == what]
    return finding.level, finding.says, finding.do


def test_many_stores_share_the_sessions_of_a_pooler(pooler: PgBouncer) -> None:
    added: set[JobId] = set()
    settled: list[JobId] = []

    def work() -> None:
        with closing(open_store(pooler.url)) as store:
            for _ in range(PREPARED_AFTER + 3):
                new = a_record()
                store.add([new])
                added.add(new.id)
            while records := claim(store, 2).records:
                settled.extend(job for record in records for job in settle(store, record))

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE * 2)

    assert sorted(settled) == sorted(added)
    with closing(open_store(pooler.url)) as store:
        assert store.count(parse({"status": Status.DONE})) == len(added) == 5 * (PREPARED_AFTER + 3)
    with psycopg.connect(pooler.url) as session:
        assert session.execute(PREPARED).fetchone() == (0,)


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
def test_a_job_is_added_in_a_transaction_through_the_pooler(pooler: PgBouncer, commits: bool) -> None:
    with Scheduler(pooler.url) as scheduler, psycopg.connect(pooler.url, prepare_threshold=None) as mine:
        mine.execute("CREATE TABLE orders (number INTEGER)")
        process = scheduler.add_job(Echo, 1, session=mine)
        assert scheduler.find_jobs() == []

        mine.commit() if commits else mine.rollback()

        assert [job.id for job in scheduler.find_jobs()] == ([process.id] if commits else [])


@pytest.mark.parametrize("pooler", ["transaction", "session"], indirect=True)
def test_a_node_works_through_a_pooler_and_says_how_to_listen(pooler: PgBouncer, tmp_path: Path) -> None:
    with node(pooler.url, tmp_path, "--name", "web-1") as web_1, Scheduler(pooler.url) as scheduler:
        assert scheduler.add_job(Echo, "through").wait(timeout=LIMIT).result == "through"
        text = web_1.log.read_text()

    assert "a pooler withholds notifications, so listeners poll every 1 s: add taskqueue.direct=" in text
    assert pooler.server.password not in text


def test_a_node_listens_past_the_pooler(direct_url: str, pooler: PgBouncer, tmp_path: Path) -> None:
    with node(direct_url, tmp_path, "--name", "web-1") as web_1, Scheduler(direct_url) as scheduler:
        assert listening(pooler.server) == 1
        assert scheduler.add_job(Echo, "through").wait(timeout=LIMIT).result == "through"
        assert "notifications" not in web_1.log.read_text()


def test_a_job_of_a_node_that_was_killed_runs_again_through_the_pooler(
    direct_url: str, pooler: PgBouncer, tmp_path: Path
) -> None:
    gate, facts = tmp_path / "gate", tmp_path / "facts"
    os.mkfifo(gate)
    with Scheduler(direct_url) as scheduler:
        with node(direct_url, tmp_path, "--name", "web-1") as first:
            done = [scheduler.add_job(Echo, number) for number in range(5)]
            scheduler.wait_for(done, timeout=LIMIT)
            process = scheduler.add_job(Gate, {"file": str(facts), "gate": str(gate)})
            eventually(facts.exists)
            first.kill()
        with node(direct_url, tmp_path, "--name", "web-1"):
            gate.write_text("go")
            assert process.wait(timeout=LIMIT).result == "through"

        assert facts.read_text().count("ended") == 1
        assert len(scheduler.find_jobs()) == 6


def test_a_store_works_again_after_its_pooler_was_killed(pooler: PgBouncer) -> None:
    added = a_record()
    with closing(open_store(pooler.url)) as store:
        store.add([added])
        for _ in range(2):
            pooler.kill()
            pooler.start()
            assert kept(store, added.id).status is Status.WAITING
            pooler.kill()
            pooler.start()
            store.add([a_record()])

        assert store.count(parse({})) == 3


def test_bells_ring_past_the_pooler_and_are_polled_through_it(
    direct_url: str, pooler: PgBouncer, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(open_store(direct_url)) as store, closing(open_store(pooler.url)) as polled:
        bell, polled_bell = store.bell(WORK), polled.bell(WORK)
        new = a_record()
        polled.add([new])

        assert rings(bell)
        assert (bell.pause, polled_bell.pause) == (LISTEN_PAUSE, POLL_PAUSE)
        assert ids(store.find(parse({}))) == [new.id]

    [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.endswith("add taskqueue.direct=postgresql://HOST:PORT of the server itself to the URL")
    assert pooler.server.password not in warning


def test_doctor_says_what_a_pooler_keeps_back_and_what_to_do(direct_url: str, pooler: PgBouncer) -> None:
    with closing(open_store(pooler.url)) as store:
        assert about(store, "connection")[:2] == (Level.OK, "it goes through a pooler: statements are not prepared")
        level, says, do = about(store, "notifications")
        assert level is Level.WARNING
        assert says == "a pooler keeps them back: nodes and waiting applications look every 1 s"
        assert do == "add taskqueue.direct=postgresql://HOST:PORT of the server itself to the URL"
    with closing(open_store(direct_url)) as store:
        assert about(store, "notifications") == (Level.OK, "the server sends them itself", "")
    with closing(open_store(f"{pooler.url}?taskqueue.direct=postgresql://127.0.0.1:{pooler.port}")) as store:
        assert about(store, "notifications")[0] is Level.WARNING


def test_a_server_that_is_not_the_poolers_is_refused(pooler: PgBouncer, tmp_path: Path) -> None:
    open_store(pooler.url).close()
    with PostgreSQL(tmp_path / "other") as other, ExitStack() as opened:
        wrong = f"{pooler.url}?taskqueue.direct=postgresql://postgres:{other.password}@127.0.0.1:{other.port}"

        store = opened.enter_context(closing(open_store(wrong)))
        with pytest.raises(
            ConfigError, match=r"taskqueue\.direct names no store: name the server and the database that"
        ):
            store.bell(WORK)
        open_store(other.url).close()
        with pytest.raises(ConfigError, match="names another store") as caught:
            store.bell(WORK)
        level, says, do = about(store, "notifications")

    assert (level, do) == (Level.ERROR, "correct taskqueue.direct in the URL")
    for text in (says, str(caught.value)):
        assert "names another store" in text
        assert other.password not in text
        assert pooler.server.password not in text


def test_a_server_that_does_not_answer_is_named_beside_its_pooler(pooler: PgBouncer) -> None:
    gone = f"127.0.0.1:{free_port()}"
    with closing(open_store(f"{pooler.url}?taskqueue.direct=postgresql://{gone}")) as store:
        store.add([a_record()])

        with pytest.raises(StoreUnavailable, match=rf"taskqueue.direct=postgresql://{gone}\).* does not answer"):
            store.bell(WORK)
