"""Messages as bytes: each kind arrives as it was sent, and what is no message is refused."""

from __future__ import annotations

import enum
import types
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskqueue.daemon.protocol.channel import ChannelBroken
from taskqueue.daemon.protocol.codec import decode, encode
from taskqueue.daemon.protocol.messages import Ended, EndKind, Logged, Message, Progressed, RunsHandedBack, Stop

KINDS: tuple[type[Message], ...] = get_args(Message)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXTS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXTS, values, max_size=3),
    max_leaves=5,
)
OF_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    Any: PLAIN,
    str: TEXTS,
    int: st.integers(-(2**63), 2**63 - 1),
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    EndKind: st.sampled_from(EndKind),
    types.NoneType: st.none(),
}


def of(annotation: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for values of a field."""
    inner = [of(each) for each in get_args(annotation) if each is not ...]
    match get_origin(annotation):
        case types.UnionType:
            return st.one_of(inner)
        case kind if kind is dict:
            return st.dictionaries(*inner, max_size=3)
        case kind if kind is list:
            return st.lists(*inner, max_size=3)
        case kind if kind is tuple:
            return st.lists(*inner, max_size=3).map(tuple)
    return OF_TYPE[annotation]


class Word(str):
    """Text of a class of its own, which shows itself differently."""

    __slots__ = ()

    def __str__(self) -> str:
        return "shown"


class Number(enum.IntEnum):
    SEVEN = 7


class Seconds(float):
    pass


def ended(**fields: Any) -> Ended:
    return Ended(id="6b05", claims=1, outcome="Done", fields=fields, pid=7, started_at=1.5)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_message_arrives_as_it_was_sent(kind: type[Message], data: st.DataObject) -> None:
    fields = {name: data.draw(of(annotation)) for name, annotation in get_type_hints(kind).items()}
    message = kind(**fields)

    assert decode(encode(message)) == message


@pytest.mark.parametrize("seconds", [float("inf"), 1e308, -0.0, 2.0**-1074])
def test_numbers_arrive_that_json_does_not_have(seconds: float) -> None:
    assert decode(encode(ended(seconds=seconds))) == ended(seconds=seconds)


def test_lone_surrogates_are_written_out_wherever_they_stand() -> None:
    torn = ended(failure={"message": "caf\udce9", "bases": ["\udc80"]}, **{"\udcff": 1})

    assert decode(encode(torn)) == ended(failure={"message": "caf\\udce9", "bases": ["\\udc80"]}, **{"\\udcff": 1})
    assert decode(encode(Logged(id="6b05", claims=1, lines="\ud800"))) == Logged(id="6b05", claims=1, lines="\\ud800")


def test_values_of_derived_classes_arrive_as_what_they_are() -> None:
    sent = Progressed(id="6b05", claims=Number.SEVEN, progress=Seconds(2.5), message=Word("told"), at=1.0)

    arrived = decode(encode(sent))

    assert arrived == Progressed(id="6b05", claims=7, progress=2.5, message="told", at=1.0)
    assert isinstance(arrived, Progressed)
    assert (type(arrived.progress), type(arrived.message)) == (float, str)


def test_a_value_that_no_message_can_hold_is_refused_where_it_is_sent() -> None:
    with pytest.raises(TypeError, match="a message cannot hold a object"):
        encode(ended(result=object()))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"junk",
        b'["Stop"]',
        encode(Stop(id="a", claims=1, reason="cancel"))[:-1],
        encode(Stop(id="a", claims=1, reason="cancel")).replace(b"Stop", b"Stap"),
        encode(Stop(id="a", claims=1, reason="cancel")).replace(b"cancel", b"\xff" * 6),
        b"\x92\xaeRunsHandedBack\x01",
        b"\x91" * 100_000,
        b"\xc1" * 9,
    ],
)
def test_bytes_that_are_no_message_are_refused(payload: bytes) -> None:
    with pytest.raises(ChannelBroken, match="a message of no known form"):
        decode(payload)


def test_a_long_list_arrives() -> None:
    runs = [[f"{number:024x}", number] for number in range(5000)]

    assert decode(encode(RunsHandedBack(runs=runs))) == RunsHandedBack(runs=runs)
