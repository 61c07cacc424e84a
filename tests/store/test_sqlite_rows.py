"""Short rows: a new job is the same row whether its values are passed or given by the table."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from typing import Any

import pytest
from bson import ObjectId

from taskqueue.model.conditions import Check
from taskqueue.model.record import Attempt, Cause, Failure, Options, Record, Status
from taskqueue.model.retry import ExponentialRetry, FixedRetry
from taskqueue.model.serializer import dumps
from taskqueue.model.timestamps import milliseconds
from taskqueue.store import codec
from taskqueue.store.relational.columns import COLUMNS, USUAL_OPTIONS, attempts_text, options_text, row
from taskqueue.store.relational.rows import INSERT_ALIKE, INSERT_SHORT, record, short_row, short_rows
from taskqueue.store.sqlite import schema
from tests.store.records import NOON, a_record, postponed

NEW = [
    a_record(),
    a_record(data='{"to": "a@example.org"}', tags=("a", "b"), unique="key", given={"retry": 2}, priority=-3),
    a_record(options=Options(retry=FixedRetry(times=0, interval=300.0))),
    a_record(options=Options(retry=ExponentialRetry(), force_spawn=True, timeout=1.5)),
    a_record(expires_at=NOON + timedelta(hours=1), queue="mail"),
    replace(postponed(NOON + timedelta(hours=1)), cause=Cause.SCHEDULED),
]


@pytest.fixture
def raw() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as opened:
        schema.create(opened)
        yield opened


@pytest.mark.parametrize("new", NEW)
def test_a_new_job_is_the_same_in_a_short_row(raw: sqlite3.Connection, new: Record) -> None:
    short = short_row(new)
    assert short is not None
    raw.execute(INSERT_SHORT, short)

    [kept] = raw.execute(f"SELECT {COLUMNS} FROM jobs")

    assert kept == row(new)
    assert record(kept) == new


def test_jobs_that_differ_in_id_and_data_alone_are_the_same_in_rows_with_shared_values(
    raw: sqlite3.Connection,
) -> None:
    new = [replace(NEW[1], id=ObjectId(), unique=None, data=f"{number}") for number in range(3)]
    groups = short_rows(new)
    assert groups is not None
    [alike] = groups
    raw.execute(INSERT_ALIKE[3], (*alike.shared, *chain.from_iterable(alike.own)))

    assert raw.execute(f"SELECT {COLUMNS} FROM jobs ORDER BY rowid").fetchall() == [row(one) for one in new]


def test_rows_of_jobs_share_what_is_the_same_alone() -> None:
    conditions = [Options(ready=Check("weather:is_dry", level=level)) for level in (1, True, 1)]
    given = [{"meta": {"at": place}} for place in ("a", "b")]
    like = a_record()
    new = [
        *NEW,
        *[a_record(options=one) for one in conditions],
        *[a_record(given=one) for one in given],
        like,
        replace(like, id=ObjectId(), data="1"),
    ]

    groups = short_rows(new)

    assert groups is not None
    assert [(*alike.shared, *own) for alike in groups for own in alike.own] == [short_row(one) for one in new]
    assert [len(alike.own) for alike in groups] == [1] * (len(new) - 2) + [2]
    assert short_rows([*new, a_record(claims=1)]) is None


def test_options_in_turns_are_kept_as_their_own() -> None:
    conditions = [Options(ready=Check("weather:is_dry", level=level)) for level in (1, True, 1)]
    options = [Options(timeout=1.0), Options(timeout=2.0), *conditions] * 2

    assert [options_text(one) for one in options] == [dumps(codec.options_fields(one)) for one in options]
    assert options_text(USUAL_OPTIONS) is None


@pytest.mark.parametrize(
    "other",
    [
        a_record(parent=a_record().id),
        a_record(lane='[["limit:a",1,null]]'),
        a_record(claims=1),
        a_record(progress=1.0),
        a_record(state="1"),
        replace(a_record(), status=Status.POSTPONED, waiting_for=(a_record().id,), ready_at=None),
    ],
)
def test_a_job_with_more_to_it_needs_a_whole_row(other: Record) -> None:
    assert short_row(other) is None


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"pid": 4711, "started_at": NOON},
        {"node": 'a "quoted" node\\ ü'},
        {"exit": "was replaced: 9 threads were left behind", "peak_memory": 7},
        {"stack": "app.py:7 in start", "error": Failure(type="E", message="m")},
        {"outcome": "Failed"},
    ],
)
def test_the_text_of_one_attempt_is_the_same_by_the_short_way(fields: dict[str, Any]) -> None:
    given: dict[str, Any] = {"number": 3, "claims": 5, "node": "web-1", "ended_at": NOON, "outcome": "Done", **fields}
    attempt = Attempt(**given)

    assert attempts_text([attempt]) == dumps([codec.attempt_fields(attempt, milliseconds)])
