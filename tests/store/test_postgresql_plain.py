"""Plain claims and outcomes of PostgreSQL share the store's lock; what concerns other rows is decided by its holder."""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

import psycopg
import pytest

from taskqueue.errors import StoreUnavailable
from taskqueue.model.controls import Control, Kind
from taskqueue.model.history import Step
from taskqueue.model.lifecycle.outcomes import Done, Failed, HandedBack
from taskqueue.model.limits import Limit, lane
from taskqueue.model.query import parse
from taskqueue.model.record import Dependency, Holder, Record, Status
from taskqueue.model.timestamps import milliseconds
from taskqueue.store import OLDEST, ClaimRequest, Store
from taskqueue.store.bell import ENDS, NEWS
from taskqueue.store.open import open_store
from taskqueue.store.postgresql import PostgreSQLStore, plain
from taskqueue.store.postgresql.message import LONG
from taskqueue.store.postgresql.roles import Role, grants
from taskqueue.store.relational.columns import ALL_NAMES
from tests.forking import fork
from tests.nodes import eventually
from tests.postgresql import USER, PostgreSQL
from tests.store.records import (
    BROKEN,
    HOUR,
    LEASE,
    MINUTE,
    NOON,
    PATIENCE,
    SECOND,
    WEB_1,
    a_record,
    behind,
    claim,
    forced,
    ids,
    kept,
    now_cursor,
    postponed,
    rings,
    settle,
    settlement,
)
from tests.store.test_postgresql_connection import lose_answers, terminate
from tests.store.test_postgresql_message import exchanged

SHARED = "?taskqueue.lock=shared"


@pytest.fixture
def store(postgresql_server: PostgreSQL) -> Iterator[Store]:
    """Open a store whose plain claims and outcomes share the lock, and which numbers no events after them."""
    with closing(open_store(postgresql_server.url + SHARED)) as opened:
        assert isinstance(opened, PostgreSQLStore)
        opened._connection._numbers_at = math.inf  # a busy machine may take 250 ms for a test
        yield opened


@contextmanager
def sharing(server: PostgreSQL) -> Iterator[None]:
    """Hold the lock as a plain transaction of another node does."""
    with psycopg.connect(server.url) as other:
        other.execute("LOCK TABLE taskqueue.store IN ROW SHARE MODE")
        yield


def without_number(server: PostgreSQL) -> list[str]:
    """Return the names of the events that have no number yet, one for each row."""
    with psycopg.connect(server.url) as operator:
        rows = operator.execute("SELECT name FROM taskqueue.unnumbered ORDER BY number").fetchall()
    return [name for (name,) in rows]


def is_wanted_alone(server: PostgreSQL) -> bool:
    """Return whether a transaction waits until it has the lock alone."""
    wanted = "SELECT 1 FROM pg_locks WHERE relation = 'taskqueue.store'::regclass AND NOT granted"
    with psycopg.connect(server.url) as operator:
        return operator.execute(wanted).fetchone() is not None


def one_of(other: Record) -> Callable[[Store], object]:
    return lambda store: store.add([other])


def test_plain_claims_and_outcomes_run_beside_others(store: Store, postgresql_server: PostgreSQL) -> None:
    store.add([a_record() for _ in range(3)])
    with sharing(postgresql_server):
        first = claim(store, 2).records
        assert store.settle([settlement(run) for run in first], NOON) == {run.id for run in first}
        [last] = claim(store, 2).records
        assert settle(store, last) == {last.id}


def test_who_needs_the_lock_alone_waits_for_plain_transactions(store: Store, postgresql_server: PostgreSQL) -> None:
    new = a_record()
    with ThreadPoolExecutor(1) as threads:
        with sharing(postgresql_server):
            adding = threads.submit(store.add, [new])
            eventually(lambda: is_wanted_alone(postgresql_server))
            assert not adding.done()
        assert adding.result(PATIENCE) == [new]


def test_a_store_shares_the_lock_once_it_has_waited_for_it(postgresql_server: PostgreSQL) -> None:
    with closing(open_store(postgresql_server.url)) as store:
        store.add([a_record() for _ in range(4)])
        claim(store)
        with ThreadPoolExecutor(1) as threads:
            with sharing(postgresql_server):
                waiting = threads.submit(claim, store)
                eventually(lambda: is_wanted_alone(postgresql_server))
                with psycopg.connect(postgresql_server.url) as operator:
                    operator.execute("SELECT pg_sleep(0.01)")
            assert len(waiting.result(PATIENCE).records) == 1

        with sharing(postgresql_server):
            [run] = claim(store).records
            assert settle(store, run) == {run.id}


def test_without_others_events_have_their_numbers_at_once(postgresql_server: PostgreSQL) -> None:
    with closing(open_store(postgresql_server.url)) as store:
        assert isinstance(store, PostgreSQLStore)
        store.add([a_record() for _ in range(2)])
        claim(store)
        store._connection._shares_until = 0.0  # a busy machine may have made it wait
        [run] = claim(store).records
        store._connection._shares_until = 0.0
        settle(store, run)

        assert without_number(postgresql_server) == []


def test_a_store_that_keeps_the_lock_for_itself_shares_nothing(postgresql_server: PostgreSQL) -> None:
    with closing(open_store(f"{postgresql_server.url}?taskqueue.lock=exclusive")) as store:
        store.add([a_record()])
        with ThreadPoolExecutor(1) as threads:
            with sharing(postgresql_server):
                claiming = threads.submit(claim, store)
                eventually(lambda: is_wanted_alone(postgresql_server))
            assert len(claiming.result(PATIENCE).records) == 1


def test_counts_are_exact_while_events_have_no_numbers(store: Store, postgresql_server: PostgreSQL) -> None:
    store.add([a_record(queue="q") for _ in range(4)])
    runs = claim(store, 3).records
    store.settle([settlement(run) for run in runs[:2]], NOON)

    assert without_number(postgresql_server) == ["processing", "done"]
    counted = {("q", Status.WAITING): 1, ("q", Status.PROCESSING): 1, ("q", Status.DONE): 2}
    assert store.tally() == counted
    assert store.present(NOON).running == 1
    figures = store.history(Step.MINUTE, NOON - HOUR, NOON + HOUR)
    assert sum(part["q", "app:Mail"].get("done", 0) for part in figures.values()) == 2
    assert without_number(postgresql_server) == ["processing", "done"]


def test_events_get_numbers_in_the_order_of_their_jobs(store: Store, postgresql_server: PostgreSQL) -> None:
    first, second, third = (a_record() for _ in range(3))
    cursor = now_cursor(store)
    store.add([first, second])
    runs = claim(store, 2).records
    store.settle([settlement(run) for run in runs], NOON)
    store.add([third])  # whoever has the lock alone gives numbers first
    assert without_number(postgresql_server) == []

    events, after = store.events(cursor)
    told = [(event.name, event.job_id) for event in events]
    assert told == [
        *(("waiting", id) for id in ids([first, second])),
        *(("processing", id) for id in ids([first, second])),
        *(("done", id) for id in ids([first, second])),
        ("waiting", third.id),
    ]
    numbers = [int(event.cursor) for event in events]
    assert numbers == list(range(int(cursor) + 1, int(after) + 1))
    assert [event.at for event in events] == sorted(event.at for event in events)


def test_a_reader_sees_events_without_a_number_before_the_call(store: Store, postgresql_server: PostgreSQL) -> None:
    store.add([a_record()])
    cursor = now_cursor(store)
    [run] = claim(store).records
    assert [event.name for event in store.events(cursor)[0]] == ["processing"]
    settle(store, run)
    assert [event.name for event in store.events_of(run.id, NOON - HOUR, 100)] == ["waiting", "processing", "done"]


def test_plain_outcomes_ring(store: Store) -> None:
    store.add([a_record()])
    [run] = claim(store).records
    with closing(store.bell(ENDS)) as ends, closing(store.bell(NEWS)) as news:
        settle(store, run)
        assert rings(ends)
        assert rings(news)


SPECIAL: dict[str, Callable[[Store], object]] = {
    "a job with limits": one_of(a_record(lane=lane([Limit(1)], "app:Limited", None))),
    "a due job": one_of(postponed(NOON)),
    "a late job": one_of(a_record(expires_at=NOON - SECOND)),
    "a pause": lambda store: store.set_control(Control(kind=Kind.PAUSE, name="other", since=NOON, by="ann@web")),
    "another queue": one_of(a_record(queue="other")),
}


@pytest.mark.parametrize("special", SPECIAL.values(), ids=SPECIAL)
def test_a_claim_that_needs_a_decision_has_the_lock_alone(
    store: Store, postgresql_server: PostgreSQL, special: Callable[[Store], object]
) -> None:
    store.add([a_record()])
    special(store)
    with ThreadPoolExecutor(1) as threads:
        with sharing(postgresql_server):
            claiming = threads.submit(claim, store, 9)
            eventually(lambda: is_wanted_alone(postgresql_server))
        assert claiming.result(PATIENCE).records


def test_a_claim_that_wants_jobs_beside_the_pool_has_the_lock_alone(
    store: Store, postgresql_server: PostgreSQL
) -> None:
    store.add([a_record(), forced()])
    with ThreadPoolExecutor(1) as threads:
        with sharing(postgresql_server):
            assert len(claim(store, 1).records) == 1
            claiming = threads.submit(lambda: claim(store, 1, forced=1))
            eventually(lambda: is_wanted_alone(postgresql_server))
        assert len(claiming.result(PATIENCE).records) == 1


def test_a_claim_of_a_pause_takes_nothing(store: Store) -> None:
    store.add([a_record(queue="q")])
    store.set_control(Control(kind=Kind.PAUSE, name="q", since=NOON, by="ann@web"))

    assert claim(store).records == []


def test_a_job_that_another_claim_looks_at_is_left_for_another_time(
    store: Store, postgresql_server: PostgreSQL
) -> None:
    """Other claims skip it, and it may wait on: it had no room in the bytes of that one, or its node was killed."""
    first, second, third = jobs = [a_record(created_at=NOON + number * SECOND) for number in range(3)]
    store.add(jobs)
    with psycopg.connect(postgresql_server.url) as other:
        other.execute("SELECT FROM taskqueue.jobs WHERE id = %s FOR UPDATE", (str(first.id),))
        claimed = claim(store, 2)
        assert (ids(claimed.records), claimed.has_more) == ([second.id, third.id], False)  # as many as it asked for
        settle(store, claimed.records[0], HandedBack())
        claimed = claim(store, 2)
        assert (ids(claimed.records), claimed.has_more) == ([second.id], True)

    claimed = claim(store, 2)
    assert (ids(claimed.records), claimed.has_more) == ([first.id], False)


def test_the_bytes_of_a_demand_bound_a_plain_claim(store: Store) -> None:
    store.add([a_record(data='"' + "x" * 98 + '"', created_at=NOON + number * SECOND) for number in range(4)])

    first = store.claim(WEB_1, ClaimRequest(pooled=4, data=250), NOON, NOON + LEASE)
    second = store.claim(WEB_1, ClaimRequest(pooled=4, data=10, free=1), NOON, NOON + LEASE)

    assert [(len(taken.records), taken.has_more) for taken in (first, second)] == [(2, True), (1, True)]


def test_an_outcome_for_which_a_job_waits_alone_has_its_effects(store: Store, postgresql_server: PostgreSQL) -> None:
    awaited = a_record()
    waiting = behind(awaited.id, depends_on=(Dependency(id=awaited.id),))
    store.add([awaited, *(a_record() for _ in range(3)), waiting])
    runs = claim(store, 4).records

    assert store.settle([settlement(run) for run in runs], NOON) == {run.id for run in runs}

    assert kept(store, waiting.id).status is Status.WAITING
    assert store.tally() == {("default", Status.WAITING): 1, ("default", Status.DONE): 4}
    ends = [event.job_id for event in store.events(OLDEST)[0] if event.name == "done"]
    assert sorted(map(str, ends)) == sorted(map(str, (run.id for run in runs)))


def test_a_job_that_is_done_despite_a_cancel_request_keeps_it(store: Store) -> None:
    store.add([a_record(), a_record()])
    runs = claim(store, 2).records
    store.cancel(runs[0].id, "no longer needed", NOON)

    assert store.settle([settlement(run) for run in runs], NOON) == {run.id for run in runs}
    assert kept(store, runs[0].id).cancel is not None
    assert store.tally() == {("default", Status.DONE): 2}


def test_a_lost_claim_is_refused_and_the_others_are_accepted(store: Store) -> None:
    store.add([a_record() for _ in range(3)])
    runs = claim(store, 3).records
    settle(store, runs[1], HandedBack())
    [again] = claim(store).records

    assert store.settle([settlement(run) for run in runs], NOON) == {runs[0].id, runs[2].id}
    assert settle(store, again) == {runs[1].id}
    assert store.tally() == {("default", Status.DONE): 3}


def test_an_outcome_whose_answer_is_lost_is_accepted_once(store: Store, postgresql_server: PostgreSQL) -> None:
    store.add([a_record(), a_record()])
    runs = claim(store, 2).records
    assert isinstance(store, PostgreSQLStore)
    database = store._connection._database
    assert database is not None
    lose_answers(database)

    assert store.settle([settlement(run) for run in runs], NOON) == {run.id for run in runs}
    assert store.settle([settlement(run) for run in runs], NOON) == set()
    assert Counter(event.name for event in store.events(OLDEST)[0])["done"] == 2


def test_an_outcome_whose_session_has_ended_is_written_again(store: Store, postgresql_server: PostgreSQL) -> None:
    store.add([a_record()])
    [run] = claim(store).records
    assert isinstance(store, PostgreSQLStore)
    database = store._connection._database
    assert database is not None
    terminate(postgresql_server, database)

    assert settle(store, run) == {run.id}
    assert store.tally() == {("default", Status.DONE): 1}


def test_an_outcome_is_accepted_again_if_those_after_it_failed(store: Store, postgresql_server: PostgreSQL) -> None:
    store.add([a_record(), a_record()])
    done, failed = claim(store, 2).records
    outcomes = [settlement(done), settlement(failed, Failed(failure=BROKEN))]
    with psycopg.connect(postgresql_server.url, autocommit=True) as operator:
        operator.execute("ALTER TABLE taskqueue.jobs ADD CONSTRAINT none_fails CHECK (status <> 4) NOT VALID")
        with pytest.raises(StoreUnavailable):
            store.settle(outcomes, NOON)
        operator.execute("ALTER TABLE taskqueue.jobs DROP CONSTRAINT none_fails")

    assert store.settle(outcomes, NOON) == {done.id, failed.id}
    assert store.settle(outcomes, NOON) == set()
    assert store.tally() == {("default", Status.DONE): 1, ("default", Status.FAILED): 1}


def test_outcomes_are_counted_if_a_lost_session_writes_one_of_them_at_that_time(
    store: Store, postgresql_server: PostgreSQL
) -> None:
    """Its COMMIT may wait for a standby, while its node tries again on another connection, with one outcome more."""
    store.add([a_record(), a_record()])
    runs = claim(store, 2).records
    assert isinstance(store, PostgreSQLStore)
    lost = store._connection._database
    assert lost is not None
    store._in_doubt.add(runs[0].id)
    lost.raw.execute("BEGIN; LOCK TABLE taskqueue.store IN ROW SHARE MODE")
    assert lost.execute(plain.SETTLE, plain._values([settlement(runs[0])], milliseconds(NOON))).fetchone()[0]
    store._connection._database = None
    with ThreadPoolExecutor(1) as threads:
        settling = threads.submit(store.settle, [settlement(run) for run in runs], NOON)
        eventually(lambda: waits_for_a_row(postgresql_server))
        lost.raw.execute("COMMIT")
        lost.raw.close()

        assert settling.result(PATIENCE) == {run.id for run in runs}
    assert store.tally() == {("default", Status.DONE): 2}
    assert Counter(event.name for event in store.events(OLDEST)[0])["done"] == 2


def test_long_outcomes_are_one_message_too(postgresql_server: PostgreSQL) -> None:
    """A client that stopped between two messages would keep the lock."""
    with closing(open_store(postgresql_server.url)) as store:
        assert isinstance(store, PostgreSQLStore)
        store.add([a_record() for _ in range(2)])
        runs = claim(store, 2).records
        store._connection._shares_until = 0.0
        database = store._connection._database
        assert database is not None
        outcomes = [settlement(run, Done(result="x" * LONG)) for run in runs]

        asked, _, _ = exchanged(database.raw, lambda: store.settle(outcomes, NOON))
        assert asked == 1


def test_to_number_events_reads_no_former_ones_beside_an_old_snapshot(
    store: Store, postgresql_server: PostgreSQL
) -> None:
    """Each transaction that has the lock alone numbers events, and the server removes no old row versions meanwhile."""
    assert isinstance(store, PostgreSQLStore)
    former = "SELECT 1, 'former', 0, 3 FROM generate_series(1, 5000)"
    with psycopg.connect(postgresql_server.url, autocommit=True) as operator, operator.transaction():
        operator.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        operator.execute("SELECT 1")
        with psycopg.connect(postgresql_server.url) as other:
            other.execute(f"INSERT INTO taskqueue.unnumbered (claims, name, at, status) {former}")
        store.renew(WEB_1, NOON + HOUR, {})
        before = entries_read(store)
        store.renew(WEB_1, NOON + HOUR, {})

        assert entries_read(store) - before < 100


def entries_read(store: PostgreSQLStore) -> int:
    """Return how many entries of the index of events without a number were read."""
    database = store._connection._database
    assert database is not None
    database.raw.execute("SELECT pg_stat_force_next_flush()")
    read = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'unnumbered_pkey'"
    [entries] = database.raw.execute(read).fetchone() or [0]
    return int(entries)


def test_events_get_numbers_after_the_server_has_lost_the_last_ones(
    store: Store, postgresql_server: PostgreSQL
) -> None:
    cursor = now_cursor(store)
    store.add([a_record() for _ in range(5)])
    for _ in range(4):
        claim(store)
        store.renew(WEB_1, NOON + HOUR, {})
    with psycopg.connect(postgresql_server.url) as operator:
        operator.execute("ALTER TABLE taskqueue.unnumbered ALTER number RESTART")
    claim(store)

    assert [event.name for event in store.events(cursor)[0]] == [*["waiting"] * 5, *["processing"] * 5]


def test_numbers_of_events_ring(store: Store) -> None:
    """A user who may only read hears of an outcome, and cannot read its event yet."""
    store.add([a_record()])
    [run] = claim(store).records
    settle(store, run)
    with closing(store.bell(ENDS)) as ends, closing(store.bell(NEWS)) as news:
        store.renew(WEB_1, NOON + HOUR, {})
        assert rings(ends)
        assert rings(news)


def test_events_with_numbers_are_read_while_others_can_get_none(store: Store, postgresql_server: PostgreSQL) -> None:
    store.add([a_record()])
    cursor = now_cursor(store)
    [run] = claim(store).records
    events, cursor = store.events(cursor)
    settle(store, run)
    with psycopg.connect(postgresql_server.url, autocommit=True) as operator:
        operator.execute("ALTER TABLE taskqueue.events ADD CONSTRAINT full_disk CHECK (name <> 'done') NOT VALID")
        assert [event.name for event in events] == ["processing"]
        assert store.events(cursor) == ([], cursor)
        operator.execute("ALTER TABLE taskqueue.events DROP CONSTRAINT full_disk")

    assert [event.name for event in store.events(cursor)[0]] == ["done"]


def test_an_outcome_is_accepted_again_if_the_look_for_others_failed(postgresql_server: PostgreSQL) -> None:
    columns = ", ".join({"rowid", *ALL_NAMES} - {"ended_at"})
    with psycopg.connect(postgresql_server.url, autocommit=True) as operator:
        with closing(open_store(postgresql_server.url + SHARED)):
            operator.execute("CREATE ROLE web LOGIN PASSWORD 'secret'")
            operator.execute("".join(grants("taskqueue", Role.NODE, "web")))
        url = postgresql_server.url.replace(f"{USER}:{postgresql_server.password}@", "web:secret@") + SHARED
        with closing(open_store(url)) as store:
            assert isinstance(store, PostgreSQLStore)
            store.add([a_record(), a_record()])
            runs = claim(store, 2).records
            settle(store, runs[0])
            store._in_doubt.add(runs[0].id)
            operator.execute("REVOKE SELECT ON taskqueue.jobs FROM web")
            operator.execute(f"GRANT SELECT ({columns}) ON taskqueue.jobs TO web")
            outcomes = [settlement(run) for run in runs]
            with pytest.raises(StoreUnavailable):
                store.settle(outcomes, NOON)
            operator.execute("GRANT SELECT ON taskqueue.jobs TO web")

            assert store.settle(outcomes, NOON) == {run.id for run in runs}
            assert store.tally() == {("default", Status.DONE): 2}


def waits_for_a_row(server: PostgreSQL) -> bool:
    """Return whether a transaction waits for the end of another one that has changed its row."""
    with psycopg.connect(server.url) as operator:
        row = operator.execute("SELECT 1 FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted").fetchone()
    return row is not None


def test_a_claim_whose_answer_is_lost_is_named_by_the_renewal(store: Store) -> None:
    store.add([a_record(), a_record()])
    assert isinstance(store, PostgreSQLStore)
    database = store._connection._database
    assert database is not None
    lose_answers(database)

    [known] = claim(store).records

    renewed = store.renew(WEB_1, NOON + HOUR, {}).claims
    assert len(renewed) == 2
    assert known.id in renewed


def test_a_job_of_an_open_transaction_is_taken_in_before_it_is_claimed(
    store: Store, postgresql_server: PostgreSQL
) -> None:
    assert isinstance(store, PostgreSQLStore)
    store.add([a_record()])
    claim(store)
    new = a_record()
    with psycopg.connect(postgresql_server.url) as session:
        store.within(session, None).add([new])

    assert ids(claim(store).records) == [new.id]
    assert [event.name for event in store.events_of(new.id, NOON - HOUR, 100)] == ["waiting", "processing"]


def test_a_plain_claim_and_a_plain_outcome_are_one_message_each(store: Store) -> None:
    assert isinstance(store, PostgreSQLStore)
    database = store._connection._database
    assert database is not None
    runs: list[Record] = []
    asked = []
    for _ in range(5):  # sometimes a call also looks for events without numbers
        store.add([a_record() for _ in range(9)])
        claiming = exchanged(database.raw, lambda: runs.extend(claim(store, 9).records))
        settling = exchanged(database.raw, lambda: store.settle([settlement(run) for run in runs[-9:]], NOON))
        asked.append((claiming[0], settling[0]))

    assert min(claiming for claiming, _ in asked) == min(settling for _, settling in asked) == 1


def test_log_lines_of_plain_outcomes_are_kept(store: Store) -> None:
    store.add([a_record(), a_record()])
    first, second = claim(store, 2).records

    store.settle([settlement(first)._replace(lines="some lines"), settlement(second)], NOON)

    assert (store.log_lines(first.id), store.log_lines(second.id)) == ({1: "some lines"}, {})


@pytest.mark.parametrize("statement", [plain.CLAIM, plain.SETTLE], ids=["claim", "settle"])
def test_a_plain_statement_reads_no_whole_table(store: Store, postgresql_server: PostgreSQL, statement: str) -> None:
    """Whatever the statistics say."""
    assert isinstance(store, PostgreSQLStore)
    seen = []
    for jobs, analyze in ((0, False), (3000, False), (3000, True)):
        store.add([a_record() for _ in range(jobs)])
        with psycopg.connect(postgresql_server.url, autocommit=True) as operator:
            if analyze:
                operator.execute("ANALYZE")
        runs = claim(store, 2).records
        store.settle([settlement(run) for run in runs], NOON)
        database = store._connection._database
        assert database is not None
        values: dict[str, object] = {
            "at": 0,
            "until": 0,
            "seat": "none",
            "incarnation": "none",
            "queue": None,
            "pooled": 2,
            "forced": 0,
            "data": None,
            "free": 0,
            "minute": 0,
            "counts": None,
            "figures": None,
            "number": 1,
            "started": [0],
            "ended": [0],
            "attempts": [""],
            "results": [""],
            "ids": ["none"],
            "claims": [1],
            "lines": [None],
        }
        named = {name: value for name, value in values.items() if f":{name}" in statement}
        with contextlib.ExitStack() as undone:
            database.raw.execute("BEGIN; SET LOCAL plan_cache_mode = force_generic_plan")
            undone.callback(database.undo)
            plan = "\n".join(row[0] for row in database.execute(f"EXPLAIN {statement}", named).fetchall())
        seen.append(plan)
    for plan in seen:
        assert "Seq Scan on jobs" not in plan
        assert "Seq Scan on waits" not in plan
        assert "jobs_running" not in plan


ONE_TENTH = 10


def work(url: str, seat: str, batch: int) -> None:
    """Claim and settle until nothing is left, in a process of its own; a tenth of the outcomes have effects."""
    holder = Holder(seat=seat, incarnation="1")
    rng, broken = random.Random(seat), Failed(failure=BROKEN)
    with closing(open_store(url)) as store:
        misses = 0
        while misses < 20:
            now = store.now()
            runs = store.claim(holder, ClaimRequest(pooled=batch), now, now + MINUTE).records
            misses = 0 if runs else misses + 1
            outcomes = [
                settlement(replace(run, started_at=now), broken if rng.random() < 1 / ONE_TENTH else None, now)
                for run in runs
            ]
            if not outcomes:
                continue
            accepted = store.settle(outcomes, store.now())
            assert accepted == {run.id for run in runs}, "an outcome was refused"
            if rng.random() < 1 / ONE_TENTH:
                store.renew(holder, now + MINUTE, {})
            if rng.random() < 1 / ONE_TENTH:
                store.cancel_many(ids(store.find(parse({"status": 0}), limit=1)), "a cancel", store.now())


def in_child(body: Callable[[], None]) -> int:
    """Run the body in a forked process, whose status says whether it failed."""
    pid = fork()
    if pid == 0:
        status = 1
        try:
            body()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


@pytest.mark.parametrize("use", ["shared", "adaptive"])
@pytest.mark.parametrize("jobs", [400, pytest.param(20_000, marks=pytest.mark.long)])
def test_processes_with_mixed_work_do_each_job_once(postgresql_server: PostgreSQL, use: str, jobs: int) -> None:
    url = f"{postgresql_server.url}?taskqueue.lock={use}"
    with closing(open_store(url)) as store:
        now = store.now()
        new = [a_record(created_at=now, ready_at=now, queue="q") for _ in range(jobs)]
        dependents = [behind(job.id, created_at=now, queue="q") for job in new[::ONE_TENTH]]
        cursor = now_cursor(store)
        store.add([*new, *dependents])
        pids = [in_child(partial(work, url, f"web-{number}", size)) for number, size in enumerate((1, 8, 50, 8))]
        victim = in_child(partial(work, url, "victim", 8))
        seen: list[int] = []
        running = set(pids)
        is_killed = False
        while running:
            events, cursor = store.events(cursor, 1000)
            seen += [int(event.cursor) for event in events]
            if not is_killed and any(event.ended for event in events):
                os.kill(victim, signal.SIGKILL)
                os.waitpid(victim, 0)
                is_killed = True
            for pid in list(running):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    running.discard(pid)
                    assert status == 0
        orphans = store.orphaned("victim", "2", 1000)
        store.settle([settlement(run, HandedBack(), store.now()) for run in orphans], store.now())
        work(url, "last", 50)
        while True:
            events, cursor = store.events(cursor, 1000)
            if not events:
                break
            seen += [int(event.cursor) for event in events]

        assert seen == list(range(seen[0], seen[0] + len(seen))), "a number is missing, came twice or came late"
        check_books(store, jobs + len(dependents))


def check_books(store: Store, jobs: int) -> None:
    """Compare events, counts and figures with the jobs themselves."""
    records = store.find(parse({}), limit=2 * jobs)
    assert len(records) == jobs
    present = Counter(record.status for record in records)
    assert set(present) <= {Status.DONE, Status.FAILED, Status.CANCELED}
    assert store.tally() == {("q", status): count for status, count in present.items()}
    cursor, names, ends = OLDEST, Counter[str](), Counter[object]()
    while True:
        events, cursor = store.events(cursor, 1000)
        if not events:
            break
        names.update(event.name for event in events)
        ends.update(event.ended for event in events if event.ended is not None)
    assert ends == Counter(record.id for record in records), "a job ended twice, or without an event"
    assert names["processing"] == sum(record.claims for record in records)
    now = store.now()
    parts = store.history(Step.MINUTE, now - HOUR, now + HOUR)
    figures = [figure for part in parts.values() for figure in part.values()]
    for name, status in (("done", Status.DONE), ("failed", Status.FAILED), ("canceled", Status.CANCELED)):
        assert sum(figure.get(name, 0) for figure in figures) == present[status]
