"""The filter language, parsed once into a small tree that each store translates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from datetime import datetime
from enum import Enum
from math import inf
from typing import Any, TypeAlias

from bson import ObjectId

from taskqueue.errors import InvalidQuery, Unreadable
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.meta import KEY_SHAPE
from taskqueue.model.other_systems import OF_STATUSES
from taskqueue.model.record import Record, Status
from taskqueue.model.serializer import as_bson
from taskqueue.model.shown_text import as_code
from taskqueue.model.timestamps import milliseconds
from taskqueue.model.wording import or_nearest

Scalar: TypeAlias = str | int | float | bool | None


class Operator(str, Enum):
    """How a field is compared; the values are the words of the language."""

    EQ = "$eq"
    NE = "$ne"
    LT = "$lt"
    LTE = "$lte"
    GT = "$gt"
    GTE = "$gte"
    IN = "$in"
    EXISTS = "$exists"
    CONTAINS = "$contains"


@dataclass(frozen=True)
class Compare:
    """One field against one value (for ``$in`` a tuple, for ``$exists`` a bool).

    Values have their stored form: text, whole numbers, times as milliseconds since 1970, ids as text of 24 digits.
    ``tags`` and ``waiting_for`` are lists: a comparison holds if it holds for any item, ``$ne`` if none is equal.
    """

    field: str
    operator: Operator
    value: Any

    @property
    def path(self) -> tuple[str, ...]:
        """Return the keys below ``data`` for a field such as ``data.customer.id``, else nothing."""
        return tuple(self.field.split(".")[1:]) if self.field.startswith("data.") else ()

    @property
    def meta_key(self) -> str | None:
        """Return the key for a field such as ``meta.tenant``, else None."""
        return self.field[5:] if self.field.startswith("meta.") else None

    def holds(self, found: Sequence[Any]) -> bool:
        """Return whether the comparison holds for the values of a record's field: none, one, or several tags."""
        match self.operator:
            case Operator.EXISTS:
                return (len(found) > 0) is self.value
            case Operator.EQ:
                return _among(self.value, found)
            case Operator.NE:
                return not _among(self.value, found)
            case Operator.IN:
                return any(_among(value, found) for value in self.value)
            case Operator.CONTAINS:
                return any(isinstance(item, str) and self.value in item for item in found)
            case Operator.LT:
                return any(_comparable(item, self.value) and item < self.value for item in found)
            case Operator.LTE:
                return any(_comparable(item, self.value) and item <= self.value for item in found)
            case Operator.GT:
                return any(_comparable(item, self.value) and item > self.value for item in found)
            case Operator.GTE:
                return any(_comparable(item, self.value) and item >= self.value for item in found)


@dataclass(frozen=True)
class And:
    """All parts hold; without parts everything matches."""

    parts: tuple[Query, ...]


@dataclass(frozen=True)
class Or:
    """At least one part holds."""

    parts: tuple[Query, ...]


Query: TypeAlias = "Compare | And | Or"

EVERYTHING = And(())
PENDING = Compare("status", Operator.LTE, int(Status.PROCESSING))
RUNNING = Compare("status", Operator.EQ, int(Status.PROCESSING))
FINAL = Compare("status", Operator.GT, int(Status.PROCESSING))

ERRORS = ("error.type", "error.message")
TEXTS = ("id_text", "job", "queue", "unique", "cause", "seat", "tags", *ERRORS)
NUMBERS = ("status", "priority", "claims", "failures", "crashes", "progress", "tries", "took")
TIMES = ("created_at", "ready_at", "started_at", "ended_at", "expires_at")
IDS = ("id", "parent", "workflow", "waiting_for")
FIELDS = (*IDS, *TEXTS, *NUMBERS, *TIMES)
"""The fields of a record that a query may name, in addition to ``data.…`` and ``meta.…``."""

_ORDERED = (Operator.LT, Operator.LTE, Operator.GT, Operator.GTE)
_FOR_DATA = (Operator.EQ, Operator.IN, Operator.EXISTS)


DEEPEST = 50
"""How deep queries may be nested in each other."""

MOST = 500
"""How many parts a query, or a list in one, may have: SQLite takes no more than a thousand levels of conditions."""

LONGEST = 1000
"""Maximum number of characters that a text may be searched for."""

FLOAT_BITS = 1000
"""Maximum number of bits of a whole number that stores compare exactly: SQLite treats longer ones as floats."""


def parse(query: Mapping[str, Any], depth: int = 0) -> Query:
    """Return the tree for a query such as ``{"queue": "mail", "status": {"$lte": 2}}``.

    Raises ``InvalidQuery`` naming the field, operator or value that the language does not have.
    """
    if not isinstance(query, Mapping):
        raise InvalidQuery(f"a query is a mapping of fields to values, {{'status': 'FAILED'}}, not {as_code(query)}")
    if depth > DEEPEST:
        raise InvalidQuery(f"the query is nested deeper than {DEEPEST} levels: flatten it")
    _check_length("the query", query)
    return And(tuple(_entry(name, value, depth) for name, value in query.items()))


def _check_length(name: str, parts: Sized) -> None:
    if len(parts) > MOST:
        raise InvalidQuery(f"{name} has {len(parts):,} parts, at most {MOST} are allowed: use $in, or several queries")


def data_holds(compare: Compare, data: str) -> bool:
    """Return whether a comparison on ``data.…`` holds for a record with this data; raise ``Unreadable``."""
    return compare.holds(_below(as_bson(data), compare.path))


def _data_holds(compare: Compare, record: Record) -> bool:
    """Return whether the comparison holds; data that cannot be read match nothing."""
    try:
        return data_holds(compare, record.data)
    except Unreadable:
        return False


def matches(query: Query, record: Record, of_data: Callable[[Compare, Record], bool] = _data_holds) -> bool:
    """Return whether the record matches; every store must agree with it. ``of_data`` decides comparisons on data."""
    match query:
        case And(parts=parts):
            return all(matches(part, record, of_data) for part in parts)
        case Or(parts=parts):
            return any(matches(part, record, of_data) for part in parts)
        case Compare(path=path) if path:
            return of_data(query, record)
        case Compare():
            return query.holds(_found(query, record))


def _entry(name: str, value: Any, depth: int) -> Query:
    if name in ("$and", "$or"):
        if not isinstance(value, Sequence) or isinstance(value, str) or not value:
            raise InvalidQuery(f"{name} takes a list of queries, at least one, not {value!r}")
        _check_length(name, value)
        parts = tuple(parse(part, depth + 1) for part in value)
        return And(parts) if name == "$and" else Or(parts)
    if not isinstance(name, str) or (name not in FIELDS and not _is_data_path(name) and not _is_meta(name)):
        raise InvalidQuery(
            f"a query cannot name {as_code(name)}: use {', '.join(FIELDS)}, data.KEY or meta.KEY"
            f"{or_nearest(name, FIELDS)}"
        )
    if not isinstance(value, Mapping):
        return _compare(name, Operator.EQ, value)
    if not value:
        raise InvalidQuery(f"{name}: {{}} has no operator: pass a value, or an operator such as $in")
    return And(tuple(_compare(name, _operator(name, word), operand) for word, operand in value.items()))


def _is_data_path(name: str) -> bool:
    return (
        name.startswith("data.")
        and "\0" not in name
        and _is_unicode(name)
        and all(key and not key.startswith("$") for key in name.split("."))
    )


def _is_meta(name: str) -> bool:
    return name.startswith("meta.") and KEY_SHAPE.fullmatch(name[5:]) is not None


def _operator(name: str, word: object) -> Operator:
    try:
        return Operator(word)
    except ValueError:
        words = [operator.value for operator in Operator]
        raise InvalidQuery(
            f"{name}: there is no operator {word!r}: use {', '.join(words)}, $and or $or{or_nearest(word, words)}"
        ) from None


def _compare(name: str, operator: Operator, value: Any) -> Compare:
    if operator is Operator.EXISTS:
        if not isinstance(value, bool):
            raise InvalidQuery(f"{name}: $exists takes true or false, not {value!r}")
        return Compare(name, operator, value)
    if name.startswith("data.") and operator not in _FOR_DATA:
        raise InvalidQuery(f"{name}: {operator.value} cannot be used on data: use equality, $in or $exists")
    if operator is Operator.CONTAINS:
        return Compare(name, operator, _part(name, value))
    if operator is Operator.IN:
        if not isinstance(value, (list, tuple, set, frozenset)):
            raise InvalidQuery(f"{name}: $in takes a list, not {as_code(value)}")
        return Compare(name, operator, tuple(_value(name, item) for item in value))
    if operator in _ORDERED and value is None:
        raise InvalidQuery(f"{name}: {operator.value} needs a value, not None")
    return Compare(name, operator, _value(name, value))


def _part(name: str, value: Any) -> str:
    """Return the text that a field must contain, or raise ``InvalidQuery``."""
    if name not in TEXTS and not _is_meta(name):
        raise InvalidQuery(f"{name}: $contains works only on text: {', '.join(TEXTS)} and meta.KEY")
    if not isinstance(value, str) or len(value) > LONGEST or "\0" in value:
        raise InvalidQuery(f"{name}: $contains takes text of up to {LONGEST:,} characters, not {as_code(value)}")
    return str(_value(name, value))


def _value(name: str, value: Any) -> Any:
    """Return the value as the stores keep it, or raise ``InvalidQuery``."""
    if isinstance(value, int) and value.bit_length() > FLOAT_BITS:  # compares alike, and has digits that can be shown
        value = inf if value > 0 else -inf
    if isinstance(value, str) and not _is_unicode(value):
        raise InvalidQuery(f"{name} cannot be compared with {value!r}, which is not valid Unicode")
    if name.startswith("data."):
        return _scalar(name, value)
    if value is None:
        return None
    if name in IDS:
        return _id(name, value)
    if name in TIMES:
        return _time(name, value)
    if name == "status" and isinstance(value, str) and value.upper() in Status.__members__:
        return int(Status[value.upper()])
    if name in NUMBERS and isinstance(value, (int, float)) and not isinstance(value, bool):
        return int(value) if isinstance(value, int) else value
    if (name in TEXTS or _is_meta(name)) and isinstance(value, str):
        if "\0" in value:
            raise InvalidQuery(f"{name} cannot be compared with {value!r}: stored text has no NUL character: remove it")
        return str(getattr(value, "value", value))
    near = _nearest_status(value) if name == "status" else ""
    raise InvalidQuery(f"{name} cannot be compared with {value!r}: pass {_expected(name)}{near}")


def _is_unicode(text: str) -> bool:
    return text.isascii() or text.encode(errors="replace").decode() == text


def _expected(name: str) -> str:
    if name == "status":
        return "a Status, its number or its name"
    return "a number" if name in NUMBERS else "text"


def _scalar(name: str, value: Any) -> Scalar:
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise InvalidQuery(
        f"{name} cannot be compared with {value!r}: data is compared with text, numbers, booleans or None"
    )


def _id(name: str, value: Any) -> str:
    if isinstance(value, ObjectId) or (isinstance(value, str) and ObjectId.is_valid(value)):
        return str(value).lower()
    text = "; the text of an id is id_text" if name == "id" else ""
    raise InvalidQuery(f"{name} cannot be compared with {value!r}: pass an ObjectId or its 24 digits{text}")


def _time(name: str, value: Any) -> int:
    if isinstance(value, datetime) and value.utcoffset() is not None:
        return milliseconds(value)
    raise InvalidQuery(f"{name} cannot be compared with {value!r}: pass an aware datetime")


def _found(compare: Compare, record: Record) -> list[Any]:
    """Return the values at the field: none if it is missing or empty, several for tags."""
    name = compare.field
    if name == "tags":
        return list(record.tags)
    if name == "waiting_for":
        return [str(id) for id in record.waiting_for]
    if compare.meta_key is not None:
        return [record.meta[compare.meta_key]] if compare.meta_key in record.meta else []
    value: Any
    if name in ERRORS:
        value = getattr(record.error, name.removeprefix("error."), None)
    else:
        value = getattr(record.holder, "seat", None) if name == "seat" else getattr(record, name)
    if value is None:
        return []
    if name in IDS:
        return [str(value)]
    if name in TIMES:
        return [milliseconds(value)]
    return [getattr(value, "value", value)]


def _below(value: Any, path: tuple[str, ...]) -> list[Any]:
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return []
        value = value[key]
    return [value]


def _among(value: Any, found: Sequence[Any]) -> bool:
    if value is None:
        return not found or None in found
    return any(isinstance(item, bool) is isinstance(value, bool) and item == value for item in found)


def _comparable(left: Any, right: Any) -> bool:
    return isinstance(left, str) is isinstance(right, str)


def _nearest_status(value: object) -> str:
    """Return the end of a sentence that names the status which was meant, or nothing."""
    ours = OF_STATUSES.get(value.upper()) if isinstance(value, str) else None
    return f"; did you mean {ours}?" if ours else or_nearest(value, Status.__members__)
