"""End notices: a ring tells of one end, whole and strictly decoded, and of nothing else."""

from __future__ import annotations

import json
import os
import select
import socket
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from taskqueue.errors import StoreUnavailable
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.outcomes import Done, Failed
from taskqueue.model.record import Dependency, Failure, Record, Status
from taskqueue.store import Store
from taskqueue.store.bell import ENDS, LONGEST_RING, NEWS, PLAIN_RING, WORK, Bell, _through_short_path
from taskqueue.store.open import open_store
from taskqueue.store.relational.columns import row
from taskqueue.store.relational.settlements import end_notice, record_of
from tests.store.records import NOON, PATIENCE, a_record, claim, finished, kept, running, settle, settlement


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite://{tmp_path}/jobs.db?synchronous=normal")) as opened:
        yield opened


@pytest.fixture
def ends(store: Store, tmp_path: Path) -> Iterator[Bell]:
    """Listen to ends, in a folder whose listeners the store knows: for who comes later, rings are plain at first."""
    with closing(store.bell(ENDS)) as bell:
        yesterday = time.time() - 86_400
        os.utime(tmp_path / "jobs.db.bells", (yesterday, yesterday))
        finished(store, a_record())
        assert len(told(bell)) == 1
        yield bell


def told(bell: Bell) -> Sequence[Record | None]:
    """Wait until the bell rings, and return what its rings tell of."""
    assert select.select([bell], [], [], PATIENCE)[0]
    return bell.clear()


@pytest.mark.parametrize(
    "new",
    [
        a_record(),
        a_record(data='{"to": "ä\\"🎉"}', tags=("a", "b"), unique="key", given={"retry": 2}, priority=-3, queue="mail"),
    ],
)
@pytest.mark.parametrize("result", ["null", '{"sum": 1.5, "of": ["ü", null]}'])
def test_the_end_of_one_job_is_told_as_it_is_kept(store: Store, ends: Bell, new: Record, result: str) -> None:
    settle(store, running(store, new), Done(result=result))

    assert told(ends) == [kept(store, new.id)]


@pytest.mark.parametrize(("data", "result"), [(1, LONGEST_RING), (LONGEST_RING, 1)])
def test_a_long_row_is_left_to_be_read(store: Store, ends: Bell, data: int, result: int) -> None:
    run = running(store, a_record(data=json.dumps("x" * data)))
    statements: list[str] = []
    store._engine._raw.set_trace_callback(statements.append)  # type: ignore[attr-defined]
    settle(store, run, Done(result=json.dumps("x" * result)))

    assert told(ends) == [None]
    assert not any("RETURNING" in statement for statement in statements)  # that alone doubles the time of a long one


@pytest.mark.parametrize("column", ["tags", "origin", "unloadable_since"])
@pytest.mark.parametrize("damage", ["x'ff00'", "CAST(x'ff41' AS TEXT)"])
def test_a_damaged_row_is_settled_and_left_to_be_read(
    store: Store, ends: Bell, tmp_path: Path, column: str, damage: str
) -> None:
    run = running(store, a_record())
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as other, other:
        other.execute(f"UPDATE jobs SET {column} = {damage} WHERE id = ?", (str(run.id),))
    if "TEXT" in damage:
        with pytest.raises(StoreUnavailable, match="UTF-8"):  # and the next call reads such text, too
            settle(store, run)

    assert settle(store, run) == {run.id}
    assert told(ends) == [None]
    assert kept(store, run.id).status is Status.DONE


def test_only_who_listens_to_ends_is_told(store: Store, ends: Bell) -> None:
    with closing(store.bell(WORK)) as work, closing(store.bell(NEWS)) as news:
        settle(store, running(store, a_record()))

        assert told(work) == [None]
        assert set(told(news)) == {None}
    assert [record.status for record in told(ends) if record] == [Status.DONE]


def test_a_lost_claim_and_a_failure_tell_of_nothing(store: Store, ends: Bell) -> None:
    run = running(store, a_record())
    assert settle(store, replace(run, claims=7)) == set()
    settle(store, run, Failed(failure=Failure(type="ValueError", message="no")))

    assert told(ends) == [None]
    assert kept(store, run.id).status is Status.FAILED


def test_an_end_that_brings_others_with_it_tells_of_none(store: Store, ends: Bell) -> None:
    together = [running(store, a_record()) for _ in range(2)]
    store.settle([settlement(run) for run in together], NOON)
    assert told(ends) == [None]

    first = a_record()
    store.add([first])
    behind = a_record(depends_on=(Dependency(id=first.id),), waiting_for=(first.id,), status=Status.POSTPONED)
    store.add([replace(behind, ready_at=None)])
    settle(store, claim(store).records[0])
    assert told(ends) == [kept(store, first.id)]  # another one may begin, but has not ended

    [released] = claim(store).records
    assert released.id == behind.id


DONE = replace(a_record(), status=Status.DONE, ready_at=None, ended_at=NOON)


def changed(position: int, value: Any) -> bytes:
    """Return a notice with another value in one column."""
    values = list(row(DONE))
    values[position] = value
    return json.dumps(values).encode()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"!!",
        b"\xff\xfe",
        b"[" * LONGEST_RING,
        b"17",
        b"{}",
        b"[]",
        json.dumps(row(DONE)[:-1]).encode(),
        json.dumps([*row(DONE), 1]).encode(),
        changed(0, "no id"),
        changed(1, int(Status.PROCESSING)),
        changed(1, 99),
        changed(1, "3"),
        changed(3, 5),
        changed(9, "1"),
        changed(17, None),
        changed(-1, {"a": 1}),
    ],
)
def test_what_others_send_is_a_plain_ring(sent: bytes) -> None:
    assert record_of(sent) is None


def test_a_notice_is_decoded_to_the_record_it_was_made_of() -> None:
    assert record_of(end_notice(row(DONE))) == DONE
    assert end_notice(row(replace(DONE, data=json.dumps("x" * LONGEST_RING)))) == PLAIN_RING


def test_rings_of_others_leave_a_bell_in_order(ends: Bell, store: Store, tmp_path: Path) -> None:
    [path] = [each for each in (tmp_path / "jobs.db.bells").iterdir() if each.name.startswith(f"{ENDS}-")]
    forged = [b"x" * 10 * LONGEST_RING, b"", changed(0, str(JobId()))]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        for ring in forged:
            _through_short_path(str(path), partial(other.sendto, ring))
    first, second, third = told(ends)
    assert first is second is None
    assert third is not None  # who may write the database could have written it there
    finished(store, a_record())
    assert len(told(ends)) == 1
