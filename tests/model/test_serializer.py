"""Job data: what is kept comes back equal; what cannot be kept is refused with its exact path."""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any

import pytest
from bson import Decimal128, ObjectId
from hypothesis import given
from hypothesis import strategies as st

from taskqueue.errors import DataTooLarge, InvalidJob, Unreadable
from taskqueue.model.serializer import DEPTH_LIMIT, canonical, decode, encode, same

NOON = datetime(2026, 7, 1, 12, tzinfo=timezone.utc)
KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8).filter(
    lambda key: not key.startswith("$")
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8")),
    st.binary(max_size=20),
    st.uuids(),
    st.builds(ObjectId, st.binary(min_size=12, max_size=12)),
    st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**20), max_value=10**20),
    st.datetimes(
        datetime.fromisoformat("1900-01-01"), datetime.fromisoformat("9000-01-01"), timezones=st.just(timezone.utc)
    ).map(lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)),
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4))


@given(value=VALUES)
def test_what_is_kept_comes_back_equal(value: Any) -> None:
    text = encode(value)

    assert decode(text) == value
    json.loads(text)


@given(value=st.dictionaries(KEYS, LEAVES, max_size=6))
def test_the_order_of_keys_does_not_matter_to_equality(value: dict[str, Any]) -> None:  # PW-6
    backwards = dict(reversed(list(value.items())))

    assert same(encode(value), encode(backwards))
    assert canonical(encode(value)) == canonical(encode(backwards))


def test_other_data_is_not_the_same() -> None:
    assert not same('{"a":1}', '{"a":2}')
    assert not same('{"a":[1,2]}', '{"a":[2,1]}')
    assert same("null", "null")


class Color(str, Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Celsius(float):
    pass


class Cities(list[str]):
    pass


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        (OrderedDict(a=1), {"a": 1}),
        (MappingProxyType({"a": [1]}), {"a": [1]}),
        (Color.RED, "red"),
        (Level.HIGH, 3),
        (Cities(["Bern"]), ["Bern"]),
        (Celsius(1.5), 1.5),
        ([True, False, None], [True, False, None]),
        (Decimal128("1.10"), Decimal("1.10")),
        (NOON.astimezone(timezone(timedelta(hours=2))), NOON),
        ("ü\u2028\0", "ü\u2028\0"),
        ("$set", "$set"),
    ],
)
def test_a_value_is_kept_as_its_plain_kind(value: object, kept: object) -> None:
    assert decode(encode({"x": value})) == {"x": kept}
    assert decode(encode(value)) == kept


def test_a_date_alone_comes_back_as_a_date() -> None:
    assert decode(encode(NOON)) == NOON


def test_text_that_mentions_a_dollar_is_text() -> None:
    value = {"a": '{"$date":1}', "b": ['"$oid"']}

    assert decode(encode(value)) == value


def cycle() -> list[Any]:
    """Return a list that contains itself."""
    loop: list[Any] = []
    loop.append(loop)
    return loop


def nested(depth: int) -> list[Any]:
    """Return lists in lists."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, {"b": object()}]}, "data['a'][1]['b']"),
        ({"a": {1: "x"}}, "data['a'] has the key 1"),
        ({"a": {"$set": 1}}, "data['a'] has the key '$set'"),
        ({"a\0b": 1}, "null character"),
        ([0, float("nan")], "data[1] is nan"),
        ([float("inf")], "data[0] is inf"),
        ([-(2**63) - 1], "data[0] is -9223372036854775809"),
        ([2**63], "beyond 64 bits"),
        ([{1, 2}], "builtins.set"),
        ([datetime.fromisoformat("2026-01-01")], "data[0]: 2026-01-01T00:00:00 has no time zone"),
        ([Decimal("NaN")], "data[0] is NaN"),
        ([Decimal("Infinity")], "data[0] is Infinity"),
        ([Decimal("1." + "1" * 40)], "34 significant digits"),
        (["\ud800"], "data[0] is not valid Unicode"),
        ({"\ud800": 1}, "not valid Unicode"),
        (cycle(), "contains itself"),
        (nested(DEPTH_LIMIT + 5), "nested deeper"),
        ([lambda: None], "function"),
        ([1j], "complex"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        encode(value)

    assert path in str(refused.value)
    assert str(refused.value).startswith("data")


def test_the_caller_is_told_which_value_it_was() -> None:
    with pytest.raises(InvalidJob, match=r"^the result"):
        encode(object(), "the result")


def test_data_may_be_nested_as_deep_as_documented() -> None:
    assert decode(encode(nested(DEPTH_LIMIT))) == nested(DEPTH_LIMIT)


@pytest.mark.parametrize("text", ["x" * 98, "ü" * 49])
def test_the_limit_counts_bytes(text: str) -> None:
    assert decode(encode(text, limit=100)) == text
    with pytest.raises(DataTooLarge) as refused:
        encode(text + "ü", limit=100)
    assert (refused.value.size, refused.value.limit) == (102, 100)
    assert "102 bytes, at most 100" in str(refused.value)


def test_a_uuid_is_kept_as_such() -> None:
    value = uuid.uuid4()

    assert decode(encode([value])) == [value]


EAST, WEST = (timezone(timedelta(hours=hours)) for hours in (14, -12))


@pytest.mark.parametrize("moment", [datetime.max.replace(tzinfo=WEST), datetime.min.replace(tzinfo=EAST)])
@pytest.mark.parametrize("what", ["data", "result", "checkpoint"])
def test_a_time_that_is_out_of_the_calendar_in_utc_is_refused_with_its_path(moment: datetime, what: str) -> None:
    with pytest.raises(InvalidJob, match=rf"^{what}\['a'\]\[0\] is .*, which in UTC is outside the years 1 to 9999"):
        encode({"a": [moment]}, what)


@pytest.mark.parametrize("moment", [datetime.max.replace(tzinfo=EAST), datetime.min.replace(tzinfo=WEST)])
def test_a_time_that_is_in_the_calendar_in_utc_comes_back(moment: datetime) -> None:
    whole = moment.replace(microsecond=moment.microsecond // 1000 * 1000)

    assert decode(encode([whole])) == [whole]


@pytest.mark.parametrize("text", ['{"a":{"$date":{"$numberLong":"999999999999999999"}}}', '{"a":', "[" * 100_000])
def test_text_that_cannot_be_read_is_said_to_be_that(text: str) -> None:
    with pytest.raises(Unreadable, match="the stored text is not Extended JSON that can be read here"):
        decode(text)


def test_a_number_of_many_digits_is_refused_with_its_path() -> None:
    with pytest.raises(InvalidJob, match=r"data\['n'\] is a whole number of [0-9,]+ bits, beyond 64 bits"):
        encode({"n": 10**5000})
