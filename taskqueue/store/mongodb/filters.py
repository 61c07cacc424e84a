"""Turns a query into a MongoDB filter that means exactly what ``model.query.matches`` does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bson import ObjectId

from taskqueue.model.ids import ID_TEXT, WORKFLOW
from taskqueue.model.query import IDS, TIMES, And, Compare, Operator, Or, Query
from taskqueue.model.timestamps import moment
from taskqueue.store.mongodb.documents import Document

_INT64 = 2**63
_NOWHERE: Document = {"_id": {"$in": []}}
_NAMES = {"id": "_id", "seat": "holder.seat", "id_text": f"given.{ID_TEXT}", "workflow": f"given.{WORKFLOW}"}
_COMPUTED: Mapping[str, Document] = {
    "tries": {"$add": ["$failures", "$crashes", {"$cond": [{"$in": ["$status", [2, 3]]}, 1, 0]}]},
    "took": {
        "$cond": [
            {"$in": ["$status", [3, 4, 6]]},
            {"$divide": [{"$subtract": ["$ended_at", "$started_at"]}, 1000]},
            None,
        ]
    },
}
"""The fields that documents do not contain, as expressions; null if there is no value."""

_NUMBER = ["int", "long", "double"]


def filter_of(query: Query) -> Document:
    """Return the filter for a query."""
    match query:
        case And(parts=parts):
            return _all([filter_of(part) for part in parts])
        case Or(parts=parts):
            return {"$or": [filter_of(part) for part in parts]} if parts else _NOWHERE
        case Compare(field=field) if field in _COMPUTED:
            return {"$expr": _on_computed(query, _COMPUTED[field])}
        case Compare(path=()):
            return _on_field(query)
        case Compare():
            return _on_data(query)


def _on_field(compare: Compare) -> Document:
    name = _NAMES.get(compare.field, compare.field) if compare.meta_key is None else f"given.{compare.field}"
    value: Any = compare.value
    if compare.operator is Operator.EXISTS:
        return {name: {"$exists": value}}
    if compare.operator is Operator.IN:
        return {name: {"$in": [_stored(compare.field, item) for item in value]}}
    if compare.operator is Operator.CONTAINS:
        return {name: {"$regex": re.escape(value)}}
    return {name: {compare.operator.value: _stored(compare.field, value)}}


def _on_computed(compare: Compare, computed: Document) -> Document:
    """Return the expression for a computed field; MongoDB sorts null below numbers, so null needs its own check."""
    value: Any = compare.value
    if compare.operator is Operator.EXISTS:
        return {"$gt" if value else "$eq": [computed, None]}
    if compare.operator is Operator.IN:
        return {"$in": [computed, [_stored(compare.field, item) for item in value]]}
    compared = {compare.operator.value: [computed, _stored(compare.field, value)]}
    if compare.operator in (Operator.EQ, Operator.NE):
        return compared
    return {"$and": [{"$gt": [computed, None]}, compared]}


def _stored(field: str, value: Any) -> Any:
    """Return the value in the form that documents have."""
    if value is None:
        return None
    if field in IDS and field != "workflow":  # which is text, as everything in ``given``
        return ObjectId(value)
    if field in TIMES:
        return moment(value)
    return value if isinstance(value, str) else _number(value)


def _number(value: float) -> float:
    """Return the number; for an integer beyond 64 bits return an infinity, which compares the same way."""
    if not isinstance(value, int) or -_INT64 <= value < _INT64:
        return value
    return float("inf") if value > 0 else float("-inf")


def _on_data(compare: Compare) -> Document:
    """Return a filter that, unlike MongoDB's own paths, does not look into lists."""
    path = f"data.{'.'.join(compare.path)}"
    lists = [_is_list(above) for above in _above(compare)]
    if compare.operator is Operator.EXISTS:
        if compare.value:
            return {"$nor": [*lists, {path: {"$exists": False}}]}
        return {"$or": [*lists, {path: {"$exists": False}}]}
    values = compare.value if compare.operator is Operator.IN else (compare.value,)
    return {"$or": [_equal(path, lists, value) for value in values]} if values else _NOWHERE


def _equal(path: str, lists: list[Document], value: Any) -> Document:
    if value is None:
        return {"$or": [*lists, {"$and": [{path: None}, {"$nor": [_is_list(path)]}]}]}
    parts: list[Document] = [{path: _number(value) if not isinstance(value, (str, bool)) else value}]
    if not isinstance(value, (str, bool)):
        parts.append({path: {"$type": _NUMBER}})
    return {"$and": [*parts, {"$nor": [*lists, _is_list(path)]}]}


def _above(compare: Compare) -> list[str]:
    """Return the paths above the one that is compared: ``data``, ``data.a`` for ``data.a.b``."""
    keys = ("data", *compare.path[:-1])
    return [".".join(keys[: length + 1]) for length in range(len(keys))]


def _is_list(path: str) -> Document:
    return {path: {"$type": "array"}}


def _all(parts: list[Document]) -> Document:
    if not parts:
        return {}
    return parts[0] if len(parts) == 1 else {"$and": parts}
