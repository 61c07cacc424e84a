"""Queries mean on every store what the model says they mean; results are sorted, and paged without gaps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from taskqueue.errors import InvalidQuery
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.outcomes import Done, GivenUp
from taskqueue.model.limits import Limit, lane
from taskqueue.model.query import EVERYTHING, FIELDS, PENDING, TEXTS, matches, parse
from taskqueue.model.record import Cause, Failure, Options, Record, Status
from taskqueue.store import Store
from taskqueue.store.relational.queries import FEW
from tests.store.conftest import Opener
from tests.store.records import (
    BROKEN,
    HOUR,
    MINUTE,
    NOON,
    SECOND,
    a_record,
    all_kept,
    behind,
    claim,
    finished,
    ids,
    postponed,
    running,
    settlement,
)

DATA = [
    "null",
    "7",
    '"text"',
    "[1,2]",
    "{}",
    '{"n":1}',
    '{"n":1.0}',
    '{"n":true}',
    '{"n":"1"}',
    '{"n":null}',
    '{"n":0}',
    '{"n":false}',
    '{"n":-0.5}',
    '{"n":""}',
    '{"n":9223372036854775807}',
    '{"n":[1]}',
    '{"n":{"m":1}}',
    '{"n":{"m":{"o":"ü"}}}',
    '{"n":{"$date":{"$numberLong":"0"}}}',
    '{"n":{"$numberDecimal":"1"}}',
    '{"n":{"$oid":"65f000000000000000000000"}}',
    '{"a b":"x","quo\\"te":"y","ü":"z","n":"nul\\u0000l"}',
]
"""What jobs may carry, where a store's own comparisons could differ from the model's."""


PARENT = ObjectId()
AWAITED = [a_record(), a_record()]


def some_records() -> list[Record]:
    """Return records that differ in every field a query may name."""
    plain = [
        a_record(data=data, tags=("a", "ü")[: number % 3], priority=number - 5, queue=("mail", "report")[number % 2])
        for number, data in enumerate(DATA)
    ]
    others = [
        postponed(NOON + HOUR, cause=Cause.SCHEDULED, expires_at=NOON + 2 * HOUR),
        a_record(parent=PARENT, given={"meta": {"tenant": "acme", "trace-id": "ü"}}),
        a_record(given={"meta": {"tenant": "beta"}, "at": "+1 hour"}),
        a_record(given={"id": "invoice-7", "timeout": 5}),
        a_record(given={"workflow": str(PARENT)}, parent=PARENT),
        a_record(given={"workflow": str(AWAITED[0].id)}),
        a_record(job="app:Other", given={"id": "invoice-7"}),
        a_record(job="app:Other", unique="k1", created_at=NOON - HOUR, ready_at=NOON - MINUTE),
        a_record(error=Failure(type="app.Refused", message="no (.*) price\nfor 5 % [ü] of $x\\", traceback="File")),
        a_record(error=Failure(type="KeyError", message="")),
        a_record(tags=("b", "c"), unique="k2", failures=2, crashes=1, progress=33.3, started_at=NOON, claims=3),
    ]
    return [*plain, *others, *AWAITED, behind(AWAITED[0].id), behind(*(one.id for one in AWAITED))]


@pytest.fixture(scope="module")
def corpus() -> list[Record]:
    return some_records()


def check(store: Store, records: list[Record], query: dict[str, Any]) -> None:
    """Compare what the store finds with what the model says."""
    tree = parse(query)
    expected = [record.id for record in records if matches(tree, record)]
    assert sorted(ids(store.find(tree, limit=1000))) == sorted(expected), query
    assert store.count(tree) == len(expected), query


QUERIES: list[dict[str, Any]] = [
    {},
    {"status": 0},
    {"status": "postponed"},
    {"status": Status.WAITING},
    {"status": {"$lte": 2}},
    {"status": {"$gt": 0}},
    {"status": {"$ne": 0}},
    {"status": {"$in": [0, 5]}},
    {"status": {"$in": []}},
    {"id_text": "invoice-7"},
    {"id_text": "invoice-7", "job": "app:Other", "status": 0},
    {"id_text": {"$contains": "voice"}},
    {"id_text": {"$in": ["invoice-7", None]}},
    {"id_text": {"$ne": "invoice-7"}},
    {"id_text": {"$exists": True}},
    {"id_text": None},
    {"parent": PARENT},
    {"waiting_for": AWAITED[0].id},
    {"waiting_for": str(AWAITED[1].id), "status": "postponed"},
    {"waiting_for": ObjectId()},
    {"waiting_for": None},
    {"waiting_for": {"$ne": AWAITED[1].id}},
    {"waiting_for": {"$in": [AWAITED[1].id, ObjectId()]}},
    {"waiting_for": {"$exists": True}},
    {"waiting_for": {"$gt": AWAITED[0].id}},
    {"parent": {"$exists": False}},
    {"workflow": PARENT},
    {"workflow": str(AWAITED[0].id), "status": 0},
    {"workflow": ObjectId()},
    {"workflow": {"$ne": PARENT}},
    {"workflow": {"$in": [PARENT, ObjectId()]}},
    {"workflow": {"$exists": False}},
    {"workflow": None},
    {"parent": {"$in": [PARENT, ObjectId()]}},
    {"status": {"$exists": True}},
    {"status": {"$exists": False}},
    {"status": 0.5},
    {"job": "app:Mail"},
    {"job": {"$gt": "app:N"}},
    {"queue": {"$in": ["mail", "nothing"]}},
    {"queue": "mail", "priority": {"$gte": 0, "$lt": 5}},
    {"queue": None},
    {"meta.tenant": "acme"},
    {"meta.tenant": None},
    {"meta.tenant": {"$ne": "acme"}},
    {"meta.tenant": {"$in": ["acme", "beta", None]}},
    {"meta.tenant": {"$gt": "acme"}},
    {"meta.tenant": {"$exists": True}},
    {"meta.trace-id": "ü", "queue": "default"},
    {"meta.trace-id": {"$exists": False}},
    {"unique": "k1"},
    {"unique": None},
    {"unique": {"$ne": None}},
    {"unique": {"$ne": "k1"}},
    {"unique": {"$exists": True}},
    {"unique": {"$exists": False}},
    {"unique": {"$in": ["k1", None]}},
    {"unique": {"$lte": "k1"}},
    {"cause": "scheduled"},
    {"cause": Cause.ADDED},
    {"seat": None},
    {"seat": "web-1"},
    {"tags": "a"},
    {"tags": "ü"},
    {"tags": {"$ne": "a"}},
    {"tags": {"$in": ["b", "ü"]}},
    {"tags": {"$in": ["b", None]}},
    {"tags": {"$in": []}},
    {"tags": None},
    {"tags": {"$ne": None}},
    {"tags": {"$exists": True}},
    {"tags": {"$exists": False}},
    {"tags": {"$gt": "b"}},
    {"tags": {"$lte": "a"}},
    {"tags": {"$contains": "ü"}},
    {"tags": {"$contains": ""}},
    {"job": {"$contains": ":Ot"}},
    {"job": {"$contains": "ot"}},
    {"seat": {"$contains": "w"}},
    {"meta.tenant": {"$contains": "cm"}},
    {"error.type": "KeyError"},
    {"error.type": None},
    {"error.type": {"$ne": "KeyError"}},
    {"error.type": {"$in": ["KeyError", None]}},
    {"error.type": {"$exists": True}},
    {"error.type": {"$contains": "Refus"}},
    {"error.type": {"$gt": "L"}},
    {"error.message": ""},
    {"error.message": {"$exists": False}},
    {"error.message": {"$contains": ""}},
    {"error.message": {"$contains": "price"}},
    {"error.message": {"$contains": "Price"}},
    {"error.message": {"$contains": "File"}},
    *({"error.message": {"$contains": part}} for part in ("(.*)", "e\nf", " % [ü]", "$x\\", "^no", "x$", ".", "\\E")),
    {"status": 0, "error.message": {"$contains": "price"}, "error.type": {"$contains": "."}},
    {"priority": -3},
    {"priority": {"$in": [-3, 2.0, 10**30]}},
    {"priority": {"$lt": 10**30}},
    {"priority": {"$gt": -(10**30)}},
    {"progress": {"$gt": 33.2}},
    {"failures": {"$gte": 1}},
    {"crashes": 1, "claims": 3},
    {"tries": 3},
    {"tries": {"$gt": 0}},
    {"tries": {"$in": [0, None]}},
    {"took": None},
    {"took": {"$exists": True}},
    {"took": {"$exists": False}},
    {"took": {"$lt": 10**30}},
    {"took": {"$ne": 1.5}},
    {"took": {"$in": [1.5, None]}},
    {"created_at": {"$lt": NOON}},
    {"ready_at": {"$gt": NOON}},
    {"ready_at": NOON},
    {"started_at": NOON},
    {"started_at": None},
    {"ended_at": {"$exists": False}},
    {"expires_at": {"$gte": NOON + HOUR}},
    {"expires_at": {"$ne": NOON}},
    {"$or": [{"unique": "k1"}, {"tags": "b"}, {"$and": [{"queue": "mail"}, {"priority": 3}]}]},
    {"$or": [{}]},
    {"$and": [{"status": {"$lte": 2}}, {"status": {"$ne": 1}}]},
    {"data.n": 1},
    {"data.n": 1.0},
    {"data.n": True},
    {"data.n": False},
    {"data.n": 0},
    {"data.n": "1"},
    {"data.n": ""},
    {"data.n": "nul\0l"},
    {"data.n": None},
    {"data.n": 2**63 - 1},
    {"data.n": 2**63},
    {"data.n": 10**400},
    {"data.n": {"$in": [1, -(10**5000)]}},
    {"priority": 10**400},
    {"priority": {"$lt": 10**5000}},
    {"priority": {"$in": [3, -(10**400)]}},
    {"data.n": {"$in": [1, float("inf"), float("nan")]}},
    {"data.n": {"$in": [1, "1", None]}},
    {"data.n": {"$in": []}},
    {"data.n": {"$exists": True}},
    {"data.n": {"$exists": False}},
    {"data.n.m": 1},
    {"data.n.m": {"$exists": True}},
    {"data.n.m.o": "ü"},
    {"data.a b": "x"},
    {'data.quo"te': "y"},
    {"data.ü": "z"},
    {"data.n": 1, "queue": "report"},
]


def test_a_query_finds_what_the_model_says(store: Store, corpus: list[Record]) -> None:
    store.add(corpus)

    for query in QUERIES:
        check(store, corpus, query)
    check(store, corpus, {"id": corpus[3].id})
    check(store, corpus, {"id": {"$gte": corpus[3].id, "$lt": str(corpus[9].id)}})
    check(store, corpus, {"id": {"$in": [corpus[3].id, ObjectId()]}})
    check(store, corpus, {"id": {"$ne": corpus[3].id}})


SCALARS = st.sampled_from([None, True, False, 0, 1, -1, 1.0, -0.5, "", "1", "ü", "x", 2**63 - 1])
NAMED: dict[str, st.SearchStrategy[Any]] = {
    "job": st.sampled_from(["app:Mail", "app:Other", "", None]),
    "queue": st.sampled_from(["mail", "report", "default", "ü"]),
    "unique": st.sampled_from(["k1", "k2", None]),
    "tags": st.sampled_from(["a", "b", "c", "ü", None]),
    "status": st.integers(-1, 7),
    "error.type": st.sampled_from(["KeyError", "app.Refused", "", None]),
    "error.message": st.sampled_from(["", "price", "no (", None]),
    "priority": st.integers(-6, 25) | st.floats(-6, 25, allow_nan=False),
    "failures": st.integers(0, 3),
    "progress": st.floats(0, 100),
    "tries": st.integers(0, 4) | st.none(),
    "took": st.sampled_from([None, 0, 0.5, 1, 1.0, 2]),
    "created_at": st.sampled_from([NOON, NOON - HOUR, NOON + HOUR]),
    "ready_at": st.sampled_from([NOON, NOON - MINUTE, NOON + HOUR, None]),
    "expires_at": st.sampled_from([NOON, NOON + 2 * HOUR, None]),
}
ORDERED = ("$lt", "$lte", "$gt", "$gte")


def comparisons(values: st.SearchStrategy[Any], ordered: bool, contains: bool = False) -> st.SearchStrategy[Any]:
    """Return what may stand behind a field: a value, or operators with values."""
    words: dict[str, st.SearchStrategy[Any]] = {"$in": st.lists(values, max_size=3), "$exists": st.booleans()}
    if ordered:
        words["$ne"] = values
        words |= dict.fromkeys(ORDERED, values.filter(lambda value: value is not None))
    if contains:
        words["$contains"] = st.sampled_from(["", "a", "ü", "e", ".*", "("])
    operators = st.one_of([st.fixed_dictionaries({word: operand}) for word, operand in words.items()])
    return st.one_of(values, operators)


LEAVES = st.one_of(
    *[st.fixed_dictionaries({name: comparisons(values, True, name in TEXTS)}) for name, values in NAMED.items()],
    st.fixed_dictionaries({"data.n": comparisons(SCALARS, False)}),
    st.fixed_dictionaries({"data.n.m": comparisons(SCALARS, False)}),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.fixed_dictionaries({"$or": st.lists(inner, min_size=1, max_size=3)})
        | st.fixed_dictionaries({"$and": st.lists(inner, min_size=1, max_size=3)})
    ),
    max_leaves=5,
)


@settings(
    max_examples=60,
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(query=TREES)
def test_any_query_finds_what_the_model_says(store: Store, corpus: list[Record], query: dict[str, Any]) -> None:
    if store.count(EVERYTHING) == 0:
        store.add(corpus)

    check(store, corpus, query)


def test_jobs_of_every_status_are_found(store: Store) -> None:
    finished(store, a_record(), Done(result="1"))
    finished(store, a_record(), GivenUp(failure=BROKEN))
    running(store, a_record(), now=NOON)
    store.cancel(store.add([a_record()])[0].id, "", NOON)
    store.add([a_record(), postponed(NOON + HOUR)])
    records = all_kept(store)

    assert len(store.find(PENDING)) == 3
    queries: list[dict[str, Any]] = [{"status": status} for status in Status]
    queries += [{"took": value} for value in (1, 1.0, {"$gte": 1}, {"$gt": 1}, {"$ne": 1}, {"$in": [1]}, None)]
    queries += [{"tries": value} for value in (0, 1, {"$gt": 0}, {"$lt": 1})]
    for query in [*queries, {"seat": "web-1"}, {"ended_at": {"$gte": NOON}}]:
        check(store, records, query)


def fifty_records(store: Store) -> list[Record]:
    """Add records with equal and missing values in every order, and return them as they are kept."""
    moments = [NOON + (number % 7) * SECOND for number in range(50)]
    records = [a_record(created_at=at, ready_at=at) for at in moments]
    store.add(records)
    for index, run in enumerate(claim(store, 20, now=NOON + HOUR).records):
        store.settle([settlement(run, now=NOON + (index % 3) * SECOND)], NOON)
    return all_kept(store)


def _smallest(value: datetime | None) -> datetime:
    return NOON - timedelta(days=9999) if value is None else value


KEYS: dict[str, Callable[[Record], Any]] = {
    "id": lambda record: record.id,
    "created_at": lambda record: record.created_at,
    "ended_at": lambda record: record.ended_at,
    "rank": lambda record: record.rank,
}


@pytest.mark.parametrize("sign", ["", "-"], ids=["rising", "falling"])
@pytest.mark.parametrize("name", sorted(KEYS))
def test_pages_in_any_order_have_no_gaps(store: Store, name: str, sign: str) -> None:
    records = fifty_records(store)
    value = KEYS[name]

    pages = list(pages_of(store, f"{sign}{name}", value))

    sorting = (
        (lambda record: (_smallest(value(record)), record.id))
        if name == "ended_at"
        else (lambda record: (value(record), record.id))
    )
    assert [record.id for page in pages for record in page] == ids(sorted(records, key=sorting, reverse=bool(sign)))
    assert {len(page) for page in pages[:-1]} == {9}


def pages_of(store: Store, order: str, value: Callable[[Record], Any]) -> Iterator[list[Record]]:
    """Return the pages of nine in this order."""
    after = None
    while page := store.find(EVERYTHING, order=order, limit=9, after=after):
        yield page
        after = (value(page[-1]), page[-1].id)


def test_the_first_of_many_by_rank_and_by_end_are_found_page_by_page(store: Store) -> None:
    limit = lane((Limit(2_000),), "app:Mail", None)
    kinds: list[dict[str, Any]] = [{}, {"options": Options(force_spawn=True)}, {"lane": limit}]
    new = [
        a_record(queue=f"it's {number % 3}", ready_at=NOON + number * 7919 % 4999 * SECOND, **kinds[number // 3 % 3])
        for number in range(FEW + 10)
    ]
    store.add(new)

    def pages(query: dict[str, Any], order: str) -> list[JobId]:
        first = store.find(parse(query), order=order, limit=15)
        value = getattr(first[-1], order.lstrip("-"))
        return ids([*first, *store.find(parse(query), order=order, limit=15, after=(value, first[-1].id))])

    by_rank = sorted(new, key=lambda one: (one.rank, one.id))
    assert pages({"status": {"$lte": 2}}, "rank") == pages({"status": 0}, "rank") == ids(by_rank[:30])
    of_queue = [one for one in by_rank if one.queue == "it's 1"]
    assert pages({"status": {"$in": [0, 1]}, "queue": "it's 1"}, "rank") == ids(of_queue[:30])
    assert ids(store.find(PENDING, order="-created_at", limit=9)) == sorted(ids(new), reverse=True)[:9]

    runs = claim(store, 60, now=NOON + 2 * HOUR).records
    for number in range(0, len(runs), 20):
        at = NOON + 2 * HOUR + number * SECOND
        outcomes = [
            settlement(run, GivenUp(failure=BROKEN) if place % 2 else Done(), now=at)
            for place, run in enumerate(runs[number : number + 20])
        ]
        store.settle(outcomes, at)
    ended = [one for one in all_kept(store) if one.ended_at]
    by_end = ids(sorted(ended, key=lambda one: (one.ended_at, one.id), reverse=True))
    assert len(by_end) == len(runs) > 30
    assert pages({}, "-ended_at") == pages({"status": {"$gt": 2}}, "-ended_at") == by_end[:30]
    assert pages({"status": {"$gt": 2}}, "ended_at") == by_end[::-1][:30]
    assert len(store.find(EVERYTHING, order="-ended_at", limit=len(new))) == len(new)


def test_a_page_of_what_matches_continues_behind_the_last_one(store: Store) -> None:
    records = [a_record(queue="ab"[number % 2]) for number in range(10)]
    store.add(records)
    query = parse({"queue": "a"})

    first = store.find(query, limit=3)
    second = store.find(query, limit=3, after=(first[-1].id, first[-1].id))

    assert ids([*first, *second]) == ids(records[::2])


@pytest.mark.parametrize(("order", "nearest"), [("data", ""), ("--id", "; did you mean id?"), ("", "")])
def test_an_unknown_order_is_refused(store: Store, order: str, nearest: str) -> None:
    use = "use id, created_at, ended_at, rank, or one of them with a '-' before it to descend"
    with pytest.raises(InvalidQuery, match=re.escape(f"order='{order}': {use}{nearest}") + "$"):
        store.find(EVERYTHING, order=order)


def test_the_tally_counts_each_queue_and_status(opener: Opener) -> None:
    store, other = opener(), opener()
    run = running(store, a_record(queue="mail"))
    store.add([a_record(queue="mail"), a_record(queue="mail"), postponed(NOON + HOUR), behind(run.id)])

    assert other.tally() == {
        ("mail", Status.PROCESSING): 1,
        ("mail", Status.WAITING): 2,
        ("default", Status.POSTPONED): 2,
    }

    store.settle([settlement(run)], NOON)

    assert other.tally() == {
        ("mail", Status.DONE): 1,
        ("mail", Status.WAITING): 2,
        ("default", Status.POSTPONED): 1,
        ("default", Status.WAITING): 1,
    }


def test_the_tally_of_an_empty_store_is_empty(store: Store) -> None:
    assert store.tally() == {}


def test_every_field_of_the_language_is_tried() -> None:
    tried = {name for query in QUERIES for name in query} | {"id"}

    assert set(FIELDS) <= tried


def test_options_are_kept_apart_from_what_was_given(store: Store) -> None:
    record = replace(a_record(options=Options(timeout=5)), given={"timeout": "5s"})
    store.add([record])

    [found] = store.find(EVERYTHING)

    assert (found.options, found.given) == (record.options, {"timeout": "5s"})


@pytest.mark.parametrize("query", [{"status": "WAITING"}, {"priority": {"$gte": 0}}, {"data.to": "a"}])
def test_no_more_are_counted_than_asked_for(store: Store, query: dict[str, Any]) -> None:
    store.add([a_record(data='{"to":"a"}') for _ in range(3)])

    assert [store.count(parse(query), most) for most in (None, 2, 3, 4)] == [3, 2, 3, 3]


def test_a_store_knows_the_time_after_which_many_others_follow(store: Store) -> None:
    for number in range(6):
        at = NOON + number * SECOND
        finished(store, replace(a_record(), created_at=at, ready_at=at).at_rank(), Done(), at)
    middle = store.find(EVERYTHING, order="created_at", limit=3)[-1]

    for field in ("created_at", "ended_at"):
        place = getattr(middle, field), middle.id
        assert store.time_after(f"-{field}", 1, [Status.DONE]) == NOON + 4 * SECOND
        assert store.time_after(field, 4, [Status.DONE]) == NOON + 4 * SECOND
        assert store.time_after(field, 6, [Status.DONE]) is None
        assert store.time_after(f"-{field}", 1, [Status.DONE], place) in (NOON, NOON + SECOND)
    assert store.time_after("-ended_at", 1, [Status.FAILED]) is None
    assert store.time_after("-created_at", 1, []) == NOON + 4 * SECOND
