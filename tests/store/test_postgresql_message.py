"""What a call costs PostgreSQL, counted in round trips and statements: the driver traces the messages."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest

from taskqueue.errors import StoreUnavailable
from taskqueue.model.ids import ID_TEXT, WORKFLOW, JobId
from taskqueue.model.lifecycle.outcomes import Snoozed
from taskqueue.model.limits import Limit, Rate, lane
from taskqueue.model.query import parse
from taskqueue.model.record import Record, Status
from taskqueue.store import Note, Store
from taskqueue.store.open import open_store
from taskqueue.store.postgresql.database import PostgreSQLDatabase
from taskqueue.store.postgresql.message import AT_ONCE, LONG, MOST_PREPARED, PREPARED_AFTER, Answer
from taskqueue.store.postgresql.url import parse as parsed
from taskqueue.store.queue_shares import STRICT, QueueShares
from taskqueue.store.relational.claim_cache import FEW_QUEUES
from taskqueue.store.relational.engine import Sync
from tests import budgets
from tests.postgresql import PostgreSQL
from tests.store.records import NOON, SECOND, WEB_1, a_record, claim, settlement

MANY = 4_000
TWICE = "SELECT {} * CAST(? AS bigint)"


@pytest.fixture
def store(postgresql_server: PostgreSQL) -> Iterator[Store]:
    """Open a store whose usual statements are prepared."""
    with closing(open_store(postgresql_server.url)) as opened:
        for _ in range(PREPARED_AFTER + 1):
            work_off(opened, 1)
            work_off(opened, 100)
        yield opened


@pytest.fixture
def database(postgresql_url: str) -> Iterator[PostgreSQLDatabase]:
    """Open a connection without a store."""
    opened = PostgreSQLDatabase(parsed(postgresql_url))
    yield opened
    opened.raw.close()


def work_off(store: Store, count: int) -> None:
    """Add jobs, and claim and settle all of them."""
    store.add([a_record() for _ in range(count)])
    store.settle([settlement(run) for run in claim(store, count).records], NOON)


def exchanged(raw: psycopg.Connection[object], call: Callable[[], object]) -> tuple[int, int, str]:
    """Return how often a call waits for an answer of the server, how many statements it runs, and all messages."""
    with tempfile.TemporaryFile("w+") as trace:
        raw.pgconn.trace(trace.fileno())
        call()
        raw.pgconn.untrace()
        os.fsync(trace.fileno())
        trace.seek(0)
        lines = trace.read().split("\n")
    kinds = [line.split("\t")[1:4] for line in lines if line.count("\t") >= 3]
    asked = sum(kind[0] == "F" and kind[2] in ("Query", "Sync") for kind in kinds)
    ran = sum(kind[0] == "B" and kind[2] == "CommandComplete" for kind in kinds)
    return asked, ran, "\n".join(lines)


@pytest.mark.parametrize("count", [1, 100])
def test_a_call_keeps_to_its_round_trips(store: Store, count: int) -> None:
    raw = store._engine._database.raw  # type: ignore[attr-defined]
    records = [a_record() for _ in range(count)]
    runs: list[Record] = []
    calls: dict[str, Callable[[], object]] = {
        "add": lambda: store.add(records),
        "claim": lambda: runs.extend(claim(store, count).records),
        "settle": lambda: store.settle([settlement(run) for run in runs], NOON),
        "idle": lambda: claim(store, count),
    }
    for name, call in calls.items():
        round_trips, statements, _ = exchanged(raw, call)
        budgets.keep(f"postgresql.{name}.{count}.round_trips", round_trips)
        budgets.keep(f"postgresql.{name}.{count}.statements", statements)

    assert len(runs) == count


def test_a_claim_is_found_by_its_id_however_many_jobs_run(store: Store) -> None:
    raw = store._engine._database.raw  # type: ignore[attr-defined]

    def entries_read() -> object:
        raw.execute("SELECT pg_stat_force_next_flush()")
        return raw.execute("SELECT pg_stat_get_tuples_returned('taskqueue.jobs_running'::regclass)").fetchone()

    store.add([a_record() for _ in range(300)])
    raw.execute("ANALYZE taskqueue.jobs")  # while no job runs, so that their index seems to be the smallest
    first, *others = claim(store, 300).records
    before = entries_read()
    store.note(WEB_1, {first.id: Note(progress=1.0)})
    store.settle([settlement(first)], NOON)
    store.settle([settlement(run) for run in others[:100]], NOON)
    store.settle([settlement(run, Snoozed(seconds=60)) for run in others[100:110]], NOON)

    assert entries_read() == before


_READ = """
SELECT seq_tup_read + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'jobs')
FROM pg_stat_user_tables WHERE relname = 'jobs'
"""


def test_a_list_reads_few_rows_among_many(store: Store) -> None:
    raw = store._engine._database.raw  # type: ignore[attr-defined]

    def rows_read() -> int:
        raw.execute("SELECT pg_stat_force_next_flush()")
        [rows] = raw.execute(_READ).fetchone()
        return int(rows)

    for _ in range(10):
        store.add([a_record() for _ in range(MANY // 10)])
        store.settle([settlement(run) for run in claim(store, MANY // 10).records], NOON)
    store.add([a_record(given={WORKFLOW: str(first), ID_TEXT: f"invoice {first}"}) for first in (JobId(), JobId())])
    store.add([a_record() for _ in range(MANY // 20)])
    raw.execute("ANALYZE taskqueue.jobs")
    waiting = parse({"status": int(Status.WAITING), "job": "other"})
    calls: dict[str, Callable[[], object]] = {
        "workflows": lambda: store.workflows(None, 50),
        "by the text of its id": lambda: store.find(parse({"id_text": "invoice 7"}), order="-created_at", limit=2),
        "oldest waiting": lambda: store.find(waiting, order="created_at", limit=50),
    }
    read = {}
    for name, call in calls.items():
        before = rows_read()
        call()
        read[name] = rows_read() - before

    assert {name: rows for name, rows in read.items() if rows > MANY // 4} == {}


def full_limit(number: int) -> list[Record]:
    return [a_record(lane=lane([Limit(1)], f"app:Full{number}", None)) for _ in range(2)]


def full_rate(number: int) -> list[Record]:
    return [a_record(lane=lane([Rate(1, per=3600)], f"app:Often{number}", None)) for _ in range(2)]


def open_limit(number: int) -> list[Record]:
    return [a_record(lane=lane([Limit(2)], f"app:Open{number}", None), queue=f"queue{place}") for place in range(2)]


def queue(number: int) -> list[Record]:
    return [a_record(queue=f"queue{number % FEW_QUEUES}") for _ in range(3)]


@pytest.mark.parametrize("waiting", [full_limit, full_rate, open_limit, queue])
def test_a_claim_asks_as_often_whatever_waits(store: Store, waiting: Callable[[int], list[Record]]) -> None:
    raw = store._engine._database.raw  # type: ignore[attr-defined]
    asked = []
    for numbers in (range(2), range(2, 42)):
        store.add([one for number in numbers for one in waiting(number)])
        claim(store, len(numbers) if waiting in (full_limit, full_rate) else 1)
        asked.append(exchanged(raw, lambda: claim(store, 1, now=NOON + SECOND))[0])

    assert asked[1] <= asked[0]


@pytest.mark.parametrize("shares", [STRICT, QueueShares()], ids=["strict", "fair"])
def test_a_claim_of_many_queues_asks_for_all_of_them_together(store: Store, shares: QueueShares) -> None:
    raw = store._engine._database.raw  # type: ignore[attr-defined]

    def asked(queues: int) -> int:
        store.add([a_record(queue=f"queue{place}") for place in range(queues)])
        claim(store, 1, shares=shares)  # the first one reads where the jobs of each queue begin
        return exchanged(raw, lambda: claim(store, min(queues - 1, 60), shares=shares))[0]

    assert asked(FEW_QUEUES + 2) <= 8
    assert asked(10_000) <= 8


@pytest.mark.parametrize("count", [1, 40])
def test_notes_holders_and_uses_of_limits_are_one_question_each(store: Store, count: int) -> None:
    raw = store._engine._database.raw  # type: ignore[attr-defined]
    store.add([a_record() for _ in range(count)])
    notes = {run.id: Note(progress=1.0) for run in claim(store, count).records}

    assert exchanged(raw, lambda: store.note(WEB_1, notes))[0] < 10  # the clock of the server may be asked as well
    assert exchanged(raw, lambda: store.holders([f"web-{number}" for number in range(count)]))[0] <= 2
    assert exchanged(raw, lambda: store.limit_usage([f"app:Full{number}" for number in range(count)], NOON))[0] <= 2


def test_a_used_statement_is_sent_by_its_name(database: PostgreSQLDatabase) -> None:
    def ask() -> None:
        assert database.execute(TWICE.format(2), (21,)).fetchone() == (42,)

    messages = [exchanged(database.raw, ask)[2] for _ in range(PREPARED_AFTER + 2)]

    assert ["PREPARE" in one for one in messages] == [False] * PREPARED_AFTER + [True, False]
    assert "EXECUTE" in messages[-1]
    assert "SELECT" not in messages[-1].replace("SELECT 1", "")


def test_a_session_keeps_a_bounded_number_of_prepared_statements(database: PostgreSQLDatabase) -> None:
    answers: list[Answer] = []
    for number in range(MOST_PREPARED + 10):
        answers = [database.execute(TWICE.format(number), (21,)) for _ in range(PREPARED_AFTER + 2)]

    assert answers[-1].fetchone() == ((MOST_PREPARED + 9) * 21,)
    assert database.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (MOST_PREPARED,)


def test_a_long_message_is_sent_in_parts(database: PostgreSQLDatabase) -> None:
    def ask() -> None:
        answers = [database.execute(TWICE.format(2), (one,)) for one in range(2 * AT_ONCE)]
        assert [answer.fetchone() for answer in answers] == [(2 * one,) for one in range(2 * AT_ONCE)]

    assert exchanged(database.raw, ask)[0] in (2, 3)  # the statement is prepared as well


def test_a_message_with_much_data_is_sent_in_parts(database: PostgreSQLDatabase) -> None:
    def ask() -> None:
        answers = [database.execute("SELECT length(CAST(? AS text))", ("x" * LONG,)) for _ in range(3)]
        assert [answer.fetchone() for answer in answers] == [(LONG,)] * 3

    assert exchanged(database.raw, ask)[0] == 3


@pytest.mark.parametrize(
    "value",
    [None, 0, -1, 2**62, 1.5, True, "it's", "\\", "%s", "?", "100 %", "ä\n\U0001f600", "'; DROP TABLE jobs; --"],
)
def test_a_value_arrives_as_it_is(database: PostgreSQLDatabase, value: object) -> None:
    kind = {int: "bigint", float: "float8", bool: "boolean"}.get(type(value), "text")

    for _ in range(PREPARED_AFTER + 2):
        answer = database.execute(f"SELECT CAST(? AS {kind}), 7 -CAST(? AS bigint)", (value, -1))
        named = database.execute(f"SELECT CAST(:value AS {kind})", {"value": value, "unused": object})
        assert answer.fetchone() == (value, 8)
        assert named.fetchall() == [(value,)]


def test_a_statement_that_fails_leaves_nothing_prepared_that_is_not_there(database: PostgreSQLDatabase) -> None:
    for _ in range(PREPARED_AFTER):
        database.execute(TWICE.format(2), (21,)).fetchone()
    failing = database.execute("SELECT 1 / CAST(? AS bigint)", (0,))
    after = database.execute(TWICE.format(2), (21,))
    with pytest.raises(psycopg.errors.DivisionByZero):
        failing.fetchone()
    with pytest.raises(psycopg.OperationalError, match="undone before it was sent"):
        after.fetchone()

    assert database.execute(TWICE.format(2), (21,)).fetchone() == (42,)


def test_a_transaction_that_is_undone_sends_none_of_its_statements(store: Store) -> None:
    store.add([a_record()])
    connection = store._engine  # type: ignore[attr-defined]

    def body(database: PostgreSQLDatabase) -> None:
        database.execute("DELETE FROM jobs")
        raise LookupError

    with pytest.raises(LookupError):
        connection.write(Sync.FULL, body)
    connection.read(lambda database: None)

    assert len(claim(store).records) == 1


def test_a_write_whose_result_nobody_asks_for_fails_with_the_commit(
    store: Store, postgresql_server: PostgreSQL
) -> None:
    with psycopg.connect(postgresql_server.url, autocommit=True) as operator:
        operator.execute("ALTER TABLE taskqueue.events ADD CONSTRAINT none_waits CHECK (name <> 'waiting') NOT VALID")

    with pytest.raises(StoreUnavailable, match="none_waits"):
        store.add([a_record()])
    assert store.count(parse({})) > 0
    assert claim(store).records == []
