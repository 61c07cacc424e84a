"""Limits as values: what they count by, and how they are written (LZQ-10, X-22)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from taskqueue.errors import InvalidOption
from taskqueue.model.limits import Declared, Family, Limit, Rate, declared, family_of, lane, limit_keys_of


def keys(*limits: Declared, data: Any = None, job: str = "app:Mail") -> list[str]:
    """Return the keys that a job with these limits needs places under."""
    return [slot.key for slot in limit_keys_of(lane(limits, job, data))]


def test_a_limit_counts_by_class_by_chosen_data_or_by_name() -> None:
    data = {"bucket": "a", "customer": {"id": 7}}

    assert keys(Limit(5)) == ["limit:app:Mail"]
    assert keys(Limit(5, by="bucket"), data=data) == ['limit:app:Mail by=bucket "a"']
    assert keys(Limit(5, by=["customer.id", "bucket"]), data=data) == ['limit:app:Mail by=customer.id,bucket 7 "a"']
    assert keys(Limit(5, name="api")) == keys(Limit(5, name="api"), job="app:Other") == ["limit:name=api"]
    assert keys(Rate(5, per=60)) == ["rate/60:app:Mail"]


@pytest.mark.parametrize("data", [None, 5, [], {}, {"a": None}, {"a": 5}, {"a": {"c": 1}}])
def test_what_the_data_do_not_have_counts_as_null(data: Any) -> None:
    assert keys(Limit(5, by="a.b"), data=data) == ["limit:app:Mail by=a.b null"]


def test_a_long_value_is_counted_by_its_hash() -> None:
    one, other = (keys(Limit(5, by="a"), data={"a": "x" * 500 + end}) for end in "ab")

    assert one != other
    assert max(len(key) for key in one + other) <= 200


@pytest.mark.parametrize("data", [{"a": "b c"}, {"a": "x" * 500}, {}])
@pytest.mark.parametrize("limit", [Limit(5), Limit(5, by="a"), Rate(5, per=60, by=["a", "b"], name="api")])
def test_a_family_has_the_limit_for_all_values(limit: Declared, data: Any) -> None:
    [slot] = limit_keys_of(lane([limit], "app:Mail", data))

    assert slot.family == family_of(limit, "app:Mail")


@pytest.mark.parametrize(
    ("limit", "parts", "argument"),
    [
        (Limit(5), ("app:Mail", None, ()), "8"),
        (Limit(5, by="a"), ("app:Mail", None, ("a",)), "8 by=a"),
        (Rate(5, per=0.5, by=["a", "b.c"], name="api"), ("name=api", 0.5, ("a", "b.c")), "8/0.5 by=a,b.c"),
    ],
)
def test_a_family_is_read_as_it_is_written(limit: Declared, parts: tuple[Any, ...], argument: str) -> None:
    family = Family.of(family_of(limit, "app:Mail"))

    assert (family, str(family)) == (parts, family_of(limit, "app:Mail"))
    assert family.as_argument(8) == argument


def test_a_damaged_family_has_no_period() -> None:
    assert Family.of("rate/often:app:Mail").per is None


def test_jobs_of_one_lane_need_the_same() -> None:
    limits = (Limit(2), Rate(3, per=1))

    assert lane(limits, "app:Mail", 1) == lane(limits[::-1], "app:Mail", 2)
    assert lane((), "app:Mail", None) == ""
    assert limit_keys_of("") == ()


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("5", Limit(5)),
        ("5 by=a,b.c", Limit(5, by=("a", "b.c"))),
        ("100/60", Rate(100, per=60)),
        ("100/0.5 by=a name=api", Rate(100, per=0.5, by="a", name="api")),
    ],
)
def test_a_limit_can_be_written(text: str, limit: Declared) -> None:
    assert declared(text) == limit
    assert str(limit) == text


@given(some.integers(1, 10_000), some.one_of(some.none(), some.floats(0.001, 86_400)), some.booleans(), some.booleans())
def test_every_limit_is_read_as_it_is_written(count: int, per: float | None, by: bool, name: bool) -> None:
    chosen, shared = "a.b" if by else None, "api" if name else None
    limit = Limit(count, chosen, shared) if per is None else Rate(count, round(per, 3), chosen, shared)

    assert str(declared(str(limit))) == str(limit)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Limit(0), "from 1 to 10,000"),
        (lambda: Limit(True), "from 1 to 10,000"),
        (lambda: Limit(5, by=""), "pass a key of the job's data"),
        (lambda: Limit(5, by=[]), "pass a key of the job's data"),
        (lambda: Limit(5, by="a b"), "pass a key of the job's data"),
        (lambda: Limit(5, by=7), "pass a key of the job's data"),  # type: ignore[arg-type]
        (lambda: Limit(5, by="caf\udce9"), "pass a key of the job's data"),
        (lambda: Limit(5, name="a b"), "without spaces"),
        (lambda: Limit(5, name="caf\udce9"), "without spaces"),
        (lambda: Rate(5, per=0), "pass seconds from 0.001"),
        (lambda: Rate(5, per=32 * 86_400), "pass seconds from 0.001"),
        (lambda: declared("9" * 5000), "or text such as '5 by=bucket'"),
        (lambda: lane([Limit(5), Limit(6)], "app:Mail", None), "two limits of one job count the same"),
    ],
)
def test_what_is_no_limit_is_refused(make: Any, words: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        make()

    assert words in str(refused.value)
