"""Readers of events give those of plain claims and outcomes their numbers, and seldom take the store's lock for it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest

from taskqueue.store.bell import NEWS
from taskqueue.store.open import open_store
from taskqueue.store.postgresql import PostgreSQLStore
from tests.nodes import eventually
from tests.postgresql import PostgreSQL
from tests.store.records import PATIENCE, a_record, claim, now_cursor, rings, settle
from tests.store.test_postgresql_plain import SHARED, is_wanted_alone, sharing


@pytest.fixture
def store(postgresql_server: PostgreSQL) -> Iterator[PostgreSQLStore]:
    """Open a store whose plain claims share the lock."""
    with closing(open_store(postgresql_server.url + SHARED)) as opened:
        assert isinstance(opened, PostgreSQLStore)
        yield opened


def await_next_try(store: PostgreSQLStore) -> None:
    """Wait until the store has tried once more to give events numbers."""
    last = store._connection._numbered_at
    eventually(lambda: store._connection._numbered_at > last)


def test_readers_do_not_queue_for_the_lock_while_another_one_gives_numbers(
    store: PostgreSQLStore, postgresql_server: PostgreSQL
) -> None:
    store._connection.read_wait = 2 * PATIENCE
    store.add([a_record()])
    cursor = now_cursor(store)
    claim(store)
    with psycopg.connect(postgresql_server.url) as other, ThreadPoolExecutor(1) as threads:
        other.execute("LOCK TABLE taskqueue.store IN EXCLUSIVE MODE")
        reading = threads.submit(store.events, cursor)
        await_next_try(store)
        await_next_try(store)
        assert not is_wanted_alone(postgresql_server)
        other.commit()

        assert [event.name for event in reading.result(PATIENCE)[0]] == ["processing"]


def test_a_reader_waits_for_the_lock_if_others_always_have_it(
    store: PostgreSQLStore, postgresql_server: PostgreSQL
) -> None:
    store.add([a_record()])
    cursor = now_cursor(store)
    claim(store)
    with ThreadPoolExecutor(1) as threads:
        with sharing(postgresql_server):
            reading = threads.submit(store.events, cursor)
            eventually(lambda: is_wanted_alone(postgresql_server))
        assert [event.name for event in reading.result(PATIENCE)[0]] == ["processing"]


def test_a_plain_claim_rings_for_the_ends_of_others_that_it_gives_numbers(
    store: PostgreSQLStore, postgresql_server: PostgreSQL
) -> None:
    """A user who may only read has been rung before, and could not read their events."""
    store.add([a_record() for _ in range(3)])
    store._connection._numbers_at = math.inf
    with closing(open_store(postgresql_server.url)) as other:
        assert isinstance(other, PostgreSQLStore)
        claim(other)
        [run] = claim(store).records
        settle(store, run)
        with closing(store.bell(NEWS)) as news:
            other._connection._shares_until = 0.0
            claim(other)
            assert rings(news)
