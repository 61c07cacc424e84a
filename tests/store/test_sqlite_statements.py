"""What a batch costs SQLite, counted in statements, commits and bytes of its journal: one transaction, read once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from taskqueue.store import Store
from taskqueue.store.open import open_store
from tests import budgets
from tests.store.records import NOON, WEB_1, a_record, claim, settlement

WORDS = re.compile(r"\s*(?:(INSERT INTO|UPDATE|DELETE FROM) (\w+)|(\w+))")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Open a store on which every statement was prepared once."""
    with closing(open_store(f"sqlite://{tmp_path}/jobs.db?synchronous=normal")) as opened:
        opened.add([a_record()])
        opened.settle([settlement(run) for run in claim(opened).records], NOON)
        yield opened


def statements(store: Store, call: Callable[[], object]) -> Counter[str]:
    """Return how often each kind of statement ran in a call: its verb, with the table where it writes."""
    raw = store._engine._raw  # type: ignore[attr-defined]
    said: list[str] = []
    raw.set_trace_callback(said.append)
    call()
    raw.set_trace_callback(None)
    return Counter(_kind(statement) for statement in said)


def journaled(store: Store, call: Callable[[], object]) -> int:
    """Return how many bytes a call adds to the journal."""
    journal = Path(f"{store._engine.address.path}-wal")  # type: ignore[attr-defined]
    before = journal.stat().st_size
    call()
    return journal.stat().st_size - before


def _kind(statement: str) -> str:
    found = WORDS.match(statement)
    assert found is not None
    return f"{found[1].split()[0]} {found[2]}" if found[1] else found[3]


@pytest.mark.parametrize("count", [1, 100])
def test_an_add_is_one_commit_and_reads_nothing(store: Store, count: int) -> None:
    records = [a_record() for _ in range(count)]

    ran = statements(store, lambda: store.add(records))

    assert ran.pop("SAVEPOINT", 0) == ran.pop("RELEASE", 0) == (count > 1)
    assert ran == {
        "BEGIN": 1,
        "INSERT jobs": 1 if count == 1 else count / 50,
        "INSERT events": 1,
        "COMMIT": 1,
    }


@pytest.mark.parametrize("count", [1, 100])
def test_a_claim_is_one_commit_and_reads_records_once(store: Store, count: int) -> None:
    store.add([a_record() for _ in range(count)])

    ran = statements(store, lambda: claim(store, count))

    assert ran.pop("SELECT") == 2  # what there is, and where the records stand
    assert ran == {"BEGIN": 1, "UPDATE jobs": 1, "INSERT events": 1, "COMMIT": 1}


@pytest.mark.parametrize("count", [1, 100])
def test_a_settle_is_one_commit_and_reads_no_record(store: Store, count: int) -> None:
    store.add([a_record() for _ in range(count)])
    settlements = [settlement(run) for run in claim(store, count).records]

    ran = statements(store, lambda: store.settle(settlements, NOON))

    assert ran.pop("SELECT") == 1  # whether any job waits for another
    assert ran.pop("SAVEPOINT", 0) == ran.pop("RELEASE", 0) == (count > 1)
    groups = 1 if count == 1 else count / 50
    assert ran == {"BEGIN": 1, "UPDATE jobs": groups, "INSERT events": 1, "INSERT turns": 1, "COMMIT": 1}


def test_a_claim_that_finds_nothing_writes_nothing(store: Store) -> None:
    assert set(statements(store, lambda: claim(store, 8))) == {"BEGIN", "SELECT", "COMMIT"}
    assert journaled(store, lambda: claim(store, 8)) == 0
    assert journaled(store, lambda: store.renew(WEB_1, NOON, {})) == 0


def test_a_batch_shares_the_pages_that_it_writes(store: Store) -> None:
    def life(count: int) -> int:
        records = [a_record() for _ in range(count)]
        added = journaled(store, lambda: store.add(records))
        runs = claim(store, count).records
        return added + journaled(store, lambda: store.settle([settlement(run) for run in runs], NOON))

    alone = [life(1) for _ in range(3)]

    assert life(64) < 64 * min(alone) / 4


def test_an_add_writes_one_page_of_each_table_and_index_it_is_in(store: Store) -> None:
    adds = [journaled(store, lambda: store.add([a_record()])) for _ in range(20)]

    budgets.keep("sqlite.add.bytes", min(adds))
    assert min(adds) % (2048 + 24) == 0
