"""Writes values of declared types as plain data, and restores them as the annotations of the job say."""

from __future__ import annotations

import dataclasses
import enum
import sys
import types
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from typing_extensions import NotRequired, Required, is_typeddict

from taskqueue.model.codecs.forms import (
    Alias,
    Choice,
    Codec,
    Custom,
    Either,
    Fields,
    Form,
    Items,
    Leaf,
    Member,
    Model,
    Row,
    Table,
    leaf,
)

__all__ = ["Codec", "Form", "form"]


def form(kind: Any) -> Form:
    """Return the form of an annotation; for an unknown type, the form that accepts any value."""
    text = repr(kind)  # types whose unions differ only in order are equal, but the order matters
    try:
        return _form(kind, text)
    except TypeError:  # an unhashable codec
        return _form.__wrapped__(kind, text)


@lru_cache(maxsize=1024)
def _form(kind: Any, _text: str) -> Form:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        codec = next((one for one in arguments[1:] if hasattr(one, "encode") and hasattr(one, "decode")), None)
        return form(arguments[0]) if codec is None else Custom(arguments[0], codec)
    if origin in (Required, NotRequired):
        return form(arguments[0])
    if origin in (Union, types.UnionType):
        return Either([form(one) for one in arguments])
    if origin is Literal:
        return Choice(arguments)
    if not isinstance(kind, type) and hasattr(kind, "__supertype__"):
        return form(kind.__supertype__)
    if not isinstance(kind, type) and hasattr(kind, "__value__"):
        return Alias(kind, form)
    return _collection(origin or kind, arguments) or _of_class(origin or kind)


def _collection(kind: Any, items: tuple[Any, ...]) -> Form | None:
    if kind in (list, Sequence, Collection):
        return Items(list, form(items[0] if items else Any))
    if kind in (set, frozenset):
        return Items(kind, form(items[0] if items else Any))
    if kind is tuple and (not items or items[1:] == (...,)):
        return Items(tuple, form(items[0] if items else Any))
    if kind is tuple:
        return Row([form(item) for item in items])
    if kind in (dict, Mapping):
        key, item = items or (str, Any)
        return Table(form(key), form(item))
    return None


def _of_class(kind: Any) -> Form:
    if kind is None:
        return Leaf(type(None))
    if not isinstance(kind, type):
        return Form()
    if issubclass(kind, enum.Enum):
        return Member(kind)
    if dataclasses.is_dataclass(kind) or is_typeddict(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return Fields(kind, form)
    pydantic = sys.modules.get("pydantic")  # a program that uses models has imported it
    if pydantic is not None and issubclass(kind, pydantic.BaseModel):
        return Custom(kind, Model(kind))
    return leaf(kind) or Form()
