"""The filter language: what can be asked, what it means, and clear errors for anything else."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from bson import ObjectId

from taskqueue.errors import InvalidQuery
from taskqueue.model.query import (
    EVERYTHING,
    PENDING,
    And,
    Compare,
    Operator,
    Or,
    data_holds,
    matches,
    parse,
)
from taskqueue.model.record import Cause, Holder, Record, Status
from taskqueue.model.timestamps import milliseconds

NOON = datetime(2026, 7, 1, 12, tzinfo=timezone.utc)
RECORD = Record(
    id=ObjectId("65f000000000000000000001"),
    job="app:Mail",
    data='{"to":"ü","n":1,"deep":{"er":null},"when":{"$date":{"$numberLong":"0"}}}',
    queue="mail",
    tags=("a", "b"),
    created_at=NOON,
    ready_at=NOON,
    status=Status.PROCESSING,
    cause=Cause.CLAIMED,
    holder=Holder(seat="web-1", incarnation="x"),
    priority=-3,
    progress=33.3,
)

HOLDS: list[dict[str, Any]] = [
    {},
    {"id": RECORD.id},
    {"id": "65F000000000000000000001"},
    {"id": {"$gt": "65f000000000000000000000"}},
    {"job": "app:Mail", "queue": "mail"},
    {"seat": "web-1"},
    {"cause": Cause.CLAIMED},
    {"cause": "claimed"},
    {"status": Status.PROCESSING},
    {"status": "processing"},
    {"status": {"$in": ["waiting", "Processing"]}},
    {"status": {"$lte": Status.PROCESSING, "$gt": 0}},
    {"priority": {"$lt": 0}},
    {"progress": {"$gte": 33, "$lte": 33.3}},
    {"created_at": NOON},
    {"created_at": {"$gte": NOON.astimezone(timezone(timedelta(hours=2)))}},
    {"started_at": None},
    {"started_at": {"$exists": False}},
    {"started_at": {"$ne": NOON}},
    {"unique": {"$in": [None]}},
    {"tags": "b"},
    {"tags": {"$in": ["c", "a"]}},
    {"tags": {"$ne": "c"}},
    {"tags": {"$gt": "a"}},
    {"$or": [{"queue": "other"}, {"tags": "a"}]},
    {"$and": [{"queue": "mail"}, {"$or": [{"status": 2}]}]},
    {"data.n": 1},
    {"data.n": 1.0},
    {"data.to": {"$in": ["x", "ü"]}},
    {"data.deep.er": None},
    {"data.deep.er": {"$exists": True}},
    {"data.missing": None},
    {"data.n.o": {"$exists": False}},
    {"data.when": {"$exists": True}},
]
HOLDS_NOT: list[dict[str, Any]] = [
    {"id": ObjectId("75f000000000000000000009")},
    {"id": {"$lt": RECORD.id}},
    {"queue": "Mail"},
    {"queue": None},
    {"status": {"$in": []}},
    {"status": 2.5},
    {"started_at": {"$lt": NOON}},
    {"started_at": {"$ne": None}},
    {"created_at": {"$lt": NOON}},
    {"tags": "c"},
    {"tags": {"$ne": "a"}},
    {"tags": None},
    {"$or": [{"queue": "other"}]},
    {"$and": [{"queue": "mail"}, {"queue": "other"}]},
    {"data.n": True},
    {"data.n": "1"},
    {"data.n": None},
    {"data.deep": "x"},
    {"data.deep.er": {"$exists": False}},
    {"data.when": 0},
]


@pytest.mark.parametrize("query", HOLDS, ids=str)
def test_a_query_holds(query: dict[str, Any]) -> None:
    assert matches(parse(query), RECORD)


@pytest.mark.parametrize("query", HOLDS_NOT, ids=str)
def test_a_query_does_not_hold(query: dict[str, Any]) -> None:
    assert not matches(parse(query), RECORD)


def test_everything_is_everything_and_pending_is_pending() -> None:
    assert matches(EVERYTHING, RECORD)
    for status in Status:
        assert matches(PENDING, replace(RECORD, status=status)) is status.is_pending


def test_a_query_is_parsed_into_a_tree_of_plain_values() -> None:
    tree = parse({"created_at": {"$lt": NOON}, "$or": [{"status": Status.DONE}, {"data.a.b": {"$in": [1, "x"]}}]})

    assert tree == And(
        (
            And((Compare("created_at", Operator.LT, milliseconds(NOON)),)),
            Or(
                (
                    And((Compare("status", Operator.EQ, 3),)),
                    And((And((Compare("data.a.b", Operator.IN, (1, "x")),)),)),
                )
            ),
        )
    )


def test_a_data_path_is_its_keys() -> None:
    assert Compare("data.a.b", Operator.EQ, 1).path == ("a", "b")
    assert Compare("queue", Operator.EQ, "a").path == ()


def test_a_comparison_judges_data_by_itself() -> None:
    assert data_holds(Compare("data.n", Operator.EQ, 1), RECORD.data)
    assert not data_holds(Compare("data.n", Operator.EQ, 2), RECORD.data)
    assert not data_holds(Compare("data.n", Operator.EXISTS, True), "7")


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("status = 2", "a query is a mapping"),
        ({"state": 1}, "cannot name 'state': use id, parent, workflow, waiting_for, id_text, job"),
        ({"statsu": 1}, "data.KEY or meta.KEY; did you mean status?"),
        ({"created": 1}, "; did you mean created_at?"),
        ({"Queue": "mail"}, "; did you mean queue?"),
        ({"queue": {"lte": 1}}, "$and or $or; did you mean $lte?"),
        ({"status": "FALED"}, "pass a Status, its number or its name; did you mean FAILED?"),
        ({"status": {"$in": ["DONE", "procesing"]}}, "its number or its name; did you mean PROCESSING?"),
        ({1: 1}, "cannot name 1"),
        ({"data": 1}, "cannot name 'data'"),
        ({"data.": 1}, "cannot name 'data.'"),
        ({"data.a..b": 1}, "cannot name"),
        ({"data.a\0": 1}, "cannot name"),
        ({"data.$where": 1}, "cannot name"),
        ({"$where": "1"}, "cannot name '$where'"),
        ({"$or": []}, "$or takes a list of queries"),
        ({"$and": {"status": 1}}, "$and takes a list"),
        ({"$or": "status"}, "$or takes a list"),
        ({"queue": {}}, "has no operator"),
        ({"queue": {"$regex": "a"}}, "no operator '$regex': use $eq"),
        ({"queue": {"in": ["a"]}}, "no operator 'in'"),
        ({"queue": {"$exists": 1}}, "$exists takes true or false"),
        ({"queue": {"$in": "mail"}}, "$in takes a list"),
        ({"queue": {"$lt": None}}, "$lt needs a value"),
        ({"queue": 1}, "queue cannot be compared with 1: pass text"),
        ({"priority": "1"}, "pass a number"),
        ({"priority": True}, "pass a number"),
        ({"status": "finished"}, "pass a Status, its number or its name"),
        ({"created_at": "2026-01-01"}, "pass an aware datetime"),
        ({"created_at": datetime.fromisoformat("2026-01-01")}, "pass an aware datetime"),
        ({"id": "123"}, "pass an ObjectId or its 24 digits"),
        ({"data.a": {"$lt": 1}}, "$lt cannot be used on data"),
        ({"data.a": {"$ne": 1}}, "$ne cannot be used on data"),
        ({"data.a": {"$contains": "x"}}, "data.a: $contains cannot be used on data"),
        ({"status": {"$contains": "FAIL"}}, "status: $contains works only on text"),
        ({"error.message": {"$contains": 1}}, "$contains takes text of up to 1,000 characters, not 1"),
        ({"error.message": {"$contains": "x" * 1001}}, "$contains takes text of up to 1,000 characters"),
        ({"error.message": {"$contains": "a\0b"}}, "$contains takes text"),
        ({"error.message": {"$contains": "\ud800"}}, "not valid Unicode"),
        ({"error.traceback": "x"}, "cannot name 'error.traceback'"),
        ({"data.a": [1]}, "data is compared with text, numbers"),
        ({"data.a": {"$in": [{}]}}, "data is compared with"),
    ],
)
def test_what_the_language_does_not_have_is_refused_by_name(query: Any, named: str) -> None:
    with pytest.raises(InvalidQuery, match=re.escape(named)):
        parse(query)


def nested(depth: int) -> dict[str, Any]:
    query: dict[str, Any] = {"queue": "mail"}
    for _ in range(depth):
        query = {"$and": [query]}
    return query


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (nested(3000), "nested deeper than 50 levels"),
        ({"$or": [{"queue": "mail"}] * 10_000}, "has 10,000 parts, at most 500 are allowed: use"),
        ({f"data.k{number}": 1 for number in range(501)}, "has 501 parts"),
        ({"data.to": "\ud800"}, "not valid Unicode"),
        ({"queue": "\ud800"}, "not valid Unicode"),
        ({"queue": "a\0"}, "stored text has no NUL"),
        ({"meta.tenant": {"$in": ["a\0"]}}, "stored text has no NUL"),
        ({"data.\ud800": 1}, "a query cannot name"),
    ],
    ids=["deep", "long", "wide", "surrogate in data", "surrogate", "NUL", "NUL in meta", "surrogate in a name"],
)
def test_what_no_store_could_take_is_refused(query: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidQuery, match=words):
        parse(query)
