"""Compact JSON is what the standard library writes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskqueue.model.serializer import dumps

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
)


@given(VALUES)
def test_it_writes_what_json_writes(value: object) -> None:
    assert dumps(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def test_it_refuses_what_json_refuses() -> None:
    with pytest.raises(TypeError):
        dumps({"at": object()})
