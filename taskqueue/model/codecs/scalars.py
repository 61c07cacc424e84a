"""The forms of values without parts: how values of a declared type are written as data and restored."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePath
from typing import Any, Protocol, Union, get_args, get_origin
from uuid import UUID

from bson import ObjectId

from taskqueue.errors import InvalidJob
from taskqueue.model.shown_text import as_code


class Codec(Protocol):
    """The protocol of a codec of your own: ``Annotated[Money, MoneyCodec()]`` declares it for a type."""

    def encode(self, value: Any) -> Any:
        """Return the value as data that is kept; raise ``ValueError`` or ``TypeError`` if it does not fit."""

    def decode(self, plain: Any) -> Any:
        """Return the value of such data; raise ``ValueError`` or ``TypeError`` for data that do not fit."""


class Form:
    """A declared type: how its values are written and restored. This one takes any value, as it is."""

    name = "value"
    is_native = True
    """Whether data are kept and restored as these values anyway."""

    def holds(self, value: Any) -> bool:  # noqa: ARG002 - other forms look at it
        """Return whether the value is of the type, without a look at its parts."""
        return True

    def encode(self, value: Any, path: str) -> Any:  # noqa: ARG002 - other forms name it
        """Return the stored form of the value; raise ``InvalidJob`` naming the path of a misfit.

        A value in its stored form is accepted too, since command lines pass it.
        """
        return value

    def encode_without(self, names: tuple[str, ...], value: Any, path: str) -> Any:  # noqa: ARG002 - other forms look
        """Return the stored form of a value whose parts of these names are inserted, and all of it checked, later."""
        return value

    def decode(self, plain: Any, path: str) -> Any:  # noqa: ARG002 - other forms name it
        """Return the value of a stored form; raise ``InvalidJob`` naming the path of a misfit."""
        return plain


def misfit(value: Any, path: str, name: str) -> InvalidJob:
    """Return the error for a value that is not of the type."""
    text = as_code(value)
    article = "" if name == "None" else "an " if name[:1] in "AEIOaeiou" else "a "
    return InvalidJob(f"{path}: {text if len(text) <= 100 else f'{text[:97]}...'} is not {article}{name}")


class Leaf(Form):
    """A type without parts: ``write`` and ``read`` convert it, if there is anything to convert."""

    def __init__(
        self,
        kind: type,
        write: Callable[[Any], Any] | None = None,
        read: Callable[[Any], Any] | None = None,
        but: type | tuple[type, ...] = (),
    ) -> None:
        self.name = "None" if kind is type(None) else kind.__name__
        self.is_native = write is None
        self._kind, self._write, self._read, self._but = kind, write, read, but

    def holds(self, value: Any) -> bool:
        return isinstance(value, self._kind) and not isinstance(value, self._but)

    def encode(self, value: Any, path: str) -> Any:
        found = value if self.holds(value) else self.decode(value, path)
        if self._write is None:
            return found
        try:
            return self._write(found)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise InvalidJob(f"{path}: {error}") from None

    def decode(self, plain: Any, path: str) -> Any:
        if self._read is None:
            if self.holds(plain):
                return plain
            raise misfit(plain, path, self.name)
        try:
            found = self._read(plain)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            raise misfit(plain, path, self.name) from None
        return found


class _Float(Leaf):
    """A float, which whole numbers are as well."""

    def holds(self, value: Any) -> bool:
        return isinstance(value, (float, int)) and not isinstance(value, bool)


def _duration(value: timedelta) -> float:
    seconds = value.total_seconds()
    if timedelta(seconds=seconds) != value:
        raise ValueError(f"{value!r} is too long to be kept to the microsecond")
    return seconds


def _seconds(plain: Any) -> timedelta:
    if isinstance(plain, bool):
        raise TypeError
    return timedelta(seconds=plain)


def leaf(kind: Any) -> Form | None:
    """Return the form of a type without parts."""
    if kind is date:
        return Leaf(date, date.isoformat, date.fromisoformat, but=datetime)
    if kind is time:
        return Leaf(time, time.isoformat, time.fromisoformat)
    if kind is timedelta:
        return Leaf(timedelta, _duration, _seconds)
    if isinstance(kind, type) and issubclass(kind, PurePath):
        made = Path if kind is Path else kind
        return Leaf(kind, str, lambda plain: made(_text(plain)))
    if kind is float:
        return _Float(float)
    if kind is int:
        return Leaf(int, but=bool)
    if kind is type(None):
        return Leaf(type(None))
    return Leaf(kind) if kind in _NATIVE else None


_NATIVE = frozenset((str, bool, bytes, datetime, UUID, Decimal, ObjectId))
"""The types that data have anyway."""


def _text(plain: Any) -> str:
    if not isinstance(plain, str):
        raise TypeError
    return plain


class Member(Leaf):
    """A member of an enumeration, kept as its value."""

    def __init__(self, kind: type[enum.Enum]) -> None:
        super().__init__(kind, lambda member: member.value, self._member)
        self._members = kind

    def _member(self, plain: Any) -> enum.Enum:
        return self._members(tuple(plain) if isinstance(plain, list) else plain)


class Choice(Form):
    """One of the values of a ``Literal``."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self._values = {(type(value), value): value for value in values}
        self.name = f"choice of {', '.join(map(repr, values))}"
        self.is_native = not any(isinstance(value, enum.Enum) for value in values)

    def holds(self, value: Any) -> bool:
        return isinstance(value, str | int | bytes | enum.Enum | None) and (type(value), value) in self._values

    def encode(self, value: Any, path: str) -> Any:
        found = self.decode(value, path)
        return found.value if isinstance(found, enum.Enum) else found

    def decode(self, plain: Any, path: str) -> Any:
        if self.holds(plain):
            return plain
        for value in self._values.values():
            if isinstance(value, enum.Enum) and value.value == plain:
                return value
        raise misfit(plain, path, self.name)


class Custom(Form):
    """A type with a codec of the user's, or a pydantic model."""

    is_native = False

    def __init__(self, kind: Any, codec: Codec) -> None:
        self.name = getattr(kind, "__name__", str(kind))
        self._classes, self._codec = _classes(kind), codec

    def holds(self, value: Any) -> bool:
        return isinstance(value, self._classes)

    def encode(self, value: Any, path: str) -> Any:
        return self._called(self._codec.encode, value if self.holds(value) else self.decode(value, path), path)

    def decode(self, plain: Any, path: str) -> Any:
        return self._called(self._codec.decode, plain, path)

    def _called(self, convert: Callable[[Any], Any], value: Any, path: str) -> Any:
        try:
            return convert(value)
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            errors = getattr(error, "errors", None)  # errors of pydantic say where
            first = errors()[0] if callable(errors) and errors() else None
            if first is None:
                raise InvalidJob(f"{path}: {value!r} is not a {self.name} ({error})") from None
            inner = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
            raise InvalidJob(f"{path}{inner}: {first['input']!r}: {first['msg']}") from None


def _classes(kind: Any) -> tuple[type, ...]:
    """Return the classes of a type's values."""
    origin = get_origin(kind) or kind
    if origin in (Union, types.UnionType):
        return tuple(member for argument in get_args(kind) for member in _classes(argument))
    return (origin,) if isinstance(origin, type) and origin is not Any else (object,)


class Model:
    """The codec of a pydantic model, which knows by itself how to be written."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def encode(self, value: Any) -> Any:
        return value.model_dump(mode="json", by_alias=True, round_trip=True)

    def decode(self, plain: Any) -> Any:
        return self._kind.model_validate(plain)
