"""Writes values of declared types as plain data, and restores them as the annotations of the job say: ``form``."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import sys
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property, lru_cache
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Protocol, Union, get_args, get_origin
from uuid import UUID

from bson import ObjectId
from typing_extensions import NotRequired, Required, get_type_hints, is_typeddict

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
    """Whether the values are kept and restored unchanged."""

    def holds(self, value: Any) -> bool:  # noqa: ARG002 - other forms look at it
        """Return whether the value has the type, ignoring its parts."""
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
        fitting = value if self.holds(value) else self.decode(value, path)
        if self._write is None:
            return fitting
        try:
            return self._write(fitting)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise InvalidJob(f"{path}: {error}") from None

    def decode(self, plain: Any, path: str) -> Any:
        if self._read is None:
            if self.holds(plain):
                return plain
            raise misfit(plain, path, self.name)
        try:
            return self._read(plain)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            raise misfit(plain, path, self.name) from None


class _Float(Leaf):
    """A float; whole numbers are accepted, too."""

    def holds(self, value: Any) -> bool:
        return isinstance(value, (float, int)) and not isinstance(value, bool)


def _duration(value: timedelta) -> float:
    seconds = value.total_seconds()
    if timedelta(seconds=seconds) != value:
        raise ValueError(f"{value!r} is too long to be stored to the microsecond")
    return seconds


def _seconds(plain: Any) -> timedelta:
    if isinstance(plain, bool):
        raise TypeError
    return timedelta(seconds=plain)


def leaf(kind: Any) -> Form | None:
    """Return the form of a type that has no parts."""
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
"""The types of plain data, which are kept as they are."""


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
        chosen = self.decode(value, path)
        return chosen.value if isinstance(chosen, enum.Enum) else chosen

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


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Items(Form):
    """A list, a set, or a tuple of any length, kept as a list."""

    def __init__(self, kind: Callable[[Any], Any], item: Form) -> None:
        self.name = kind.__name__
        self._kind, self._item = kind, item
        self.is_native = kind is list and self._item.is_native

    def holds(self, value: Any) -> bool:
        return isinstance(value, list | tuple) if self._kind is list else isinstance(value, self._kind)  # type: ignore[arg-type]

    def encode(self, value: Any, path: str) -> Any:
        if not isinstance(value, list | tuple | set | frozenset) or (self._kind is list and isinstance(value, set)):
            raise misfit(value, path, self.name)
        if isinstance(value, list | tuple):
            return [self._item.encode(item, f"{path}[{index}]") for index, item in enumerate(value)]
        encoded = [self._item.encode(item, f"{path}{{{item!r}}}") for item in value]
        return sorted(encoded, key=lambda item: json.dumps(item, sort_keys=True, default=str))

    def decode(self, plain: Any, path: str) -> Any:
        if not isinstance(plain, list):
            raise misfit(plain, path, self.name)
        items = [self._item.decode(item, f"{path}[{index}]") for index, item in enumerate(plain)]
        try:
            return self._kind(items)
        except TypeError as error:  # a set of items that cannot be hashed
            raise InvalidJob(f"{path}: {error}") from None


class Row(Form):
    """A tuple whose items have types of their own, kept as a list."""

    name = "tuple"
    is_native = False

    def __init__(self, items: Sequence[Form]) -> None:
        self._items = items

    def holds(self, value: Any) -> bool:
        return isinstance(value, tuple) and len(value) == len(self._items)

    def encode(self, value: Any, path: str) -> Any:
        return [form.encode(item, f"{path}[{index}]") for index, (form, item) in enumerate(self._pairs(value, path))]

    def decode(self, plain: Any, path: str) -> Any:
        pairs = enumerate(self._pairs(plain, path))
        return tuple(form.decode(item, f"{path}[{index}]") for index, (form, item) in pairs)

    def _pairs(self, value: Any, path: str) -> list[tuple[Form, Any]]:
        if not isinstance(value, list | tuple) or len(value) != len(self._items):
            raise misfit(value, path, f"{self.name} of {len(self._items)}")
        return list(zip(self._items, value, strict=True))


class Table(Form):
    """A mapping; its keys are kept as text."""

    name = "mapping"

    def __init__(self, key: Form, item: Form) -> None:
        self._key, self._item = key, item
        self._digits = key.name == "int"
        self.is_native = self._key.is_native and not self._digits and self._item.is_native

    def holds(self, value: Any) -> bool:
        return isinstance(value, Mapping)

    def encode(self, value: Any, path: str) -> Any:
        if not self.holds(value):
            raise misfit(value, path, self.name)
        return {self._written(key, path): self._item.encode(item, f"{path}[{key!r}]") for key, item in value.items()}

    def decode(self, plain: Any, path: str) -> Any:
        if not self.holds(plain):
            raise misfit(plain, path, self.name)
        return {self._read(key, path): self._item.decode(item, f"{path}[{key!r}]") for key, item in plain.items()}

    def _written(self, key: Any, path: str) -> Any:
        encoded = self._key.encode(self._read(key, path) if isinstance(key, str) else key, f"{path} key")
        if isinstance(encoded, list | dict):
            raise InvalidJob(f"{path} key: {key!r} is not stored as text: use keys that are")
        return str(encoded) if self._digits else encoded

    def _read(self, key: str, path: str) -> Any:
        plain: Any = key
        if self._digits and key.lstrip("-").isdecimal():
            with suppress(ValueError):  # too many signs or digits
                plain = int(key)
        return self._key.decode(plain, f"{path} key")


class Fields(Form):
    """A dataclass, ``NamedTuple`` or ``TypedDict``, kept as a mapping of its fields."""

    is_native = False

    def __init__(self, kind: Any) -> None:
        self.name = kind.__name__
        self._kind = kind
        self._is_dict = is_typeddict(kind)

    @cached_property
    def _hints(self) -> dict[str, Any]:
        """The type of each field, found when first used: a type may contain itself."""
        try:
            return get_type_hints(self._kind, include_extras=True)
        except Exception as error:  # an annotation is code of the user
            raise InvalidJob(
                f"the types of {self.name} cannot be resolved ({error}): import them outside of TYPE_CHECKING"
            ) from None

    @cached_property
    def _forms(self) -> dict[str, Form]:
        if not dataclasses.is_dataclass(self._kind):
            return {name: form(hint) for name, hint in self._hints.items()}
        kind: Any = self._kind
        fields = [field.name for field in dataclasses.fields(kind) if field.init]
        for name, parameter in inspect.signature(kind).parameters.items():
            if name not in fields and parameter.default is parameter.empty and parameter.kind in _BY_NAME:
                raise InvalidJob(
                    f"{self.name} cannot be restored: it needs {name!r}, which is not a field and so is not stored: "
                    "give it a default, or make it a field"
                )
        return {name: form(self._hints[name]) for name in fields}

    @cached_property
    def _needed(self) -> frozenset[str]:
        if self._is_dict:
            # Where annotations are text, as after ``from __future__``, the keys do not know about NotRequired.
            named = {name for name, hint in self._hints.items() if get_origin(hint) is Required}
            optional = {name for name, hint in self._hints.items() if get_origin(hint) is NotRequired}
            return frozenset(self._kind.__required_keys__ | named) - optional
        if dataclasses.is_dataclass(self._kind):
            fields = dataclasses.fields(self._kind)
            missing = dataclasses.MISSING
            return frozenset(
                field.name for field in fields if field.default is missing and field.default_factory is missing
            )
        return frozenset(self._forms).difference(self._kind._field_defaults)

    def holds(self, value: Any) -> bool:
        return isinstance(value, Mapping) if self._is_dict else isinstance(value, self._kind)

    def encode(self, value: Any, path: str) -> Any:
        return self.encode_without((), value, path)

    def encode_without(self, names: tuple[str, ...], value: Any, path: str) -> Any:
        given = self._given(value, path)
        for name in (*given, *names):
            if name not in self._forms:
                raise InvalidJob(f"{path}: {self.name} has no field {name!r}: use {', '.join(self._forms)}")
        self._check({**given, **dict.fromkeys(names)} if names else given, path)
        try:
            return {name: self._forms[name].encode(item, self._path(path, name)) for name, item in given.items()}
        except RecursionError:
            raise InvalidJob(f"{path[:100]}... is nested too deeply, or contains itself: pass flat data") from None

    def decode(self, plain: Any, path: str) -> Any:
        if not isinstance(plain, Mapping):
            raise misfit(plain, path, self.name)
        self._check(plain, path)
        forms = self._forms
        known_fields = {name: item for name, item in plain.items() if name in forms}
        fields = {name: forms[name].decode(item, self._path(path, name)) for name, item in known_fields.items()}
        if self._is_dict:
            return fields
        try:
            return self._kind(**fields)
        except (TypeError, ValueError) as error:
            raise InvalidJob(f"{path}: {error}") from None
        except Exception as error:  # of its __post_init__
            raise InvalidJob(f"{path}: {type(error).__name__}: {error}") from None

    def _given(self, value: Any, path: str) -> Mapping[str, Any]:
        if isinstance(value, Mapping):
            return value
        if type(value) is not self._kind:  # one of a subclass would be restored without its own fields
            raise misfit(value, path, self.name)
        return {name: getattr(value, name) for name in self._forms}

    def _check(self, given: Mapping[str, Any], path: str) -> None:
        missing = [name for name in self._forms if name in self._needed and name not in given]
        if missing:
            raise InvalidJob(f"{self._path(path, missing[0])} is missing: {self.name} requires it")

    def _path(self, path: str, name: str) -> str:
        return f"{path}[{name!r}]" if self._is_dict else f"{path}.{name}"


class Either(Form):
    """A value of one of several types: the first that takes it."""

    def __init__(self, forms: Sequence[Form]) -> None:
        self._forms = forms
        self.name = " or ".join(form.name for form in forms)
        self.is_native = all(form.is_native for form in forms)

    def holds(self, value: Any) -> bool:
        return any(form.holds(value) for form in self._forms)

    def encode(self, value: Any, path: str) -> Any:
        fitting = [form for form in self._forms if form.holds(value)]
        if not fitting:
            return self._first(self._forms, value, path, encoded=True)
        if len(fitting) == 1 and (value is None or (len(self._forms) == 2 and self._is_optional)):
            return fitting[0].encode(value, path)
        plain = self._first(fitting, value, path, encoded=True)
        restored = self.decode(plain, path)
        if type(restored) is not type(value) and not self.is_native:
            raise InvalidJob(
                f"{path}: {value!r} would be restored as {restored!r}: the types {self.name} look the same "
                "when stored: add a Literal field that tells them apart"
            )
        return plain

    def decode(self, plain: Any, path: str) -> Any:
        return self._first(self._forms, plain, path, encoded=False)

    @cached_property
    def _is_optional(self) -> bool:
        return any(form.holds(None) for form in self._forms)

    def _first(self, forms: Sequence[Form], value: Any, path: str, *, encoded: bool) -> Any:
        refusals = []
        for form in forms:
            try:
                return form.encode(value, path) if encoded else form.decode(value, path)
            except InvalidJob as refused:
                refusals.append(refused)
        # The error about a part says more than the error about the whole.
        inner = [refusal for refusal in refusals if not str(refusal).startswith(f"{path}: ")]
        raise inner[0] if len(inner) == 1 else misfit(value, path, self.name)


class Alias(Form):
    """A name for a type, ``type X = Y``, which is looked at when first used: it may contain itself."""

    is_native = False

    def __init__(self, kind: Any) -> None:
        self.name = str(kind)
        self._kind = kind

    @cached_property
    def _meant(self) -> Form:
        return form(self._kind.__value__)

    def holds(self, value: Any) -> bool:
        return self._meant.holds(value)

    def encode(self, value: Any, path: str) -> Any:
        return self._meant.encode(value, path)

    def decode(self, plain: Any, path: str) -> Any:
        return self._meant.decode(plain, path)


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
        codec = next((note for note in arguments[1:] if hasattr(note, "encode") and hasattr(note, "decode")), None)
        return form(arguments[0]) if codec is None else Custom(arguments[0], codec)
    if origin in (Required, NotRequired):
        return form(arguments[0])
    if origin in (Union, types.UnionType):
        return Either([form(argument) for argument in arguments])
    if origin is Literal:
        return Choice(arguments)
    if not isinstance(kind, type) and hasattr(kind, "__supertype__"):
        return form(kind.__supertype__)
    if not isinstance(kind, type) and hasattr(kind, "__value__"):
        return Alias(kind)
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
        return Fields(kind)
    pydantic = sys.modules.get("pydantic")  # a program that uses models has imported it
    if pydantic is not None and issubclass(kind, pydantic.BaseModel):
        return Custom(kind, Model(kind))
    return leaf(kind) or Form()
